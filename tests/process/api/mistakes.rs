//! A server that forgets its objects for a moment, and one whose objects are huge.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, sent, served};
use crate::support::apiserver::fault::Command;
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::nft;
use crate::support::proxy::Proxy;

/// More than the ten objects below which a list is believed at once.
const SERVICES: u8 = 12;

fn names() -> impl Iterator<Item = String> {
    (0..SERVICES).map(|n| format!("s{n}"))
}

fn all() -> Vec<Value> {
    names().zip(10..).flat_map(|(name, n)| served(&name, n)).collect()
}

/// A server that lacks these Services from one list to the next, and a proxy of it.
fn listed_without<'a>(cluster: &'a Cluster, arguments: &[&str], missing: &[String]) -> Proxy<'a> {
    cluster.server.apply(&all());
    let mut proxy = cluster.prepared();
    proxy.set_arguments(arguments);
    proxy.launch();
    cluster.server.wait_for_watches();
    proxy.wait_until_quiet();
    cluster.server.close();
    missing.iter().for_each(|name| cluster.server.delete(Resource::Service, "shop", name));
    // Without this the watches would be resumed where they were, and report deletions.
    cluster.server.compact();
    cluster.server.open();
    proxy
}

/// What is in the log when a list is not believed.
const DOUBT: &str = "a second list confirms it";

/// A proxy of a cluster, and the server at the moment at which it has listed no Service.
fn listed_empty(cluster: &Cluster) -> Proxy<'_> {
    let missing: Vec<String> = names().chain(["web".to_owned()]).collect();
    let proxy = listed_without(cluster, &[], &missing);
    wait_for("the first list", || proxy.log().contains(DOUBT).then_some(()));
    proxy
}

test_in_each_format!(a_server_that_lists_an_empty_cluster_by_mistake_is_not_believed);
fn a_server_that_lists_an_empty_cluster_by_mistake_is_not_believed(format: Format) {
    // A list that takes away nearly everything needs a second one (O14).
    let cluster = Cluster::new(format);
    let before = {
        let later = served("later", 40);
        // Its endpoints are known before it is, so that it is never without any, and nothing of it is removed.
        cluster.server.apply(&later[1..]);
        let mut proxy = listed_empty(&cluster);
        // The second list comes once the server has the objects again, however long the look at the rules takes.
        cluster.server.close();
        let before = nft::list_ruleset(&cluster.node);
        assert!(names().all(|name| cluster.serves(&name)), "the first list is not applied");
        cluster.server.apply(&all());
        cluster.server.apply(&served("web", 1));
        cluster.server.apply(&later);
        cluster.server.open();
        cluster.wait_until_serves("later", true);
        proxy.wait_until_quiet();
        assert!(sent(&proxy)[2] < 0.5, "something was removed: {:?}", sent(&proxy));
        before
    };
    assert!(before.contains("\"shop/s11:http\""), "{before}");
}

test_in_each_format!(a_cluster_that_was_emptied_is_empty_after_the_second_list);
fn a_cluster_that_was_emptied_is_empty_after_the_second_list(format: Format) {
    // A second list without the same objects is used (O14).
    let cluster = Cluster::new(format);
    let proxy = listed_empty(&cluster);
    names().for_each(|name| cluster.wait_until_serves(&name, false));
    assert!(sent(&proxy)[2] > 0.5);
}

test_in_each_format!(the_share_that_one_list_may_take_away_is_a_setting);
fn the_share_that_one_list_may_take_away_is_a_setting(format: Format) {
    // `nftables.relistRemovalLimit` is the share (O14).
    // Of thirteen Services ten go, which is 77 %.
    let missing: Vec<String> = names().take(10).collect();
    for (arguments, is_doubted) in
        [(&[][..], false), (&["--relist-removal-limit=70"], true), (&["--relist-removal-limit=100"], false)]
    {
        let cluster = Cluster::new(format);
        let proxy = listed_without(&cluster, arguments, &missing);
        missing.iter().for_each(|name| cluster.wait_until_serves(name, false));
        assert_eq!(proxy.log().contains(DOUBT), is_doubted, "{arguments:?}: {}", proxy.log());
        assert!(cluster.serves("s11") && cluster.serves("web"));
    }
}

/// A slice of a thousand endpoints whose nodes have names of 10,000 bytes, all different.
fn huge(round: u32) -> Value {
    let endpoint = |n: u32| {
        let node = format!("{round}-{n}-{}", "n".repeat(10_000 - 20));
        json!({ "addresses": [std::net::Ipv4Addr::from(0x0ac8_0000 + n).to_string()], "nodeName": node })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "shop", "name": "huge", "labels": { "kubernetes.io/service-name": "web" } },
        "ports": [{ "name": "http", "port": 8080 }], "endpoints": (0..1000).map(endpoint).collect::<Vec<_>>(),
    })
}

test_in_each_format!(memory_is_bounded_under_huge_objects);
fn memory_is_bounded_under_huge_objects(format: Format) {
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let mut peaks = Vec::new();
    for round in 0..6 {
        cluster.server.apply(&[huge(round)]);
        // The next Service shows that the huge slice was read.
        let name = format!("after{round}");
        cluster.server.apply(&served(&name, 50 + u8::try_from(round).expect("a small number")));
        cluster.wait_until_serves(&name, true);
        proxy.wait_until_quiet();
        thread::sleep(Duration::from_millis(50));
        peaks.push(proxy.peak_memory());
    }
    println!("peak of memory in MiB after each huge slice: {peaks:?}");
    assert!(peaks[5] < 200, "{peaks:?}");
    assert!(peaks[5] - peaks[2] < 40, "it grows with each: {peaks:?}");
}

/// A slice with one endpoint, of a Service that does not exist.
fn small(n: u32) -> Value {
    let [_, a, b, c] = n.to_be_bytes();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "shop", "name": format!("other-{n}"), "labels": { "kubernetes.io/service-name": format!("other-{n}") },
        },
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": [{ "addresses": [format!("10.{a}.{b}.{c}")], "nodeName": "elsewhere" }],
    })
}

/// The number of slices, `$KUBE_PROXY_SLICES` (20,000; `make soak` takes 100,000).
fn number_of_slices() -> u32 {
    std::env::var("KUBE_PROXY_SLICES").map_or(20_000, |text| text.parse().expect("KUBE_PROXY_SLICES is a number"))
}

test_in_each_format!(memory_is_bounded_under_very_many_slices);
fn memory_is_bounded_under_very_many_slices(format: Format) {
    let number = number_of_slices();
    let cluster = Cluster::new(format);
    let slices: Vec<Value> = (0..number).map(small).collect();
    let bytes: usize = slices.iter().map(|slice| slice.to_string().len()).sum();
    cluster.server.apply(&slices);
    let mut proxy = cluster.prepared();
    proxy.spawn();
    let end = Instant::now() + Duration::from_secs(120);
    while !cluster.serves("web") {
        assert!(proxy.is_running() && Instant::now() < end, "not in time: {}", proxy.log());
        thread::sleep(Duration::from_millis(200));
    }
    let first = proxy.peak_memory();
    // All slices are listed once more.
    cluster.server.wait_for_watches();
    cluster.server.order(Some(Resource::EndpointSlice), Command::Expire);
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    let second = proxy.peak_memory();
    println!("peak of memory with {number} slices of {} MiB together: {first} MiB, {second} MiB later", bytes >> 20);
    let most = 50 + u64::from(number) / 500;
    assert!(first < most && second < first + 60, "{first} MiB of {most}, {second} MiB later");
}
