//! Marks that an operator sets on the Node, and events about the Node.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Cluster, PORTS};
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::objects::{node, service, slices};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};

const HEALTHZ: &str = "127.0.0.1:10256";

fn wait_for_status(proxy: &Proxy<'_>, path: &str, status: u16) -> String {
    let head = format!("HTTP/1.1 {status} ");
    let found = || Some(proxy.get(HEALTHZ, path)).filter(|answer| answer.starts_with(&head));
    wait_for(&format!("{status} of {path}"), found)
}

test_in_each_format!(a_mark_of_the_node_drains_it_until_it_is_gone);
fn a_mark_of_the_node_drains_it_until_it_is_gone(format: Format) {
    // A cordoned node is taken out of load balancers while the Node has the mark, and comes back without it (L10).
    let unschedulable = json!([{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }]);
    let marks = [
        ("taint:node.kubernetes.io/unschedulable", "/spec/taints", unschedulable),
        ("annotation:example.com/drain=now", "/metadata/annotations", json!({ "example.com/drain": "now" })),
    ];
    for (mark, place, value) in marks {
        let cluster = Cluster::new(format);
        let mut proxy = cluster.prepared();
        proxy.set_arguments(&["--drain-on", mark]);
        proxy.launch();
        wait_for_status(&proxy, "/healthz", 200);
        for _ in 0..2 {
            cluster.server.apply(&[marked(place, &value)]);
            let drained = wait_for_status(&proxy, "/healthz", 503);
            assert!(drained.contains("the node is drained") && drained.contains("\"nodeEligible\":false"), "{drained}");
            for path in ["/livez", "/readyz"] {
                wait_for_status(&proxy, path, 200);
            }
            assert!(cluster.serves("web"), "{mark}");
            cluster.server.apply(&[node()]);
            wait_for_status(&proxy, "/healthz", 200);
        }
    }
}

/// The Node with this value at a JSON pointer below one of its fields.
fn marked(place: &str, value: &Value) -> Value {
    let mut node = node();
    let (parent, field) = place.rsplit_once('/').expect("a pointer");
    node.pointer_mut(parent).expect("a field of every Node")[field] = value.clone();
    node
}

test_in_each_format!(a_mark_that_no_flag_names_drains_nothing);
fn a_mark_that_no_flag_names_drains_nothing(format: Format) {
    // Without the switch other taints play no part (L6).
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    let taint = json!([{ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }]);
    cluster.server.apply(&[marked("/spec/taints", &taint)]);
    cluster.server.apply(&super::cluster::served("late", 2));
    cluster.wait_until_serves("late", true);
    wait_for_status(&proxy, "/healthz", 200);
}

#[test]
fn a_node_port_that_programs_may_get_is_one_event_of_the_node() {
    // The event has the node port and the line to set; further syncs send no other (N6).
    let cluster = Cluster::new(Format::Protobuf);
    cluster.node.set_sysctl("ipv4/ip_local_port_range", "20000 40000");
    let mut proxy = Proxy::with_api(&cluster.node, &config(), &cluster.server.kubeconfig(&json!({})));
    proxy.launch();
    let shop = service("shop", "late").cluster_ips(2).port("http", Proto::Tcp, 80).node_port(30_080).json();
    cluster.server.apply(&[vec![shop], slices("shop", "late", &[0], &PORTS)].concat());
    let of_ports = || {
        let events = cluster.server.events().into_iter();
        events.filter(|event| event["reason"] == "NodePortIsEphemeral").collect::<Vec<_>>()
    };
    let event = wait_for("the event", || of_ports().into_iter().next());
    let note = event["note"].as_str().expect("a note");
    for part in ["30080 (shop/late)", "20000-40000", "net.ipv4.ip_local_reserved_ports = 30000-32767"] {
        assert!(note.contains(part), "{part} is not in: {note}");
    }
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&json!("Warning"), &json!("Node")));
    for which in [&[1][..], &[0]] {
        cluster.server.apply(&slices("shop", "late", which, &PORTS));
        thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(of_ports().len(), 1);
}
