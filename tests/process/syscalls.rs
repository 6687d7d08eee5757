//! What the proxy asks of the kernel: it runs no other program, and a sync is one message or none (seen by `strace`); and how often it wakes
//! while nothing happens.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::mixed;
use crate::support::objects::slices;
use crate::support::plan::Family;
use crate::support::proxy::{Proxy, config};
use crate::support::strace::{self, Call};
use crate::support::world::World;
use tempfile::TempDir;

/// How many batches a trace holds; a batch in pieces fails the test.
fn batches(trace: &Path) -> usize {
    let calls = strace::read_calls(trace);
    assert!(!calls.contains(&Call::BrokenBatch), "a batch was sent in pieces: {calls:?}");
    calls.iter().filter(|call| **call == Call::Batch).count()
}

fn executions(trace: &Path) -> usize {
    strace::read_calls(trace).iter().filter(|call| **call == Call::Execve).count()
}

/// What a start sends before the first sync: a batch that asks whether the kernel would take our rules, of both families, and the lock.
const BEFORE: usize = 2;

#[test]
fn a_sync_is_one_message_and_no_other_program_runs() {
    // A sync is one message, and a change that is none sends nothing (G14).
    let world = World::new();
    let directory = TempDir::new().expect("a temporary directory can be made");
    let trace = directory.path().join("trace");
    let wrapper = strace::wrapper(&trace);
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let mut proxy = Proxy::start_under(&wrapper, &world.node, &config(), &mixed::cluster());
    assert_eq!(batches(&trace), BEFORE + 1, "the first sync, of both families");

    let two = slices("shop", "web", &[0, 2], &mixed::WEB_PORTS);
    proxy.apply(&two[..1]);
    assert_eq!(batches(&trace), BEFORE + 2, "endpoints of one slice changed");
    proxy.apply(&[mixed::web().external_ip(Family::V4.external_ip(2)).json()]);
    assert_eq!(batches(&trace), BEFORE + 3, "a Service changed");
    proxy.delete(&two[1..]);
    assert_eq!(batches(&trace), BEFORE + 4, "a slice went");

    // A change of metadata reaches no rule (A6).
    let with_label = mixed::web().external_ip(Family::V4.external_ip(2)).label("team", "blue").json();
    let mut annotated = two[0].clone();
    annotated["metadata"]["annotations"] = serde_json::json!({ "note": "hello" });
    for object in [with_label, annotated] {
        proxy.manifests().apply(&object);
        proxy.wait_until_quiet();
        assert_eq!(batches(&trace), BEFORE + 4, "only metadata of {} changed", object["kind"]);
    }

    proxy.stop();
    assert_eq!(executions(&trace), 1, "the proxy itself, and nothing else");
}

/// The time that a proxy has for what follows its first sync, and the time for which it is watched then.
const SETTLED: Duration = Duration::from_secs(5);
const WATCHED: Duration = Duration::from_secs(10);
/// The most wake-ups in [`WATCHED`]: fewer than two a second, and room for what is rare.
const WAKEUPS: u64 = 20;

fn assert_rarely_wakes(proxy: &Proxy<'_>) {
    sleep(SETTLED);
    let before = proxy.activity();
    sleep(WATCHED);
    let idle = proxy.activity().since(before);
    println!("in {WATCHED:?}: {idle:?}");
    assert!(idle.wakeups <= WAKEUPS, "{idle:?}");
}

// Nothing but the look for writes of other programs wakes an idle proxy more often than once in some seconds (G10).
#[test]
fn an_idle_proxy_wakes_fewer_than_twice_a_second() {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    assert_rarely_wakes(&proxy);
}

#[test]
fn an_idle_proxy_with_an_api_server_wakes_fewer_than_twice_a_second() {
    let world = World::new();
    let server = world.node.enter(|| ApiServer::start(Scheme::Https));
    server.apply(&mixed::cluster());
    let mut proxy = Proxy::with_api(&world.node, &config(), &server.kubeconfig(&serde_json::json!({})));
    proxy.launch();
    assert_rarely_wakes(&proxy);
}
