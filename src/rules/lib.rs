//! Computes the nftables objects that a node needs for a state of the cluster, and the commands that update them when that state changes.
//!
//! ```text
//! events ──► model ──► endpoints ───► ruleset ──────► table ──► diff ──► commands for the kernel
//!            State     endpoints of   the objects     compares the objects of
//!                      each frontend  of a table      before and now
//! ```
//!
//! Takes [`model::Event`]s and returns nf_tables commands as values. Pure: no I/O, no clock, no async, no root. Depends neither on the
//! Kubernetes API types nor on how commands are sent to the kernel.
//!
//! ```
//! # use rules::diff::{Collect, Records};
//! # use rules::model::{ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, ObjectName, Protocol, Service};
//! # use rules::model::{ServicePort, SlicePort, State, TrafficPolicy::Cluster, TriggerTime, Weights};
//! # use rules::ruleset::{Balancing, Counters, Layout, Localhost, NodePorts, Pings, Settings};
//! # let (name, protocol) = (ObjectName::new("shop", "web"), Protocol::Tcp);
//! # let cluster_ips = ClusterIps { v4: Some([10, 96, 0, 1].into()), v6: None };
//! # let endpoint = Endpoint { address: [10, 244, 0, 7].into(), conditions: Conditions::READY, node: None, zone: None, hints: None };
//! # let service = Service { name: name.clone(), created: 0, cluster_ips, external_ips: vec![], ignores_external_ips: false,
//! #     asks_for_hints: false, load_balancer_ips: vec![], source_ranges: vec![], external_policy: Cluster, internal_policy: Cluster,
//! #     affinity_seconds: None, scheduler: None, health_check_node_port: None,
//! #     close_connections: None, keeps_unready_udp_flows: false,
//! #     weights: Weights::default(),
//! #     ports: vec![ServicePort { name: "http".into(), protocol, port: 80, node_port: None }] };
//! # let slice = EndpointSlice { name: ObjectName::new("shop", "web-1"), service: name.clone(), family: Family::V4,
//! #     ports: vec![SlicePort { name: "http".into(), protocol, port: 8080 }], endpoints: vec![endpoint],
//! #     weight: 1, trigger: TriggerTime::default() };
//! # let settings = Settings { family: Family::V4, masquerade_mark: 0x4000, masquerade_all: false, local_traffic: None,
//! #     node_ports: NodePorts::Listed, drop_invalid: false, guard_endpoints: false, pings: Pings::Ignored,
//! #     refuse_unused: false, balancing: Balancing::default(), endpoint_maps: 1,
//! #     localhost: Localhost::Ignored, counters: Counters::Off, owned: false };
//! // A Service with cluster IP 10.96.0.1 and one endpoint, 10.244.0.7.
//! let mut state = State::new("this-node");
//! state.apply(Event::ServiceApplied(service));
//! state.apply(Event::SliceApplied(slice));
//!
//! // The table is empty, so everything is a change.
//! let layout = Layout::Maps;
//! let mut records = Records::new(layout.static_rules(&settings));
//! let selection = rules::endpoints::select(&state, &name).expect("the Service exists");
//! records.put(name, layout.service(&settings, &selection));
//! let commands = records.comparison(None, Collect::Nothing);
//!
//! let text: Vec<String> = commands.iter().map(ToString::to_string).collect();
//! let expected = [
//!     r#"add element ip kube-proxy services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : goto lb-1 }"#,
//!     "add element ip kube-proxy endpoints { 10.96.0.1 . tcp . 80 . 0 : 10.244.0.7 . 8080 }",
//! ];
//! for command in expected {
//!     assert!(text.iter().any(|text| text == command), "{command} is not in {text:#?}");
//! }
//!
//! // Once the kernel has carried the commands out, there is nothing left to do.
//! records.committed(&commands, Some(None));
//! assert!(records.changes(Collect::Nothing).is_empty());
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    any(test, feature = "testing"),
    allow(clippy::unwrap_used, reason = "a test may stop at an unexpected value")
)]

pub mod conntrack;
pub mod diff;
pub mod endpoints;
pub mod model;
pub mod ruleset;
pub mod table;
