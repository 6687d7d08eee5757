//! An interpreter of nftables rules: what they do with a packet.
//!
//! ```text
//! Packet ─► walk: hooks, routes, connection tracking ─► Machine: one base chain and the chains that it leads to ─► Branches
//!                             ▲                                  ▲
//!                             │ Routes                           │ Ruleset: the kernel's rules, or tables as values (Listed)
//! ```
//!
//! Takes the rules as the kernel lists them and a [`Packet`]; returns a [`Branch`] for each path that the packet may take. A random number
//! with a limited number of values makes a branch for each of them, with its share of the probability. An expression that cannot be
//! evaluated makes two branches if its rule may change where the packet goes, each in a world of its own: in one world the rule matches, in
//! the other it does not. Worlds with the same result are merged at the end of the base chain, so that a rule without consequences for this
//! packet does not matter.
//!
//! Pure: the caller reads rules, routes and addresses, through [`Ruleset`], [`Routes`] and [`Host`]. Invariant: a value of the packet that
//! neither the caller gives nor `packet` derives is unknown.
//!
//! Follows the semantics of `net/netfilter/nf_tables_core.c` in the kernel, and of the files `nft_*.c` in the same directory.

mod act;
mod assume;
mod branch;
mod listed;
mod packet;
mod registers;
mod walk;

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use crate::data::{Value, Verdict};
use crate::decode::{ChainHead, RuleHead};
use crate::expr::{CmpOp, Expr, FibAddress, LookupResult, MetaKey, Register};
use crate::object::{Element, RuleDump};
use crate::table::TableName;

use crate::connection::ReadError;
use assume::{Assumed, described, effect_of, join_worlds, sets_connection_mark};

use branch::status;
pub use branch::{Branch, Conntrack, Effect, Fate, Found, Step, Tracking};
pub use listed::{Listed, among, key_of};
pub use packet::{Link, Loaded, Packet, protocol, protocol_name};
pub use walk::{Known, Next, Routes, Walk, walk};

/// Access to chains, rules and sets, for packets of one family.
pub trait Ruleset {
    /// The base chains that see packets of the family, without those of dormant tables.
    ///
    /// # Errors
    /// When they cannot be read.
    fn base_chains(&mut self) -> Result<Vec<ChainHead>, ReadError>;

    /// The rules of a chain in their order.
    ///
    /// # Errors
    /// When they cannot be read.
    fn rules(&mut self, table: &TableName, chain: &str) -> Result<Arc<[RuleHead]>, ReadError>;

    /// Looks up the key at the start of these bytes in a set. A bit in `unknown` marks a byte that is not known; bit 0 stands for the
    /// first byte.
    ///
    /// # Errors
    /// When the request for the set fails. A set whose answer cannot be decoded is no error, but [`Lookup::Unreadable`].
    fn find(&mut self, table: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup, ReadError>;

    /// All elements of a set; none when there is no such set.
    ///
    /// # Errors
    /// When they cannot be read.
    fn elements(&mut self, table: &TableName, set: &str) -> Result<Vec<Element>, ReadError>;
}

/// The result of a look-up in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The set has no such element.
    Missing,
    /// The set has this element.
    Found(Element),
    /// The set cannot be read, with the reason; or, with an empty reason, the result depends on unknown bytes of the key.
    Unreadable(String),
}

impl Lookup {
    /// The result for a set whose keys are longer than this crate handles.
    #[must_use]
    pub fn too_long() -> Self {
        Self::Unreadable("its keys are too long".to_owned())
    }
}

/// Tells this host's own addresses from others.
pub trait Host {
    /// The route type of an address (`RTN_*`), such as local or unicast.
    fn address_type(&mut self, address: IpAddr) -> u8;
}
/// What to do after one expression.
enum Flow {
    /// Go on with the next expression.
    Next,
    /// Go on with the next rule, because this one does not match.
    Break,
    /// Apply this verdict.
    Verdict(Verdict),
    /// End the packet with this fate.
    End(Fate),
    /// Put a random number below this one into this register; all numbers are equally likely.
    Random(u32, Register),
    /// The expression cannot be evaluated; with the reason.
    Stuck(String),
}
/// The limit of nested jumps (the kernel's `NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;
/// A random number with more values than this counts as unknown, because each value makes a branch.
const MOST_VALUES: u32 = 20_000;
/// When a branch has assumed the outcome of this many rules that cannot be evaluated, a further such rule makes the packet's fate unknown
/// in the world in which it matches, because each assumption doubles the branches.
const MOST_WORLDS: usize = 6;
/// The length of all registers in bytes.
const REGISTERS: usize = 64;
/// A chain on the call stack.
#[derive(Clone)]
struct Frame {
    chain: Arc<str>,
    rules: Arc<[RuleHead]>,
    /// The index of the current rule.
    at: usize,
}

/// The state of the evaluation of a branch within a base chain.
#[derive(Clone)]
struct Thread {
    branch: Branch,
    stack: Vec<Frame>,
    /// The index of the current expression in the rule.
    at: usize,
    registers: [u8; REGISTERS],
    /// A bit for each byte of the registers that is not known.
    unknown: u64,
    /// A description of the unknown value that was loaded last.
    why: &'static str,
    effects: Vec<Effect>,
    found: Vec<Found>,
    /// The packet when the current rule began.
    before: Packet,
    /// Whether a rule that is assumed to match has taken the packet out of the base chain.
    is_accepted: bool,
}
/// Runs branches through base chains.
pub struct Machine<'a, R, H> {
    ruleset: &'a mut R,
    host: &'a mut H,
    /// The number of assumptions so far.
    assumptions: usize,
}

impl<'a, R: Ruleset, H: Host> Machine<'a, R, H> {
    /// A machine for these rules on this host.
    pub fn new(ruleset: &'a mut R, host: &'a mut H) -> Self {
        Self { ruleset, host, assumptions: 0 }
    }

    /// Runs a branch through a base chain; returns a branch for each path that it may take.
    ///
    /// # Errors
    /// When the rules cannot be read.
    pub fn run(&mut self, branch: Branch, base: &ChainHead) -> Result<Vec<Branch>, ReadError> {
        let rules = self.ruleset.rules(&base.table, &base.name)?;
        let before = branch.packet.clone();
        let frame = Frame { chain: Arc::clone(&base.name), rules, at: 0 };
        let first = Thread {
            branch,
            stack: vec![frame.clone()],
            at: 0,
            registers: [0; REGISTERS],
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

    /// Runs a thread to the end of the base chain, and returns whether it ended with a verdict. `None` when the thread was split: its
    /// parts are in `todo`.
    fn advance(
        &mut self,
        thread: &mut Thread,
        todo: &mut Vec<Thread>,
        table: &TableName,
    ) -> Result<Option<bool>, ReadError> {
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
                    if sets_connection_mark(&rule.exprs[thread.at..]) {
                        // Whether the rule gets that far is not known, and so is what later rules read.
                        thread.branch.connection.mark = None;
                    }
                    if let Some(assumed) = self.assume(thread, rule, &why, table)? {
                        todo.extend(assumed);
                        return Ok(None);
                    }
                    thread.next_rule(table);
                }
            }
        }
    }

    /// Applies a verdict, and returns whether it ends the base chain.
    fn obey(&mut self, thread: &mut Thread, verdict: Verdict, table: &TableName) -> Result<bool, ReadError> {
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
                self.enter(thread, chain, table)
            }
            Verdict::Goto(chain) => {
                thread.end_rule(table);
                thread.stack.pop();
                self.enter(thread, chain, table)
            }
        }
    }

    /// Goes on in a chain. Returns whether the base chain ends here because the chain is nested too deeply: the kernel allows no such
    /// rules, so they changed while they were read.
    fn enter(&mut self, thread: &mut Thread, chain: Arc<str>, table: &TableName) -> Result<bool, ReadError> {
        if thread.stack.len() >= DEPTH {
            let why = format!(
                "chain {chain} of table {table} is deeper than the kernel allows: the rules changed while they were read"
            );
            thread.effects.push(Effect::Assumed(why.clone()));
            thread.end_rule(table);
            thread.branch.fate = Some(Fate::Unknown(why));
            return Ok(true);
        }
        let rules = self.ruleset.rules(table, &chain)?;
        thread.stack.push(Frame { chain, rules, at: 0 });
        Ok(false)
    }

    /// Splits a thread at a rule that cannot be evaluated: in one part the rule matches, in the other it does not. `None` when the rest
    /// of the rule does not change where the packet goes.
    fn assume(
        &mut self,
        thread: &Thread,
        rule: &RuleDump,
        why: &str,
        table: &TableName,
    ) -> Result<Option<Vec<Thread>>, ReadError> {
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

    fn evaluate(&mut self, thread: &mut Thread, expr: &Expr, table: &TableName) -> Result<Flow, ReadError> {
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
                let kind = u32::from(self.host.address_type(address));
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
                let len = bytes(*len);
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
            Expr::Jhash { sreg, dreg, len, modulus, seed, offset } => {
                thread.hash((*sreg, bytes(*len)), *dreg, (*modulus, *seed, *offset))
            }
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
    ) -> Result<Flow, ReadError> {
        let start = sreg.index() * 4;
        let (key, unknown) = (&thread.registers[start..], thread.unknown >> start);
        let element = match self.ruleset.find(table, set, key, unknown)? {
            Lookup::Unreadable(why) if why.is_empty() => return Ok(Flow::Stuck(thread.why.to_owned())),
            Lookup::Unreadable(why) => return Ok(Flow::Stuck(format!("the set {set} ({why})"))),
            Lookup::Missing => None,
            Lookup::Found(element) => Some(element),
        };
        let Some(element) = element else {
            // When a verdict map has no element for the key, the next rule follows, as after any rule that does not match.
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
/// Turns a length in bytes into a `usize`. Every length beyond that of all registers gives the same number, which no register can hold.
fn bytes(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX).min(REGISTERS + 1)
}

/// Goes on with the next expression if a comparison holds, else with the next rule.
fn go_on(holds: bool) -> Flow {
    if holds { Flow::Next } else { Flow::Break }
}
impl Thread {
    /// Leaves the base chain because of a rule that is assumed to match.
    fn accept(&mut self) {
        self.stack.clear();
        self.is_accepted = true;
    }

    /// Ends the current rule, and records its effects, if it has any, as a step.
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

    /// A copy of this thread after an expression has put the random number `number` into a register.
    fn with_number(&self, number: u32, modulus: u32, register: Register) -> Self {
        let mut thread = self.clone();
        thread.load(register, Loaded::Bytes(number.to_ne_bytes().to_vec()));
        thread.branch.probability /= f64::from(modulus);
        thread.at += 1;
        thread
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
}
