//! Connections to the Services that stay, all the time, while everything changes.
//!
//! A failure is a connection that nothing answers within a second, that is refused, or that another Service's endpoint answers.

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
/// So that what is measured is the rules, and not who gets a processor.
const FIRST_IN_LINE: i32 = -15;

/// What became of the connections.
#[derive(Default)]
pub(super) struct Probed {
    pub(super) made: u64,
    pub(super) longest: Duration,
    /// Each failure in words, with the time since the start.
    pub(super) failures: Vec<String>,
}

/// Gives the calling thread, and those that it starts, a processor before others.
pub(super) fn come_first() {
    nice(FIRST_IN_LINE).expect("root may have any niceness");
}

/// Connects to one Service after the other, at random, until it is told to stop.
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
