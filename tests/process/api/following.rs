//! The rules follow the server's objects, as packets show.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::cluster::{Cluster, PORTS, base, sent, served};
use crate::support::apiserver::fault::{Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Format, Scheme, test_in_each_format, wait_for};
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe, probe_many};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

/// Which endpoints a family's probes reach at a Service's cluster IP.
fn reached(world: &World, family: Family, n: u8) -> Vec<Outcome> {
    let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(n), 80);
    probe_many(&world.shell, flow, 40).into_keys().collect()
}

/// Waits until exactly these endpoints are reached.
fn wait_for_endpoints(world: &World, n: u8, which: &[u8]) {
    for family in Family::ALL {
        let wanted: Vec<_> = which.iter().map(|endpoint| family.endpoint(*endpoint)).collect();
        wait_for(&format!("endpoints {which:?} of {family:?}"), || {
            let found = reached(world, family, n);
            let found: Option<Vec<_>> = found
                .into_iter()
                .map(|outcome| if let Outcome::Reached(answer) = outcome { Some(answer.endpoint) } else { None })
                .collect();
            found.is_some_and(|found| found == wanted).then_some(())
        });
    }
}

/// Waits until a probe of each family has this outcome.
fn wait_for_outcome(world: &World, n: u8, wanted: &Outcome) {
    for family in Family::ALL {
        let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(n), 80);
        wait_for(&format!("{wanted:?}"), || (probe(&world.shell, flow) == *wanted).then_some(()));
    }
}

test_in_each_format!(traffic_follows_the_objects_of_the_server);
fn traffic_follows_the_objects_of_the_server(format: Format) {
    // Services and slices are served unless their labels exclude them (A1, B1).
    let world = World::new();
    let server = world.node.enter(|| ApiServer::start_with(Scheme::Http, format));
    server.apply(&base());
    server.apply(&served("web", 1));
    let mut proxy = Proxy::with_api(&world.node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    wait_for_endpoints(&world, 1, &[0, 2]);

    server.apply(&slices("shop", "web", &[1, 2, 3], &PORTS));
    wait_for_endpoints(&world, 1, &[1, 2, 3]);
    server.apply(&served("api", 2));
    wait_for_endpoints(&world, 2, &[0, 2]);

    // A Service that gets the label of another proxy is not seen any more, until the label is removed.
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80);
    server.apply(&[web.clone().label("service.kubernetes.io/service-proxy-name", "x").json()]);
    wait_for_outcome(&world, 1, &Outcome::Dropped);
    server.apply(&[web.json()]);
    wait_for_endpoints(&world, 1, &[1, 2, 3]);

    // A slice that gets the label of headless Services is not seen any more either.
    let mut hidden = slices("shop", "api", &[0, 2], &PORTS);
    hidden.iter_mut().for_each(|slice| slice["metadata"]["labels"]["service.kubernetes.io/headless"] = json!(""));
    server.apply(&hidden);
    wait_for_outcome(&world, 2, &Outcome::Refused);

    server.delete(Resource::Service, "shop", "web");
    wait_for_outcome(&world, 1, &Outcome::Dropped);
    assert_eq!(proxy.stop().code(), Some(0));
}

test_in_each_format!(nothing_is_written_before_everything_was_listed);
fn nothing_is_written_before_everything_was_listed(format: Format) {
    // No rule is written before all kinds have been listed (G1).
    let cluster = Cluster::new(format);
    cluster.server.lasting_fault(On::Both(Resource::EndpointSlice), Fault::Refuse(503, None));
    let mut proxy = cluster.prepared();
    proxy.spawn();
    cluster.server.wait_for_watch(Resource::Service);
    let asked = || cluster.server.requests_for(Resource::EndpointSlice).len();
    wait_for("another try", || (asked() > 1).then_some(()));
    assert!(!cluster.serves("web"));
    cluster.server.clear_faults();
    proxy.wait_until_synced();
    assert!(cluster.serves("web"));
    assert_eq!(sent(&proxy)[0].to_bits(), 1_f64.to_bits(), "one transaction for all there is");
}

test_in_each_format!(what_does_not_matter_sends_nothing);
fn what_does_not_matter_sends_nothing(format: Format) {
    // A change of metadata is no change (A6).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    proxy.wait_until_quiet();
    let before = sent(&proxy);
    let mut objects = served("web", 1);
    objects.iter_mut().for_each(|object| object["metadata"]["annotations"] = json!({ "note": "hello" }));
    cluster.server.apply(&objects);
    let mut node = base()[0].clone();
    node["status"]["images"] = json!([{ "names": ["x"] }]);
    cluster.server.apply(&[node]);
    // Time for a sync, if one of these changes asked for it.
    thread::sleep(Duration::from_millis(500));
    proxy.wait_until_quiet();
    assert_eq!(sent(&proxy), before);
    // None of these changes keeps the proxy from following later ones.
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
}

test_in_each_format!(a_hundred_services_are_there_with_the_first_transaction);
fn a_hundred_services_are_there_with_the_first_transaction(format: Format) {
    // The first sync is one transaction with everything that was listed (G1, G8). It prints how long that takes: `cargo test
    // --test process api::following::a_hundred -- --nocapture`, with `KUBE_PROXY_BINARY` for another build.
    let cluster = Cluster::new(format);
    (2..=100).for_each(|n| cluster.server.apply(&served(&format!("s{n}"), n)));
    let mut proxy = cluster.prepared();
    let start = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
    proxy.launch();
    let synced = proxy.sync_times().into_iter().fold(0.0, f64::max);
    println!("the first sync of 100 Services was done after {:.0} ms", (synced - start) * 1000.0);
    assert!((2..=100).all(|n| cluster.serves(&format!("s{n}"))));
    assert_eq!(sent(&proxy)[0].to_bits(), 1_f64.to_bits(), "one transaction for all there is");
}

test_in_each_format!(a_slice_without_a_service_is_named_once_however_often_it_changes);
fn a_slice_without_a_service_is_named_once_however_often_it_changes(format: Format) {
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    let mut lost = slices("shop", "lost", &[0], &PORTS).remove(0);
    lost["metadata"]["labels"] = json!({});
    let logged = || proxy.log().matches("kubernetes.io/service-name").count();
    for (n, addresses) in [["10.244.1.10"], ["10.244.1.11"], ["10.244.2.10"]].iter().cycle().take(9).enumerate() {
        lost["endpoints"][0]["addresses"] = json!(addresses);
        lost["metadata"]["annotations"] = json!({ "n": n.to_string() });
        cluster.server.apply(&[lost.clone()]);
        if n % 3 == 2 {
            cluster.server.delete(Resource::EndpointSlice, "shop", "lost-v4");
        }
    }
    // The next object of the same watch has arrived, so the broken one was read.
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    // The log is written by a thread of its own.
    wait_for("the slice in the log", || (logged() > 0).then_some(()));
    assert_eq!(logged(), 1, "{}", proxy.log());
}

test_in_each_format!(a_claim_that_loses_is_an_event_of_its_service);
fn a_claim_that_loses_is_an_event_of_its_service(format: Format) {
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    let taker = service("tenant", "taker").cluster_ips(9).port("http", Proto::Tcp, 80);
    cluster.server.apply(&[taker.external_ip(Family::V4.cluster_ip(1)).json()]);
    let event = wait_for("the event", || {
        cluster.server.events().into_iter().find(|event| event["reason"] == "FrontNotProgrammed")
    });
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("taker")));
    assert!(event["note"].as_str().is_some_and(|note| note.contains("10.96.0.1 port 80/tcp")), "{event}");
    // The log is written by a thread of its own, which may be later than the event.
    let lines = || proxy.log().matches("10.96.0.1 port 80/tcp").count();
    wait_for("the line of the log", || (lines() > 0).then_some(()));
    assert_eq!(lines(), 1, "{}", proxy.log());
}
