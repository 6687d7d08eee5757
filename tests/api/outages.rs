//! The server goes away and comes back: the rules stay, and only what changed meanwhile changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::cluster::{Cluster, base, sent, served};
use crate::support::apiserver::{ApiServer, Command, Resource, Scheme, wait_for};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

/// A value that is set when it is dropped, also by a panic.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects to the Service number 1 again and again until it is told to stop. Gives how often; each has to succeed.
fn connect_until(stop: &AtomicBool, from: &Namespace) -> u32 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for family in Family::ALL {
            let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
            let outcome = probe(from, flow);
            assert!(matches!(outcome, Outcome::Reached(_)), "connection {count}: {outcome:?}");
            count += 1;
        }
    }
    count
}

#[test]
fn traffic_does_not_notice_an_outage_and_the_rules_catch_up() {
    // O10
    let world = World::new();
    let server = world.node.enter(|| ApiServer::start(Scheme::Http));
    server.apply(&base());
    (1..=3).for_each(|n| server.apply(&served(["", "web", "old", "moved"][usize::from(n)], n)));
    let mut proxy = Proxy::with_api(&world.node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    proxy.wait_until_quiet();
    let stop = AtomicBool::new(false);
    let rules = || nft::list_ruleset(&world.node);
    let connections = thread::scope(|scope| {
        let traffic = scope.spawn(|| connect_until(&stop, &world.shell));
        let _stop = Flag(&stop);
        let (before, written) = (nft::normalised(&rules()), sent(&proxy));

        server.close();
        server.delete(Resource::Service, "shop", "old");
        server.delete(Resource::EndpointSlice, "shop", "old-v4");
        server.delete(Resource::EndpointSlice, "shop", "old-v6");
        server.apply(&served("moved", 4));
        server.apply(&served("new", 5));
        server.compact();
        thread::sleep(Duration::from_secs(3));
        assert_eq!(nft::normalised(&rules()), before, "the outage changed the rules");
        assert_eq!(sent(&proxy), written);

        server.open();
        let is_there = |name: &str| rules().contains(&format!("\"shop/{name}:http\""));
        wait_for("the change of the Services", || (is_there("new") && !is_there("old")).then_some(()));
        proxy.wait_until_quiet();
        // Of the Service that did not change nothing was removed or written again.
        let first = Family::ALL.map(|family| family.cluster_ip(1).to_string());
        let of_first = |listing: &str| {
            let lines = nft::normalised(listing);
            let of = |line: &&String| first.iter().any(|address| line.starts_with(&format!("{address} ")));
            lines.values().flatten().filter(of).cloned().collect::<Vec<_>>()
        };
        assert!(!of_first(&rules()).is_empty());
        // One or two transactions: the Services and the slices are listed at the same time, but apart.
        let transactions = sent(&proxy)[0] - written[0];
        assert!((1.0..=4.0).contains(&transactions), "{transactions} transactions");
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(connections > 20, "{connections}");
    let gone =
        server.requests_for(Resource::Service).iter().any(|request| request.query.get("sendInitialEvents") == "true");
    assert!(gone, "nothing was listed again");
    assert!(proxy.series("kubeproxy_nft_source_reconnects_total").iter().sum::<f64>() > 0.5);
}

#[test]
fn a_listing_of_what_is_known_sends_nothing() {
    // O9
    let cluster = Cluster::new();
    let mut proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    proxy.wait_until_quiet();
    let (before, rules) = (sent(&proxy), nft::list_ruleset(&cluster.node));
    let listings = |kind| {
        let asked = cluster.server.requests_for(kind);
        asked.iter().filter(|request| request.query.is_true("sendInitialEvents")).count()
    };
    cluster.server.order(None, Command::Expire);
    for kind in Resource::ALL {
        wait_for("another listing", || (listings(kind) == 2).then_some(()));
    }
    proxy.wait_until_quiet();
    assert_eq!(sent(&proxy), before);
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    // The new watches are alive.
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
}

#[test]
fn a_restart_without_a_server_keeps_the_rules_until_it_is_back() {
    // O7 G1
    let cluster = Cluster::new();
    let mut proxy = cluster.proxy();
    let rules = nft::list_ruleset(&cluster.node);
    proxy.stop();
    cluster.server.close();
    proxy.spawn();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    cluster.server.open();
    proxy.wait_until_synced();
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    assert!(sent(&proxy)[1..].iter().all(|elements| *elements < 0.5), "{:?}", sent(&proxy));
}
