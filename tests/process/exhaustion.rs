//! A process whose address space is used up: the last line of its log says so, in the form of the log.
//!
//! Runs the binary in a node's namespace (root) with a limit of its address space. A limit of a container's memory leads to no such end:
//! there the kernel kills the process.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use crate::support::objects::{node, service, slice};
use crate::support::plan::Family::V4;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;
use regex::Regex;
use serde_json::{Value, json};

/// Bytes of address space beside those that a proxy without objects has taken: less than the text of [`many`] takes.
const ROOM: u64 = 8 << 20;
const SERVICES: u32 = 40_000;
const SIGABRT: i32 = 6;
/// One arena of the allocator: each takes 64 MiB of address space, and how many there are depends on which threads met.
const ONE_ARENA: [&str; 2] = ["env", "MALLOC_ARENA_MAX=1"];

/// Services with one endpoint each, as one list.
fn many() -> Value {
    let objects = (0..SERVICES).flat_map(|n| {
        let name = format!("many-{n}");
        let [_, high, middle, low] = n.to_be_bytes();
        let port = [("http", Proto::Tcp, 80)];
        [
            service("many", &name).cluster_ip([10, 100 + high, middle, low].into()).port("http", Proto::Tcp, 80).json(),
            slice("many", &name, &name, &[V4.endpoint(0)], &port),
        ]
    });
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "name": "many" }, "items": objects.collect::<Vec<_>>() })
}

/// The most address space that the process ever had, in bytes.
fn peak(proxy: &Proxy<'_>) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", proxy.pid())).expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The last line of the log of a proxy that has too little address space for its objects.
fn last_line(format: &str) -> String {
    let world = World::new();
    let mut configuration = config();
    configuration["logging"] = json!({ "format": format });
    let mut proxy = Proxy::prepare(&world.node, &configuration, &[node()]);
    proxy.set_wrapper(&ONE_ARENA);
    proxy.launch();
    let limit = peak(&proxy) + ROOM;
    assert!(proxy.stop().success());

    proxy.manifests().apply(&many());
    proxy.set_wrapper(&[&ONE_ARENA[..], &["prlimit", &format!("--as={limit}")]].concat());
    proxy.spawn();
    let status = proxy.wait_for_end();
    let log = proxy.log();
    let last = log.lines().last().unwrap_or_default().to_owned();
    println!("{status}: {last}");
    assert_eq!(status.signal(), Some(SIGABRT), "{status}");
    last
}

#[test]
fn the_last_line_of_the_text_log_says_that_memory_ran_out() {
    // What ends the process is in the log, in the form of the log (O19).
    let last = last_line("text");
    let record = r#"^E\d{4} \d\d:\d\d:\d\d\.\d{6} [ \d]{7} out_of_memory\.rs:\d+\] "The process ends because it ran out of memory" err="[^"]*RLIMIT_AS[^"]*" bytes=\d+$"#;
    assert!(Regex::new(record).expect("a pattern").is_match(&last), "{last}");
}

#[test]
fn the_last_line_of_the_json_log_says_that_memory_ran_out() {
    // What ends the process is in the log, in the form of the log (O19).
    let last = last_line("json");
    let record: Value = serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"));
    assert_eq!(record["msg"], "The process ends because it ran out of memory");
    assert!(
        record["err"].as_str().is_some_and(|text| text.contains("RLIMIT_AS")) && record["bytes"].is_u64(),
        "{last}"
    );
    assert!(record["ts"].is_number() && record["caller"].is_string() && record.get("v").is_none(), "{last}");
}
