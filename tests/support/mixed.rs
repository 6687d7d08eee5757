//! A cluster with one Service of every sort, for tests that look at rules rather than at packets.

use serde_json::{Value, json};

use super::objects::{ServiceBuilder, node, service, service_cidr, slices};
use super::plan::Family;
use super::probe::Proto;

/// The named ports of Service "web".
pub(crate) const WEB_PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];

/// The Service "shop/web": every kind of frontend, two ports.
pub(crate) fn web() -> ServiceBuilder {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.port("dns", Proto::Udp, 53).node_port(30053);
    Family::ALL
        .iter()
        .fold(web, |web, family| web.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1)))
}

/// A Node, a ServiceCIDR, "web" on four endpoints, and Services with affinity, Local policies, source ranges, SCTP and no endpoints.
pub(crate) fn cluster() -> Vec<Value> {
    let http = [("http", Proto::Tcp, 8080)];
    let plain = |name, n| service("shop", name).cluster_ips(n).port("http", Proto::Tcp, 80);
    let sticky = plain("sticky", 2).node_port(30082).spec("sessionAffinity", json!("ClientIP"));
    let sticky = sticky.spec("sessionAffinityConfig", json!({ "clientIP": { "timeoutSeconds": 10_800 } }));
    let local = Family::ALL
        .iter()
        .fold(plain("local", 3).node_port(30083), |local, family| local.load_balancer_ip(family.load_balancer_ip(3)));
    let local = local.spec("externalTrafficPolicy", json!("Local")).spec("healthCheckNodePort", json!(32_083));
    let local = local.spec("loadBalancerSourceRanges", json!(["203.0.113.0/24", "2001:db8:113::/48"]));
    let inside = plain("inside", 4).spec("internalTrafficPolicy", json!("Local"));
    let sctp = service("shop", "sctp").cluster_ips(5).port("signalling", Proto::Sctp, 3868);
    let mut objects =
        vec![node(), service_cidr(), web().json(), sticky.json(), local.json(), inside.json(), sctp.json()];
    objects.push(plain("empty", 6).node_port(30086).json());
    objects.extend(slices("shop", "web", &[0, 1, 2, 3], &WEB_PORTS));
    objects.extend(slices("shop", "sticky", &[1, 2], &http));
    objects.extend(slices("shop", "local", &[0, 3], &http));
    objects.extend(slices("shop", "inside", &[2, 3], &http));
    objects.extend(slices("shop", "sctp", &[0], &[("signalling", Proto::Sctp, 9090)]));
    objects
}
