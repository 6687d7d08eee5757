//! `explain`, `check` and `trace` beside rules of iptables-legacy, and beside programs that translate packets before the proxy does. What the
//! commands say is what packets meet.

use serde_json::{Value, json};

use super::{command, outcome, said};
use crate::judge::{Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run_with_input};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{CLUSTER_CIDR, Family};
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
/// The endpoint of Service shop/web.
const WEB: [u8; 1] = [0];
const NODE_PORT: u16 = 30080;

fn cluster() -> Vec<Value> {
    let v4 = Family::V4;
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let mut objects = vec![node(), service_cidr(), web.external_ip(v4.external_ip(1)).json()];
    objects.extend(slices("shop", "web", &WEB, &PORTS));
    objects
}

/// The programs that write rules of both kinds of iptables, for IPv4 and for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Legacy,
    Nft,
}

impl Kind {
    /// Replaces the content of the tables that the text names.
    fn restore(self, node: &Namespace, family: Family, rules: &str) {
        let program = match (self, family) {
            (Self::Legacy, Family::V4) => "iptables-legacy-restore",
            (Self::Legacy, Family::V6) => "ip6tables-legacy-restore",
            (Self::Nft, Family::V4) => "iptables-nft-restore",
            (Self::Nft, Family::V6) => "ip6tables-nft-restore",
        };
        run_with_input(node.command(program).arg("--wait"), rules);
    }

    /// The name of a table in sentences.
    fn table(self, family: Family, table: &str) -> String {
        let family = if family == Family::V4 { "ip" } else { "ip6" };
        let of = if self == Self::Legacy { " of iptables-legacy" } else { "" };
        format!("{family} {table}{of}")
    }
}

const EMPTY: &str = "*raw\nCOMMIT\n*mangle\nCOMMIT\n*nat\nCOMMIT\n*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";

/// Rules; the verdict of a packet from outside to the node port, with a part of its reason; and that of one from a pod to the cluster IP.
const CASES: [(&str, [&str; 2], &str); 8] = [
    (
        "*filter\n:FORWARD DROP [0:0]",
        ["dropped"; 2],
        "TABLE, chain FORWARD) drops the packet, by the policy of the chain",
    ),
    (
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         -A FORWARD -s PODS -m comment --comment pods -j ACCEPT",
        ["dropped", "translated"],
        "TABLE, chain FORWARD) drops the packet, by the policy of the chain",
    ),
    (
        "*filter\n:GUARD - [0:0]\n-A FORWARD ! -s PODS ! -o lo -m state --state NEW -j GUARD\n\
         -A GUARD -p tcp -m tcp --dport 8000:9000 --tcp-flags SYN,ACK SYN -j REJECT",
        ["refused", "translated"],
        "TABLE, chain GUARD) refuses the packet",
    ),
    (
        "*mangle\n-A PREROUTING -i to-client -m addrtype --dst-type LOCAL -j MARK --set-xmark 0x1/0x1\n\
         -A FORWARD -m mark --mark 0x1/0x1 -j DROP",
        ["dropped", "translated"],
        "TABLE, chain FORWARD) drops the packet",
    ),
    (
        "*mangle\n-A PREROUTING -i to-c+ -p tcp -m tcp ! --dport 80:8079 -j DROP",
        ["dropped", "translated"],
        "TABLE, chain PREROUTING) drops the packet",
    ),
    (
        "*filter\n:A - [0:0]\n:B - [0:0]\n-A FORWARD -j A\n-A A -g B\n-A A -j DROP\n-A B -p udp -j DROP\n-A B -j RETURN\n\
         -A B -j DROP",
        ["translated"; 2],
        "shop/web:http sends it to",
    ),
    ("*nat\n-A POSTROUTING -s CLIENT -j MASQUERADE --random-fully", ["translated"; 2], "shop/web:http sends it to"),
    (
        "*filter\n-A FORWARD -i to-client -m limit --limit 1/hour --limit-burst 1 -j ACCEPT\n-A FORWARD -i to-client -j DROP",
        ["unknown", "translated"],
        "TABLE, chain FORWARD",
    ),
];

fn filled(rules: &str, family: Family) -> String {
    let pods = CLUSTER_CIDR.split(',').nth(usize::from(family == Family::V6)).expect("a range for each family");
    let rules = rules.replace("PODS", pods).replace("CLIENT", &family.client().to_string());
    format!("{rules}\nCOMMIT\n")
}

fn explained(node: &Namespace, flow: Flow) -> Value {
    let (from, to) = (flow.source.to_string(), flow.target.to_string());
    let (_, text, errors) = outcome(&mut command(node, &["explain", "--from", &from, "--to", &to, "-o", "json"]));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"))
}

fn reason(value: &Value) -> &str {
    value["reason"].as_str().unwrap_or_default()
}

fn from_outside(family: Family) -> Flow {
    Flow::new(Proto::Tcp, family.client(), family.node(), NODE_PORT)
}

// Rules of iptables-legacy decide like those of iptables-nft, and no packet fares otherwise (Q1).
#[test]
fn rules_of_iptables_legacy_are_told_as_packets_meet_them_like_those_of_iptables_nft() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    for (kind, family) in
        [Kind::Legacy, Kind::Nft].into_iter().flat_map(|kind| Family::ALL.map(|family| (kind, family)))
    {
        for (rules, verdicts, why) in CASES {
            kind.restore(&world.node, family, &filled(rules, family));
            let from_pod = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
            for (from, flow, verdict) in
                [(&world.client, from_outside(family), verdicts[0]), (&world.shell, from_pod, verdicts[1])]
            {
                let value = explained(&world.node, flow);
                assert_eq!(value["verdict"], verdict, "{kind:?} {family:?} {rules}: {value:#}");
                let outcome = probe(from, flow);
                let is_told = match verdict {
                    "translated" => matches!(outcome, Outcome::Reached(_)),
                    "dropped" => outcome == Outcome::Dropped,
                    "refused" => outcome == Outcome::Refused,
                    _ => true,
                };
                assert!(is_told, "{kind:?} {family:?} {rules}: {outcome:?} and {value:#}");
            }
            let table = rules.trim_start_matches('*').split('\n').next().expect("the name of the table");
            let why = why.replace("TABLE", &format!("table {}", kind.table(family, table)));
            let value = explained(&world.node, from_outside(family));
            assert!(reason(&value).contains(&why), "{why}: {value:#}");
            kind.restore(&world.node, family, EMPTY);
        }
    }
}

fn assert_checked(node: &Namespace, texts: &[String]) {
    let (_, text) = said(node, "check");
    texts.iter().for_each(|expected| assert!(text.contains(expected), "{expected} is not in {text}"));
}

// `check` judges rules of iptables-legacy like those of iptables-nft; a trace says what it does not see.
#[test]
fn what_rules_of_iptables_legacy_may_do_is_a_warning_of_check_and_of_trace() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &cluster());
    let no_rules = "no other program has rules at the hooks of ours".to_owned();
    assert_checked(&world.node, std::slice::from_ref(&no_rules));
    for family in Family::ALL {
        // Tables without rules do nothing.
        Kind::Legacy.restore(&world.node, family, EMPTY);
        assert_checked(&world.node, std::slice::from_ref(&no_rules));
        let dnat = if family == Family::V4 { "192.0.2.3" } else { "[2001:db8::3]" };
        let rules = format!(
            "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n*raw\n-A PREROUTING -p udp -j CT --notrack\n-A OUTPUT -p udp -j DROP\nCOMMIT\n\
             *nat\n:A - [0:0]\n-A PREROUTING -p tcp -j A\n-A A -p tcp -m tcp --dport 30080 -j DNAT --to-destination {dnat}:9999\nCOMMIT\n"
        );
        Kind::Legacy.restore(&world.node, family, &rules);
        let table = |name| Kind::Legacy.table(family, name);
        assert_checked(
            &world.node,
            &[
                format!(
                    "chain FORWARD of table {} (forward, priority 0) drops what its rules do not accept",
                    table("filter")
                ),
                format!(
                    "chain PREROUTING of table {} (prerouting, priority -100) may translate destinations before our rules see them",
                    table("nat")
                ),
                format!(
                    "chain PREROUTING of table {} (prerouting, priority -300) may keep packets out of connection",
                    table("raw")
                ),
                format!("chain OUTPUT of table {} (output, priority -300) may drop packets", table("raw")),
            ],
        );
        Kind::Legacy.restore(&world.node, family, &format!("{EMPTY}*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"));
        let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        let (_, text) = super::trace::one(&world, &world.shell, flow, "json");
        let seen: Value = serde_json::from_str(&text).expect("JSON");
        let warning = seen["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.contains(&table("filter")) && warning.contains("`kube-proxy explain`"), "{seen:#}");
        Kind::Legacy.restore(&world.node, family, EMPTY);
    }
}

// Of two chains with one priority the kernel runs the one that was registered later first, and does not tell when it was (Q1, F12).
test_in_each_layout!(a_chain_of_iptables_legacy_that_may_run_first_is_not_guessed_about);
fn a_chain_of_iptables_legacy_that_may_run_first_is_not_guessed_about(layout: Layout) {
    for is_later in [false, true] {
        let world = World::new();
        let flow = from_outside(Family::V4);
        let restore = |port: u16| {
            let to = Family::V4.endpoint(3);
            let rule = format!("-A PREROUTING -p tcp -m tcp --dport {port} -j DNAT --to-destination {to}:9090");
            Kind::Legacy.restore(&world.node, Family::V4, &format!("*nat\n{rule}\nCOMMIT\n"));
        };
        if !is_later {
            restore(NODE_PORT);
        }
        let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
        if is_later {
            restore(NODE_PORT);
        }
        let value = explained(&world.node, flow);
        assert_eq!(value["verdict"], "unknown", "{value:#}");
        for part in
            ["table ip nat of iptables-legacy, chain PREROUTING", "10.244.2.11:9090", "shop/web:http sends it to"]
        {
            assert!(reason(&value).contains(part), "{part}: {value:#}");
        }
        let expected = if is_later { endpoints(Family::V4, &[3], 9090) } else { endpoints(Family::V4, &WEB, 8080) };
        let source = if is_later { Source::Kept } else { Source::Masqueraded };
        assert_reaches(&world.client, flow, &expected, source, 4);
        // What its rules do not touch fares the same either way.
        restore(1);
        let value = explained(&world.node, flow);
        assert_eq!(value["verdict"], "translated", "{value:#}");
    }
}

/// An address that no Service has, and that another program gives to Services.
const TAKEN: &str = "198.18.7.7";

// A connection is translated once: what another program has translated reaches no Service, and no Service is at fault (Q1).
test_in_each_layout!(a_packet_that_another_program_has_translated_to_a_service_is_told_so);
fn a_packet_that_another_program_has_translated_to_a_service_is_told_so(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster());
    let v4 = Family::V4;
    let flow = Flow::new(Proto::Tcp, v4.client(), TAKEN.parse().expect("an address"), 80);
    let by_nft = |to: &str| {
        let chain = "type nat hook prerouting priority dstnat - 5";
        nft::load(
            &world.node,
            &format!(
                "table ip ts {{}}
                 delete table ip ts
                 table ip ts {{
                     chain pre {{
                         {chain}
                         ip daddr {TAKEN} tcp dport 80 dnat to {to}
                     }}
                 }}"
            ),
        );
    };
    by_nft("10.96.0.1");
    assert_outcome(&world.client, flow, &Outcome::Refused);
    let assert_told = |who: &str| {
        let value = explained(&world.node, flow);
        assert_eq!((&value["verdict"], &value["service"]), (&json!("refused"), &Value::Null), "{value:#}");
        for part in [who, "10.96.0.1:80", "only once", "shop/web:http"] {
            assert!(value.to_string().contains(part), "{part}: {value:#}");
        }
        assert!(reason(&value).contains(who) && reason(&value).contains("only once"), "{value:#}");
        assert!(!value.to_string().contains("no Service has"), "{value:#}");
    };
    assert_told("another program (table ip ts, chain pre)");
    let (code, text) = super::trace::one(&world, &world.client, flow, "json");
    let seen: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &seen["verdict"]), (Some(1), &json!("refused")), "{seen:#}");
    for part in ["another program (table ip ts, chain pre)", "only once", "shop/web:http"] {
        assert!(seen.to_string().contains(part), "{part}: {seen:#}");
    }
    assert!(!seen.to_string().contains("no Service has"), "{seen:#}");
    // To other addresses of the Service as well.
    for (to, expected) in [("192.0.2.2:30080", Outcome::Reset), ("198.51.100.1:80", Outcome::Dropped)] {
        by_nft(to);
        assert_outcome(&world.client, flow, &expected);
        let value = explained(&world.node, flow);
        let warnings = value["warnings"].to_string();
        assert!(warnings.contains("shop/web:http") && warnings.contains("only once"), "{value:#}");
        let (code, _) = said(&world.node, &format!("explain --from {} --to {TAKEN}:80", v4.client()));
        assert_eq!(code, 1, "{value:#}");
    }
    nft::load(&world.node, "delete table ip ts");
    let rule = format!("*nat\n-A PREROUTING -d {TAKEN} -j DNAT --to-destination 10.96.0.1\nCOMMIT\n");
    for kind in [Kind::Legacy, Kind::Nft] {
        kind.restore(&world.node, v4, &rule);
        assert_outcome(&world.client, flow, &Outcome::Refused);
        assert_told(&format!("another program (table {}, chain PREROUTING)", kind.table(v4, "nat")));
        kind.restore(&world.node, v4, EMPTY);
    }
}
