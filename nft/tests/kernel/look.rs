//! Reads single objects of tables that other programs made, also objects that this crate never writes.

use std::net::IpAddr;

use nft::decode::pair_of;
use nft::{Data, Element, Family, TableName, Value, Verdict};

use crate::support::{connect, in_namespace, nft};

const FIREWALL: &str = "
table inet guard {
	set ranges {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 }
	}
	set pairs {
		type ipv4_addr . inet_service
		flags interval
		elements = { 10.0.0.0/24 . 80-90 }
	}
	map ways {
		type ipv4_addr . inet_service : verdict
		elements = { 10.0.0.1 . 80 comment \"shop/web\" : drop }
	}
	chain early {
		type filter hook prerouting priority -150; policy drop;
		meta nfproto ipv4 oifname \"eth0\" ct state established,related accept comment \"known\"
		tcp sport 1-1024 log limit rate 5/second drop
	}
	chain helper {
		comment \"no hook\"
		notrack
	}
}
table ip asleep {
	flags dormant
	chain c {
		type nat hook output priority 7
	}
}
table netdev below {
}
";

fn guard() -> TableName {
    TableName::new(Family::Inet, "guard")
}

#[test]
fn tables_and_base_chains_of_other_programs_are_listed() {
    in_namespace(|| {
        nft(&["-f", "-"], FIREWALL);
        let mut connection = connect();
        let tables = connection.tables().expect("readable");
        let tables: Vec<(u8, &str, bool)> = tables.iter().map(|t| (t.family, &*t.name, t.dormant)).collect();
        assert_eq!(tables, [(1, "guard", false), (2, "asleep", true), (5, "below", false)]);
        let chains = connection.base_chains(Family::Inet).expect("readable");
        let [early] = &chains[..] else { panic!("one base chain: {chains:?}") };
        let hook = early.hook.clone().expect("a base chain");
        assert_eq!((&early.table, &*early.name), (&guard(), "early"));
        assert_eq!((&*hook.kind, hook.number, hook.priority, hook.drops), ("filter", 0, -150, true));
        let asleep = connection.base_chains(Family::Ip).expect("readable");
        assert!(asleep[0].hook.as_ref().is_some_and(|hook| &*hook.kind == "nat" && !hook.drops), "{asleep:?}");
    });
}

#[test]
fn rules_of_other_programs_are_read_chain_by_chain_and_written_in_the_words_of_nft() {
    in_namespace(|| {
        nft(&["-f", "-"], FIREWALL);
        let mut connection = connect();
        let rules = connection.rules(&guard(), "early").expect("readable");
        let texts: Vec<String> = rules.iter().map(|head| head.rule.to_nft(Family::Inet)).collect();
        assert_eq!(
            texts,
            [
                "meta nfproto ipv4 oifname \"eth0\" ct state established,related accept comment \"known\"",
                "meta l4proto tcp th sport 1-1024 log limit rate 5/second burst 5 packets drop",
            ]
        );
        assert!(rules[0].handle != rules[1].handle);
        assert_eq!(connection.rules(&guard(), "helper").expect("readable").len(), 1);
        assert_eq!(connection.rules(&guard(), "missing").expect("readable"), []);
    });
}

#[test]
fn an_element_is_found_by_its_key_and_ranges_are_joined() {
    in_namespace(|| {
        nft(&["-f", "-"], FIREWALL);
        let mut connection = connect();
        let ip = |text: &str| Data::from(text.parse::<IpAddr>().expect("an address"));
        let head = connection.set(&guard(), "ways").expect("readable").expect("there is such a map");
        assert_eq!((head.key_len, head.is_interval), (8, false));
        let found = connection.element(&guard(), "ways", &ip("10.0.0.1").then(80_u16)).expect("readable");
        let wanted = Element::mapping(ip("10.0.0.1").then(80_u16), Value::Verdict(Verdict::Drop));
        assert_eq!(found.map(|raw| raw.element), Some(Element { comment: Some("shop/web".into()), ..wanted }));
        assert_eq!(connection.element(&guard(), "ways", &ip("10.0.0.1").then(81_u16)).expect("readable"), None);
        assert_eq!(connection.element(&guard(), "missing", &ip("10.0.0.1")).expect("readable"), None);
        assert_eq!(connection.set(&guard(), "missing").expect("readable"), None);
        let mut ranges = |set: &str| {
            let head = connection.set(&guard(), set).expect("readable").expect("there is such a set");
            let raw = connection.elements(&guard(), set).expect("readable");
            (head.fields.clone(), pair_of(&head, raw))
        };
        let range = |first: Data, last: Data| Element { key_end: Some(Box::new(last)), ..Element::new(first) };
        let (_, found) = ranges("ranges");
        let expected = [range(ip("10.0.0.0"), ip("10.255.255.255")), range(ip("192.0.2.1"), ip("192.0.2.9"))];
        assert_eq!(found, expected);
        let (fields, found) = ranges("pairs");
        assert_eq!(fields, [4, 2]);
        assert_eq!(found, [range(ip("10.0.0.0").then(80_u16), ip("10.0.0.255").then(90_u16))]);
    });
}
