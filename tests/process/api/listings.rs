//! Ways to list, and kinds that cannot be listed.

use std::time::Duration;

use serde_json::json;

use super::cluster::{Cluster, served};
use crate::support::apiserver::fault::{Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::{Format, test_in_each_format};
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

/// Starts with a server that does not do streaming lists, and checks that all was read page by page.
fn read_by_pages(format: Format, streaming: Streaming) {
    let cluster = Cluster::new(format);
    fill(&cluster);
    cluster.server.settings().streaming = streaming;
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
