//! What kube-proxy in mode iptables has on a node, as iptables-nft or iptables-legacy writes it: a Service `web` with cluster IP 1 and a node port, and a
//! Service with cluster IP 2 that has no endpoints.

use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::plan::{CLUSTER_CIDR, Family};

/// The node port of `web`.
pub(crate) const NODE_PORT: u16 = 30080;
/// The port of its endpoints.
pub(crate) const PORT: u16 = 8080;

/// Table filter, in both families.
const FILTER: &str = "*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
-I INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-I FORWARD -j KUBE-FORWARD
-I OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
";

/// Table nat, in both families.
const NAT: &str = "*nat
:KUBE-EXT-WEB - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-WEB - [0:0]
-I PREROUTING -j KUBE-SERVICES
-I OUTPUT -j KUBE-SERVICES
-I POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-EXT-WEB -j KUBE-MARK-MASQ
-A KUBE-EXT-WEB -j KUBE-SVC-WEB
";

/// The program that writes the rules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Variant {
    Nft,
    Legacy,
}

/// Writes the rules, with these endpoints of `web`.
pub(crate) fn install(node: &Namespace, web: &[u8]) {
    Variant::Nft.install(node, web);
}

/// The rules of both families as iptables-nft sees them, without counters; what kube-proxy made alone.
pub(crate) fn listing(node: &Namespace) -> String {
    Variant::Nft.listing(node)
}

impl Variant {
    /// As [`install`].
    pub(crate) fn install(self, node: &Namespace, web: &[u8]) {
        for family in Family::ALL {
            let program = format!("{}-restore", self.program(family));
            run_with_input(node.command(program).arg("--noflush"), &text(family, web));
        }
    }

    /// As [`listing`].
    pub(crate) fn listing(self, node: &Namespace) -> String {
        let save = |family: &Family| run(&mut node.command(format!("{}-save", self.program(*family))));
        let saved: String = Family::ALL.iter().map(save).collect();
        without_counters(&saved)
    }

    pub(crate) fn program(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Nft, Family::V4) => "iptables-nft",
            (Self::Nft, Family::V6) => "ip6tables-nft",
            (Self::Legacy, Family::V4) => "iptables-legacy",
            (Self::Legacy, Family::V6) => "ip6tables-legacy",
        }
    }
}

fn without_counters(saved: &str) -> String {
    let lines = saved.lines().filter(|line| line.contains("KUBE-"));
    lines.map(|line| line.split(" [").next().unwrap_or(line).to_owned() + "\n").collect()
}

fn text(family: Family, web: &[u8]) -> String {
    let (cluster_ip, unserved, reject) = (family.cluster_ip(1), family.cluster_ip(2), reject(family));
    let cidr = CLUSTER_CIDR.split(',').nth(usize::from(family == Family::V6)).expect("a range for each family");
    let mut text = format!("{FILTER}-A KUBE-SERVICES -d {unserved} -p tcp -m tcp --dport 80 {reject}\nCOMMIT\n{NAT}");
    let chains: String = web.iter().map(|n| format!(":KUBE-SEP-{n} - [0:0]\n")).collect();
    text += &chains;
    text += &format!(
        "-A KUBE-SERVICES -d {cluster_ip} -p tcp -m tcp --dport 80 -j KUBE-SVC-WEB\n\
         -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
         -A KUBE-NODEPORTS -p tcp -m tcp --dport {NODE_PORT} -j KUBE-EXT-WEB\n\
         -A KUBE-SVC-WEB ! -s {cidr} -d {cluster_ip} -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n"
    );
    for (left, n) in (1..=web.len()).rev().zip(web) {
        let endpoint = family.endpoint(*n);
        let to = std::net::SocketAddr::new(endpoint, PORT);
        let share = if left == 1 {
            String::new()
        } else {
            format!(
                "-m statistic --mode random --probability {:.6} ",
                1.0 / f64::from(u8::try_from(left).expect("few endpoints"))
            )
        };
        text += &format!(
            "-A KUBE-SVC-WEB {share}-j KUBE-SEP-{n}\n\
             -A KUBE-SEP-{n} -s {endpoint} -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{n} -p tcp -m tcp -j DNAT --to-destination {to}\n"
        );
    }
    text + "COMMIT\n"
}

fn reject(family: Family) -> &'static str {
    if family == Family::V4 {
        "-j REJECT --reject-with icmp-port-unreachable"
    } else {
        "-j REJECT --reject-with icmp6-port-unreachable"
    }
}
