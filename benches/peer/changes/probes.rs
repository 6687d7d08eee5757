//! Connects to the Services that are never deleted, all the time while the cluster changes.
//!
//! A connection has failed if nothing answers within a second, if it is refused, or if another Service's endpoint answers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rustix::process::nice;

use super::super::{PATIENCE, ask};
use super::SERVICES;
use super::cluster::{frontend, owner};

const PAUSE: Duration = Duration::from_millis(4);
/// The niceness of the probes: they get a processor before other threads, so that they measure the rules and not the scheduling of
/// processes.
const FIRST_IN_LINE: i32 = -15;

/// The results of one thread's connections.
#[derive(Default)]
pub(super) struct Probed {
    pub(super) made: u64,
    pub(super) longest: Duration,
    /// A description of each failure, with the time since the start.
    pub(super) failures: Vec<String>,
}

/// Raises the priority of the calling thread, and of the threads that it starts, above other threads.
pub(super) fn come_first() {
    nice(FIRST_IN_LINE).expect("root may have any niceness");
}

/// Connects to random Services, one after the other, until `stop` is set.
pub(super) fn probe(stop: &AtomicBool, seed: u64) -> Probed {
    come_first();
    let mut random = StdRng::seed_from_u64(seed);
    let (start, mut probed) = (Instant::now(), Probed::default());
    while !stop.load(Ordering::Relaxed) {
        let number = random.random_range(0..SERVICES);
        let begin = Instant::now();
        let answer = ask(frontend(number), PATIENCE);
        probed.made += 1;
        match answer.map(|answer| answer.endpoint) {
            Ok(IpAddr::V4(endpoint)) if owner(endpoint) == number => {
                probed.longest = probed.longest.max(begin.elapsed());
            }
            other => probed.failures.push(format!("after {:?}, Service {number}: {other:?}", start.elapsed())),
        }
        sleep(PAUSE);
    }
    probed
}
