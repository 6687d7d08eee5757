//! Signals that the parent of the process blocked or ignored: both are inherited, and neither may keep the process from its end.

use std::time::{Duration, Instant};

use crate::support::objects;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;
use rustix::process::Signal;

/// The time to the end after a signal (O15), with as much again for a busy machine.
const END: Duration = Duration::from_secs(10);

#[test]
fn a_signal_that_the_parent_blocked_or_ignored_ends_the_process() {
    // SIGTERM and SIGINT end the process, whatever it inherited (O15).
    let world = World::new();
    for inherited in ["--block-signal", "--ignore-signal"] {
        for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT)] {
            let mut proxy = Proxy::prepare(&world.node, &config(), &[objects::node()]);
            proxy.set_wrapper(&["env", &format!("{inherited}={name}")]);
            proxy.launch();
            let start = Instant::now();
            proxy.signal(signal);
            let status = proxy.wait_for_end();
            println!("{inherited}={name}: {status} after {:?}", start.elapsed());
            assert!(status.success() && start.elapsed() < END, "{inherited}={name}: {status}");
        }
    }
}

#[test]
fn no_signal_stays_blocked_and_a_hangup_stays_ignored() {
    // What the process inherits (O15): no signal stays blocked; `nohup` keeps its meaning.
    let world = World::new();
    let mut proxy = Proxy::prepare(&world.node, &config(), &[objects::node()]);
    proxy.set_wrapper(&["env", "--block-signal", "--ignore-signal=HUP"]);
    proxy.launch();
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).expect("a process has a status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).map(str::trim);
    assert_eq!(mask, Some("0000000000000000"), "{status}");
    proxy.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(proxy.is_running(), "a hangup that the parent ignores");
    assert!(proxy.stop().success());
}
