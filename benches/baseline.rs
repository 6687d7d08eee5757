//! The cost of upstream's way: the same Services as nft text, loaded by `nft -f`.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::cluster::address;
use crate::support::netns::Namespace;
use crate::support::nft;

/// Time that nft takes to load a ruleset into a fresh namespace.
pub(crate) fn load(text: &str) -> Duration {
    let namespace = Namespace::new("bench");
    let start = Instant::now();
    nft::load(&namespace, text);
    start.elapsed()
}

/// Upstream's shape: one chain with one anonymous numgen map a service port, one chain an endpoint.
pub(crate) fn chains(services: u32, endpoints: u32) -> String {
    let mut text = String::from("table ip kube-proxy {\n");
    let mut fronts = Vec::new();
    for n in 0..services {
        let mut targets = Vec::new();
        for i in 0..endpoints {
            let to = address(n, i);
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "chain endpoint-{n}-{i} {{ ip saddr {to} jump mark-for-masquerade\nmeta l4proto tcp dnat to {to}:8080; }}"
            );
            targets.push(format!("{i} : goto endpoint-{n}-{i}"));
        }
        let _ =
            writeln!(text, "chain service-{n} {{ numgen random mod {endpoints} vmap {{ {} }}; }}", targets.join(", "));
        fronts.push(format!("{} . tcp . 80 : goto service-{n}", Ipv4Addr::from(0x0a60_0001 + n)));
    }
    text.insert_str("table ip kube-proxy {\n".len(), "chain mark-for-masquerade { mark set mark or 0x4000; }\n");
    let _ = writeln!(
        text,
        "map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {} }}; }}",
        fronts.join(", ")
    );
    text + "chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }\n\
            chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }\n}\n"
}
