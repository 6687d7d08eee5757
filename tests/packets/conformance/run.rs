//! Runs the cases and the sequences, several at once, each in namespaces of its own.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::case::{Case, Sequence, all, sequences};
use super::explained::judge_by_manifests;
use super::judge::{Memory, is_slow, judge};
use super::network::Network;
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::proxy::Proxy;

/// Cases at once, unless the machine is slow: most of the time they wait for answers that must not come.
const AT_ONCE: usize = 4;
/// The least number of cases: a folder with fewer is not the folder of the conformance cases.
const AT_LEAST: usize = 60;
/// The same of the sequences.
const SEQUENCES_AT_LEAST: usize = 10;
/// How long the proxy may take to notice a step. One that changes nothing for it leads to no sync.
const NOTICED: Duration = Duration::from_millis(1500);

/// What is wrong with a case; nothing, if nothing.
fn run(case: &Case, layout: Layout) -> Vec<String> {
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        let network = Network::new(&[case]);
        let proxy = Proxy::start(&network.node, &case.config(layout), &case.objects());
        // Before any packet, because the kernel's maps remember clients afterwards, and manifests do not.
        let mut wrong = judge_by_manifests(&network, &proxy, case, layout);
        wrong.extend(judge(&network, case, &mut Memory::new()));
        wrong
    }));
    attempt.unwrap_or_else(|panic| vec![text_of(&*panic)])
}

/// What is wrong with the steps of a sequence.
fn run_sequence(sequence: &Sequence, layout: Layout) -> Vec<String> {
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        let steps: Vec<&Case> = sequence.steps.iter().collect();
        let network = Network::new(&steps);
        let mut proxy = Proxy::start(&network.node, &steps[0].config(layout), &steps[0].objects());
        let (mut memory, mut wrong) = (Memory::new(), Vec::new());
        let mut before: Option<&Case> = None;
        for (number, step) in (1..).zip(&steps) {
            if let Some(before) = before {
                follow(&mut proxy, before, step, sequence.restarts.contains(&number));
            }
            if !sequence.remembers.contains(&number) {
                memory.clear();
            }
            let found = judge(&network, step, &mut memory);
            wrong.extend(found.into_iter().map(|what| format!("step {number} ({}): {what}", step.id)));
            before = Some(step);
        }
        wrong
    }));
    attempt.unwrap_or_else(|panic| vec![text_of(&*panic)])
}

/// Makes the objects of one step those of the next one, while the proxy runs or while it is stopped.
fn follow(proxy: &mut Proxy, before: &Case, step: &Case, restarts: bool) {
    let name =
        |object: &Value| ["/kind", "/metadata/namespace", "/metadata/name"].map(|at| object.pointer(at).cloned());
    let by_name =
        |case: &Case| case.objects().into_iter().map(|object| (format!("{:?}", name(&object)), object)).collect();
    let (old, new): (BTreeMap<String, Value>, BTreeMap<String, Value>) = (by_name(before), by_name(step));
    if restarts {
        proxy.stop();
    }
    let synced = proxy.sync_times();
    for (name, object) in &old {
        if new.get(name).is_none_or(|now| now["metadata"]["uid"] != object["metadata"]["uid"]) {
            proxy.manifests().delete(object);
        }
    }
    new.iter()
        .filter(|(name, object)| old.get(*name) != Some(object))
        .for_each(|(_, object)| proxy.manifests().apply(object));
    if restarts {
        proxy.launch();
        return;
    }
    let end = Instant::now() + NOTICED;
    while old != new && proxy.sync_times() == synced && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    proxy.wait_until_quiet();
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".to_owned())
}

/// With `$CONFORMANCE_ONE_IN` set to a number, only each so-manieth case is run, where machines are slow; the layouts take different ones.
fn chosen<T>(cases: Vec<T>, layout: Layout) -> Vec<T> {
    let Some(text) = std::env::var_os("CONFORMANCE_ONE_IN") else { return cases };
    let number: usize = text.to_string_lossy().parse().expect("CONFORMANCE_ONE_IN is a number");
    let skipped = if layout == Layout::Chains { 1 } else { 0 };
    cases.into_iter().skip(skipped).step_by(number).collect()
}

// What becomes of each probe is also what `explain` says of it (Q1).
test_in_each_layout!(
    every_case_is_as_it_says,
    ignore = "needs the cases beside the repository; `make test` and vm-tests run it where they are"
);
fn every_case_is_as_it_says(layout: Layout) {
    let cases = all();
    assert!(cases.len() >= AT_LEAST, "{} cases", cases.len());
    let cases = chosen(cases, layout);
    run_all(&cases, |case| (&case.id, run(case, layout)));
    println!("{} cases", cases.len());
}

// The same, of states that follow each other, and of UDP flows that go on (Q1, Q2).
test_in_each_layout!(
    every_step_of_a_sequence_is_as_it_says,
    ignore = "needs the cases beside the repository; `make test` and vm-tests run it where they are"
);
fn every_step_of_a_sequence_is_as_it_says(layout: Layout) {
    let sequences = sequences();
    assert!(sequences.len() >= SEQUENCES_AT_LEAST, "{} sequences", sequences.len());
    let flows = sequences.iter().flat_map(|sequence| &sequence.steps).flat_map(|step| &step.probes);
    assert!(flows.filter(|probe| probe.flow.is_some()).count() >= 6, "a UDP flow goes through the steps of a sequence");
    let sequences = chosen(sequences, layout);
    run_all(&sequences, |sequence| (&sequence.id, run_sequence(sequence, layout)));
    println!("{} sequences", sequences.len());
}

/// Runs them, several at once, and fails with all that is wrong.
fn run_all<T: Sync>(all: &[T], run: impl Fn(&T) -> (&str, Vec<String>) + Sync) {
    let (queue, wrong) = (Mutex::new(all.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..if is_slow() { 1 } else { AT_ONCE } {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics with it").next();
                    let Some(next) = next else { break };
                    let (id, found) = run(next);
                    if !found.is_empty() {
                        let text = format!("{id}:\n    {}", found.join("\n    "));
                        eprintln!("{text}");
                        wrong.lock().expect("no thread panics with it").push(text);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics with it");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
