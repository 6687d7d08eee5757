//! Runs the cases, several at once, each in namespaces of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use super::case::{Case, all};
use super::judge::{is_slow, judge};
use super::network::Network;
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::proxy::Proxy;

/// Cases at once, unless the machine is slow: most of the time they wait for answers that must not come.
const AT_ONCE: usize = 4;
/// The least number of cases: a folder with fewer is not the folder of the conformance cases.
const AT_LEAST: usize = 60;

/// What is wrong with a case; nothing, if nothing.
fn run(case: &Case, layout: Layout) -> Vec<String> {
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        let network = Network::new(case);
        let _proxy = Proxy::start(&network.node, &case.config(layout), &case.objects());
        judge(&network, case)
    }));
    attempt.unwrap_or_else(|panic| vec![text_of(&*panic)])
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".to_owned())
}

/// With `$CONFORMANCE_ONE_IN` set to a number, only each so-manieth case is run, where machines are slow; the layouts take different ones.
fn chosen(cases: Vec<Case>, layout: Layout) -> Vec<Case> {
    let Some(text) = std::env::var_os("CONFORMANCE_ONE_IN") else { return cases };
    let number: usize = text.to_string_lossy().parse().expect("CONFORMANCE_ONE_IN is a number");
    let skipped = if layout == Layout::Chains { 1 } else { 0 };
    cases.into_iter().skip(skipped).step_by(number).collect()
}

test_in_each_layout!(
    every_case_is_as_it_says,
    ignore = "needs the cases beside the repository; `make test` and vm-tests run it where they are"
);
fn every_case_is_as_it_says(layout: Layout) {
    let cases = all();
    assert!(cases.len() >= AT_LEAST, "{} cases", cases.len());
    let cases = chosen(cases, layout);
    let (queue, wrong) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..if is_slow() { 1 } else { AT_ONCE } {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics with it").next();
                    let Some(case) = next else { break };
                    let found = run(case, layout);
                    if !found.is_empty() {
                        let text = format!("{}:\n    {}", case.id, found.join("\n    "));
                        eprintln!("{text}");
                        wrong.lock().expect("no thread panics with it").push(text);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics with it");
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} cases", cases.len());
}
