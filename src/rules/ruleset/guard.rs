//! The rules that drop invalid packets of endpoints on this node (`nftables.dropInvalidFromEndpoints`), the same in all layouts.
//!
//! Connection tracking finds a packet invalid, for example, when it lies outside of the TCP window. It does not translate such a packet
//! back, so the client of a Service gets it from the endpoint's own address, knows no such connection, and resets it: the endpoint then
//! ends a connection that was open. A dropped packet is only sent again.
//!
//! Only packets from the address and port of a local endpoint are dropped, so packets that take another way back than they came, and are
//! invalid for that reason, pass. The set `hairpin` has these endpoints already, each as source and destination of a packet to itself, so
//! the rule looks up the source address twice and needs no set of its own.
//!
//! Takes the settings, adds to the chains. Invariant: the chain has a single rule; a metric reports its counter.

use nft::statement::CtBit;
use nft::{Field, Operand, Rule, Statement, Verdict};

use super::Settings;
use super::names::{chain, set};
use super::shared::{Fields, jump, lead, regular};
use crate::table::ChainContent;

/// Adds the chain, and the rules that lead invalid packets to it: those to this host and those to elsewhere.
pub(super) fn add(settings: &Settings, chains: &mut Vec<ChainContent>) {
    if !settings.guard_endpoints {
        return;
    }
    let entry = Rule::new([Statement::CtBit(CtBit::StateInvalid), jump(chain::INVALID)]);
    lead(chains, [chain::FILTER_INPUT, chain::FILTER_FORWARD], &entry);
    let source = Fields::of(settings.family).source;
    let endpoint = vec![source, source, Field::L4Proto, Field::ThSport];
    let is_endpoint = Statement::Match(endpoint, Operand::InSet(set::HAIRPIN.into()));
    let rule = Rule::new([is_endpoint, Statement::Counter, Statement::Verdict(Verdict::Drop)]);
    chains.push(regular(chain::INVALID, "Invalid packets of endpoints on this node", vec![rule]));
}
