//! Text of any length from outside: each input causes a bounded amount of log, an input that changes again and again too, and no page grows
//! with it.

use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::support::apiserver::fault::{Command, Ending};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::plan::Family::V4;
use crate::support::probe::Proto;
use crate::support::proxy::Proxy;

/// About the size of the largest annotation that an API server takes.
const LENGTH: usize = 240_000;
/// What makes text longer in the log, or moves it to another place: control characters, ends of lines, marks that turn the direction.
const FILLS: [&str; 3] = ["\u{1}", "\n", "\u{202e}"];
/// The most bytes of log that an object may cause. A name that cannot be a name is printed up to 320 characters.
const OF_OBJECT: usize = 4_096;
/// The most bytes of a page.
const OF_PAGE: usize = 64 << 10;

/// Texts that no field accepts.
fn texts() -> impl Iterator<Item = String> {
    FILLS.iter().map(|fill| format!("x{}", fill.repeat(LENGTH / fill.len())))
}

/// An object with a text in one of its fields.
type Object = fn(&str) -> Value;

fn with(mut object: Value, path: &str, text: &str) -> Value {
    *object.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = text.into();
    object
}

/// A Service whose fields all have a value.
fn full_service() -> Value {
    let mut object = service("shop", "long").cluster_ip(V4.cluster_ip(20)).port("http", Proto::Tcp, 80).json();
    for annotation in ["scheduler", "weights", "close-connections", "keep-udp-flows", "unknown"] {
        object["metadata"]["annotations"][format!("kube-proxy-nft/{annotation}")] = "".into();
    }
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Cluster".into();
    object["spec"]["externalIPs"] = json!([""]);
    object["spec"]["loadBalancerSourceRanges"] = json!([""]);
    object["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "192.0.2.1", "ipMode": "VIP" }]);
    object
}

fn full_slice() -> Value {
    let mut object = slice("shop", "web", "long", &[V4.endpoint(2)], &[("http", Proto::Tcp, 8080)]);
    object["metadata"]["annotations"] = json!({ "kube-proxy-nft/weight": "1" });
    object["endpoints"][0]["zone"] = "a".into();
    object["endpoints"][0]["nodeName"] = "a".into();
    object["endpoints"][0]["hints"] = json!({ "forZones": [{ "name": "a" }] });
    object
}

const SERVICE: [(&str, Object); 17] = [
    ("name", |text| with(full_service(), "/metadata/name", text)),
    ("namespace", |text| with(full_service(), "/metadata/namespace", text)),
    ("scheduler", |text| with(full_service(), "/metadata/annotations/kube-proxy-nft~1scheduler", text)),
    ("weights", |text| with(full_service(), "/metadata/annotations/kube-proxy-nft~1weights", text)),
    ("close", |text| with(full_service(), "/metadata/annotations/kube-proxy-nft~1close-connections", text)),
    ("keep", |text| with(full_service(), "/metadata/annotations/kube-proxy-nft~1keep-udp-flows", text)),
    ("unknown", |text| with(full_service(), "/metadata/annotations/kube-proxy-nft~1unknown", text)),
    ("type", |text| with(full_service(), "/spec/type", text)),
    ("clusterIP", |text| with(full_service(), "/spec/clusterIPs/0", text)),
    ("ipFamily", |text| with(full_service(), "/spec/ipFamilies/0", text)),
    ("externalIP", |text| with(full_service(), "/spec/externalIPs/0", text)),
    ("range", |text| with(full_service(), "/spec/loadBalancerSourceRanges/0", text)),
    ("external policy", |text| with(full_service(), "/spec/externalTrafficPolicy", text)),
    ("affinity", |text| with(full_service(), "/spec/sessionAffinity", text)),
    ("port's name", |text| with(full_service(), "/spec/ports/0/name", text)),
    ("protocol", |text| with(full_service(), "/spec/ports/0/protocol", text)),
    ("ingress", |text| with(full_service(), "/status/loadBalancer/ingress/0/ipMode", text)),
];

const SLICE: [(&str, Object); 11] = [
    ("name", |text| with(full_slice(), "/metadata/name", text)),
    ("namespace", |text| with(full_slice(), "/metadata/namespace", text)),
    ("weight", |text| with(full_slice(), "/metadata/annotations/kube-proxy-nft~1weight", text)),
    ("service", |text| with(full_slice(), "/metadata/labels/kubernetes.io~1service-name", text)),
    ("addressType", |text| with(full_slice(), "/addressType", text)),
    ("address", |text| with(full_slice(), "/endpoints/0/addresses/0", text)),
    ("node", |text| with(full_slice(), "/endpoints/0/nodeName", text)),
    ("zone", |text| with(full_slice(), "/endpoints/0/zone", text)),
    ("hint", |text| with(full_slice(), "/endpoints/0/hints/forZones/0/name", text)),
    ("port's name", |text| with(full_slice(), "/ports/0/name", text)),
    ("protocol", |text| with(full_slice(), "/ports/0/protocol", text)),
];

/// Fields with text in place of a number or a list, which only JSON can have.
const WRONG_TYPES: [(Resource, Object); 3] = [
    (Resource::Service, |text| with(full_service(), "/spec/ports/0/port", text)),
    (Resource::Service, |text| with(full_service(), "/spec/externalIPs", text)),
    (Resource::EndpointSlice, |text| with(full_slice(), "/ports/0/port", text)),
];

/// A cluster, its proxy, and what was sent so far.
struct Watched<'a> {
    cluster: &'a Cluster,
    proxy: &'a Proxy<'a>,
    markers: usize,
}

impl Watched<'_> {
    /// Sends objects of a kind, and returns how many bytes of log they caused. An object of a namespace of its own shows that they were
    /// read, because a watch keeps the order.
    fn logged(&mut self, kind: Resource, objects: &[Value]) -> usize {
        let before = self.proxy.log().len();
        self.cluster.server.apply(objects);
        self.markers += 1;
        let name = format!("marker-{}", self.markers);
        let marker = match kind {
            Resource::Service => {
                service(&name, &name).cluster_ip(V4.cluster_ip(20)).spec("type", "marker".into()).json()
            }
            _ => with(slice(&name, &name, &name, &[], &[]), "/addressType", "marker"),
        };
        self.cluster.server.apply(&[marker]);
        wait_for(&name, || self.proxy.log().contains(&name).then_some(()));
        self.proxy.log().len() - before
    }
}

test_in_each_format!(the_log_is_bounded_whatever_stands_in_a_field);
fn the_log_is_bounded_whatever_stands_in_a_field(format: Format) {
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let mut watched = Watched { cluster: &cluster, proxy: &proxy, markers: 0 };
    let services = SERVICE.map(|(field, object)| (Resource::Service, field, object));
    let slices = SLICE.map(|(field, object)| (Resource::EndpointSlice, field, object));
    let wrong = WRONG_TYPES.map(|(kind, object)| (kind, "wrong type", object));
    let is_json = format == Format::Json;
    let cases = services.into_iter().chain(slices).chain(wrong.into_iter().filter(|_| is_json));
    let too_much: Vec<String> = cases
        .filter_map(|(kind, field, object)| {
            let objects: Vec<Value> = texts().map(|text| object(&text)).collect();
            let bytes = watched.logged(kind, &objects);
            (bytes > FILLS.len() * OF_OBJECT).then(|| format!("{kind:?} {field}: {bytes} bytes of log"))
        })
        .collect();
    assert!(too_much.is_empty(), "{too_much:#?}");
    the_node_and_the_ranges_are_bounded(&cluster, &proxy);
    pages_are_bounded(&proxy);
}

/// Sends text in the fields of the Node and of a ServiceCIDR.
fn the_node_and_the_ranges_are_bounded(cluster: &Cluster, proxy: &Proxy<'_>) {
    for text in texts() {
        let mut node = with(node(), "/status/addresses/0/address", &text);
        node["spec"]["podCIDRs"] = json!([text]);
        node["metadata"]["labels"] = json!({ "topology.kubernetes.io/zone": text });
        let range = with(service_cidr(), "/spec/cidrs/0", &text);
        for (object, field) in [(node, "spec.podCIDRs"), (range, "spec.cidrs")] {
            let (before, times) = (proxy.log().len(), proxy.log().matches(field).count());
            cluster.server.apply(&[object]);
            wait_for(field, || (proxy.log().matches(field).count() > times).then_some(()));
            let bytes = proxy.log().len() - before;
            assert!(bytes < OF_OBJECT, "{field}: {bytes} bytes of log");
        }
    }
}

fn pages_are_bounded(proxy: &Proxy<'_>) {
    for (address, path) in [
        ("127.0.0.1:10249", "/debug/changes"),
        ("127.0.0.1:10256", "/healthz"),
        ("127.0.0.1:10256", "/livez"),
        ("127.0.0.1:10256", "/readyz"),
    ] {
        let bytes = proxy.get(address, path).len();
        assert!(bytes < OF_PAGE, "{path} has {bytes} bytes");
    }
}

#[test]
fn an_annotation_that_is_patched_again_and_again_fills_no_log() {
    let cluster = Cluster::new(Format::Protobuf);
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let mut watched = Watched { cluster: &cluster, proxy: &proxy, markers: 0 };
    let patched = |n: usize| {
        let text = format!("{n}{}", FILLS[0].repeat(LENGTH));
        with(full_service(), "/metadata/annotations/kube-proxy-nft~1weights", &text)
    };
    let bytes = watched.logged(Resource::Service, &(0..41).map(patched).collect::<Vec<_>>());
    assert!(bytes < 10 * OF_OBJECT, "{bytes} bytes of log for 41 patches");
    let log = proxy.log();
    let summary = "\"Left out messages about objects, because there were too many\" \
                   of=\"Object has a field that cannot be used\" numMessages=";
    assert!(log.contains(summary), "{log}");
    let escaped = r#"\"0\x01\x01"#;
    assert!(log.contains(escaped), "each character is escaped once: {log}");
    // Many objects of one namespace.
    let object = |n: usize| with(full_service(), "/metadata/name", &format!("web-{n}"));
    let bytes = watched.logged(Resource::Service, &(0..2_000).map(object).collect::<Vec<_>>());
    assert!(bytes < 100 * OF_OBJECT, "{bytes} bytes of log for 2,000 objects");
}

#[test]
fn what_the_api_server_says_is_cut() {
    let cluster = Cluster::new(Format::Json);
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    for text in texts() {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "code": 500, "message": text });
        let error = json!({ "type": "ERROR", "object": status });
        let unknown = json!({ "type": text, "object": {} });
        for line in [error.to_string(), unknown.to_string(), text] {
            cluster.server.wait_for_watch(Resource::ServiceCidr);
            let (before, requests) = (proxy.log().len(), cluster.server.requests_for(Resource::ServiceCidr).len());
            cluster.server.order(Resource::ServiceCidr, Command::Bytes(format!("{line}\n").into_bytes()));
            cluster.server.order(Resource::ServiceCidr, Command::End(Ending::Close));
            wait_for("another request", || {
                (cluster.server.requests_for(Resource::ServiceCidr).len() > requests).then_some(())
            });
            let bytes = proxy.log().len() - before;
            assert!(bytes < OF_OBJECT, "{bytes} bytes of log for {}", line.escape_debug().take(60).collect::<String>());
            pages_are_bounded(&proxy);
        }
    }
}
