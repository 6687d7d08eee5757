//! Tests of the conversion of Services (A1 to A13).

use serde_json::{Value, json};

use super::*;
use rules::model::{ClusterIps, ObjectName, Protocol, TrafficPolicy, Weights};

/// Checks that a Service converts to a deletion. Returns its problems as text.
fn deleted(value: Value) -> Vec<String> {
    let converted = convert_service(value);
    assert_eq!(converted.event, Some(Event::ServiceDeleted(ObjectName::new("demo", "web"))));
    texts(&converted.problems)
}

fn strings<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[test]
fn a_minimal_service_has_the_defaults() {
    let (service, problems) = service(web());
    assert_eq!(problems, [""; 0]);
    assert_eq!(service.name, ObjectName::new("demo", "web"));
    assert_eq!(service.created, i64::MAX);
    assert_eq!(service.cluster_ips, ClusterIps { v4: Some([10, 96, 0, 10].into()), v6: None });
    assert_eq!((service.external_policy, service.internal_policy), Default::default());
    assert_eq!((service.affinity_seconds, service.health_check_node_port), (None, None));
    let port = &service.ports[0];
    assert_eq!((&*port.name, port.protocol, port.port, port.node_port), ("", Protocol::Tcp, 80, None));
}

#[test]
fn services_of_another_proxy_look_deleted() {
    // The presence of the label decides, not its value (A1).
    for value in ["", "other"] {
        let labels = json!({"service.kubernetes.io/service-proxy-name": value});
        assert_eq!(deleted(with(web(), "/metadata/labels", labels)), [""; 0]);
    }
}

#[test]
fn headless_empty_and_external_name_services_look_deleted() {
    // A Service without a cluster IP, or of type ExternalName, is not handled (A2, A3).
    assert_eq!(deleted(with(web(), "/spec/clusterIP", json!("None"))), [""; 0]);
    assert_eq!(deleted(with(web(), "/spec/clusterIP", json!(""))), [""; 0]);
    assert_eq!(deleted(with(web(), "/spec/clusterIP", Value::Null)), [""; 0]);
    assert_eq!(deleted(with(web(), "/spec", Value::Null)), [""; 0]);
    assert_eq!(deleted(with(web(), "/spec/type", json!("ExternalName"))), [""; 0]);
}

#[test]
fn cluster_ips_follow_the_families() {
    // `spec.ipFamilies` decides which cluster IPs are used (A4).
    let dual = with(web(), "/spec/clusterIPs", json!(["10.96.0.10", "fd00::10"]));
    let (both, _) = service(with(dual.clone(), "/spec/ipFamilies", json!(["IPv4", "IPv6"])));
    assert_eq!(
        both.cluster_ips,
        ClusterIps { v4: Some([10, 96, 0, 10].into()), v6: Some("fd00::10".parse().unwrap()) }
    );
    // Without `spec.ipFamilies` only `spec.clusterIP` is used.
    let (first, _) = service(dual.clone());
    assert_eq!(first.cluster_ips, ClusterIps { v4: Some([10, 96, 0, 10].into()), v6: None });
    let (one, problems) = service(with(dual, "/spec/ipFamilies", json!(["IPv4"])));
    assert_eq!((one.cluster_ips.v6, problems.len()), (None, 0));
    let (v6, _) = service(with(web(), "/spec/clusterIP", json!("fd00:0:0::0010")));
    assert_eq!(v6.cluster_ips, ClusterIps { v4: None, v6: Some("fd00::10".parse().unwrap()) });
}

#[test]
fn a_bad_cluster_ip_loses_its_family_or_the_service() {
    // A Service without a valid cluster IP in an IP family does not exist in that family (A4).
    assert_eq!(
        deleted(with(web(), "/spec/clusterIP", json!("10.96.0.256"))),
        ["Service demo/web: spec.clusterIP: \"10.96.0.256\" is not an IP address; ignored"]
    );
    let dual = with(web(), "/spec/ipFamilies", json!(["IPv4", "IPv6", "IPv5"]));
    let (half, problems) = service(with(dual.clone(), "/spec/clusterIPs", json!(["10.96.0.10", "10.96.0.11", "x"])));
    assert_eq!(half.cluster_ips.v6, None);
    assert_eq!(
        problems,
        [
            "Service demo/web: spec.clusterIPs[1]: \"10.96.0.11\" is not an IPv6 address; ignored",
            "Service demo/web: spec.ipFamilies[2]: \"IPv5\" is not IPv4 or IPv6; ignored"
        ]
    );
    let problems = deleted(dual);
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn ports_of_one_name_differ_by_protocol() {
    // Name and protocol identify a port (A5).
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns", "port": 54, "protocol": "UDP"},
        {"name": "sig", "port": 9, "protocol": "SCTP", "nodePort": 30009}
    ]);
    let (service, problems) = service(with(web(), "/spec/ports", ports));
    let found: Vec<_> =
        service.ports.iter().map(|port| (&*port.name, port.protocol, port.port, port.node_port)).collect();
    assert_eq!(
        found,
        [("dns", Protocol::Tcp, 53, None), ("dns", Protocol::Udp, 53, None), ("sig", Protocol::Sctp, 9, Some(30009))]
    );
    assert_eq!(
        problems,
        ["Service demo/web: spec.ports[2]: a port named \"dns\" with protocol udp came before; ignored"]
    );
}

#[test]
fn a_bad_port_is_dropped_alone() {
    let long = "a".repeat(64);
    let ports = json!([
        {"name": "zero", "port": 0}, {"name": "big", "port": 65536}, {"name": "neg", "port": -1},
        {"name": "proto", "port": 1, "protocol": "ICMP"}, {"name": long, "port": 1}, {"name": "Upper", "port": 1},
        {"name": "a".repeat(63), "port": 65535, "nodePort": 70000}, {"name": "ok", "port": 1, "nodePort": 0}
    ]);
    let (service, problems) = service(with(web(), "/spec/ports", ports));
    let found: Vec<_> = service.ports.iter().map(|port| (port.name.len(), port.port, port.node_port)).collect();
    assert_eq!(found, [(63, 65535, None), (2, 1, None)]);
    assert_eq!(problems.len(), 7, "{problems:?}");
    assert_eq!(problems[1], "Service demo/web: spec.ports[1].port: 65536 is not a port (1 to 65535); port ignored");
    assert_eq!(problems[3], "Service demo/web: spec.ports[3].protocol: \"ICMP\" is not TCP, UDP or SCTP; port ignored");
    assert_eq!(problems[6], "Service demo/web: spec.ports[6].nodePort: 70000 is not a port (1 to 65535); no node port");
}

#[test]
fn a_service_without_a_usable_port_looks_deleted() {
    let problem = "Service demo/web: spec.ports: no usable port; Service ignored";
    assert_eq!(deleted(with(web(), "/spec/ports", json!([]))), [problem]);
    assert_eq!(deleted(with(web(), "/spec/ports", json!([{"port": 0}])))[1], problem);
}

#[test]
fn external_ips_are_trimmed_and_bad_ones_dropped() {
    // White space and leading zeros are allowed (A7, A10).
    let ips = json!(["203.0.113.007", "300.1.1.1", " ", "", " 2001:DB8::1 ", "203.0.113.7"]);
    let (service, problems) = service(with(web(), "/spec/externalIPs", ips));
    assert_eq!(strings(&service.external_ips), ["203.0.113.7", "2001:db8::1"]);
    assert_eq!(problems, ["Service demo/web: spec.externalIPs[1]: \"300.1.1.1\" is not an IP address; ignored"]);
}

#[test]
fn addresses_that_every_host_or_link_has_are_no_external_and_no_load_balancer_ips() {
    let special = [
        ("0.0.0.0", "the unspecified address"),
        ("::", "the unspecified address"),
        ("127.0.0.1", "a loopback address"),
        ("127.255.0.9", "a loopback address"),
        ("::1", "a loopback address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("224.0.0.1", "a multicast address"),
        ("239.255.255.250", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("169.254.169.254", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("255.255.255.255", "the broadcast address"),
    ];
    for (text, what) in special {
        let value = with(web(), "/spec/externalIPs", json!([text, "203.0.113.7"]));
        let value = with(value, "/status/loadBalancer/ingress", json!([{"ip": "203.0.113.8"}, {"ip": text}]));
        let (service, problems) = service(value);
        assert_eq!(strings(&service.external_ips), ["203.0.113.7"], "{text}");
        assert_eq!(strings(&service.load_balancer_ips), ["203.0.113.8"], "{text}");
        let problem = |field: &str| format!("Service demo/web: {field}: {text:?} is {what}; ignored");
        assert_eq!(problems, [problem("status.loadBalancer.ingress[1].ip"), problem("spec.externalIPs[0]")]);
    }
}

#[test]
fn external_ips_need_their_gate() {
    // With the feature gate off the external IPs are dropped, but the external traffic policy still counts because of them (A7, A12).
    let value = with(web(), "/spec/externalIPs", json!(["203.0.113.7", "x"]));
    let value = with(value, "/spec/externalTrafficPolicy", json!("Local"));
    let mut converter = Converter::new(ConvertOptions { allow_external_ips: false, ..ConvertOptions::default() });
    let converted = converter.service(&decode(&value).unwrap());
    let Some(Event::ServiceApplied(service)) = converted.event else { panic!("not applied") };
    assert!(service.external_ips.is_empty() && converted.problems.is_empty());
    assert_eq!(service.external_policy, TrafficPolicy::Local);
}

#[test]
fn load_balancer_ips_of_mode_proxy_do_not_count() {
    // Load balancer IPs are used for any type of Service (A8).
    let ingress = json!([
        {"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "VIP"}, {"ip": "203.0.113.3", "ipMode": "Proxy"},
        {"hostname": "lb.example"}, {"ip": ""}, {"ip": "bad"}, {"ip": "203.0.113.4", "ipMode": "Odd"}, {"ip": "203.0.113.1"}
    ]);
    let (service, problems) = service(with(web(), "/status/loadBalancer/ingress", ingress));
    assert_eq!(strings(&service.load_balancer_ips), ["203.0.113.1", "203.0.113.2"]);
    assert_eq!(
        problems,
        [
            "Service demo/web: status.loadBalancer.ingress[5].ip: \"bad\" is not an IP address; ignored",
            "Service demo/web: status.loadBalancer.ingress[6].ipMode: \"Odd\" is not VIP or Proxy; ingress ignored"
        ]
    );
}

#[test]
fn source_ranges_are_trimmed_and_bad_ones_dropped() {
    // White space, leading zeros and host bits are allowed (A9, A10).
    let ranges = json!([" 203.0.113.000/025 ", "10.1.2.3/8", "nonsense", "", "2001:db8::/32"]);
    let (service, problems) = service(with(web(), "/spec/loadBalancerSourceRanges", ranges));
    assert_eq!(strings(&service.source_ranges), ["203.0.113.0/25", "10.0.0.0/8", "2001:db8::/32"]);
    assert_eq!(problems, ["Service demo/web: spec.loadBalancerSourceRanges[2]: \"nonsense\" is not a CIDR; ignored"]);
}

#[test]
fn a_family_that_source_ranges_leave_open_is_named() {
    // Source ranges of one IP family do not restrict the other family (A9).
    let object = with(web(), "/spec/loadBalancerSourceRanges", json!(["203.0.113.0/25"]));
    let ingress = json!([{"ip": "198.51.100.1"}, {"ip": "2001:db8:99::1"}]);
    let (_, problems) = service(with(object.clone(), "/status/loadBalancer/ingress", ingress));
    let open = "no IPv6 range; the IPv6 load balancer IPs are open to all clients";
    assert_eq!(problems, [format!("Service demo/web: spec.loadBalancerSourceRanges: {open}")]);
    let (_, problems) = service(with(object, "/status/loadBalancer/ingress", json!([{"ip": "198.51.100.1"}])));
    assert_eq!(problems, [""; 0]);
}

// The annotation `kube-proxy-nft/weights` has a weight from 1 to 100 for this node, for its zone, or for both (E15).
#[test]
fn an_annotation_has_weights() {
    let annotated = |text: &str| {
        let (service, problems) =
            service(with(web(), "/metadata/annotations", json!({"kube-proxy-nft/weights": text})));
        (service.weights, problems)
    };
    let weights = |local, zone| Weights { local, zone };
    for (text, expected) in [
        ("local=4", weights(Some(4), None)),
        ("zone=100", weights(None, Some(100))),
        ("local=4,zone=2", weights(Some(4), Some(2))),
        (" zone = 2 , local = 1 ", weights(Some(1), Some(2))),
    ] {
        assert_eq!(annotated(text), (expected, vec![]), "{text}");
    }
    for text in ["", "4", "local", "local=0", "local=101", "local=-1", "local=4,local=5", "node=4", "local=4,", "a=4"] {
        let problem = format!(
            "metadata.annotations[kube-proxy-nft/weights]: {text:?} is not local=N or zone=N, or both with a comma between them, with N \
             from 1 to 100; ignored"
        );
        assert_eq!(annotated(text), (Weights::default(), vec![format!("Service demo/web: {problem}")]));
    }
    assert_eq!(service(web()).0.weights, Weights::default());
}

// The annotation `kube-proxy-nft/scheduler` has three valid values (E12).
#[test]
fn an_annotation_names_the_scheduler() {
    use rules::model::Scheduler;
    let named = |name: &str| {
        let (service, problems) =
            service(with(web(), "/metadata/annotations", json!({"kube-proxy-nft/scheduler": name})));
        (service.scheduler, problems)
    };
    assert_eq!(named("random"), (Some(Scheduler::Random), vec![]));
    assert_eq!(named("source-hash"), (Some(Scheduler::SourceHash), vec![]));
    assert_eq!(named("maglev"), (Some(Scheduler::Maglev), vec![]));
    let (scheduler, problems) = named("mh");
    assert_eq!((scheduler, problems.len()), (None, 1));
    assert!(problems[0].contains("\"mh\" is unknown, known are: random, source-hash, maglev; ignored"), "{problems:?}");
    assert_eq!(service(web()).0.scheduler, None);
}

// The annotations `kube-proxy-nft/close-connections` and `kube-proxy-nft/keep-udp-flows` take certain values; others are reported (J3,
// J13).
#[test]
fn annotations_say_what_becomes_of_flows() {
    use rules::model::CloseConnections;
    let annotated = |name: &str, value: &str| {
        let (service, problems) = service(with(web(), "/metadata/annotations", json!({name: value})));
        (service.close_connections, service.keeps_unready_udp_flows, problems.join(""))
    };
    let close = |value| annotated("kube-proxy-nft/close-connections", value);
    assert_eq!(close("endpoint-gone"), (Some(CloseConnections::EndpointGone), false, String::new()));
    let both = Some(CloseConnections::EndpointOrServiceGone);
    assert_eq!(close("endpoint-or-service-gone"), (both, false, String::new()));
    let problem = "Service demo/web: metadata.annotations[kube-proxy-nft/close-connections]: \"true\" is unknown, known are: \
                   endpoint-gone, endpoint-or-service-gone; ignored";
    assert_eq!(close("true"), (None, false, problem.to_owned()));
    assert_eq!(annotated("kube-proxy-nft/keep-udp-flows", "not-ready"), (None, true, String::new()));
    let (_, keeps, problem) = annotated("kube-proxy-nft/keep-udp-flows", "always");
    assert!(!keeps && problem.contains("\"always\" is unknown, known are: not-ready; ignored"), "{problem}");
}

#[test]
fn affinity_has_a_default_and_a_range() {
    // The time-out of session affinity has the range and the default of the API (A11).
    let sticky = with(web(), "/spec/sessionAffinity", json!("ClientIP"));
    assert_eq!(service(sticky.clone()).0.affinity_seconds, Some(10_800));
    for (given, used, problems) in
        [(1, 1, 0), (86_400, 86_400, 0), (0, 10_800, 1), (86_401, 10_800, 1), (-5, 10_800, 1)]
    {
        let value = with(sticky.clone(), "/spec/sessionAffinityConfig/clientIP/timeoutSeconds", json!(given));
        let (service, found) = service(value);
        assert_eq!((service.affinity_seconds, found.len()), (Some(used), problems), "{given}");
    }
    let (none, problems) = service(with(web(), "/spec/sessionAffinity", json!("Cookie")));
    assert_eq!(none.affinity_seconds, None);
    assert_eq!(problems, ["Service demo/web: spec.sessionAffinity: \"Cookie\" is not None or ClientIP; None is used"]);
}

#[test]
fn external_policy_local_needs_a_way_in() {
    // External policy Local is used only if traffic can reach the Service from outside (A12).
    let local = with(web(), "/spec/externalTrafficPolicy", json!("Local"));
    for (kind, external_ips, expected) in [
        ("LoadBalancer", json!([]), TrafficPolicy::Local),
        ("NodePort", json!([]), TrafficPolicy::Local),
        ("ClusterIP", json!([]), TrafficPolicy::Cluster),
        ("ClusterIP", json!(["203.0.113.7"]), TrafficPolicy::Local),
    ] {
        let value = with(with(local.clone(), "/spec/type", json!(kind)), "/spec/externalIPs", external_ips);
        let (service, _) = service(with(value, "/spec/healthCheckNodePort", json!(32000)));
        assert_eq!(service.external_policy, expected, "{kind}");
        assert_eq!(service.internal_policy, TrafficPolicy::Cluster);
    }
    assert_eq!(service(local).0.external_policy, TrafficPolicy::Cluster);
}

#[test]
fn unknown_policy_words_mean_cluster() {
    // An unknown policy is logged and counts as Cluster (A12).
    let value = with(web(), "/spec/internalTrafficPolicy", json!("Near"));
    let value = with(value, "/spec/externalTrafficPolicy", json!("Far"));
    let (bad, problems) = service(with(value, "/spec/type", json!("Odd")));
    assert_eq!((bad.internal_policy, bad.external_policy), Default::default());
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems.contains(
        &"Service demo/web: spec.internalTrafficPolicy: \"Near\" is not Cluster or Local; Cluster is used".to_owned()
    ));
    let (local, _) = service(with(web(), "/spec/internalTrafficPolicy", json!("Local")));
    assert_eq!(local.internal_policy, TrafficPolicy::Local);
}

#[test]
fn health_checks_are_for_load_balancers_with_policy_local() {
    // Only Services of type LoadBalancer with external policy Local have a health-check node port (A13).
    let local = with(web(), "/spec/externalTrafficPolicy", json!("Local"));
    let lb = with(local.clone(), "/spec/type", json!("LoadBalancer"));
    let (checked, _) = service(with(lb.clone(), "/spec/healthCheckNodePort", json!(32000)));
    assert_eq!(checked.health_check_node_port, Some(32000));
    let (zero, problems) = service(lb.clone());
    assert_eq!(zero.health_check_node_port, None);
    assert_eq!(problems, ["Service demo/web: spec.healthCheckNodePort: 0 is not a port (1 to 65535); no health check"]);
    for other in
        [with(local, "/spec/type", json!("NodePort")), with(lb, "/spec/externalTrafficPolicy", json!("Cluster"))]
    {
        let (other, problems) = service(with(other, "/spec/healthCheckNodePort", json!(32000)));
        assert_eq!((other.health_check_node_port, problems.len()), (None, 0));
    }
}

#[test]
fn a_service_asks_for_hints_by_its_spec_or_its_annotation() {
    let asks = |value| service(value).0.asks_for_hints;
    assert!(!asks(web()));
    assert!(asks(with(web(), "/spec/trafficDistribution", json!("PreferClose"))));
    let annotated =
        |mode: &str| with(web(), "/metadata/annotations", json!({ "service.kubernetes.io/topology-mode": mode }));
    assert_eq!(["Auto", "auto", "Disabled"].map(|mode| asks(annotated(mode))), [true, true, false]);
}

#[test]
fn the_creation_time_is_in_seconds() {
    let (service, _) = service(with(web(), "/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z")));
    assert_eq!(service.created, 1_767_225_600);
}

#[test]
fn names_have_their_maximal_length() {
    let (service, _) = service(with(web(), "/metadata/name", json!("a".repeat(253))));
    assert_eq!(service.name.name.len(), 253);
    for (field, bad) in
        [("name", "a".repeat(254)), ("name", "We_b".into()), ("name", String::new()), ("namespace", "a".repeat(64))]
    {
        let converted = convert_service(with(web(), &format!("/metadata/{field}"), json!(bad)));
        assert_eq!((converted.event, converted.problems.len()), (None, 1), "{bad}");
        assert_eq!(converted.problems[0].field, format!("metadata.{field}"));
    }
}
