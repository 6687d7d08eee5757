//! What the proxy asks of the kernel, seen by `strace`: it runs no other program, and a sync is one message or none.

use std::path::Path;

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
