//! `make bench`: measures speed and memory, also against other programs. Prints a table with the goals beside it, and writes it as JSON.
//!
//! Everything runs in separate network namespaces. Times depend on the machine and its load: ratios are taken within one run.
//! `BENCH_QUICK=1` leaves out the measurements that take minutes (100,000 Services, the long churn). `BENCH_PEER=DIR` adds upstream's proxy
//! against a real API server, also in the parts `connections`, `fleet` and `idle`. `BENCH_PATIENT=1` measures upstream's proxy with 20,000 Services
//! as well, which takes half an hour. A
//! time that misses its goal is only printed; an error that must not happen on any machine, such as a connection without an answer, makes
//! the bench fail at its end. `BENCH_PARTS="phases restart"` runs these parts only.

#![forbid(unsafe_code)]

#[path = "../tests/support/mod.rs"]
mod support;

mod clients;
mod cluster;
mod connections;
mod counters;
mod dump;
mod figures;
mod fleet;
mod inspect;
mod measure;
mod memory;
mod packets;
mod peer;
mod phases;
mod process;
mod schedulers;
mod source;
mod table;

use std::env;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rules::ruleset::Layout;

use cluster::Shape;
use measure::{Bench, permille};
use support::netns::Namespace;
use support::nft;
use table::Table;

/// The number of Services for which most goals hold.
const LARGE: u32 = 20_000;
/// The number of Services of a very large cluster.
const HUGE: u32 = 100_000;
const ENDPOINTS: u32 = 10;
const CHANGES: u32 = 400;
/// The parts of the benchmark; `BENCH_PARTS` selects some of them.
const PARTS: &str = "growth phases layouts baselines restart churn shapes clients packets connections counters schedulers memory source process large listener inspect beside fleet idle";
/// The parts that need `BENCH_PEER`.
const PEER: &str = "peer";
const PEER_CHANGES: &str = "peer-changes";
const PEER_LARGE: &str = "peer-large";
const PEER_LATENCY: &str = "peer-latency";

const PEER_PARTS: [&str; 4] = [PEER, PEER_CHANGES, PEER_LARGE, PEER_LATENCY];

fn main() -> ExitCode {
    // `cargo test --all-targets` also builds and starts this program; then it must not measure.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let quick = env::var_os("BENCH_QUICK").is_some();
    let mut table = Table::new(quick);
    let all = || {
        if env::var_os("BENCH_PEER").is_some() { format!("{PARTS} {}", PEER_PARTS.join(" ")) } else { PARTS.to_owned() }
    };
    let parts = env::var("BENCH_PARTS").unwrap_or_else(|_| all());
    for part in parts.split_whitespace() {
        table.begin(part);
        match part {
            "growth" => growth(&mut table, quick),
            "phases" => phases::rows(&mut table, Shape::plain(LARGE, ENDPOINTS)),
            "layouts" => layouts(&mut table),
            "baselines" => baselines(&mut table),
            "restart" => restart(&mut table),
            "churn" => churn(&mut table, if quick { 5 } else { 60 }),
            "shapes" => shapes(&mut table),
            "clients" => clients::rows(&mut table),
            "packets" => packets::rows(&mut table, LARGE, quick),
            "connections" => connections::rows(&mut table, quick),
            "counters" => counters::rows(&mut table, Shape::plain(LARGE, ENDPOINTS), quick),
            "fleet" => fleet::rows(&mut table, quick),
            "schedulers" => schedulers::rows(&mut table, if quick { 1_000 } else { 5_000 }, quick),
            "memory" => memory::rows(&mut table, Shape::plain(LARGE, ENDPOINTS)),
            "source" => source::rows(&mut table, LARGE, ENDPOINTS),
            "process" => {
                process::rows(&mut table, LARGE, ENDPOINTS, &process::LARGE);
                if !quick {
                    process::rows(&mut table, HUGE, ENDPOINTS, &process::HUGE);
                }
            }
            "large" => {
                for (services, endpoints, goals) in peer::large::REPORTED {
                    process::from_manifests(&mut table, services, endpoints, &goals);
                }
            }
            "listener" => process::beside_a_listener(&mut table, LARGE, ENDPOINTS),
            "inspect" => inspect::rows(&mut table, LARGE, ENDPOINTS),
            "beside" => inspect::beside(&mut table, LARGE, ENDPOINTS),
            "idle" => peer::idle::rows(&mut table, quick),
            PEER if env::var_os("BENCH_PATIENT").is_some() => peer::rows(&mut table, &[100, 1_000, 5_000, LARGE]),
            PEER => peer::rows(&mut table, &[100, 1_000, 5_000]),
            PEER_CHANGES => peer::changes::rows(&mut table, changing_time(quick)),
            PEER_LARGE => peer::large::rows(&mut table),
            PEER_LATENCY => peer::changes::latency::rows(&mut table, Duration::from_secs(if quick { 20 } else { 60 })),
            other => panic!("there is no part {other}; there are: {PARTS} {}", PEER_PARTS.join(" ")),
        }
        table.save();
    }
    table.finish()
}

/// Returns how long the part `peer-changes` changes Services.
fn changing_time(quick: bool) -> Duration {
    let seconds = env::var("BENCH_SECONDS").map(|text| text.parse().expect("BENCH_SECONDS is a number of seconds"));
    Duration::from_secs(seconds.unwrap_or(if quick { 30 } else { 300 }))
}

/// Runs `work` in a namespace that is deleted afterwards. First waits until the kernel has freed the tables of the previous namespace: the
/// kernel thread that frees them would take one of the two processors that `work` needs.
fn fresh<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    wait_for_idle();
    Namespace::new("bench").enter(work)
}

/// Waits until the machine has been almost idle for a tenth of a second; gives up after 10 seconds.
fn wait_for_idle() {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..100 {
        let before = busy();
        sleep(STEP);
        if busy() - before <= 1 {
            return;
        }
    }
}

/// Returns the time that the processors were not idle, in hundredths of a second (`proc_stat(5)`).
fn busy() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let numbers = text.lines().next().into_iter().flat_map(|line| line.split_whitespace().skip(1));
    let idle = |place: &usize| [3, 4].contains(place);
    numbers.enumerate().filter(|(place, _)| !idle(place)).filter_map(|(_, number)| number.parse::<u64>().ok()).sum()
}

fn plain(layout: Layout, shape: Shape) -> Bench {
    Bench::new(&support::cluster::config(), layout, shape)
}

/// Returns the shortest of three first syncs, and the kernel's share of it.
fn best_first_sync(layout: Layout, shape: Shape) -> (Duration, Duration) {
    let one = || {
        let bench = plain(layout, shape);
        (bench.full, bench.report.kernel_time)
    };
    (0..3).map(|_| fresh(one)).min().unwrap_or_default()
}

fn growth(table: &mut Table, quick: bool) {
    let mut medians = Vec::new();
    let sizes: &[u32] = if quick { &[100, 1_000, 5_000, LARGE] } else { &[100, 1_000, 5_000, LARGE, 50_000, HUGE] };
    for &services in sizes {
        let shape = Shape::plain(services, ENDPOINTS);
        // No other program may run beside this measurement: a process that listens for changes of rules makes every transaction slower.
        let (full, _) = best_first_sync(Layout::Maps, shape);
        let (bytes, replaced, added) = fresh(|| {
            let mut bench = plain(Layout::Maps, shape);
            let bytes = bench.report.committed.map_or(0, |committed| committed.bytes);
            (bytes, bench.replacements(shape, CHANGES), bench.additions(shape, CHANGES / 4))
        });
        let is_large = services == LARGE;
        let goal = |text| if is_large { text } else { "" };
        table.time(&format!("first sync, {services} x {ENDPOINTS}, from objects in memory"), full, goal("600 ms"));
        table.text(&format!("  bytes of its transaction, {services} x {ENDPOINTS}"), &bytes.to_string(), "");
        table.time(
            &format!("one endpoint replaced, {services} Services, median"),
            permille(&replaced, 500),
            goal("1 ms"),
        );
        table.time(&format!("one endpoint replaced, {services} Services, p99"), permille(&replaced, 990), goal("5 ms"));
        table.time(&format!("10 to 11 endpoints, {services} Services, median"), permille(&added, 500), goal("4 ms"));
        medians.push(permille(&replaced, 500));
    }
    table.ratio("one endpoint replaced: 20,000 Services against 100", medians[3], medians[0], "1.5");
    if let [_, small, .., huge] = medians[..]
        && !quick
    {
        let more = huge.saturating_sub(small);
        table.time("one endpoint replaced: longer at 100,000 Services than at 1,000", more, "0.1 ms");
    }
}

fn layouts(table: &mut Table) {
    for services in [1_000, 5_000] {
        let shape = Shape::plain(services, ENDPOINTS);
        let [maps, chains, service_chains] = Layout::ALL.map(|layout| {
            fresh(|| {
                let mut bench = plain(layout, shape);
                (bench.full, permille(&bench.replacements(shape, CHANGES / 8), 500))
            })
        });
        let large = |goal| if services == 5_000 { goal } else { "" };
        for (form, found, goals) in [
            ("layout chains", chains, ["2.0 s", "50 ms"].map(large)),
            ("layout chains without chains of endpoints", service_chains, ["", "5 ms"].map(large)),
        ] {
            table.time(&format!("{form}: first sync, {services} x {ENDPOINTS}"), found.0, goals[0]);
            table.ratio("  against layout maps", found.0, maps.0, "");
            table.time(&format!("{form}: one endpoint replaced, {services} Services, median"), found.1, goals[1]);
            table.ratio("  against layout maps", found.1, maps.1, "");
        }
    }
}

fn baselines(table: &mut Table) {
    for services in [1_000, 5_000, LARGE] {
        let (ours, text) = fresh(|| {
            let mut bench = plain(Layout::Maps, Shape::plain(services, ENDPOINTS));
            (bench.full, bench.text())
        });
        let node = Namespace::new("bench");
        let start = Instant::now();
        nft::load(&node, &text);
        let same = start.elapsed();
        table.time(&format!("nft -f of the same table, {services} x {ENDPOINTS}"), same, "");
        table.ratio("  against our first sync", same, ours, "");
    }
}

fn restart(table: &mut Table) {
    let shape = Shape::plain(LARGE, ENDPOINTS);
    let (full, written) = fresh(|| {
        drop(plain(Layout::Maps, shape));
        let again = || {
            let again = plain(Layout::Maps, shape);
            (again.full, again.report.added + again.report.removed)
        };
        (0..3).map(|_| again()).min().unwrap_or_default()
    });
    table.time("restart on a programmed node, 20,000 x 10: read back and compare", full, "1 s");
    table.text("  elements written", &written.to_string(), "0");
}

fn churn(table: &mut Table, seconds: u32) {
    let shape = Shape::plain(LARGE, ENDPOINTS);
    let (share, made) = fresh(|| plain(Layout::Maps, shape).churn(shape, 1_000, seconds));
    table.text(
        &format!("1,000 changes a second for {seconds} s: share of one CPU"),
        &format!("{:.0} %", share * 100.0),
        "30 %",
    );
    table.text("  changes made", &made.to_string(), &(seconds * 1_000).to_string());
}

fn shapes(table: &mut Table) {
    let shapes = [
        ("one Service with 5,000 endpoints", Shape::plain(1, 5_000), Shape::plain(1, 10_000)),
        ("5,000 Services with one endpoint", Shape::plain(5_000, 1), Shape::plain(10_000, 1)),
        (
            "1,000 node ports",
            Shape { node_port: true, ..Shape::plain(1_000, ENDPOINTS) },
            Shape { node_port: true, ..Shape::plain(2_000, ENDPOINTS) },
        ),
        (
            "2,000 load balancer IPs with source ranges",
            Shape { restricted: true, ..Shape::plain(2_000, ENDPOINTS) },
            Shape { restricted: true, ..Shape::plain(4_000, ENDPOINTS) },
        ),
        (
            "500 Services with affinity",
            Shape { affinity: true, ..Shape::plain(500, ENDPOINTS) },
            Shape { affinity: true, ..Shape::plain(1_000, ENDPOINTS) },
        ),
        (
            "2,500 Services with affinity",
            Shape { affinity: true, ..Shape::plain(2_500, ENDPOINTS) },
            Shape { affinity: true, ..Shape::plain(5_000, ENDPOINTS) },
        ),
    ];
    for (what, once, twice) in shapes {
        let (once, twice) = (best_first_sync(Layout::Maps, once), best_first_sync(Layout::Maps, twice));
        let (own, kernel) = (once.0.saturating_sub(once.1), once.1);
        table.time(&format!("first sync of {what}"), once.0, "");
        table.time("  twice as many", twice.0, "");
        table.ratio("  against that", twice.0, once.0, "2.5");
        table.ratio("    our part of it", twice.0.saturating_sub(twice.1), own, "");
        table.ratio("    the kernel's part", twice.1, kernel, "");
    }
}
