//! Evaluates expressions that act on the packet, and expressions that only other programs' rules have.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::data::Verdict;
use crate::expr::{Expr, Foreign, MetaKey, Order, Register};

use super::packet::Loaded;
use super::registers::within;
use super::{Effect, Fate, Flow, Thread, Tracking};

impl Thread {
    /// Evaluates an expression that acts on the packet.
    pub(super) fn act(&mut self, expr: &Expr) -> Flow {
        let is_v4 = self.branch.packet.source.is_ipv4();
        match expr {
            Expr::MetaSet { key: MetaKey::Mark, sreg } => {
                let Some(mark) = self.known(*sreg, 4).and_then(|bytes| bytes.try_into().ok()) else {
                    return Flow::Stuck(self.why.to_owned());
                };
                let mark = u32::from_ne_bytes(mark);
                self.branch.packet.mark = mark;
                self.effects.push(Effect::Mark(mark));
                Flow::Next
            }
            Expr::MetaSet { key: MetaKey::Trace, .. } => Flow::Next,
            Expr::Dynset { set, .. } => {
                self.effects.push(Effect::Remember(Arc::clone(set)));
                Flow::Next
            }
            Expr::Nat { address, port, .. } => self.dnat(Some(*address), *port, is_v4),
            Expr::Masquerade { .. } => {
                self.effects.push(Effect::Masquerade);
                self.branch.translate_source(None);
                Flow::Verdict(Verdict::Accept)
            }
            Expr::Reject(_) => {
                self.effects.push(Effect::Refuse);
                Flow::End(Fate::Refused)
            }
            Expr::FlowOffload(_) => {
                self.effects.push(Effect::Offload);
                Flow::Next
            }
            Expr::Foreign(foreign) => self.act_foreign(foreign, is_v4),
            Expr::Unknown(name) => Flow::Stuck(format!("its expression {name}")),
            other => Flow::Stuck(format!("its expression {other}")),
        }
    }

    /// Translates the destination to the address and the port in these registers. The packet keeps the part for which there is no register.
    fn dnat(&mut self, address: Option<Register>, port: Option<Register>, is_v4: bool) -> Flow {
        let target = self.branch.packet.target();
        let address = address.map_or(Some(target.ip()), |register| self.address(register, is_v4));
        let port = port.map_or(Some(target.port()), |register| self.port(register));
        let (Some(address), Some(port)) = (address, port) else { return Flow::Stuck(self.why.to_owned()) };
        let to = SocketAddr::new(address, port);
        self.effects.push(Effect::Translate(to));
        self.branch.translate(to);
        Flow::Verdict(Verdict::Accept)
    }

    fn act_foreign(&mut self, foreign: &Foreign, is_v4: bool) -> Flow {
        const PROTOCOL: u32 = 1;
        const IIF: u32 = 4;
        const OIF: u32 = 5;
        const OIFNAME: u32 = 7;
        const NFPROTO: u32 = 15;
        match foreign {
            Foreign::Compare { order, sreg, data } => {
                let found = self.compare(*sreg, data).order();
                self.decide(found.map(|found| match order {
                    Order::Less => found.is_lt(),
                    Order::AtMost => found.is_le(),
                    Order::AtLeast => found.is_ge(),
                }))
            }
            Foreign::Range { outside, sreg, first, last } => {
                let bytes = self.known(*sreg, first.len());
                self.decide(bytes.map(|bytes| within(bytes, first, last) != *outside))
            }
            Foreign::Meta { key, dreg } => {
                let packet = &self.branch.packet;
                let loaded = match *key {
                    PROTOCOL => Loaded::Bytes(if is_v4 { vec![0x08, 0x00] } else { vec![0x86, 0xdd] }),
                    IIF => packet.input.index_bytes(),
                    OIF => packet.output.index_bytes(),
                    OIFNAME => packet.output.name_bytes(),
                    NFPROTO => Loaded::Bytes(vec![if is_v4 { 2 } else { 10 }]),
                    _ => Loaded::Unknown("a property of the packet", 16),
                };
                self.load(*dreg, loaded)
            }
            Foreign::Ct { key, dreg } => {
                const DIRECTION: u32 = 1;
                const MARK: u32 = 3;
                let loaded = match (self.branch.connection.tracking, *key) {
                    // `IP_CT_DIR_ORIGINAL`: the packet comes from the client.
                    (Tracking::New | Tracking::Known { .. }, DIRECTION) => Loaded::Bytes(vec![0]),
                    (Tracking::New | Tracking::Known { .. }, MARK) => match self.branch.connection.mark {
                        Some(mark) => Loaded::Bytes(mark.to_ne_bytes().to_vec()),
                        None => Loaded::Unknown("the mark of the connection", 4),
                    },
                    (Tracking::New | Tracking::Known { .. }, _) => Loaded::Unknown("a property of the connection", 16),
                    (Tracking::NotYet | Tracking::Off, _) => Loaded::Nothing,
                };
                self.load(*dreg, loaded)
            }
            Foreign::SetCtMark { sreg } => {
                let mark = self.known(*sreg, 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
                // Without a connection there is nothing to mark.
                if matches!(self.branch.connection.tracking, Tracking::New | Tracking::Known { .. }) {
                    self.branch.connection.mark = mark;
                }
                Flow::Next
            }
            Foreign::Nat { of_destination: true, address, port, .. } => self.dnat(*address, *port, is_v4),
            Foreign::Nat { of_destination: false, address, .. } => {
                let to = address.and_then(|register| self.address(register, is_v4));
                self.effects.extend(to.map(Effect::SourceTo));
                self.branch.translate_source(to);
                Flow::Verdict(Verdict::Accept)
            }
            Foreign::Notrack => {
                self.effects.push(Effect::Untrack);
                if self.branch.connection.tracking == Tracking::NotYet {
                    self.branch.connection.tracking = Tracking::Off;
                }
                Flow::Next
            }
            Foreign::Harmless(_) => Flow::Next,
            Foreign::Redirect { .. } => Flow::Stuck("its redirection to this host".to_owned()),
            Foreign::XtMatch(name) => Flow::Stuck(format!("its match {name} of iptables")),
            Foreign::XtTarget(name) => Flow::Stuck(format!("its target {name} of iptables")),
        }
    }
}
