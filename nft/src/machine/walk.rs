//! Follows a packet through the hooks of netfilter.
//!
//! ```text
//! arrives ─► prerouting ─► route ─┬─► input                       this host
//!                                 └─► forward ─► postrouting      elsewhere
//! of this host: route ─► output ─► route again ─┬─► postrouting   elsewhere
//!                                               └─► postrouting, then prerouting and input of `lo`
//! ```
//!
//! Chains of one hook are called in the order of their priorities, chains of type `nat` all at the priority of address translation
//! (`nf_nat_proto.c`), and only until one of them translates. Connection tracking has the priority -200 at `prerouting` and `output`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::connection::ReadError;
use crate::decode::ChainHead;
use crate::object::Hook;

use super::packet::{Link, Packet};
use super::{Branch, Fate, Host, Machine, Ruleset, Tracking, status};

/// The result of a route look-up for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// To this host.
    Here,
    /// Elsewhere, through this interface.
    Elsewhere(Link),
    /// Nowhere, because there is no route; with the reason.
    Nowhere(String),
    /// Nowhere, because the kernel discards the packet; with the reason.
    Discarded(String),
}

/// Answers where this host sends a packet, as a look-up in its routing tables does.
pub trait Routes: Host {
    /// Routes a packet. A packet without an input interface is one that this host sends.
    fn next(&mut self, packet: &Packet) -> Next;

    /// The interface `lo`.
    fn loopback(&mut self) -> Link;
}

/// The tracked connection that the packet belongs to. The rules that translate were evaluated for its first packet.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The destination of its packets after translation.
    pub to: SocketAddr,
    /// The source of its packets after translation.
    pub source: IpAddr,
    /// The status bits (`IPS_*`).
    pub status: u32,
    /// Whether the other side has answered.
    pub answered: bool,
}

/// The paths that a packet may take.
#[derive(Debug)]
pub struct Walk {
    /// One branch per path, with the fate of the packet.
    pub branches: Vec<Branch>,
    /// The first hook, which translates destinations.
    pub hook: Hook,
    /// The chains of the first hook, in the order in which it calls them.
    pub chains: Vec<ChainHead>,
    /// The base chains of all hooks.
    pub bases: Vec<ChainHead>,
    /// Destinations to which this host sends nothing, because it has no route or discards the packets, each with the reason.
    pub unrouted: Vec<(IpAddr, String)>,
    /// The tracked connection that the packet belongs to, if it is not the first packet.
    pub known: Option<Known>,
}

/// Follows a packet from its first hook. A packet without an input interface is one that this host sends. `known`: the tracked connection
/// that it belongs to.
///
/// # Errors
/// When the rules cannot be read.
pub fn walk(
    packet: Packet,
    known: Option<Known>,
    ruleset: &mut impl Ruleset,
    routes: &mut impl Routes,
) -> Result<Walk, ReadError> {
    let hook = if packet.input == Link::None { Hook::Output } else { Hook::Prerouting };
    let chains = ruleset.base_chains()?;
    let machine = Machine::new(ruleset, routes);
    let mut walker = Walker { machine, chains, unrouted: Vec::new(), known };
    let start = vec![Branch::new(packet)];
    let branches = if hook == Hook::Output { walker.leave(start)? } else { walker.arrive(start)? };
    let chains = walker.chains_of(hook);
    Ok(Walk { branches, hook, chains, bases: walker.chains, unrouted: walker.unrouted, known })
}

struct Walker<'a, R, H> {
    machine: Machine<'a, R, H>,
    chains: Vec<ChainHead>,
    unrouted: Vec<(IpAddr, String)>,
    known: Option<Known>,
}

/// One step of a hook: connection tracking, all its nat chains, or one other chain.
enum Unit {
    Tracking,
    Nat(Vec<ChainHead>),
    Chain(ChainHead),
}

/// The priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
const TRACKING: i32 = -200;
/// The priorities of address translation (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`).
const NAT_DESTINATION: i32 = -100;
const NAT_SOURCE: i32 = 100;

impl<R: Ruleset, H: Routes> Walker<'_, R, H> {
    /// Follows a packet that arrives at an interface.
    fn arrive(&mut self, branches: Vec<Branch>) -> Result<Vec<Branch>, ReadError> {
        let mut done = Vec::new();
        for mut branch in self.hook(Hook::Prerouting, branches)? {
            if branch.fate.is_some() {
                done.push(branch);
                continue;
            }
            match self.next(&mut branch) {
                None => done.extend(self.input(branch)?),
                Some(_) if branch.fate.is_some() => done.push(branch),
                Some(output) => {
                    branch.packet.output = output;
                    let forwarded = self.hook(Hook::Forward, vec![branch])?;
                    done.extend(self.hook(Hook::Postrouting, forwarded)?);
                }
            }
        }
        Ok(done)
    }

    fn input(&mut self, mut branch: Branch) -> Result<Vec<Branch>, ReadError> {
        branch.packet.output = Link::None;
        self.hook(Hook::Input, vec![branch])
    }

    /// Follows a packet that this host sends.
    fn leave(&mut self, mut branches: Vec<Branch>) -> Result<Vec<Branch>, ReadError> {
        for branch in &mut branches {
            branch.packet.output = self.output(branch);
        }
        let mut done = Vec::new();
        for mut branch in self.hook(Hook::Output, branches)? {
            if branch.fate.is_some() {
                done.push(branch);
                continue;
            }
            // The kernel routes a packet again whose destination or mark was changed.
            let next = self.next(&mut branch);
            if branch.fate.is_some() {
                done.push(branch);
                continue;
            }
            let is_here = next.is_none();
            if !is_here && branch.packet.source == IpAddr::V6(Ipv6Addr::LOCALHOST) {
                let to = branch.packet.destination;
                branch.fate = Some(Fate::Unrouted(format!(
                    "packets from ::1 to {to}, which is another host, get no answer: IPv6 takes none to ::1 from outside"
                )));
                done.push(branch);
                continue;
            }
            branch.packet.output = next.unwrap_or_else(|| self.machine.host.loopback());
            let left = self.hook(Hook::Postrouting, vec![branch])?;
            if is_here {
                for branch in left {
                    done.extend(if branch.fate.is_some() { vec![branch] } else { self.come_back(branch)? });
                }
            } else {
                done.extend(left);
            }
        }
        Ok(done)
    }

    /// Follows a packet that this host sent to itself when it arrives at `lo`. It is neither tracked nor translated again.
    fn come_back(&mut self, mut branch: Branch) -> Result<Vec<Branch>, ReadError> {
        branch.packet.input = std::mem::take(&mut branch.packet.output);
        let mut done = Vec::new();
        for branch in self.hook(Hook::Prerouting, vec![branch])? {
            done.extend(if branch.fate.is_some() { vec![branch] } else { self.input(branch)? });
        }
        Ok(done)
    }

    /// The output interface of a packet; `None` if the packet is for this host. A packet that the kernel discards ends here if a rule
    /// translated it or this host sends it. A packet without a route goes on through the rules, so that the result shows what the rules do
    /// once there is a route.
    fn next(&mut self, branch: &mut Branch) -> Option<Link> {
        match self.machine.host.next(&branch.packet) {
            Next::Here => None,
            Next::Elsewhere(link) => Some(link),
            Next::Discarded(why) if branch.endpoint.is_some() || branch.packet.input == Link::None => {
                branch.fate = Some(Fate::Unrouted(format!(
                    "this host does not send packets from {} to {}: {why}",
                    branch.packet.source, branch.packet.destination
                )));
                Some(Link::Unknown)
            }
            Next::Nowhere(why) | Next::Discarded(why) => {
                let unrouted = (branch.packet.destination, why);
                if !self.unrouted.contains(&unrouted) {
                    self.unrouted.push(unrouted);
                }
                Some(Link::Unknown)
            }
        }
    }

    fn output(&mut self, branch: &mut Branch) -> Link {
        self.next(branch).unwrap_or_else(|| self.machine.host.loopback())
    }

    /// Runs connection tracking and the base chains of a hook.
    fn hook(&mut self, hook: Hook, mut branches: Vec<Branch>) -> Result<Vec<Branch>, ReadError> {
        for unit in self.units(hook) {
            branches = match unit {
                Unit::Tracking => branches.into_iter().map(|branch| self.track(branch)).collect(),
                Unit::Nat(chains) => self.nat(hook, &chains, branches)?,
                Unit::Chain(chain) => self.chain(&chain, branches)?,
            };
        }
        if matches!(hook, Hook::Input | Hook::Postrouting) {
            let confirmed = branches.iter_mut().filter(|branch| branch.connection.tracking == Tracking::New);
            confirmed.for_each(|branch| branch.connection.status |= status::CONFIRMED);
        }
        Ok(branches)
    }

    /// The steps of a hook in the order of their priorities. Of chains with the same priority the one added last runs first; the kernel
    /// lists the chains of older tables first, so the list is reversed.
    fn units(&self, hook: Hook) -> Vec<Unit> {
        let here = self.chains.iter().rev().filter_map(|chain| {
            let at = chain.hook.as_ref().filter(|at| at.number == hook.number())?;
            Some((at.priority, &*at.kind == "nat", chain.clone()))
        });
        let (mut nat, filters): (Vec<_>, Vec<_>) = here.partition(|(_, is_nat, _)| *is_nat);
        nat.sort_by_key(|(priority, _, _)| *priority);
        let nat = Unit::Nat(nat.into_iter().map(|(_, _, chain)| chain).collect());
        let mut units: Vec<(i32, Unit)> =
            filters.into_iter().map(|(priority, _, chain)| (priority, Unit::Chain(chain))).collect();
        match hook {
            Hook::Prerouting | Hook::Output => {
                units.push((TRACKING, Unit::Tracking));
                units.push((NAT_DESTINATION, nat));
            }
            Hook::Input | Hook::Postrouting => units.push((NAT_SOURCE, nat)),
            Hook::Forward => {}
        }
        units.sort_by_key(|(priority, _)| *priority);
        units.into_iter().map(|(_, unit)| unit).collect()
    }

    /// The chains of a hook, in the order in which it calls them.
    fn chains_of(&self, hook: Hook) -> Vec<ChainHead> {
        let chains = self.units(hook).into_iter().flat_map(|unit| match unit {
            Unit::Tracking => Vec::new(),
            Unit::Nat(chains) => chains,
            Unit::Chain(chain) => vec![chain],
        });
        chains.collect()
    }

    fn chain(&mut self, chain: &ChainHead, branches: Vec<Branch>) -> Result<Vec<Branch>, ReadError> {
        let mut after = Vec::new();
        for branch in branches {
            if branch.fate.is_some() {
                after.push(branch);
            } else {
                after.extend(self.machine.run(branch, chain)?);
            }
        }
        Ok(after)
    }

    /// Runs the nat chains of a hook, which translate the destination or the source. A connection gets each translation once.
    fn nat(&mut self, hook: Hook, chains: &[ChainHead], branches: Vec<Branch>) -> Result<Vec<Branch>, ReadError> {
        let of_destination = matches!(hook, Hook::Prerouting | Hook::Output);
        let is_done = |branch: &Branch| {
            let connection = &branch.connection;
            let translated = if of_destination { connection.destination_done } else { connection.source_done };
            translated || connection.tracking != Tracking::New || branch.fate.is_some()
        };
        let mut branches = branches;
        branches.iter_mut().for_each(|branch| self.translate_known(branch, of_destination));
        for chain in chains {
            let (done, open): (Vec<Branch>, Vec<Branch>) = branches.into_iter().partition(is_done);
            branches = done;
            branches.extend(self.chain(chain, open)?);
        }
        for branch in branches.iter_mut().filter(|branch| branch.connection.tracking == Tracking::New) {
            let connection = &mut branch.connection;
            if of_destination {
                connection.destination_done = true;
                connection.status |= status::DESTINATION_DONE;
            } else {
                connection.source_done = true;
                connection.status |= status::SOURCE_DONE;
            }
        }
        Ok(branches)
    }

    fn track(&self, mut branch: Branch) -> Branch {
        if branch.connection.tracking == Tracking::NotYet {
            branch.connection.tracking = Tracking::New;
            branch.connection.mark = Some(0);
            branch.connection.original = Some(branch.packet.target());
            if let Some(known) = self.known {
                branch.connection.tracking = Tracking::Known { answered: known.answered };
                branch.connection.mark = None;
                branch.connection.status = known.status;
            }
        }
        branch
    }

    /// Translates a packet of a tracked connection in the same way as its first packet.
    fn translate_known(&self, branch: &mut Branch, of_destination: bool) {
        let (Some(known), Tracking::Known { .. }) = (self.known, branch.connection.tracking) else { return };
        let packet = &mut branch.packet;
        if of_destination && packet.target() != known.to {
            (packet.destination, packet.port) = (known.to.ip(), known.to.port());
            branch.endpoint = Some(known.to);
        }
        if !of_destination && packet.source != known.source {
            packet.source = known.source;
            branch.masqueraded = true;
        }
    }
}
