//! Decodes the kernel's reports about traced packets: the rules that a packet matched, and their verdicts
//! (`net/netfilter/nf_tables_trace.c`).
//!
//! A packet is traced from the rule on that sets `meta nftrace`. The kernel sends a message for each rule that the packet matches, each
//! return, and each policy. The first message of each base chain has the headers that the packet has at that time.

use std::sync::Arc;

use super::decoded::{name, verdict};
use super::messages::Header;
use crate::data::Verdict;
use crate::table::{Family, TableName};
use crate::wire::{Attrs, SUBSYSTEM, kind};

/// One message about a traced packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The kernel's id of the packet, the same in all messages about it. A later packet may get the same id.
    pub packet: u32,
    /// The table that the packet is in.
    pub table: TableName,
    /// The chain that the packet is in.
    pub chain: Arc<str>,
    /// The step that the message reports.
    pub event: Event,
    /// The verdict; `None` when the next rule follows, or for a verdict that this crate does not know.
    pub verdict: Option<Verdict>,
    /// The packet's mark.
    pub mark: u32,
    /// The packet's headers; only in the first message of a base chain.
    pub headers: Option<Headers>,
}

/// The step of a packet that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The rule with this handle matched.
    Rule(u64),
    /// The end of a chain was reached, or a rule returned from it.
    Return,
    /// The policy of the base chain decided.
    Policy,
}

/// The first bytes of a packet, and its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The IP header, with IPv4 options or IPv6 extension headers up to 40 bytes in all.
    pub network: Vec<u8>,
    /// The first bytes of the transport header, at most 20.
    pub transport: Vec<u8>,
    /// The index of the interface that the packet came in by.
    pub input: Option<u32>,
    /// The index of the interface that the packet goes out by.
    pub output: Option<u32>,
}

/// The report in a message; `None` for a message of another kind, and for a table of a family that this crate does not know.
#[must_use]
pub fn traced(bytes: &[u8]) -> Option<Traced> {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const RULE: u16 = 3;
    const TYPE: u16 = 4;
    const VERDICT: u16 = 5;
    const ID: u16 = 6;
    const MARK: u16 = 14;
    let header = Header::read(bytes).filter(|header| header.kind == SUBSYSTEM << 8 | kind::TRACE)?;
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>()?;
    let attrs = Attrs::new(attrs);
    let event = match attrs.find(TYPE)?.u32()? {
        1 => Event::Policy,
        2 => Event::Return,
        3 => Event::Rule(attrs.find(RULE)?.u64()?),
        _ => return None,
    };
    // A policy's verdict is in another attribute than a rule's.
    const POLICY: u16 = 16;
    let policy = || match attrs.find(POLICY)?.u32()? {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        _ => None,
    };
    Some(Traced {
        packet: attrs.find(ID)?.u32()?,
        table: TableName::new(Family::from_number(nfgenmsg[0])?, attrs.find(TABLE)?.str()?),
        chain: name(attrs.find(CHAIN))?,
        event,
        verdict: attrs.find(VERDICT).and_then(verdict).or_else(policy),
        mark: attrs.find(MARK).and_then(|mark| mark.u32()).unwrap_or(0),
        headers: headers(attrs),
    })
}

fn headers(attrs: Attrs<'_>) -> Option<Headers> {
    const NETWORK: u16 = 8;
    const TRANSPORT: u16 = 9;
    const INPUT: u16 = 10;
    const OUTPUT: u16 = 12;
    let number = |kind| attrs.find(kind).and_then(|attr| attr.u32()).filter(|index| *index != 0);
    Some(Headers {
        network: attrs.find(NETWORK)?.payload.to_vec(),
        transport: attrs.find(TRANSPORT).map(|attr| attr.payload.to_vec()).unwrap_or_default(),
        input: number(INPUT),
        output: number(OUTPUT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    fn message(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.begin(kind::TRACE, 0, 2);
        writer.u32(6, 7);
        writer.str(1, "kube-proxy");
        writer.str(2, "KUBE-SERVICES");
        fill(&mut writer);
        writer.finish()
    }

    #[test]
    fn a_rule_with_its_verdict_and_the_packet_is_read() {
        let bytes = message(|writer| {
            writer.u32(4, 3);
            writer.u64(3, 12);
            let nest = writer.open(5);
            writer.u32(1, (-4_i32).cast_unsigned());
            writer.str(2, "lb-2");
            writer.close(nest);
            writer.attr(8, &[0x45; 20]);
            writer.attr(9, &[1, 2]);
            writer.u32(10, 3);
            writer.u32(14, 0x4000);
        });
        let headers = Headers { network: vec![0x45; 20], transport: vec![1, 2], input: Some(3), output: None };
        let expected = Traced {
            packet: 7,
            table: TableName::new(Family::Ip, "kube-proxy"),
            chain: "KUBE-SERVICES".into(),
            event: Event::Rule(12),
            verdict: Some(Verdict::Goto("lb-2".into())),
            mark: 0x4000,
            headers: Some(headers),
        };
        assert_eq!(traced(&bytes), Some(expected));
        for len in 0..bytes.len() {
            assert_eq!(traced(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_policy_has_its_own_verdict_and_a_next_rule_none() {
        let policy = message(|writer| {
            writer.u32(4, 1);
            writer.u32(16, 0);
        });
        let policy = traced(&policy).unwrap();
        assert_eq!((policy.event, policy.verdict, policy.headers), (Event::Policy, Some(Verdict::Drop), None));
        let next = message(|writer| {
            writer.u32(4, 3);
            writer.u64(3, 1);
            let nest = writer.open(5);
            writer.u32(1, (-1_i32).cast_unsigned());
            writer.close(nest);
        });
        assert_eq!(traced(&next).unwrap().verdict, None);
    }

    #[test]
    fn messages_of_other_kinds_are_no_reports() {
        assert_eq!(traced(&message(|writer| writer.u32(4, 9))), None);
        assert_eq!(traced(&message(|_| {})), None);
        let mut writer = Writer::default();
        writer.begin(kind::NEW_TABLE, 0, 2);
        writer.u32(4, 1);
        assert_eq!(traced(&writer.finish()), None);
    }
}
