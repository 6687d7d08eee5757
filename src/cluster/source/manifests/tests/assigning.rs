//! Tests of the cluster IPs and node ports that Services without them get.

use std::collections::BTreeMap;
use std::fs;

use tempfile::tempdir;

use super::super::{AssignedManifests, read_and_assign, read_once};
use super::*;
use rules::model::Service;

/// Returns a Service in namespace shop whose `spec` has one port and these fields.
fn service(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{ports: [{{name: http, port: 80}}]{spec}}}\n"
    )
}

fn cidr(range: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: {}}}\nspec: {{cidrs: ['{range}']}}\n",
        "own"
    )
}

fn assigned(documents: &[String]) -> AssignedManifests {
    let dir = tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    fs::write(&file, documents.join("---\n")).unwrap();
    read_and_assign(&[file], ConvertOptions::default()).unwrap()
}

fn services(manifests: &AssignedManifests) -> BTreeMap<String, Service> {
    let services = manifests.events.iter().filter_map(|event| match event {
        Event::ServiceApplied(service) => Some((service.name.name.to_string(), service.clone())),
        _ => None,
    });
    services.collect()
}

/// Returns the IPv4 addresses of the Services, by name.
fn v4(documents: &[String]) -> BTreeMap<String, u32> {
    let found = assigned(documents);
    assert_eq!(texts(&found.problems), [""; 0]);
    services(&found).into_iter().map(|(name, service)| (name, service.cluster_ips.v4.unwrap().into())).collect()
}

#[test]
fn a_service_without_a_cluster_ip_gets_one_of_its_families_and_a_line_says_so() {
    let found = assigned(&[
        service("web", ""),
        service("both", ", ipFamilyPolicy: PreferDualStack"),
        service("six", ", ipFamilies: [IPv6]"),
        service("own", ", clusterIP: 10.96.0.10"),
        service("headless", ", clusterIP: None"),
        service("name", ", type: ExternalName, externalName: example.org"),
    ]);
    assert_eq!(texts(&found.problems), [""; 0]);
    let services = services(&found);
    assert_eq!(services.keys().collect::<Vec<_>>(), ["both", "own", "six", "web"]);
    let shown: Vec<String> = ["both", "six", "web"]
        .iter()
        .map(|name| {
            let ips = services[*name].cluster_ips;
            let ips = [ips.v4.map(|ip| ip.to_string()), ips.v6.map(|ip| ip.to_string())].into_iter().flatten();
            let ips = ips.collect::<Vec<_>>().join(" and ");
            format!("shop/{name} has no clusterIP: rendered with {ips}; no EndpointSlice: rendered without endpoints")
        })
        .collect();
    assert_eq!(found.notes, shown);
    assert!(u32::from(services["web"].cluster_ips.v4.unwrap()) > u32::from(std::net::Ipv4Addr::new(10, 96, 1, 0)));
    assert!(services["six"].cluster_ips.v6.unwrap().to_string().starts_with("fd00:10:96::"));
    assert!(services["both"].cluster_ips.v4.is_some() && services["both"].cluster_ips.v6.is_some());
}

#[test]
fn an_address_depends_on_the_name_and_not_on_other_services_or_their_order() {
    let named = |range: std::ops::Range<u16>| range.map(|n| service(&format!("s{n}"), "")).collect::<Vec<_>>();
    let few = v4(&named(0..200));
    let mut more = named(0..400);
    more.reverse();
    let many = v4(&more);
    assert_eq!(few.iter().filter(|(name, ip)| many[*name] != **ip).count(), 0);
    let different: std::collections::BTreeSet<_> = many.values().collect();
    assert_eq!(different.len(), 400);
}

#[test]
fn a_small_range_is_used_up_without_a_clash_and_then_it_says_so() {
    let range = cidr("10.9.0.0/28");
    let taken = service("taken", ", clusterIP: 10.9.0.5");
    let new = |count: u8| {
        let new = (0..count).map(|n| service(&format!("s{n}"), ""));
        [range.clone(), taken.clone()].into_iter().chain(new).collect::<Vec<_>>()
    };
    // Of 16 addresses, the network's, the broadcast address and the one that is taken are not free.
    let addresses = v4(&new(13));
    let different: std::collections::BTreeSet<u32> = addresses.values().copied().collect();
    let first = u32::from(std::net::Ipv4Addr::new(10, 9, 0, 1));
    assert_eq!(different, (first..first + 14).collect());
    let found = assigned(&new(14));
    assert_eq!(
        texts(&found.problems),
        ["the manifests: Service shop/s9: cannot get an IPv4 clusterIP: the ServiceCIDR has no free address"]
    );
    assert_eq!(services(&found).len(), 14, "the Service without an address is left out");
}

#[test]
fn in_a_cluster_of_ipv6_a_service_that_names_no_family_gets_an_ipv6_address() {
    let found = services(&assigned(&[cidr("fd99::/112"), service("web", "")]));
    let ips = found["web"].cluster_ips;
    assert!(ips.v4.is_none() && ips.v6.unwrap().to_string().starts_with("fd99::"), "{ips:?}");
}

#[test]
fn node_ports_are_given_where_an_api_server_would_give_them() {
    let local = ", type: LoadBalancer, externalTrafficPolicy: Local";
    let found = assigned(&[
        service("np", ", type: NodePort, clusterIP: 10.96.0.1"),
        service("lb", local),
        service("none", ", type: LoadBalancer, allocateLoadBalancerNodePorts: false"),
        // This Service has a cluster IP, so it counts as one from an API server, which has given it all that it needs.
        service("old", ", type: LoadBalancer, clusterIP: 10.96.0.2"),
    ]);
    assert_eq!(texts(&found.problems), [""; 0]);
    let services = services(&found);
    let port = |name: &str| services[name].ports[0].node_port;
    let (np, lb, check) = (port("np").unwrap(), port("lb").unwrap(), services["lb"].health_check_node_port.unwrap());
    assert!([np, lb, check].iter().all(|port| (30_086..=32_767).contains(port)), "{np} {lb} {check}");
    assert!(np != lb && lb != check && np != check);
    assert_eq!((port("none"), port("old")), (None, None));
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
    assert_eq!(found.notes[2], format!("shop/np has no nodePort for http: rendered with {np}"));
    let end = format!(
        "; no nodePort for http: rendered with {lb}; no healthCheckNodePort: rendered with {check}; no EndpointSlice: rendered \
         without endpoints"
    );
    assert!(found.notes[0].ends_with(&end), "{}", found.notes[0]);
}

#[test]
fn what_is_followed_says_that_a_service_without_a_cluster_ip_is_ignored() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("web.yaml"), service("web", "")).unwrap();
    let (events, problems) = read_once(&[dir.path().to_owned()], ConvertOptions::default()).unwrap();
    assert_eq!(words(&events), ["done"]);
    let [problem] = &texts(&problems)[..] else { panic!("{problems:?}") };
    assert!(
        problem.contains("document 1: Service shop/web: spec.clusterIP: missing; Service ignored: write"),
        "{problem}"
    );
}
