//! What the proxy asks of the kernel, seen by `strace`: it runs no other program, and a sync is one message or none.

#![forbid(unsafe_code)]

mod support;

use std::path::Path;

use support::mixed;
use support::objects::slices;
use support::plan::Family;
use support::proxy::{Proxy, config};
use support::strace::{self, Call};
use support::world::World;
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

/// What a start sends before the first sync: to ask whether the kernel would take our rules, one batch for each family, and the lock.
const BEFORE: usize = 3;

#[test]
fn a_sync_is_one_message_and_no_other_program_runs() {
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

    // A6: nothing of this reaches the rules.
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
