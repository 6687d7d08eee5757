//! Measures how long one engine takes for its work on one real table of the kernel.

use std::time::{Duration, Instant};

use component::config::Config;
use kube_proxy::sync::{Engine, Report};
use node::kernel::Netfilter;
use rules::model::{Event, Family};
use rules::ruleset::Layout;

use crate::cluster::{Shape, address, slice};

/// An engine with its filled table, and the time and the report of filling it.
pub(crate) struct Bench {
    engine: Engine<Netfilter>,
    /// The time from the first event until the table was filled.
    pub(crate) full: Duration,
    /// The report of the first sync.
    pub(crate) report: Report,
    /// The number of elements that changes wrote and deleted since the last call of [`Bench::written`].
    elements: u64,
}

impl Bench {
    /// Fills a table in the calling thread's namespace.
    pub(crate) fn new(config: &Config, layout: Layout, shape: Shape) -> Self {
        let kernel = Netfilter::open().expect("a netlink socket");
        let mut engine = Engine::new(config.clone(), layout, &[Family::V4], kernel);
        let events = shape.events();
        let start = Instant::now();
        for event in events {
            engine.apply(event);
        }
        let report = engine.sync(false).expect("the kernel takes it");
        Self { engine, full: start.elapsed(), report, elements: 0 }
    }

    /// Returns everything that the table should hold.
    pub(crate) fn content(&mut self) -> nft::Ruleset {
        self.engine.content()
    }

    /// Returns the table as nft text.
    pub(crate) fn text(&mut self) -> String {
        self.content().to_string()
    }

    fn change(&mut self, event: Event) -> Duration {
        let start = Instant::now();
        self.engine.apply(event);
        let report = self.engine.sync(false).expect("the kernel takes it");
        let time = start.elapsed();
        self.elements += u64::try_from(report.added + report.removed).unwrap_or(u64::MAX);
        time
    }

    /// Replaces one endpoint `times` times, each time of another Service. Returns the time of each change.
    pub(crate) fn replacements(&mut self, shape: Shape, times: u32) -> Vec<Duration> {
        // A Service that is changed a second time gets another address than the first time: the same address would be no change.
        let changed = |n: u32, last| slice(n, (1..shape.endpoints).map(|i| address(n, i)).chain([address(n, last)]));
        let turn = |time: u32| changed(time * 7 % shape.services, 15 - time / shape.services % 2);
        (0..times).map(|time| self.change(Event::SliceApplied(turn(time)))).collect()
    }

    /// Returns the times of changes, and how many elements they wrote and deleted in total.
    pub(crate) fn written(&mut self, changes: impl FnOnce(&mut Self) -> Vec<Duration>) -> (Vec<Duration>, u64) {
        self.elements = 0;
        let times = changes(self);
        (times, self.elements)
    }

    /// Adds one endpoint `times` times, each time to another Service. Returns the time of each change.
    pub(crate) fn additions(&mut self, shape: Shape, times: u32) -> Vec<Duration> {
        let changed = |n: u32| slice(n, (0..=shape.endpoints).map(|i| address(n, i)));
        (0..times).map(|n| self.change(Event::SliceApplied(changed((n * 11 + 3) % shape.services)))).collect()
    }

    /// Changes endpoints at a rate, with one sync every 10 ms. Returns the share of one CPU that this took, and the number of changes.
    pub(crate) fn churn(&mut self, shape: Shape, a_second: u32, seconds: u32) -> (f64, u32) {
        const TICK: Duration = Duration::from_millis(10);
        let (start, cpu) = (Instant::now(), cpu_time("self"));
        let mut made = 0;
        for tick in 1..=seconds * 100 {
            for _ in 0..a_second / 100 {
                let n = made % shape.services;
                let last = if (made / shape.services).is_multiple_of(2) { 14 } else { 13 };
                let endpoints = (1..shape.endpoints).map(|i| address(n, i)).chain([address(n, last)]);
                self.engine.apply(Event::SliceApplied(slice(n, endpoints)));
                made += 1;
            }
            self.engine.sync(false).expect("the kernel takes it");
            std::thread::sleep((start + TICK * tick).saturating_duration_since(Instant::now()));
        }
        ((cpu_time("self") - cpu).as_secs_f64() / start.elapsed().as_secs_f64(), made)
    }
}

/// Returns the user and system CPU time of a process, given by its number or as `self`, in steps of 10 ms (`proc_pid_stat(5)`); the
/// kernel's work on a transaction is part of it.
pub(crate) fn cpu_time(process: &str) -> Duration {
    cpu_times(process)[..2].iter().sum()
}

/// Returns the CPU time of a process and of its children that have ended and were waited for.
pub(crate) fn cpu_time_with_children(process: &str) -> Duration {
    cpu_times(process).iter().sum()
}

/// Returns the user and system time of a process, then the user and system time of its children.
fn cpu_times(process: &str) -> [Duration; 4] {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12, 13, 14].map(|field| Duration::from_millis(fields[field].parse::<u64>().expect("a number") * 10))
}

/// Returns the quantile at `rank` of a thousand: 500 is the median, 990 the 99th percentile.
pub(crate) fn permille(times: &[Duration], rank: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[(sorted.len() * rank / 1000).min(sorted.len() - 1)]
}
