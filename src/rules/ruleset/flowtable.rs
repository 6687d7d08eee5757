//! The table for `--flowtable`: it hands established connections of Services to a flowtable, so that their packets bypass all hooks after
//! `ingress`.
//!
//! It is a separate table, so that a failure with flowtables cannot affect the Services' tables. It does not depend on the ruleset layout.

use std::sync::Arc;

use nft::statement::CtBit;
use nft::{BaseChain, Chain, ChainType, Family, Flowtable, Hook, Rule, Statement, Table, TableContent, TableName};

use super::shared::{is_protocol, priority};
use crate::model::Protocol;

/// The table's name, in family `inet`.
pub const TABLE: &str = "kube-proxy-flowtable";

const FLOWTABLE: &str = "fastpath";
const CHAIN: &str = "established";

/// A connection is handed over after this many packets in both directions together, because a short connection gains little by the fast
/// path.
const PACKETS: u64 = 16;

/// The family and name of the table.
#[must_use]
pub fn table() -> TableName {
    TableName::new(Family::Inet, TABLE)
}

/// The whole table; its flowtable has these network interfaces.
#[must_use]
pub fn content(devices: Vec<Arc<str>>) -> TableContent {
    let base = BaseChain { kind: ChainType::Filter, hook: Hook::Forward, priority: priority::FILTER };
    let comment = "Established connections to Services: handed to the flowtable";
    let chain = Chain { name: CHAIN.into(), base: Some(base), comment: Some(comment.into()) };
    let comment = "Fast path of kube-proxy, see --flowtable";
    let mut content = TableContent::new(Table { name: table(), comment: Some(comment.into()) });
    content.flowtables = vec![flowtable(devices)];
    content.chains = vec![(chain, vec![rule(Protocol::Tcp), rule(Protocol::Udp)])];
    content
}

/// The flowtable with these network interfaces.
#[must_use]
pub fn flowtable(devices: Vec<Arc<str>>) -> Flowtable {
    Flowtable { name: FLOWTABLE.into(), priority: priority::FILTER, devices }
}

/// A rule that hands over established connections with DNAT. These are the connections of Services, and those whose destination other
/// programs translate. The kernel does not offload connections that a flowtable cannot forward.
fn rule(protocol: Protocol) -> Rule {
    Rule::new([
        Statement::CtBit(CtBit::StatusDnat),
        Statement::CtBit(CtBit::StateEstablished),
        is_protocol(protocol),
        Statement::CtPacketsOver(PACKETS),
        Statement::FlowAdd(FLOWTABLE.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_nfts_words() {
        let expected = "table inet kube-proxy-flowtable {
	comment \"Fast path of kube-proxy, see --flowtable\"
	flowtable fastpath {
		hook ingress priority filter
		devices = { eth0, veth1 }
	}

	chain established {
		comment \"Established connections to Services: handed to the flowtable\"
		type filter hook forward priority filter; policy accept;
		ct status dnat ct state established meta l4proto tcp ct packets > 16 flow add @fastpath
		ct status dnat ct state established meta l4proto udp ct packets > 16 flow add @fastpath
	}
}
";
        assert_eq!(content(vec!["eth0".into(), "veth1".into()]).to_string(), expected);
    }
}
