//! The kernel's register machine: walks a packet through one base chain and the chains that it leads to.
//!
//! Takes the rules as the kernel lists them and a [`Branch`]; gives a branch for each way that the packet may take. A random number
//! makes a branch for each of its values, with its share of the probability. An expression that cannot be evaluated makes two: in one
//! world the rule matches, in the other it does not. Worlds that end alike are one again at the end of the base chain, so that a rule
//! without consequences for this packet does not matter.
//!
//! The semantics are those of `net/netfilter/nf_tables_core.c` and the `nft_*.c` beside it.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};
use nft::decode::{ChainHead, RuleHead};
use nft::expr::{CmpOp, CtKey, Expr, FibAddress, Foreign, LookupResult, MetaKey, Order, Register};
use nft::{Data, Element, RuleDump, TableName, Value, Verdict};

use super::packet::{Loaded, Packet, protocol};

/// What the kernel lists.
pub(crate) trait Ruleset {
    /// The base chains that see packets of the family, without those of dormant tables.
    fn base_chains(&mut self) -> Result<Vec<ChainHead>>;

    /// The rules of a chain in their order.
    fn rules(&mut self, table: &TableName, chain: &str) -> Result<Arc<[RuleHead]>>;

    /// The element of a set for a key at the start of these bytes, of which those with a bit in `unknown` are not known: bit 0 is that of
    /// the first byte.
    fn find(&mut self, table: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup>;
}

/// What a look-up in a set gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The set has no such element.
    Missing,
    /// It has this one.
    Found(Element),
    /// It cannot be read, or depends on the unknown bytes; and why.
    Unreadable(String),
}

/// What this host knows of addresses and routes.
pub(crate) trait Host {
    /// The type of an address (`RTN_*`), as the local routing table has it.
    fn address_type(&mut self, address: IpAddr) -> Result<u8>;
}

/// How far connection tracking has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tracking {
    /// The packet has not met it yet.
    #[default]
    NotYet,
    /// The packet begins a connection.
    New,
    /// A rule keeps the packet out of it.
    Off,
}

/// The connection that the packet begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    /// How far connection tracking has come.
    pub(crate) tracking: Tracking,
    /// The destination before any translation, once it is tracked.
    pub(crate) original: Option<SocketAddr>,
    /// The status bits (`IPS_*` in `nf_conntrack_common.h`).
    pub(crate) status: u32,
    /// Whether the destination was translated, or found to need no translation.
    pub(crate) destination_done: bool,
    /// The same of the source.
    pub(crate) source_done: bool,
}

/// Status bits of a connection.
pub(crate) mod status {
    pub(crate) const CONFIRMED: u32 = 1 << 3;
    pub(crate) const SOURCE: u32 = 1 << 4;
    pub(crate) const DESTINATION: u32 = 1 << 5;
    pub(crate) const SOURCE_DONE: u32 = 1 << 7;
    pub(crate) const DESTINATION_DONE: u32 = 1 << 8;
}

/// What became of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Discarded without an answer.
    Dropped,
    /// Discarded with an answer that says so.
    Refused,
    /// It cannot be told, and why.
    Unknown(String),
}

/// One way of the packet.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    /// The packet as it is now.
    pub(crate) packet: Packet,
    /// Its connection.
    pub(crate) connection: Connection,
    /// The part of all packets that take this way, in the worlds of this branch.
    pub(crate) probability: f64,
    /// What was assumed of rules that cannot be evaluated: the number of the assumption, and whether the rule matches.
    pub(crate) worlds: Vec<(usize, bool)>,
    /// What became of it; `None` while it goes on.
    pub(crate) fate: Option<Fate>,
    /// Where a rule sent it.
    pub(crate) endpoint: Option<SocketAddr>,
    /// Whether a rule gave it another source.
    pub(crate) masqueraded: bool,
    /// The rules that had an effect on it, in order.
    pub(crate) steps: Vec<Step>,
}

/// A rule that had an effect.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Its table.
    pub(crate) table: TableName,
    /// Its chain.
    pub(crate) chain: Arc<str>,
    /// The rules of the chain.
    rules: Arc<[RuleHead]>,
    /// The number of the rule; the policy of the chain is behind the last one.
    index: usize,
    /// What it did, in order.
    pub(crate) effects: Vec<Effect>,
    /// The elements that its look-ups found.
    pub(crate) found: Vec<Found>,
    /// The packet before the rule.
    pub(crate) packet: Packet,
}

impl Step {
    /// The rule; `None` for the policy of a base chain.
    pub(crate) fn rule(&self) -> Option<&RuleDump> {
        self.rules.get(self.index).map(|head| &head.rule)
    }

    /// Whether both are the same rule with the same effects.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.table, &self.chain, self.index, &self.effects, &self.packet)
            == (&other.table, &other.chain, other.index, &other.effects, &other.packet)
    }
}

/// An element that a look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The set.
    pub(crate) set: Arc<str>,
    /// The comment of the element.
    pub(crate) comment: Option<Arc<str>>,
}

/// What a rule did to the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A verdict.
    Verdict(Verdict),
    /// Discarded with an answer.
    Refuse,
    /// Another destination.
    Translate(SocketAddr),
    /// An address of this host as the source.
    Masquerade,
    /// Another source.
    SourceTo(IpAddr),
    /// Another mark.
    Mark(u32),
    /// An element was added to a set, or renewed.
    Remember(Arc<str>),
    /// Kept out of connection tracking.
    Untrack,
    /// Added to a flowtable.
    Offload,
    /// The policy of a base chain.
    Policy,
    /// Assumed to match, because it cannot be evaluated: why.
    Assumed(String),
}

/// What one expression does.
enum Flow {
    /// The next expression follows.
    Next,
    /// The next rule follows.
    Break,
    /// A verdict.
    Verdict(Verdict),
    /// The packet ends here.
    End(Fate),
    /// Any number below this one, each as likely, in this register.
    Random(u32, Register),
    /// It cannot be evaluated, and why.
    Stuck(String),
}

/// The kernel's `NFT_JUMP_STACK_SIZE`.
const DEPTH: usize = 16;
/// More values of a random number than this are not told apart: no Service has as many endpoints.
const MOST_VALUES: u32 = 20_000;
/// Rules that cannot be evaluated are assumed to match or not up to this number; with more of them nothing can be told.
const MOST_WORLDS: usize = 6;

/// A chain on the stack.
#[derive(Clone)]
struct Frame {
    chain: Arc<str>,
    rules: Arc<[RuleHead]>,
    /// The number of the current rule.
    at: usize,
}

/// A branch within a base chain.
#[derive(Clone)]
struct Thread {
    branch: Branch,
    stack: Vec<Frame>,
    /// The number of the current expression in the rule.
    at: usize,
    registers: [u8; 64],
    /// A bit for each byte of the registers that is not known.
    unknown: u64,
    /// What is not known of it.
    why: &'static str,
    effects: Vec<Effect>,
    found: Vec<Found>,
    /// The packet when the current rule began.
    before: Packet,
    /// Whether it has left the base chain with a verdict.
    is_accepted: bool,
}

/// Evaluates chains.
pub(crate) struct Machine<'a, R, H> {
    /// The rules.
    pub(crate) ruleset: &'a mut R,
    /// The host.
    pub(crate) host: &'a mut H,
    /// The number of assumptions so far.
    assumptions: usize,
}

impl<'a, R: Ruleset, H: Host> Machine<'a, R, H> {
    pub(crate) fn new(ruleset: &'a mut R, host: &'a mut H) -> Self {
        Self { ruleset, host, assumptions: 0 }
    }

    /// The ways of a packet through a base chain.
    pub(crate) fn run(&mut self, branch: Branch, base: &ChainHead) -> Result<Vec<Branch>> {
        let rules = self.ruleset.rules(&base.table, &base.name)?;
        let before = branch.packet.clone();
        let frame = Frame { chain: Arc::clone(&base.name), rules, at: 0 };
        let first = Thread {
            branch,
            stack: vec![frame.clone()],
            at: 0,
            registers: [0; 64],
            unknown: 0,
            why: "",
            effects: Vec::new(),
            found: Vec::new(),
            before,
            is_accepted: false,
        };
        let (mut todo, mut done) = (vec![first], Vec::new());
        while let Some(mut thread) = todo.pop() {
            let ended = self.advance(&mut thread, &mut todo, &base.table)?;
            if let Some(is_accepted) = ended {
                let drops = base.hook.as_ref().is_some_and(|hook| hook.drops);
                if drops && !is_accepted && thread.branch.fate.is_none() {
                    thread.stack = vec![Frame { at: frame.rules.len(), ..frame.clone() }];
                    thread.effects = vec![Effect::Policy];
                    thread.end_rule(&base.table);
                    thread.branch.fate = Some(Fate::Dropped);
                }
                done.push(thread.branch);
            }
        }
        join_worlds(&mut done);
        Ok(done)
    }

    /// Goes on until the base chain ends for this thread, and gives whether with a verdict; `None` when other threads took its place.
    fn advance(&mut self, thread: &mut Thread, todo: &mut Vec<Thread>, table: &TableName) -> Result<Option<bool>> {
        loop {
            let Some(frame) = thread.stack.last() else { return Ok(Some(thread.is_accepted)) };
            let (rules, at) = (Arc::clone(&frame.rules), frame.at);
            let Some(RuleHead { rule, .. }) = rules.get(at) else {
                thread.stack.pop();
                continue;
            };
            let Some(expr) = rule.exprs.get(thread.at) else {
                thread.next_rule(table);
                continue;
            };
            match self.evaluate(thread, expr, table)? {
                Flow::Next => thread.at += 1,
                Flow::Break => thread.next_rule(table),
                Flow::Verdict(verdict) => {
                    thread.effects.push(Effect::Verdict(verdict.clone()));
                    if self.obey(thread, verdict, table)? {
                        return Ok(Some(true));
                    }
                }
                Flow::End(fate) => {
                    thread.end_rule(table);
                    thread.branch.fate = Some(fate);
                    return Ok(Some(true));
                }
                Flow::Random(modulus, register) => {
                    todo.extend((0..modulus).rev().map(|number| thread.with_number(number, modulus, register)));
                    return Ok(None);
                }
                Flow::Stuck(why) => {
                    if let Some(assumed) = self.assume(thread, rule, &why, table)? {
                        todo.extend(assumed);
                        return Ok(None);
                    }
                    thread.next_rule(table);
                }
            }
        }
    }

    /// Follows a verdict, and gives whether it ends the base chain.
    fn obey(&mut self, thread: &mut Thread, verdict: Verdict, table: &TableName) -> Result<bool> {
        let enter = |machine: &mut Self, thread: &mut Thread, chain: Arc<str>| -> Result<bool> {
            if thread.stack.len() >= DEPTH {
                bail!(
                    "chain {chain} of table {table} is deeper than the kernel allows; the rules changed while they were read"
                );
            }
            let rules = machine.ruleset.rules(table, &chain)?;
            thread.stack.push(Frame { chain, rules, at: 0 });
            Ok(false)
        };
        match verdict {
            Verdict::Accept => {
                thread.end_rule(table);
                Ok(true)
            }
            Verdict::Drop => {
                thread.end_rule(table);
                thread.branch.fate = Some(Fate::Dropped);
                Ok(true)
            }
            Verdict::Return => {
                thread.end_rule(table);
                thread.stack.pop();
                Ok(false)
            }
            Verdict::Jump(chain) => {
                thread.next_rule(table);
                enter(self, thread, chain)
            }
            Verdict::Goto(chain) => {
                thread.end_rule(table);
                thread.stack.pop();
                enter(self, thread, chain)
            }
        }
    }

    /// The threads in place of one that cannot evaluate a rule: it matches, or it does not. `None` when that makes no difference.
    fn assume(
        &mut self,
        thread: &Thread,
        rule: &RuleDump,
        why: &str,
        table: &TableName,
    ) -> Result<Option<Vec<Thread>>> {
        let why = format!("this rule cannot be evaluated, because of {why}: {}", described(table, thread, rule));
        let Some(effect) = effect_of(&rule.exprs[thread.at..]) else { return Ok(None) };
        let (mut matches, mut differs) = (thread.clone(), thread.clone());
        let number = self.assumptions;
        self.assumptions += 1;
        matches.branch.worlds.push((number, true));
        differs.branch.worlds.push((number, false));
        differs.next_rule(table);
        matches.effects.push(Effect::Assumed(why.clone()));
        let is_opaque = thread.branch.worlds.len() >= MOST_WORLDS;
        match effect {
            Assumed::Verdict(verdict) if !is_opaque => {
                // The verdict takes the place of the rest of the rule.
                matches.effects.push(Effect::Verdict(verdict.clone()));
                if self.obey(&mut matches, verdict, table)? {
                    matches.accept();
                }
            }
            Assumed::Refuse if !is_opaque => {
                matches.end_rule(table);
                matches.branch.fate = Some(Fate::Refused);
                matches.accept();
            }
            _ => {
                matches.end_rule(table);
                matches.branch.fate = Some(Fate::Unknown(why));
                matches.accept();
            }
        }
        Ok(Some(vec![differs, matches]))
    }

    fn evaluate(&mut self, thread: &mut Thread, expr: &Expr, table: &TableName) -> Result<Flow> {
        Ok(match expr {
            Expr::Payload { base, offset, len, dreg } => {
                thread.load(*dreg, thread.branch.packet.payload(*base, *offset, *len))
            }
            Expr::MetaLoad { key, dreg } => thread.load(*dreg, thread.meta(*key)),
            Expr::Ct { key, dreg } => thread.load(*dreg, thread.branch.ct(*key)),
            Expr::Fib { address, dreg } => {
                let packet = &thread.branch.packet;
                let address = match address {
                    FibAddress::Source => packet.source,
                    FibAddress::Destination => packet.destination,
                };
                let kind = u32::from(self.host.address_type(address)?);
                thread.load(*dreg, Loaded::Bytes(kind.to_ne_bytes().to_vec()))
            }
            Expr::Cmp { op, sreg, data } => {
                let compared = thread.compare(*sreg, data);
                thread.decide(match op {
                    CmpOp::Eq => compared.is_equal(),
                    CmpOp::Ne => compared.is_equal().map(|is_equal| !is_equal),
                    CmpOp::Gt => compared.order().map(Ordering::is_gt),
                })
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => thread.bitwise(*sreg, *dreg, mask, xor),
            Expr::HostToNetwork { sreg, dreg, len } => {
                let len = usize::try_from(*len)?;
                let loaded = thread.known(*sreg, len).map(<[u8]>::to_vec);
                let loaded = loaded.map_or(Loaded::Unknown(thread.why, len), |mut bytes| {
                    if cfg!(target_endian = "little") {
                        bytes.reverse();
                    }
                    Loaded::Bytes(bytes)
                });
                thread.load(*dreg, loaded)
            }
            Expr::Immediate { dreg, data } => thread.load(*dreg, Loaded::Bytes(data.as_slice().to_vec())),
            Expr::ImmediateVerdict(verdict) => Flow::Verdict(verdict.clone()),
            Expr::Lookup { set, sreg, result } => self.look_up(thread, table, set, *sreg, *result)?,
            Expr::Numgen { dreg, modulus } if (1..=MOST_VALUES).contains(modulus) => Flow::Random(*modulus, *dreg),
            Expr::Numgen { dreg, .. } => thread.load(*dreg, Loaded::Unknown("a random number", 4)),
            Expr::Counter => Flow::Next,
            other => thread.act(other),
        })
    }

    fn look_up(
        &mut self,
        thread: &mut Thread,
        table: &TableName,
        set: &Arc<str>,
        sreg: Register,
        result: LookupResult,
    ) -> Result<Flow> {
        let start = sreg.index() * 4;
        let (key, unknown) = (&thread.registers[start..], thread.unknown >> start);
        let element = match self.ruleset.find(table, set, key, unknown)? {
            Lookup::Unreadable(why) if why.is_empty() => return Ok(Flow::Stuck(thread.why.to_owned())),
            Lookup::Unreadable(why) => return Ok(Flow::Stuck(format!("the set {set} ({why})"))),
            Lookup::Missing => None,
            Lookup::Found(element) => Some(element),
        };
        let Some(element) = element else {
            // A map of verdicts without an element goes on with the next rule, as any rule that does not match.
            return Ok(go_on(result == LookupResult::NotMember));
        };
        thread.found.push(Found { set: Arc::clone(set), comment: element.comment });
        Ok(match (result, element.value) {
            (LookupResult::Member, _) => Flow::Next,
            (LookupResult::NotMember, _) => Flow::Break,
            (LookupResult::Verdict, Value::Verdict(verdict)) => Flow::Verdict(verdict),
            (LookupResult::Load(dreg), Value::Data(data)) => thread.load(dreg, Loaded::Bytes(data.as_slice().to_vec())),
            (LookupResult::Verdict | LookupResult::Load(_), _) => Flow::Stuck(format!("the set {set}")),
        })
    }
}

/// The next expression if a comparison holds, else the next rule.
fn go_on(holds: bool) -> Flow {
    if holds { Flow::Next } else { Flow::Break }
}

fn described(table: &TableName, thread: &Thread, rule: &RuleDump) -> String {
    let chain = thread.stack.last().map_or("", |frame| &*frame.chain);
    format!("table {table}, chain {chain}: {}", rule.to_nft(table.family))
}

/// What a rule does whose first expressions are assumed to match.
enum Assumed {
    Verdict(Verdict),
    Refuse,
    /// Something that cannot be told.
    Opaque,
}

/// The effect of the rest of a rule; `None` when it has none that matters to the way of the packet.
fn effect_of(rest: &[Expr]) -> Option<Assumed> {
    /// Expressions that only compare, load, or let a packet by at a rate.
    const CONDITIONS: [&str; 17] = [
        "bitwise",
        "byteorder",
        "cmp",
        "connlimit",
        "ct",
        "dynset",
        "exthdr",
        "fib",
        "hash",
        "limit",
        "lookup",
        "meta",
        "numgen",
        "osf",
        "payload",
        "quota",
        "range",
    ];
    /// Targets of iptables that do not end a rule and do not change the way of the packet.
    const HARMLESS: [&str; 7] = ["AUDIT", "CHECKSUM", "LOG", "NFLOG", "RATEEST", "TCPMSS", "TRACE"];
    rest.iter().find_map(|expr| match expr {
        Expr::ImmediateVerdict(verdict) => Some(Assumed::Verdict(verdict.clone())),
        Expr::Reject(_) => Some(Assumed::Refuse),
        Expr::Unknown(name) if CONDITIONS.contains(&&**name) => None,
        Expr::Foreign(foreign) => match &**foreign {
            Foreign::XtTarget(name) if HARMLESS.contains(&&**name) => None,
            Foreign::XtTarget(_) | Foreign::Nat { .. } | Foreign::Redirect { .. } | Foreign::Notrack => {
                Some(Assumed::Opaque)
            }
            _ => None,
        },
        Expr::MetaSet { key: MetaKey::Trace, .. } => None,
        Expr::Unknown(_) | Expr::Nat { .. } | Expr::Masquerade { .. } | Expr::MetaSet { .. } => Some(Assumed::Opaque),
        Expr::Lookup { result: LookupResult::Verdict, .. } => Some(Assumed::Opaque),
        _ => None,
    })
}

/// Makes one branch of each two that differ in nothing but an assumption.
fn join_worlds(branches: &mut Vec<Branch>) {
    if branches.iter().all(|branch| branch.worlds.is_empty()) {
        return;
    }
    let mut at = 0;
    while at < branches.len() {
        let twin = (at + 1..branches.len()).find(|other| branches[at].is_twin(&branches[*other]));
        if let Some(other) = twin {
            let removed = branches.swap_remove(other);
            // The world in which the rule does not match tells less.
            if removed.worlds.last().is_some_and(|(_, matches)| !matches) {
                branches[at] = removed;
            }
            branches[at].worlds.pop();
            at = 0;
        } else {
            at += 1;
        }
    }
}

impl Branch {
    /// A packet at the start of its way.
    pub(crate) fn new(packet: Packet) -> Self {
        Self {
            packet,
            connection: Connection::default(),
            probability: 1.0,
            worlds: Vec::new(),
            fate: None,
            endpoint: None,
            masqueraded: false,
            steps: Vec::new(),
        }
    }

    /// Whether both differ in their last assumption only.
    fn is_twin(&self, other: &Self) -> bool {
        let ([mine @ .., (a, x)], [theirs @ .., (b, y)]) = (&self.worlds[..], &other.worlds[..]) else { return false };
        mine == theirs
            && a == b
            && x != y
            && self.packet == other.packet
            && self.connection == other.connection
            && (&self.fate, self.endpoint, self.masqueraded) == (&other.fate, other.endpoint, other.masqueraded)
            && (self.probability - other.probability).abs() < f64::EPSILON
    }

    /// What a `ct` expression loads.
    fn ct(&self, key: CtKey) -> Loaded {
        const INVALID: u32 = 1;
        const NEW: u32 = 1 << 3;
        const UNTRACKED: u32 = 1 << 6;
        let number = |number: u32| Loaded::Bytes(number.to_ne_bytes().to_vec());
        let original = match self.connection.tracking {
            Tracking::NotYet if key == CtKey::State => return number(INVALID),
            Tracking::Off if key == CtKey::State => return number(UNTRACKED),
            Tracking::NotYet | Tracking::Off => return Loaded::Nothing,
            Tracking::New => self.connection.original.unwrap_or_else(|| self.packet.target()),
        };
        match (key, original.ip()) {
            (CtKey::State, _) => number(NEW),
            (CtKey::Status, _) => number(self.connection.status),
            // Or 0 where the kernel does not count; nobody compares with less than one packet.
            (CtKey::Packets, _) => Loaded::Bytes(1_u64.to_ne_bytes().to_vec()),
            (CtKey::OriginalDstIpv4, IpAddr::V4(ip)) => Loaded::Bytes(ip.octets().to_vec()),
            (CtKey::OriginalDstIpv6, IpAddr::V6(ip)) => Loaded::Bytes(ip.octets().to_vec()),
            (CtKey::OriginalDstIpv4 | CtKey::OriginalDstIpv6, _) => Loaded::Nothing,
            // Of an echo request, conntrack keeps type and code in the place of the port.
            (CtKey::OriginalDstPort, _) => Loaded::Bytes(match self.packet.protocol {
                protocol::ICMP => vec![8, 0],
                protocol::ICMPV6 => vec![128, 0],
                _ => original.port().to_be_bytes().to_vec(),
            }),
        }
    }

    fn translate(&mut self, to: SocketAddr) {
        let connection = &mut self.connection;
        connection.status |= status::DESTINATION_DONE;
        // The kernel calls a connection translated only when that changed something.
        if to != self.packet.target() {
            connection.status |= status::DESTINATION;
        }
        connection.destination_done = true;
        (self.packet.destination, self.packet.port) = (to.ip(), to.port());
        self.endpoint = Some(to);
    }

    fn translate_source(&mut self, to: Option<IpAddr>) {
        self.connection.status |= status::SOURCE | status::SOURCE_DONE;
        self.connection.source_done = true;
        self.masqueraded = true;
        if let Some(to) = to {
            self.packet.source = to;
        }
    }
}

impl Thread {
    /// Leaves the base chain with a verdict.
    fn accept(&mut self) {
        self.stack.clear();
        self.is_accepted = true;
    }

    /// Ends the current rule: what it did is noted.
    fn end_rule(&mut self, table: &TableName) {
        let (effects, found) = (std::mem::take(&mut self.effects), std::mem::take(&mut self.found));
        let before = std::mem::replace(&mut self.before, self.branch.packet.clone());
        if let Some(frame) = self.stack.last().filter(|_| !effects.is_empty()) {
            self.branch.steps.push(Step {
                table: table.clone(),
                chain: Arc::clone(&frame.chain),
                rules: Arc::clone(&frame.rules),
                index: frame.at,
                effects,
                found,
                packet: before,
            });
        }
        self.at = 0;
    }

    /// Goes on to the next rule.
    fn next_rule(&mut self, table: &TableName) {
        self.end_rule(table);
        if let Some(frame) = self.stack.last_mut() {
            frame.at += 1;
        }
    }

    /// This thread behind an expression that gave a random number.
    fn with_number(&self, number: u32, modulus: u32, register: Register) -> Self {
        let mut thread = self.clone();
        thread.load(register, Loaded::Bytes(number.to_ne_bytes().to_vec()));
        thread.branch.probability /= f64::from(modulus);
        thread.at += 1;
        thread
    }

    /// The first bytes of a register; `None` when one of them is not known.
    fn known(&self, register: Register, len: usize) -> Option<&[u8]> {
        let place = range(register, len);
        let is_known = self.unknown & bits(&place) == 0;
        self.registers.get(place).filter(|_| is_known)
    }

    /// Loads bytes into a register, the rest of its last word with zeros.
    fn load(&mut self, register: Register, loaded: Loaded) -> Flow {
        let (bytes, is_known) = match loaded {
            Loaded::Bytes(bytes) => (bytes, true),
            Loaded::Nothing => return Flow::Break,
            Loaded::Unknown(what, len) => {
                self.why = what;
                (vec![0; len], false)
            }
        };
        let place = range(register, bytes.len());
        let words = range(register, bytes.len().next_multiple_of(4));
        let Some(registers) = self.registers.get_mut(words.clone()) else { return Flow::Break };
        registers.fill(0);
        registers[..bytes.len()].copy_from_slice(&bytes);
        self.unknown &= !bits(&words);
        if !is_known {
            self.unknown |= bits(&place);
        }
        Flow::Next
    }

    /// How the start of a register compares with data.
    fn compare(&self, register: Register, data: &Data) -> Compared {
        let place = range(register, data.len());
        let start = place.start;
        let Some(bytes) = self.registers.get(place) else { return Compared::Unknown };
        let is_known = |index: usize| self.unknown & bits(&(start + index..start + index + 1)) == 0;
        let mut order = Compared::Is(Ordering::Equal);
        for (index, (byte, wanted)) in bytes.iter().zip(data.as_slice()).enumerate() {
            match (is_known(index), &order) {
                (true, Compared::Is(Ordering::Equal)) => order = Compared::Is(byte.cmp(wanted)),
                (true, Compared::Unknown) if byte != wanted => order = Compared::Differs,
                (false, Compared::Is(Ordering::Equal)) => order = Compared::Unknown,
                _ => {}
            }
        }
        order
    }

    /// The next expression, if it is known whether a comparison holds.
    fn decide(&self, holds: Option<bool>) -> Flow {
        holds.map_or_else(|| Flow::Stuck(self.why.to_owned()), go_on)
    }

    /// `dreg = (sreg & mask) ^ xor`; a byte that the mask clears is known.
    fn bitwise(&mut self, sreg: Register, dreg: Register, mask: &Data, xor: &Data) -> Flow {
        let place = range(sreg, mask.len());
        let unknown = self.unknown >> place.start;
        let Some(bytes) = self.registers.get(place) else { return Flow::Break };
        let masks = || mask.as_slice().iter().enumerate();
        let bytes = bytes.iter().zip(mask.as_slice()).zip(xor.as_slice());
        let bytes = bytes.map(|((byte, mask), xor)| byte & mask ^ xor).collect();
        let left = masks().filter(|(index, mask)| **mask != 0 && unknown >> index & 1 != 0);
        let left = left.map(|(index, _)| 1 << index).fold(0_u64, |all, bit| all | bit);
        let flow = self.load(dreg, Loaded::Bytes(bytes));
        self.unknown |= left << (dreg.index() * 4);
        flow
    }

    fn meta(&self, key: MetaKey) -> Loaded {
        let packet = &self.branch.packet;
        match key {
            MetaKey::Mark => Loaded::Bytes(packet.mark.to_ne_bytes().to_vec()),
            MetaKey::IifName => packet.input.name_bytes(),
            MetaKey::L4Proto => Loaded::Bytes(vec![packet.protocol]),
            MetaKey::Trace => Loaded::Unknown("whether it is traced", 1),
        }
    }

    /// The address at the start of a register.
    fn address(&self, register: Register, is_v4: bool) -> Option<IpAddr> {
        Some(if is_v4 {
            IpAddr::from(<[u8; 4]>::try_from(self.known(register, 4)?).ok()?)
        } else {
            IpAddr::from(<[u8; 16]>::try_from(self.known(register, 16)?).ok()?)
        })
    }

    fn port(&self, register: Register) -> Option<u16> {
        self.known(register, 2)?.try_into().ok().map(u16::from_be_bytes)
    }

    /// Expressions that do something to the packet.
    fn act(&mut self, expr: &Expr) -> Flow {
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
            Expr::Nat { address, port, .. } => self.dnat(Some(*address), Some(*port), is_v4),
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

    /// Translates the destination to what registers hold.
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
                const MARK: u32 = 3;
                let loaded = match (self.branch.connection.tracking, *key) {
                    // A new connection has none yet; a rule that sets it cannot be evaluated.
                    (Tracking::New, MARK) => Loaded::Bytes(vec![0; 4]),
                    (Tracking::New, _) => Loaded::Unknown("a property of the connection", 16),
                    (Tracking::NotYet | Tracking::Off, _) => Loaded::Nothing,
                };
                self.load(*dreg, loaded)
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

/// The bytes of a register.
fn range(register: Register, len: usize) -> Range<usize> {
    let start = register.index() * 4;
    start..start + len
}

/// A bit for each byte of a range.
fn bits(range: &Range<usize>) -> u64 {
    range.clone().filter(|index| *index < 64).fold(0, |bits, index| bits | 1 << index)
}

/// How bytes compare, of which some may be unknown.
enum Compared {
    /// Like this.
    Is(Ordering),
    /// They differ, but in which order is not known.
    Differs,
    Unknown,
}

impl Compared {
    fn is_equal(&self) -> Option<bool> {
        match self {
            Self::Is(order) => Some(order.is_eq()),
            Self::Differs => Some(false),
            Self::Unknown => None,
        }
    }

    fn order(&self) -> Option<Ordering> {
        match self {
            Self::Is(order) => Some(*order),
            Self::Differs | Self::Unknown => None,
        }
    }
}

fn within(bytes: &[u8], first: &Data, last: &Data) -> bool {
    (first.as_slice()..=last.as_slice()).contains(&bytes)
}
