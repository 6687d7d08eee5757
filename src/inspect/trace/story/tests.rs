//! Stories of reports in memory: verdict, endpoint, reason.

use super::*;
use nft::expr::{MetaKey, RejectWith};
use nft::{Family, Statement};
use node::kernel::connections::{Ends, Phase};

/// Rules by handle: 1 goes to the chain `lb-1`, 2 translates, 3 masquerades, 4 refuses.
struct ListedRules;

impl Book for ListedRules {
    fn rule(&mut self, _: &TableName, _: &str, handle: u64) -> Option<RuleDump> {
        let exprs = match handle {
            1 => vec![Expr::ImmediateVerdict(RuleVerdict::Goto("lb-1".into()))],
            2 => {
                let dnat = Statement::Dnat("10.244.0.1:8080".parse().unwrap());
                return Some(nft::Rule { statements: vec![dnat], comment: None }.to_dump(Family::Ip));
            }
            3 => vec![Expr::Masquerade { flags: 0 }],
            4 => vec![Expr::Reject(RejectWith::Icmp(3))],
            _ => return None,
        };
        Some(RuleDump { exprs, comment: None })
    }

    fn interface(&mut self, index: u32) -> Link {
        Link::Known(index, "eth0".into())
    }

    fn service(&mut self, packet: &Packet, is_node_port: bool) -> Option<String> {
        (is_node_port || packet.destination.to_string() == "10.96.0.10").then(|| "shop/web:http".to_owned())
    }

    /// Only the connection from client port 1 is tracked; it is masqueraded.
    fn connection(&mut self, packet: &Packet) -> Option<Connection> {
        let client = SocketAddr::new(packet.source, packet.source_port?);
        (client.port() == 1).then(|| Connection {
            protocol: 6,
            original: Ends { source: client, destination: packet.target() },
            reply: Ends { source: "10.244.0.1:8080".parse().unwrap(), destination: "192.0.2.2:4711".parse().unwrap() },
            status: 0,
            phase: Phase::Open,
            mark: None,
            id: 1,
            counters: None,
        })
    }

    /// Adds a warning to each packet that passes, as for a dormant table.
    fn correct(&mut self, _: &Packet, explanation: &mut Explanation) {
        if explanation.verdict == Verdict::Passed {
            explanation.warnings.push("the table is dormant".to_owned());
            explanation.is_wrong = true;
        }
    }
}

fn own() -> TableName {
    TableName::new(Family::Ip, "kube-proxy-trace-7")
}

fn headers(destination: [u8; 4], port: u16) -> Headers {
    let mut network = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 203, 0, 113, 7];
    network.extend(destination);
    let mut transport = vec![0x12, 0x34];
    transport.extend(port.to_be_bytes());
    transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02]);
    Headers { network, transport, input: Some(2), output: None }
}

fn report(table: &str, handle: u64, verdict: Option<RuleVerdict>, headers: Option<Headers>) -> Traced {
    Traced {
        packet: 9,
        table: TableName::new(Family::Ip, table),
        chain: "KUBE-SERVICES".into(),
        event: Event::Rule(handle),
        verdict,
        mark: 0,
        headers,
    }
}

fn arrival() -> Traced {
    report("kube-proxy-trace-7", 99, None, Some(headers([10, 96, 0, 10], 80)))
}

#[test]
fn a_translated_packet_is_told_with_its_endpoint() {
    let reports = [
        arrival(),
        report("kube-proxy", 1, Some(RuleVerdict::Goto("lb-1".into())), Some(headers([10, 96, 0, 10], 80))),
        report("kube-proxy", 2, Some(RuleVerdict::Accept), None),
        report("kube-proxy", 3, Some(RuleVerdict::Accept), Some(headers([10, 244, 0, 1], 8080))),
    ];
    let story = tell(&reports, &own(), &mut ListedRules).unwrap();
    assert_eq!((&*story.from, &*story.to), ("203.0.113.7:4660", "10.96.0.10:80"));
    assert_eq!((story.flags.as_deref(), story.interface.as_deref()), (Some("SYN"), Some("eth0")));
    assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
    assert_eq!(story.endpoint, Some("10.244.0.1:8080".parse().unwrap()));
    assert_eq!(story.service.as_deref(), Some("shop/web:http"));
    assert!(story.reason.contains("10.244.0.1:8080"), "{}", story.reason);
    assert_eq!(story.steps.len(), 3, "without the table of the mark: {:?}", story.steps);
}

// A rule may be gone before it is read; that is no policy.
#[test]
fn a_rule_that_is_not_known_is_not_shown_as_a_policy() {
    let shown = |event| {
        let drop =
            Traced { event, ..report("firewall", 77, Some(RuleVerdict::Drop), Some(headers([10, 96, 0, 10], 80))) };
        let story = tell(&[arrival(), drop], &own(), &mut ListedRules).unwrap();
        (story.verdict, story.steps[0].shown().to_owned())
    };
    assert_eq!(shown(Event::Rule(77)), (Verdict::Dropped, "a rule that is not known".to_owned()));
    assert_eq!(shown(Event::Policy), (Verdict::Dropped, "policy drop".to_owned()));
}

#[test]
fn a_node_port_is_known_by_the_chain_that_the_packet_met() {
    let mut arrival = arrival();
    arrival.headers = Some(headers([192, 0, 2, 2], 30080));
    let to_node_ports = report("kube-proxy", 1, Some(RuleVerdict::Jump("KUBE-NODEPORTS".into())), None);
    let story = tell(&[arrival.clone(), to_node_ports], &own(), &mut ListedRules).unwrap();
    assert_eq!(story.service.as_deref(), Some("shop/web:http"));
    assert_eq!(tell(&[arrival], &own(), &mut ListedRules).unwrap().service, None);
}

#[test]
fn a_refused_packet_is_refused_and_not_dropped() {
    let reports = [arrival(), report("kube-proxy", 4, Some(RuleVerdict::Drop), Some(headers([10, 96, 0, 10], 80)))];
    let story = tell(&reports, &own(), &mut ListedRules).unwrap();
    assert_eq!((story.verdict, story.endpoint), (Verdict::Refused, None));
}

#[test]
fn a_drop_behind_the_translation_is_told_with_the_endpoint() {
    let drop = Traced { chain: "forw".into(), ..report("firewall", 77, Some(RuleVerdict::Drop), None) };
    let drop = Traced { headers: Some(headers([10, 244, 0, 1], 8080)), ..drop };
    let story = tell(&[arrival(), drop], &own(), &mut ListedRules).unwrap();
    assert_eq!((story.verdict, story.endpoint), (Verdict::Dropped, Some("10.244.0.1:8080".parse().unwrap())));
    assert_eq!(
        story.reason,
        "shop/web:http sends it to 10.244.0.1:8080, but another program (table ip firewall, chain forw) drops the packet"
    );
}

#[test]
fn a_drop_of_any_table_is_a_drop() {
    let drop = |event| Traced { event, ..report("firewall", 77, Some(RuleVerdict::Drop), None) };
    for event in [Event::Rule(77), Event::Policy] {
        let story = tell(&[arrival(), drop(event)], &own(), &mut ListedRules).unwrap();
        assert_eq!(story.verdict, Verdict::Dropped);
        assert!(story.reason.contains("firewall"), "{}", story.reason);
    }
}

#[test]
fn packets_of_a_known_connection_and_untouched_ones_are_told_apart() {
    let mut later = arrival();
    later.headers.as_mut().unwrap().transport[..2].copy_from_slice(&[0, 1]);
    let story = tell(&[later.clone()], &own(), &mut ListedRules).unwrap();
    assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
    assert_eq!(story.reason, "its connection was given to 10.244.0.1:8080 before");
    // Some kernels also report the chains after the translation.
    let seen = report("kube-proxy", 77, None, Some(headers([10, 244, 0, 1], 8080)));
    let story = tell(&[later, seen], &own(), &mut ListedRules).unwrap();
    assert_eq!((story.verdict, story.masquerade), (Verdict::Translated, true));
    assert_eq!(story.reason, "its connection was given to 10.244.0.1:8080 before");
    let untouched = tell(&[arrival()], &own(), &mut ListedRules).unwrap();
    assert_eq!((untouched.verdict, untouched.steps.len()), (Verdict::Passed, 0));
    assert_eq!(untouched.reason, "shop/web:http has 10.96.0.10:80/TCP, but the rules do not translate it");
    assert_eq!((untouched.warnings, untouched.is_wrong), (vec!["the table is dormant".to_owned()], true));
}

#[test]
fn reports_without_a_packet_have_no_story() {
    assert_eq!(tell(&[report("kube-proxy", 1, None, None)], &own(), &mut ListedRules), None);
    let short = Headers { network: vec![0x45; 12], ..Headers::default() };
    assert_eq!(tell(&[report("kube-proxy", 1, None, Some(short))], &own(), &mut ListedRules), None);
}

#[test]
fn the_mark_is_told_as_the_kernel_reports_it() {
    let telling = Telling {
        service: None,
        endpoint: None,
        by: None,
        verdict: None,
        reasons: Vec::new(),
        masquerade: false,
        steps: Vec::new(),
    };
    let rule = nft::Rule { statements: vec![Statement::SetMarkBits(0x4000)], comment: None }.to_dump(Family::Ip);
    assert!(rule.exprs.iter().any(|expr| matches!(expr, Expr::MetaSet { key: MetaKey::Mark, .. })));
    let report = Traced { mark: 0x4000, ..report("kube-proxy", 1, None, None) };
    assert_eq!(telling.effects(&report, Some(&rule)), [Effect::Mark(0x4000)]);
}
