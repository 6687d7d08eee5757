//! Dumps of tables that nft loaded are decoded to the values that were loaded.

use std::sync::Arc;
use std::time::Duration;

use nft::decode::{self, Decoded, Messages, RawElement};
use nft::{
    Chain, Element, Expr, Family, Ownership, RuleDump, Ruleset, Set, Table, TableContent, TableName, TableState,
};

use crate::fixtures::statement_tables as tables;
use crate::support::{in_namespace, loadable, nft as run_nft, sorted};

const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENTS: u16 = 13;
const GET_GENERATION: u16 = 16;
const DUMP: u16 = 0x300;
const SUBSYSTEM: u16 = 10 << 8;
const SEQUENCE: u32 = 77;

fn load(input: &str) {
    run_nft(&["-f", "-"], input);
}

/// One request with text attributes.
fn request(kind: u16, flags: u16, family: Family, attrs: &[(u16, &str)]) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let mut bytes = vec![0; 4];
    bytes.extend((SUBSYSTEM | kind).to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    bytes.extend(SEQUENCE.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family.number(), 0, 0, 0]);
    for (kind, text) in attrs {
        bytes.extend(u16::try_from(4 + text.len() + 1).expect("short").to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let len = u32::try_from(bytes.len()).expect("short");
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

/// Sends a request and gives the messages that answer it, up to the end of the dump or the acknowledgement.
fn ask(request: &[u8]) -> Vec<Vec<u8>> {
    let socket = mnl::Socket::new(mnl::Bus::Netfilter).expect("a netlink socket");
    socket.send(request).expect("sent");
    let mut answers = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = socket.recv_raw(&mut buffer).expect("received");
        for message in Messages::new(&buffer[..len]) {
            assert_eq!(decode::sequence(message), Some(SEQUENCE));
            assert!(!decode::dump_interrupted(message));
            if let Some(errno) = decode::done(message) {
                assert_eq!(errno, 0);
                return answers;
            }
            if let Some(ack) = decode::ack(message) {
                assert_eq!(ack.errno, 0);
                return answers;
            }
            answers.push(message.to_vec());
        }
    }
}

fn dump(kind: u16, family: Family, attrs: &[(u16, &str)]) -> Vec<Decoded> {
    let messages = ask(&request(kind, DUMP, family, attrs));
    messages.iter().map(|message| decode::message(message).expect("decodes")).collect()
}

fn dump_tables(family: Family) -> Vec<Table> {
    let decoded = dump(GET_TABLE, family, &[]).into_iter();
    decoded
        .map(|decoded| match decoded {
            Decoded::Table { table, state: TableState { ownership: Ownership::Unowned, dormant: false, .. } } => table,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn dump_chains(name: &TableName) -> Vec<Chain> {
    let decoded = dump(GET_CHAIN, name.family, &[]).into_iter();
    decoded
        .map(|decoded| match decoded {
            Decoded::Chain { table, chain } if table == *name => chain,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn dump_rules(name: &TableName) -> Vec<(Arc<str>, RuleDump)> {
    let decoded = dump(GET_RULE, name.family, &[(1, &name.name)]).into_iter();
    decoded
        .map(|decoded| match decoded {
            Decoded::Rule { table, chain, rule, .. } if table == *name => (chain, rule),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn dump_sets(name: &TableName) -> Vec<Set> {
    let decoded = dump(GET_SET, name.family, &[(1, &name.name)]).into_iter();
    decoded
        .map(|decoded| match decoded {
            Decoded::Set { table, set } if table == *name => set,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn dump_raw_elements(name: &TableName, set_name: &str) -> Vec<RawElement> {
    let decoded = dump(GET_ELEMENTS, name.family, &[(1, &name.name), (2, set_name)]).into_iter();
    decoded
        .flat_map(|decoded| match decoded {
            Decoded::Elements { table, set, elements } if table == *name && &*set == set_name => elements,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn assert_rules(content: &TableContent) {
    let name = &content.table.name;
    let mut rules = dump_rules(name);
    for (_, rule) in &mut rules {
        // nft adds an expression `byteorder` for a single byte to some rules, which has no effect.
        rule.exprs.retain(|expr| *expr != Expr::Unknown("byteorder".into()));
    }
    let expected: Vec<(Arc<str>, RuleDump)> = content
        .chains
        .iter()
        .flat_map(|(chain, rules)| rules.iter().map(|rule| (Arc::clone(&chain.name), rule.to_dump(name.family))))
        .collect();
    for ((chain, expected), (dumped_chain, dumped)) in expected.iter().zip(&rules) {
        assert_eq!((chain, expected), (dumped_chain, dumped), "\nours   {expected}\nkernel {dumped}");
    }
    assert_eq!(expected.len(), rules.len());
}

fn assert_sets(content: &TableContent) {
    let name = &content.table.name;
    let mut expected: Vec<&(Arc<Set>, Vec<Element>)> = content.sets.iter().collect();
    let mut sets = dump_sets(name);
    sets.sort_by_key(|set| Arc::clone(&set.name));
    expected.sort_by_key(|(set, _)| Arc::clone(&set.name));
    assert_eq!(expected.len(), sets.len());
    for ((expected, elements), set) in expected.into_iter().zip(sets) {
        assert_eq!(**expected, set);
        let dumped = decode::pair(&set, dump_raw_elements(name, &set.name));
        assert_eq!(sorted(elements.clone()), sorted(dumped), "elements of {}", set.name);
    }
}

#[test]
fn everything_loaded_is_dumped_as_it_was() {
    in_namespace(|| {
        let tables = loadable(tables());
        load(&Ruleset { tables: tables.clone() }.to_string());
        for content in tables {
            let name = &content.table.name;
            assert_eq!(dump_tables(name.family), std::slice::from_ref(&content.table));
            let chains: Vec<Chain> = content.chains.iter().map(|(chain, _)| chain.clone()).collect();
            assert_eq!(dump_chains(name), chains);
            assert_rules(&content);
            assert_sets(&content);
        }
    });
}

/// nft loads values into other registers than this crate, which uses the registers right behind the key.
#[test]
fn values_in_other_registers_are_decoded_as_they_are() {
    in_namespace(|| {
        load(
            "table ip t { map m { typeof ip saddr : ip daddr . th dport; flags dynamic,timeout; timeout 1h; size 9; }\n \
             chain c { update @m { ip saddr timeout 90m : ip daddr . th dport } comment \"learn\"; }\n \
             chain d { meta l4proto tcp dnat to 10.0.0.1:80; }\n }",
        );
        let text: Vec<String> =
            dump_rules(&TableName::new(Family::Ip, "t")).iter().map(|(_, rule)| rule.to_string()).collect();
        assert_eq!(
            text[0],
            "[ payload load 4b @ network header + 12 => reg 1 ] [ payload load 4b @ network header + 16 => reg 2 ] \
             [ payload load 2b @ transport header + 2 => reg 13 ] \
             [ dynset update reg_key 1 set m timeout 5400000ms sreg_data 2 ] comment \"learn\""
        );
        assert_eq!(
            text[1],
            "[ meta load l4proto => reg 1 ] [ cmp eq reg 1 0x00000006 ] [ immediate reg 1 0x0100000a ] \
             [ immediate reg 2 0x00005000 ] [ nat dnat ip addr_min reg 1 proto_min reg 2 ]"
        );
    });
}

#[test]
fn elements_are_decoded_with_the_time_that_they_have_to_live() {
    in_namespace(|| {
        load(&Ruleset { tables: tables() }.to_string());
        let raw = dump_raw_elements(&TableName::new(Family::Ip, "kube-proxy"), "leases");
        let lease = raw.iter().find(|raw| raw.element.comment.is_some()).expect("the commented element");
        let expires = lease.expires.expect("it expires");
        assert!(expires <= lease.element.timeout.expect("its own") && expires > Duration::from_secs(93_000));
    });
}

#[test]
fn elements_over_several_messages_are_paired() {
    in_namespace(|| {
        let networks: Vec<String> = (0..4000_u32).map(|i| format!("10.{}.{}.0/25", i / 256, i % 256)).collect();
        let networks = networks.join(", ");
        load(&format!("table ip t {{ set s {{ type ipv4_addr; flags interval; elements = {{ {networks} }}; }}; }}"));
        let name = TableName::new(Family::Ip, "t");
        let messages = dump(GET_ELEMENTS, Family::Ip, &[(1, "t"), (2, "s")]);
        assert!(messages.len() > 1, "this test needs a dump of several messages");
        let set = dump_sets(&name).remove(0);
        let elements = decode::pair(&set, dump_raw_elements(&name, "s"));
        assert_eq!(elements.len(), 4000);
        let widths = elements.iter().map(|element| {
            let last = |data: &nft::Data| data.as_slice()[3];
            last(element.key_end.as_ref().expect("a range")) - last(&element.key)
        });
        assert!(widths.into_iter().all(|width| width == 127));
    });
}

#[test]
fn rules_and_sets_that_this_crate_cannot_express_are_recognised() {
    in_namespace(|| {
        load(
            "table ip t { set l { type ether_addr; }\n set m { typeof tcp dport; }\n chain c {\n log prefix \"x\"\n \
             meta length > 5\n ip saddr 1.1.1.1-1.1.1.5\n jhash ip saddr mod 2 0\n ip saddr { 1.1.1.1, 2.2.2.2 }\n meta mark set meta mark << 2\n snat to 10.0.0.1-10.0.0.9\n }\n \
             chain d { type filter hook input priority 0; policy drop; }\n }",
        );
        let rules = dump_rules(&TableName::new(Family::Ip, "t"));
        let text: Vec<String> = rules.iter().map(|(_, rule)| rule.to_string()).collect();
        let text = text.join("\n");
        // No statement of this crate has these expressions. Some are decoded for callers that follow a packet through the rules of other
        // programs.
        for foreign in ["[ log ]", "[ meta load 0 => reg 1 ]", "[ hash ? ]", "[ bitwise ? ]", "[ nat ? ]"] {
            assert!(text.contains(foreign), "{foreign} in {text}");
        }
        // nft 1.0.6 writes a range as two comparisons, and 1.1.3 as one.
        let ranges = ["[ cmp gte reg 1 0x01010101 ]", "[ range eq reg 1 0x01010101 0x05010101 ]"];
        assert!(ranges.into_iter().any(|range| text.contains(range)), "one of {ranges:?} in {text}");
        let sets = ask(&request(GET_SET, DUMP, Family::Ip, &[(1, "t")]));
        let mut sets = sets.iter().map(|message| decode::message(message));
        let error = sets.next().expect("two sets").expect_err("no such type here");
        assert_eq!((error.object, error.name.as_deref(), error.attribute), ("set", Some("l"), "key type"));
        let Some(Ok(Decoded::Set { set, .. })) = sets.next() else { panic!("a typeof of an unknown field") };
        assert_eq!(set.key, nft::Types::Named(vec![nft::DataType::InetService]));
        let Some(Ok(Decoded::Set { set, .. })) = sets.next() else { panic!("the set of a rule") };
        assert!(set.flags.anonymous && set.flags.constant, "{set:?}");
        let chains = ask(&request(GET_CHAIN, DUMP, Family::Ip, &[]));
        let error = decode::message(&chains[1]).expect_err("a policy that this crate has not");
        assert_eq!(error.to_string(), "chain d: policy is missing, malformed or unknown");
    });
}

#[test]
fn a_refused_request_says_why() {
    in_namespace(|| {
        let socket = mnl::Socket::new(mnl::Bus::Netfilter).expect("a netlink socket");
        let mut buffer = vec![0; 1 << 16];
        socket.send(&request(GET_SET, 0, Family::Ip, &[(1, "none"), (2, "s")])).expect("sent");
        let len = socket.recv_raw(&mut buffer).expect("received");
        let ack = decode::ack(&buffer[..len]).expect("an answer");
        assert_eq!((ack.seq, ack.errno), (SEQUENCE, libc::ENOENT));
    });
}

#[test]
fn the_generation_grows_with_each_change() {
    in_namespace(|| {
        let generation = || {
            const ACK: u16 = 4;
            let answers = ask(&request(GET_GENERATION, ACK, Family::Ip, &[]));
            match decode::message(&answers[0]) {
                Ok(Decoded::Generation(id)) => id,
                other => panic!("{other:?}"),
            }
        };
        let before = generation();
        load("add table ip t");
        assert_eq!(generation(), before + 1);
    });
}
