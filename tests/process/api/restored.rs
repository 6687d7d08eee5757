//! etcd is restored from a backup: versions go back, and the server neither refuses the old ones nor sends anything for them.

use std::thread;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, served};
use crate::support::apiserver::fault::Command;
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};

/// How long a real server waits for a version before it refuses a list.
const FRESHNESS: Duration = Duration::from_secs(3);

/// Whether a request asks whether the server knows a version.
fn asks_for_version(request: &crate::support::apiserver::state::Record) -> bool {
    request.query.get("limit") == "1" && request.query.get("resourceVersionMatch") == "NotOlderThan"
}

test_in_each_format!(the_state_of_a_restored_backup_is_in_force_soon);
fn the_state_of_a_restored_backup_is_in_force_soon(format: Format) {
    // Versions that went back are noticed, and everything is listed again (O17).
    for streaming in [Streaming::On, Streaming::Refused] {
        let cluster = Cluster::new(format);
        cluster.server.settings().streaming = streaming;
        cluster.server.settings().freshness_wait = FRESHNESS;
        cluster.server.apply(&served("old", 2));
        let proxy = cluster.proxy();
        cluster.server.wait_for_watches();
        let backup = cluster.server.backup();
        // What the backup does not have: one Service came, another one went.
        cluster.server.delete(Resource::Service, "shop", "old");
        cluster.server.apply(&served("new", 3));
        cluster.wait_until_serves("new", true);
        cluster.wait_until_serves("old", false);
        cluster.server.close();
        cluster.server.restore(backup);
        thread::sleep(Duration::from_secs(2));
        cluster.server.open();
        let start = Instant::now();
        cluster.wait_until_serves("new", false);
        cluster.wait_until_serves("old", true);
        println!("{streaming:?}: {:?} after the server was back", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        cluster.server.apply(&served("api", 4));
        cluster.wait_until_serves("api", true);
        let lists = cluster.server.requests_for(Resource::Service);
        let last = lists.iter().rfind(|request| !request.query.is_true("watch") && !asks_for_version(request));
        let version = last.map(|request| request.query.get("resourceVersion"));
        if streaming == Streaming::Refused {
            assert_eq!(version, Some(""), "the list after versions went back is a consistent one");
        }
        wait_for("a word about it", || proxy.log().contains("from a backup").then_some(()));
    }
}

test_in_each_format!(a_restored_server_whose_versions_have_passed_ours_is_listed_after_a_longer_outage);
fn a_restored_server_whose_versions_have_passed_ours_is_listed_after_a_longer_outage(format: Format) {
    // No question tells such a server from one that was never restored, so after 5 s without a server everything is listed (O17).
    let cluster = Cluster::new(format);
    let _proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let backup = cluster.server.backup();
    cluster.server.apply(&served("new", 3));
    cluster.wait_until_serves("new", true);
    cluster.server.close();
    cluster.server.restore(backup);
    cluster.server.pass_versions(1000);
    thread::sleep(Duration::from_secs(7));
    cluster.server.open();
    let start = Instant::now();
    cluster.wait_until_serves("new", false);
    println!("{:?} after the server was back", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

test_in_each_format!(a_server_that_was_away_is_asked_once_for_each_kind_and_lists_nothing_again);
fn a_server_that_was_away_is_asked_once_for_each_kind_and_lists_nothing_again(format: Format) {
    // After an outage one object of each kind is asked for, not all (O17).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let before = cluster.server.requests().len();
    cluster.server.close();
    thread::sleep(Duration::from_secs(1));
    cluster.server.open();
    cluster.server.wait_for_watches();
    // The question follows when nothing has come for a moment.
    thread::sleep(Duration::from_secs(2));
    let asked = cluster.server.requests().split_off(before);
    for kind in Resource::ALL {
        let of_kind: Vec<_> = asked.iter().filter(|request| request.path == kind.path()).collect();
        let questions = of_kind.iter().filter(|request| asks_for_version(request)).count();
        assert_eq!((questions, of_kind.len()), (1, 2), "{kind:?}: {of_kind:?}");
    }
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    assert_eq!(proxy.stop().code(), Some(0));
}

test_in_each_format!(one_kind_finds_out_for_all_that_versions_went_back);
fn one_kind_finds_out_for_all_that_versions_went_back(format: Format) {
    // After an outage each list of a version that is lost takes the server's 3 s, so only the first kind asks for it (O17).
    let cluster = Cluster::new(format);
    cluster.server.settings().streaming = Streaming::Refused;
    cluster.server.settings().freshness_wait = FRESHNESS;
    cluster.server.apply(&served("old", 2));
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let backup = cluster.server.backup();
    cluster.server.delete(Resource::Service, "shop", "old");
    cluster.server.apply(&served("new", 3));
    cluster.wait_until_serves("new", true);
    // So that no kind has a version that the backup has.
    cluster.server.order(None, Command::Bookmark);
    thread::sleep(Duration::from_millis(500));
    cluster.server.close();
    cluster.server.restore(backup);
    // Until all kinds wait for long, and the one that asks for all does so each 3 to 4.5 s.
    thread::sleep(Duration::from_secs(20));
    let before = cluster.server.requests().len();
    cluster.server.open();
    let back = Instant::now();
    cluster.wait_until_serves("new", false);
    cluster.wait_until_serves("old", true);
    let (now, first) = (Instant::now(), cluster.server.requests()[before].at);
    println!("{:?} after the server was back, {:?} after the first request", now - back, now - first);
    assert!(now - back < Duration::from_secs(10), "{:?}: {}", now - back, proxy.log());
    assert!(now - first < FRESHNESS + Duration::from_secs(2), "{:?}: {}", now - first, proxy.log());
    assert_eq!(proxy.log().matches("from a backup").count(), 1, "{}", proxy.log());
}
