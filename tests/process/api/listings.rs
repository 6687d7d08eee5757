//! Ways to list, and kinds that cannot be listed.

use std::time::Duration;

use serde_json::json;

use super::cluster::{Cluster, sent, served};
use crate::support::apiserver::fault::{Command, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::nft;
use crate::support::objects::service;
use crate::support::probe::Proto;

/// More Services than fit on a page.
fn fill(cluster: &Cluster) {
    let many: Vec<_> = (0..600)
        .map(|n: u32| {
            let address = std::net::Ipv4Addr::from(0x0a60_0100 + n);
            service("many", &format!("s{n}")).cluster_ip(address.into()).port("http", Proto::Tcp, 80).json()
        })
        .collect();
    cluster.server.apply(&many);
}

test_in_each_format!(a_server_with_streaming_lists_is_asked_for_nothing_else);
fn a_server_with_streaming_lists_is_asked_for_nothing_else(format: Format) {
    let cluster = Cluster::new(format);
    fill(&cluster);
    let mut proxy = cluster.proxy();
    proxy.wait_until_quiet();
    for kind in Resource::ALL {
        let asked = cluster.server.requests_for(kind);
        assert_eq!(asked.len(), 1, "{kind:?}: {asked:?}");
        let query = &asked[0].query;
        assert!(query.is_true("watch") && query.is_true("sendInitialEvents"), "{query:?}");
        assert_eq!(query.get("resourceVersionMatch"), "NotOlderThan");
        assert!(query.is_true("allowWatchBookmarks") && !query.get("timeoutSeconds").is_empty(), "{query:?}");
    }
}

/// Starts with a server that does not do streaming lists and has no watch cache, and checks that all was read page by page.
fn read_by_pages(format: Format, streaming: Streaming) {
    let cluster = Cluster::new(format);
    fill(&cluster);
    cluster.server.settings().streaming = streaming;
    cluster.server.settings().has_cache = false;
    let _proxy = cluster.proxy();
    let asked = cluster.server.requests_for(Resource::Service);
    let pages: Vec<_> = asked.iter().filter(|request| !request.query.is_true("watch")).collect();
    assert_eq!(pages.len(), 2, "{pages:?}");
    assert!(pages.iter().all(|page| page.query.get("limit") == "500"));
    assert_eq!((pages[0].query.get("continue").is_empty(), pages[1].query.get("continue").is_empty()), (true, false));
    assert!(cluster.serves("web"));
    // The watch starts where the list ended.
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    let watch = cluster.server.wait_for_request(Resource::Service, |request| {
        request.query.is_true("watch") && !request.query.is_true("sendInitialEvents")
    });
    assert!(!watch.query.get("resourceVersion").is_empty());
}

test_in_each_format!(a_server_that_refuses_streaming_lists_is_read_page_by_page);
fn a_server_that_refuses_streaming_lists_is_read_page_by_page(format: Format) {
    read_by_pages(format, Streaming::Refused);
}

test_in_each_format!(a_server_that_ignores_streaming_lists_is_read_page_by_page);
fn a_server_that_ignores_streaming_lists_is_read_page_by_page(format: Format) {
    read_by_pages(format, Streaming::Ignored);
}

test_in_each_format!(a_list_whose_next_page_is_gone_is_started_again);
fn a_list_whose_next_page_is_gone_is_started_again(format: Format) {
    let cluster = Cluster::new(format);
    fill(&cluster);
    cluster.server.settings().streaming = Streaming::Refused;
    cluster.server.settings().has_cache = false;
    let slow = Fault::Drip(5000, Duration::from_millis(20));
    cluster.server.fault(On::List(Resource::Service), 1, slow);
    let mut proxy = cluster.prepared();
    proxy.spawn();
    cluster.server.wait_for_request(Resource::Service, |request| request.query.get("limit") == "500");
    cluster.server.delete(Resource::Service, "many", "s0");
    cluster.server.compact();
    proxy.wait_until_synced();
    let asked = cluster.server.requests_for(Resource::Service);
    assert!(asked.iter().any(|request| request.answered == 410), "{asked:?}");
    // The rules hold neither objects of the page that was lost nor objects that were deleted meanwhile.
    let rules = nft::list_ruleset(&cluster.node);
    assert!(cluster.serves("web") && rules.contains("\"many/s599:http\"") && !rules.contains("\"many/s0:http\""));
}

/// The lists of a kind page by page: version, rule, limit and continue token of each request, after these many.
fn lists(cluster: &Cluster, kind: Resource, after: usize) -> Vec<[String; 4]> {
    let asked = cluster.server.requests_for(kind).split_off(after);
    let lists = asked.iter().filter(|request| !request.query.is_true("watch") && request.query.get("limit") != "1");
    lists
        .map(|request| {
            ["resourceVersion", "resourceVersionMatch", "limit", "continue"]
                .map(|key| request.query.get(key).to_owned())
        })
        .collect()
}

/// Has the kind listed again, and waits for the watch after that. Gives how many requests there were before.
fn list_again(cluster: &Cluster, kind: Resource) -> usize {
    let asked = cluster.server.requests_for(kind).len();
    cluster.server.order(kind, Command::Expire);
    wait_for("the next watch", || {
        let after = cluster.server.requests_for(kind).split_off(asked);
        after.iter().rposition(|request| request.query.is_true("watch") && request.answered == 200).filter(|at| *at > 1)
    });
    asked
}

test_in_each_format!(the_first_list_comes_from_the_watch_cache_and_later_ones_are_not_older);
fn the_first_list_comes_from_the_watch_cache_and_later_ones_are_not_older(format: Format) {
    // Lists come from the server's cache, and no old state is taken for a new one (O9, O18).
    let cluster = Cluster::new(format);
    fill(&cluster);
    cluster.server.settings().streaming = Streaming::Refused;
    let proxy = cluster.proxy();
    let kind = Resource::Service;
    // One request for 600 Services, which a cache answers as a whole.
    assert_eq!(lists(&cluster, kind, 0), [["0", "", "500", ""]]);
    cluster.server.wait_for_watches();
    cluster.server.delete(kind, "many", "s0");
    let gone = || !nft::list_ruleset(&cluster.node).contains("\"many/s0:http\"");
    wait_for("the deletion", || gone().then_some(()));
    let known = cluster.server.version();
    let before = sent(&proxy);

    // The next list reaches a server whose cache lags behind, and still has the Service.
    cluster.server.settings().cached = Some(known - 1);
    let asked = list_again(&cluster, kind);
    let found = lists(&cluster, kind, asked);
    // First not older than what is known, which this server refuses; then from etcd, page by page.
    assert_eq!(found[0], [&*known.to_string(), "NotOlderThan", "", ""]);
    assert_eq!((&found[1][..3], found.len()), (&["".to_owned(), "".into(), "500".into()][..], 3), "{found:?}");
    assert!(gone(), "an old state was taken for a new one");
    assert_eq!(sent(&proxy), before, "lists of the same state");

    // With a cache that is up to date, one request.
    cluster.server.settings().cached = None;
    let asked = list_again(&cluster, kind);
    assert_eq!(sent(&proxy), before, "a list of the same state");
    // First its slices, so that it has endpoints at every sync.
    let (service, slices) = (served("api", 2)[..1].to_vec(), served("api", 2)[1..].to_vec());
    let known_slices = || proxy.series("kubeproxy_sync_proxy_rules_endpoint_changes_total").iter().sum::<f64>();
    let earlier = known_slices();
    cluster.server.apply(&slices);
    wait_for("the slices", || (known_slices() > earlier + 1.5).then_some(()));
    cluster.server.apply(&service);
    cluster.wait_until_serves("api", true);
    assert_eq!(lists(&cluster, kind, asked), [[&*known.to_string(), "NotOlderThan", "", ""]]);
    // One Service more: its elements are added, and none is added again or removed (O9).
    let after = sent(&proxy);
    assert!(
        gone() && after[1] > before[1] && after[1] < before[1] + 20.0 && after[2] < before[2] + 0.5,
        "{before:?} {after:?}"
    );
}

test_in_each_format!(a_list_that_confirms_a_removal_comes_from_etcd);
fn a_list_that_confirms_a_removal_comes_from_etcd(format: Format) {
    // A list of a cache that lacks nearly everything is confirmed by etcd (O14, O18).
    let cluster = Cluster::new(format);
    fill(&cluster);
    cluster.server.settings().streaming = Streaming::Refused;
    let _proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let kind = Resource::Service;
    let asked = cluster.server.requests_for(kind).len();
    cluster.server.close();
    (0..600).for_each(|n| cluster.server.delete(kind, "many", &format!("s{n}")));
    cluster.server.compact();
    cluster.server.open();
    wait_for("the removal", || (!nft::list_ruleset(&cluster.node).contains("\"many/s599:http\"")).then_some(()));
    let rules: Vec<_> = lists(&cluster, kind, asked).into_iter().map(|[version, rule, ..]| (version, rule)).collect();
    assert_eq!(rules.len(), 2, "{rules:?}");
    assert_eq!((&*rules[0].1, &*rules[1].0, &*rules[1].1), ("NotOlderThan", "", ""));
}

test_in_each_format!(a_cluster_may_have_no_service_cidrs_or_not_show_them);
fn a_cluster_may_have_no_service_cidrs_or_not_show_them(format: Format) {
    for forbidden in [false, true] {
        let cluster = Cluster::new(format);
        let kind = Resource::ServiceCidr;
        if forbidden {
            cluster.server.settings().forbidden.insert(kind);
        } else {
            cluster.server.settings().missing.insert(kind);
        }
        let _proxy = cluster.proxy();
        assert!(cluster.serves("web"));
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        let answered = cluster.server.requests_for(kind)[0].answered;
        assert_eq!(answered, if forbidden { 403 } else { 404 });
    }
}

test_in_each_format!(an_object_that_cannot_be_read_loses_only_itself);
fn an_object_that_cannot_be_read_loses_only_itself(format: Format) {
    for streaming in [Streaming::On, Streaming::Refused] {
        let cluster = Cluster::new(format);
        cluster.server.settings().streaming = streaming;
        let broken = |name: &str| {
            let mut object = served(name, 9)[0].clone();
            object["spec"]["ports"][0]["port"] = json!("eighty");
            object
        };
        // One object is broken in the list, one in the watch, and one was good before.
        cluster.server.apply(&[broken("first")]);
        let proxy = cluster.proxy();
        assert!(cluster.serves("web") && !cluster.serves("first"));
        cluster.server.apply(&[broken("second"), broken("web")]);
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        assert!(cluster.serves("web"), "an object that was good stays as it was");
        let rejected: f64 = proxy.series("kubeproxy_nft_rejected_objects_total").iter().sum();
        assert!((2.5..3.5).contains(&rejected), "{rejected}");
        // Each of them is served once it is good.
        cluster.server.apply(&served("second", 3));
        cluster.wait_until_serves("second", true);
        assert_eq!(cluster.server.requests_for(Resource::Service).iter().filter(|r| r.answered == 200).count(), {
            if streaming == Streaming::On { 1 } else { 2 }
        });
    }
}
