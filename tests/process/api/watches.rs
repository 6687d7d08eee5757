//! Watches that end again and again, in order and broken: changes are in force soon all the same, and the server is not asked too often.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::cluster::{Cluster, PORTS, served};
use crate::support::apiserver::fault::{Command, Ending, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::nft;
use crate::support::objects::slices;
use crate::support::plan::Family;
use crate::support::proxy::is_slow;

/// After how long a change is in force at most.
const LONGEST_LAG: Duration = Duration::from_secs(1);
/// The same while the machine does something else too; each of [`TRIES`] may take that long, but not all of them.
const LONGEST_AT_ALL: Duration = Duration::from_secs(5);
const TRIES: usize = 3;

/// Measures a lag, again if it may have been that of a busy machine.
fn assert_lag(what: &str, mut measure: impl FnMut() -> Duration) {
    let longest = if is_slow() { LONGEST_AT_ALL } else { LONGEST_LAG };
    for _ in 0..TRIES {
        let lag = measure();
        println!("{what}: the longest lag was {lag:?}");
        assert!(lag < LONGEST_AT_ALL, "{what}: {lag:?}");
        if lag < longest {
            return;
        }
    }
    panic!("{what}: {TRIES} times more than {longest:?}");
}

/// Changes the slices of `web` so that they have this endpoint only.
fn change(cluster: &Cluster, endpoint: u8) {
    cluster.server.apply(&slices("shop", "web", &[endpoint], &PORTS));
}

/// Waits until the rules have this endpoint of `web`, and no other.
fn wait_until_in_force(cluster: &Cluster, endpoint: u8) {
    let address = |n| format!("{} . 8080", Family::V4.endpoint(n));
    wait_for(&format!("endpoint {endpoint}"), || {
        let rules = nft::list_ruleset(&cluster.node);
        (rules.contains(&address(endpoint)) && !rules.contains(&address(3 - endpoint))).then_some(())
    });
}

/// Changes the slices each 0.7 s. Gives the longest time from a change to its rules.
fn worst_lag(cluster: &Cluster, changes: u8) -> Duration {
    let mut worst = Duration::ZERO;
    for n in 0..changes {
        let start = Instant::now();
        change(cluster, 1 + n % 2);
        wait_until_in_force(cluster, 1 + n % 2);
        worst = worst.max(start.elapsed());
        thread::sleep(Duration::from_millis(700).saturating_sub(start.elapsed()));
    }
    worst
}

/// Requests for all kinds in this time.
fn requests_in(cluster: &Cluster, time: Duration) -> usize {
    let before = cluster.server.requests().len();
    thread::sleep(time);
    cluster.server.requests().len() - before
}

test_in_each_format!(watches_that_end_in_order_delay_no_change);
fn watches_that_end_in_order_delay_no_change(format: Format) {
    // A watch that ends in order is no failure (O16).
    for (life, changes) in [(1200, 14), (4500, 10)] {
        let cluster = Cluster::new(format);
        cluster.server.settings().longest_watch = Duration::from_millis(life);
        let mut proxy = cluster.proxy();
        assert_lag(&format!("watches of {life} ms"), || worst_lag(&cluster, changes));
        let warnings = proxy.log().lines().filter(|line| line.starts_with('W') && line.contains("watch")).count();
        assert_eq!(warnings, 0, "{}", proxy.log());
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

test_in_each_format!(a_change_after_a_time_of_broken_watches_is_in_force_soon);
fn a_change_after_a_time_of_broken_watches_is_in_force_soon(format: Format) {
    // Watches that break off within an event are tried again soon, for as long as that lasts (O16).
    let cluster = Cluster::new(format);
    let _proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    assert_lag("after 15 s of watches that break off", || lag_after_broken_watches(&cluster));
}

/// Watches of slices break off for 15 s. Gives the time of a change after that.
fn lag_after_broken_watches(cluster: &Cluster) -> Duration {
    let kind = Resource::EndpointSlice;
    cluster.server.lasting_fault(On::Watch(kind), Fault::After(100, Ending::Reset));
    cluster.server.order(kind, Command::End(Ending::Reset));
    let (start, asked) = (Instant::now(), cluster.server.requests_for(kind).len());
    for n in 0_u8.. {
        change(cluster, 1 + n % 2);
        thread::sleep(Duration::from_millis(700));
        if start.elapsed() > Duration::from_secs(15) {
            break;
        }
    }
    let asked = cluster.server.requests_for(kind).len() - asked;
    cluster.server.clear_faults();
    let start = Instant::now();
    change(cluster, 3);
    let rules = || nft::list_ruleset(&cluster.node);
    let wanted = format!("{} . 8080", Family::V4.endpoint(3));
    wait_for("the change", || rules().contains(&wanted).then_some(()));
    let lag = start.elapsed();
    assert!(asked <= 40, "{asked} requests in 15 s");
    lag
}

test_in_each_format!(a_server_that_ends_every_watch_at_once_gets_few_requests);
fn a_server_that_ends_every_watch_at_once_gets_few_requests(format: Format) {
    // The number of requests stays bounded whatever ends the watches (O16).
    let cluster = Cluster::new(format);
    cluster.server.settings().longest_watch = Duration::ZERO;
    let mut proxy = cluster.prepared();
    proxy.spawn();
    proxy.wait_until_synced();
    // Some follow soon at first.
    let at_first = requests_in(&cluster, Duration::from_secs(5));
    let asked = requests_in(&cluster, Duration::from_secs(10));
    println!("{at_first} requests in 5 s, then {asked} in 10 s");
    assert!(at_first <= 40 && asked <= 20, "{at_first} requests in 5 s, then {asked} in 10 s");
    // News come all the same.
    cluster.server.apply(&served("api", 2));
    let start = Instant::now();
    cluster.wait_until_serves("api", true);
    println!("a change takes {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

test_in_each_format!(changes_come_by_lists_while_each_watch_ends_with_an_error);
fn changes_come_by_lists_while_each_watch_ends_with_an_error(format: Format) {
    // As in client-go, a list follows a watch that ends with an error, and pages follow a streaming list that does so (O16).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let (kind, failure) = (Resource::EndpointSlice, json!({ "kind": "Status", "code": 500, "message": "no leader" }));
    cluster.server.lasting_fault(On::Watch(kind), Fault::Garbage(format.event("ERROR", &failure)));
    cluster.server.order(kind, Command::End(Ending::Close));
    for n in 0..3 {
        let start = Instant::now();
        change(&cluster, 1 + n % 2);
        wait_until_in_force(&cluster, 1 + n % 2);
        println!("change {n} after {:?}", start.elapsed());
    }
    let warnings = proxy.log().lines().filter(|line| line.starts_with('W') && line.contains("watch")).count();
    assert!(warnings <= 2, "{}", proxy.log());
    cluster.server.clear_faults();
    assert_eq!(proxy.stop().code(), Some(0));
}

test_in_each_format!(two_outages_in_ten_seconds_leave_no_kind_behind);
fn two_outages_in_ten_seconds_leave_no_kind_behind(format: Format) {
    // After an outage all kinds are watched again soon, also when it was the second one (O16).
    let cluster = Cluster::new(format);
    let _proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    // The first one is long enough for long waits, and the second one begins before a watch has lasted for long.
    for outage in [Duration::from_secs(8), Duration::from_millis(500)] {
        cluster.server.close();
        thread::sleep(outage);
        cluster.server.open();
        if outage.as_secs() > 0 {
            cluster.server.wait_for_watches();
            thread::sleep(Duration::from_millis(500));
        }
    }
    let start = Instant::now();
    change(&cluster, 1);
    wait_until_in_force(&cluster, 1);
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    println!("{:?} after the second outage", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
