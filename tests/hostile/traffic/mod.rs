//! Traffic under change: TCP and UDP load all the time, while endpoints roll, Services are rewritten, the process is restarted,
//! killed and upgraded, the layout is switched, and other programs change our tables.
//!
//! No connection may fail that a serving endpoint could have taken, and no long-lived one may break. What fails between another program's
//! tampering and its repair is counted apart; how long repairs take is bounded. The test goes through every kind of change once;
//! `KUBE_PROXY_SOAK_SECONDS` has it go on for so long (`make soak`). Needs root, iproute2 and nft (`make deps`).

mod change;
mod cluster;
mod held;
mod load;

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::figures::Figures;
use crate::support::world::World;
use crate::turns;
use change::{Change, Changes};
use cluster::Cluster;
use held::Held;
use load::Load;

/// A check each second, and the repair, with much room for a machine that is busy.
const REPAIRED_WITHIN: Duration = Duration::from_secs(8);

/// How long to go on at least.
fn duration() -> Duration {
    let seconds = env::var("KUBE_PROXY_SOAK_SECONDS").map_or(0, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

#[test]
fn no_connection_is_lost_whatever_changes() {
    let _turn = turns::alone();
    // UDP flows follow their endpoints, and an end of the process leaves the rules in place (J1, J3, O7).
    let world = World::new();
    let load = Load::default();
    let mut changes = Changes::new(Cluster::start(&world), &load);
    let mut held = Held::open(&world);
    let (start, duration) = (Instant::now(), duration());
    thread::scope(|scope| {
        let _stop = load.stop_at_the_end();
        load.spawn(scope, &world);
        scope.spawn(|| held.keep_asking(&load));
        loop {
            Change::ROUND.into_iter().for_each(|change| changes.make(change));
            if start.elapsed() >= duration {
                break;
            }
        }
    });
    let losses = load.losses();
    let mut figures = Figures::default();
    figures.row("Traffic under change: seconds", start.elapsed().as_secs());
    load.describe(&mut figures, &losses);
    held.describe(&mut figures);
    changes.describe(&mut figures);
    figures.publish();
    assert!(losses.unexplained.is_empty(), "connections were lost: {:#?}", losses.unexplained);
    held.assert_unbroken();
    assert!(changes.worst_repair() < REPAIRED_WITHIN, "a repair took {:?}", changes.worst_repair());
    assert!(load.made() > 2_000, "only {} connections in {:?}", load.made(), start.elapsed());
}

#[test]
fn a_lost_connection_is_noticed() {
    let _turn = turns::alone();
    let world = World::new();
    let load = Load::default();
    let mut cluster = Cluster::start(&world);
    let mut held = Held::open(&world);
    thread::scope(|scope| {
        let _stop = load.stop_at_the_end();
        load.spawn(scope, &world);
        scope.spawn(|| held.keep_asking(&load));
        // The server of an endpoint ends while its slice still says that it is ready.
        cluster.stop_server(2);
        thread::sleep(Duration::from_millis(500));
        cluster.start_server(2);
        // Another program makes the kernel forget all connections.
        crate::support::netns::run(world.node.command("conntrack").args(["-F"]));
        load.disturbed(|| thread::sleep(Duration::from_millis(500)));
    });
    let losses = load.losses();
    for proto in ["TCP", "UDP"] {
        assert!(losses.unexplained.iter().any(|loss| loss.contains(proto)), "{proto}: {losses:?}");
    }
    assert!(held.broken() > 0, "a connection that lost its translation is broken");
}
