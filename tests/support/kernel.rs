//! A kernel in memory: it takes transactions as nf_tables does, and records them.
//!
//! It refuses what nf_tables refuses, with the same errors, and changes nothing then: what is about a table of another owner; an element that is there with another value, or
//! deleted without being there, or for which the set has no room; whatever is missing; chains and sets that are in use. So it takes a
//! transaction only if its commands are in a valid order. Elements expire when the test says so, also in the middle of a transaction.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nft::{
    Batch, Command, CommitError, Committed, Data, Element, ElementRef, Elements, Expr, Ownership, ReadError, Refusal,
    Set, TableDump, TableName, Value, Verdict,
};
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::{Flow, Listing};
use rules::model::Family;

/// The error numbers of refusals.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENFILE: i32 = 23;

/// What the kernel received and holds, shared with the test.
#[derive(Default)]
pub(crate) struct Log {
    /// Every transaction that was sent, also refused ones.
    pub(crate) sent: Vec<Vec<Command>>,
    /// How often a table was read.
    pub(crate) reads: usize,
    /// How the next transaction fails; `None` if it succeeds.
    pub(crate) next: Option<Failure>,
    /// What other programs did since the last check.
    pub(crate) foreign: ForeignWrites,
    /// Whether this is a kernel before Linux 6.3, which does not know `destroy element`.
    pub(crate) is_old: bool,
    /// What expires during each of the next transactions.
    pub(crate) expiring: VecDeque<Vec<Expiry>>,
    /// Refusals for the content of a command: not because of `next`, nor because the kernel is old.
    pub(crate) refused: Vec<Refusal>,
    /// The lists of flows that were asked for.
    pub(crate) walks: Vec<(Family, Listing)>,
    /// Whether the kernel tracks no flow at all.
    pub(crate) tracks_nothing: bool,
    tables: Tables,
}

/// Tables by their names.
type Tables = BTreeMap<String, Held>;

/// A table. Its elements are kept in order and not packed, because transactions change them one by one.
#[derive(Clone)]
struct Held {
    /// The table without its sets.
    rest: TableDump,
    sets: BTreeMap<Arc<str>, (Set, Vec<Element>)>,
}

impl Held {
    fn new(mut dump: TableDump) -> Self {
        let unpacked = |(set, elements): (Set, Elements)| (set, unpacked(&elements));
        let sets = std::mem::take(&mut dump.sets);
        Self { rest: dump, sets: sets.into_iter().map(|(name, set)| (name, unpacked(set))).collect() }
    }

    fn dump(&self) -> TableDump {
        let packed = |(set, elements): &(Set, Vec<Element>)| (set.clone(), Elements::from(&elements[..]));
        let sets = self.sets.iter().map(|(name, set)| (Arc::clone(name), packed(set))).collect();
        TableDump { sets, ..self.rest.clone() }
    }
}

/// The elements of a list.
pub(crate) fn unpacked(elements: &Elements) -> Vec<Element> {
    elements.iter().map(ElementRef::element).collect()
}

/// Changes the elements of a set, as another program would, and keeps them in the order of their keys.
pub(crate) fn edit(dump: &mut TableDump, set: &str, change: impl FnOnce(&mut Vec<Element>)) {
    let (_, elements) = dump.sets.get_mut(set).unwrap_or_else(|| panic!("no set {set}"));
    let mut changed = unpacked(elements);
    change(&mut changed);
    changed.sort_by_key(|element| element.key);
    *elements = changed.into();
}

/// Elements that expire, whatever becomes of the transaction.
#[derive(Clone, Debug)]
pub(crate) struct Expiry {
    /// The number of the command before which the elements expire; they expire after the last command if the transaction has fewer
    /// commands.
    pub(crate) before: usize,
    /// The table and set.
    pub(crate) set: (TableName, Arc<str>),
    /// The keys of the elements.
    pub(crate) keys: BTreeSet<Data>,
}

impl Log {
    /// Makes the kernel hold a table.
    pub(crate) fn put(&mut self, table: TableDump) {
        self.tables.insert(table.table.name.to_string(), Held::new(table));
    }

    /// Makes the kernel hold no table of this name.
    pub(crate) fn remove(&mut self, table: &str) {
        self.tables.remove(table);
    }

    /// Every table, by its name.
    pub(crate) fn tables(&self) -> BTreeMap<String, TableDump> {
        self.tables.iter().map(|(name, table)| (name.clone(), table.dump())).collect()
    }
}

/// How a transaction fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing is changed.
    Refused,
    /// The change is made, and its acknowledgement is lost.
    Unconfirmed,
}

/// The kernel. The test may read its log at any time.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) log: Rc<RefCell<Log>>,
}

impl Kernel for Recorder {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        let mut log = self.log.borrow_mut();
        log.sent.push(commands.to_vec());
        let failure = log.next.take();
        if failure == Some(Failure::Refused) {
            return Err(CommitError::Socket(io::Error::other("refused on purpose")));
        }
        log.try_all(commands)?;
        if failure == Some(Failure::Unconfirmed) {
            return Err(CommitError::Unconfirmed);
        }
        let batch = Batch::encode(commands)?;
        Ok(Committed { messages: batch.messages(), bytes: batch.bytes() })
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        let mut log = self.log.borrow_mut();
        log.reads += 1;
        Ok(log.tables.get(&table.to_string()).map(Held::dump))
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        let log = self.log.borrow();
        let present = log.tables.get(&table.to_string()).and_then(|table| table.sets.get(&set.name));
        Ok(present.map(|(_, elements)| elements.clone()).unwrap_or_default())
    }

    fn foreign_writes(&mut self, _: &[TableName], _: Instant) -> Result<ForeignWrites, ReadError> {
        Ok(std::mem::take(&mut self.log.borrow_mut().foreign))
    }

    fn tracks_flows(&mut self) -> io::Result<bool> {
        Ok(!self.log.borrow().tracks_nothing)
    }

    fn flows(&mut self, family: Family, listing: Listing, _: &mut dyn FnMut(&Flow) -> bool) -> io::Result<Vec<Flow>> {
        self.log.borrow_mut().walks.push((family, listing));
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, flows: &[Flow], _: Option<IpAddr>) -> io::Result<usize> {
        Ok(flows.len())
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}

impl Log {
    fn try_all(&mut self, commands: &[Command]) -> Result<(), CommitError> {
        let (mut tables, mut refusals) = (self.tables.clone(), Vec::new());
        let expiring = self.expiring.pop_front().unwrap_or_default();
        let mut unknown = Vec::new();
        for (number, command) in commands.iter().enumerate() {
            expiring.iter().filter(|expiry| expiry.before == number).for_each(|expiry| expiry.take_from(&mut tables));
            if self.is_old && matches!(command, Command::DestroyElements(..)) {
                unknown.push(refusal(number, command, None, EINVAL));
            } else if let Err((element, errno)) = carry_out(&mut tables, command) {
                refusals.push(refusal(number, command, element, errno));
            }
        }
        expiring.iter().for_each(|expiry| {
            expiry.take_from(&mut self.tables);
            expiry.take_from(&mut tables);
        });
        self.refused.extend(refusals.iter().cloned());
        refusals.extend(unknown);
        if !refusals.is_empty() {
            return Err(CommitError::Refused(refusals));
        }
        self.tables = tables;
        Ok(())
    }
}

fn refusal(number: usize, command: &Command, element: Option<usize>, errno: i32) -> Refusal {
    Refusal { command: Some(number), element, object: command.to_string(), errno, message: None }
}

impl Expiry {
    fn take_from(&self, tables: &mut Tables) {
        let (table, set) = &self.set;
        let set = tables.get_mut(&table.to_string()).and_then(|table| table.sets.get_mut(set));
        if let Some((_, elements)) = set {
            elements.retain(|element| !self.keys.contains(&element.key));
        }
    }
}

/// The number of the refused element, if an element is refused, and the error.
type Fault = (Option<usize>, i32);

/// Carries a command out up to its first error, which is the only one that is reported.
fn carry_out(tables: &mut Tables, command: &Command) -> Result<(), Fault> {
    let name = command.table().to_string();
    if tables.get(&name).is_some_and(|table| table.rest.ownership.other().is_some()) {
        return Err((None, EPERM));
    }
    if let Command::AddTable(table) | Command::OwnTable(table) = command {
        let empty = || Held::new(TableDump::empty(table.clone()));
        let present = &mut tables.entry(name).or_insert_with(empty).rest;
        present.dormant = false;
        if matches!(command, Command::OwnTable(_)) {
            present.ownership = Ownership::Ours;
        }
        return Ok(());
    }
    if let Command::DeleteTable(_) = command {
        return tables.remove(&name).map(drop).ok_or((None, ENOENT));
    }
    change(tables.get_mut(&name).ok_or((None, ENOENT))?, command)
}

fn change(table: &mut Held, command: &Command) -> Result<(), Fault> {
    match command {
        Command::AddFlowtable(..) | Command::LockTable(_) => panic!("not a command of the sync loop: {command}"),
        Command::AddTable(_) | Command::OwnTable(_) | Command::DeleteTable(_) => {
            unreachable!("not about what is in a table")
        }
        Command::AddChain(_, chain) => {
            table.rest.chains.entry(Arc::clone(&chain.name)).or_insert_with(|| (chain.clone(), Vec::new()));
        }
        Command::DeleteChain(_, name) => {
            chain(table, name)?;
            if is_chain_used(table, name) {
                return Err((None, EBUSY));
            }
            table.rest.chains.remove(name);
        }
        Command::FlushChain(_, name) => chain(table, name)?.clear(),
        Command::DeleteRule(..) => panic!("the sync loop deletes no single rules"),
        Command::AddRule(_, name, rule) => {
            let dump = rule.to_dump(table.rest.table.name.family);
            let has = |expr: &Expr| {
                expr.set().is_none_or(|set| table.sets.contains_key(set))
                    && target(expr).is_none_or(|chain| table.rest.chains.contains_key(chain))
            };
            if !dump.exprs.iter().all(has) {
                return Err((None, ENOENT));
            }
            chain(table, name)?.push(dump);
        }
        Command::AddSet(_, set) => {
            table.sets.entry(Arc::clone(&set.name)).or_insert_with(|| ((**set).clone(), Vec::new()));
        }
        Command::DeleteSet(_, set) => {
            elements(table, &set.name)?;
            if exprs(table).any(|expr| expr.set() == Some(&set.name)) {
                return Err((None, EBUSY));
            }
            table.sets.remove(&set.name);
        }
        Command::DeleteObject(_, object) => {
            let Some(place) = table.rest.objects.iter().position(|present| present == object) else {
                return Err((None, ENOENT));
            };
            if object.in_use {
                return Err((None, EBUSY));
            }
            table.rest.objects.remove(place);
        }
        Command::AddElements(_, set, list) => {
            if !fill(table, &set.name, list) {
                return each(list, |element| add(table, &set.name, element));
            }
        }
        Command::DeleteElements(_, set, list) => return each(list, |element| delete(table, &set.name, element)),
        Command::DestroyElements(_, set, list) => {
            let keys: BTreeSet<Data> = list.iter().map(|element| element.element().key).collect();
            elements(table, &set.name)?.1.retain(|present| !keys.contains(&present.key));
        }
    }
    Ok(())
}

/// Does something with each element up to the first with which it cannot be done.
fn each(list: &Elements, mut work: impl FnMut(&Element) -> Result<(), i32>) -> Result<(), Fault> {
    let mut elements = list.iter().map(ElementRef::element).enumerate();
    elements.try_for_each(|(number, element)| work(&element).map_err(|errno| (Some(number), errno)))
}

fn chain<'a>(table: &'a mut Held, name: &str) -> Result<&'a mut Vec<nft::RuleDump>, Fault> {
    table.rest.chains.get_mut(name).map(|(_, rules)| rules).ok_or((None, ENOENT))
}

fn elements<'a>(table: &'a mut Held, set: &str) -> Result<&'a mut (Set, Vec<Element>), Fault> {
    table.sets.get_mut(set).ok_or((None, ENOENT))
}

fn exprs(table: &Held) -> impl Iterator<Item = &Expr> {
    table.rest.chains.values().flat_map(|(_, rules)| rules).flat_map(|rule| &rule.exprs)
}

/// The chain that an expression leads to.
fn target(expr: &Expr) -> Option<&Arc<str>> {
    match expr {
        Expr::ImmediateVerdict(verdict) => verdict.chain(),
        _ => None,
    }
}

fn is_chain_used(table: &Held, name: &Arc<str>) -> bool {
    let leads_there =
        |element: &Element| matches!(&element.value, Value::Verdict(verdict) if verdict.chain() == Some(name));
    exprs(table).any(|expr| target(expr) == Some(name))
        || table.sets.values().flat_map(|(_, elements)| elements).any(leads_there)
}

/// Fills an empty set with the elements, sorted once. Returns `false`, and changes nothing, if the set is not empty or would refuse one of
/// the elements. Inserting the elements one by one takes long in large sets.
fn fill(table: &mut Held, set: &str, list: &Elements) -> bool {
    let leads_somewhere = |element: &Element| match &element.value {
        Value::Verdict(verdict) => Verdict::chain(verdict).is_none_or(|target| table.rest.chains.contains_key(target)),
        Value::None | Value::Data(_) => true,
    };
    let mut filling: Vec<Element> = list.iter().map(ElementRef::element).collect();
    filling.sort_unstable_by_key(|element| element.key);
    let is_right = filling.iter().all(leads_somewhere) && filling.windows(2).all(|pair| pair[0].key != pair[1].key);
    match table.sets.get_mut(set) {
        Some((set, present))
            if is_right
                && present.is_empty()
                && set.size.is_none_or(|size| usize::try_from(size).is_ok_and(|size| filling.len() <= size)) =>
        {
            *present = filling;
            true
        }
        _ => false,
    }
}

fn add(table: &mut Held, set: &str, element: &Element) -> Result<(), i32> {
    if let Value::Verdict(verdict) = &element.value
        && let Some(target) = Verdict::chain(verdict)
        && !table.rest.chains.contains_key(target)
    {
        return Err(ENOENT);
    }
    let (set, elements) = elements(table, set).map_err(|(_, errno)| errno)?;
    // Sorted, so that look-ups are fast in large sets. nf_tables does not compare comments, but tests must not rely on that.
    match elements.binary_search_by_key(&element.key, |present| present.key) {
        Ok(at) if elements[at] == *element => Ok(()),
        Ok(_) => Err(EEXIST),
        Err(_) if set.size.is_some_and(|size| elements.len() >= usize::try_from(size).unwrap_or(usize::MAX)) => {
            Err(ENFILE)
        }
        Err(at) => {
            elements.insert(at, element.clone());
            Ok(())
        }
    }
}

fn delete(table: &mut Held, set: &str, element: &Element) -> Result<(), i32> {
    let (_, elements) = elements(table, set).map_err(|(_, errno)| errno)?;
    let at = elements.binary_search_by_key(&element.key, |present| present.key).map_err(|_| ENOENT)?;
    elements.remove(at);
    Ok(())
}
