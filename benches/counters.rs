//! Measures what `nftables.counters: services` costs beside `off`: each new connection, and each reading of the counters.
//!
//! A client connects to all Services in turn, so that the counters are as cold in the processor's caches as in a cluster. Three worlds exist
//! at the same time: without counters, with them, and a second one without, whose distance from the first shows how exact the run is. They
//! are measured in turns, each turn in another order; in the fastest tenth of the turns no other program was in the way. What is compared is
//! the processor time of the client's thread, which has the kernel's work for a packet and its answer where the kernel is built without
//! `IRQ_TIME_ACCOUNTING`; the wall time is a row as well.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use node::counters::Reader;
use rules::ruleset::Layout;

use crate::cluster::{Shape, cluster_ip, counting};
use crate::connections::{World, connect};
use crate::measure::{Bench, permille};
use crate::table::Table;
use crate::wait_for_idle;

/// The worlds, by the value of `nftables.counters` in them.
const WORLDS: [&str; 3] = ["off", "services", "off"];
/// Connections of a turn in each world: few, so that what another program does at that time slows all worlds alike.
const BLOCK: u32 = 250;
const TURNS: u32 = 1_000;
const READINGS: usize = 20;

/// What a block of connections took.
#[derive(Clone, Copy)]
struct Took {
    processor: Duration,
    wall: Duration,
}

/// Adds the rows for a cluster of this shape; `quick` takes fewer turns.
pub(crate) fn rows(table: &mut Table, shape: Shape, quick: bool) {
    let worlds = WORLDS.map(|counters| {
        let world = World::new();
        world.node().enter(|| drop(Bench::new(&counting(counters), Layout::Maps, shape)));
        world
    });
    wait_for_idle();
    let turns = if quick { TURNS / 10 } else { TURNS };
    let took: Vec<[Took; 3]> = (0..turns).map(|turn| in_turn(&worlds, shape, turn)).collect();
    for (what, part) in
        [("processor", (|took| took.processor) as fn(&Took) -> Duration), ("wall", |took: &Took| took.wall)]
    {
        let at = |world: usize, rank| permille(&took.iter().map(|turn| part(&turn[world])).collect::<Vec<_>>(), rank);
        let each = at(0, 500) / BLOCK;
        table.time(&format!("new connection, {} Services, no counters, {what} time", shape.services), each, "");
        for (name, world, goal) in [("counters of services", 1, "1.01"), ("none a second time", 2, "")] {
            let goal = if what == "processor" { goal } else { "" };
            for (which, rank) in [("median", 500), ("fastest tenth", 100)] {
                let ratio = at(world, rank).as_secs_f64() / at(0, rank).as_secs_f64();
                table.fine(&format!("  {name}, {what} time against none, {which} of {turns} turns"), ratio, goal);
            }
        }
    }
    reading(table, &worlds[1], shape);
}

/// Connects in each world, to the same Services. Returns what it took, by world.
fn in_turn(worlds: &[World; 3], shape: Shape, turn: u32) -> [Took; 3] {
    // A stride that has no common divisor with the number of Services reaches all of them.
    let targets = (0..BLOCK).map(|n| (u64::from(turn * BLOCK + n) * 7_919) % u64::from(shape.services));
    let targets = targets.map(|n| (cluster_ip(u32::try_from(n).expect("a number of a Service")), 80).into());
    let targets: Vec<SocketAddr> = targets.collect();
    let mut took = [Took { processor: Duration::ZERO, wall: Duration::ZERO }; 3];
    for world in (0..3).map(|place| (place + turn as usize) % 3) {
        took[world] = worlds[world].client().enter(|| block(&targets));
    }
    took
}

fn block(targets: &[SocketAddr]) -> Took {
    let (processor, start) = (processor_time(), Instant::now());
    for target in targets {
        connect(*target, Duration::from_secs(5)).expect("the Service answers");
    }
    Took { processor: processor_time() - processor, wall: start.elapsed() }
}

/// Returns the processor time that the calling thread has used (`/proc/PID/schedstat`).
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts processor time");
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the first number is in nanoseconds"))
}

/// Adds the processor time of a reading of all counters, which the proxy makes every 10 seconds.
fn reading(table: &mut Table, world: &World, shape: Shape) {
    let times: Vec<Duration> = world.node().enter(|| {
        let mut reader = Reader::open(false, 100).expect("a netlink socket");
        let once = |_| {
            let before = processor_time();
            let (counted, _) = reader.read().expect("the counters can be read");
            assert!(counted.is_some_and(|counted| !counted.services.is_empty()), "connections were counted");
            processor_time() - before
        };
        (0..READINGS).map(once).collect()
    });
    let what = format!("reading the counters of {} Services, processor time, median", shape.services);
    table.time(&what, permille(&times, 500), "");
}
