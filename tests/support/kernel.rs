//! A kernel that only remembers: it takes transactions as nf_tables does, and tells what it was asked.
//!
//! It refuses what nf_tables refuses (an element that is there with another value, or deleted without being there, a chain that is
//! missing), so a transaction that it takes is one in a valid order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use kube_proxy::conntrack::Flow;
use kube_proxy::kernel::{ForeignWrites, Kernel};
use kube_proxy::model::Family;
use nft::{Batch, Command, CommitError, Committed, Element, Ownership, ReadError, Set, TableDump, TableName, Value};

/// What happened, shared with the test.
#[derive(Default)]
pub(crate) struct Log {
    /// Every transaction that was sent, also refused ones.
    pub(crate) sent: Vec<Vec<Command>>,
    /// How often a table was read.
    pub(crate) reads: usize,
    /// What becomes of the next transaction, if not success.
    pub(crate) next: Option<Failure>,
    /// What others did since the last look.
    pub(crate) foreign: ForeignWrites,
    tables: BTreeMap<String, TableDump>,
}

impl Log {
    /// Has the kernel hold a table.
    pub(crate) fn put(&mut self, table: TableDump) {
        self.tables.insert(table.table.name.to_string(), table);
    }

    /// Every table, by its name.
    pub(crate) fn tables(&self) -> &BTreeMap<String, TableDump> {
        &self.tables
    }
}

/// How a transaction fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing is changed.
    Refused,
    /// All is changed, but nobody hears of it.
    Unconfirmed,
}

/// The kernel; the log is the test's to look at.
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
        let mut tables = log.tables.clone();
        commands.iter().for_each(|command| carry_out(&mut tables, command));
        log.tables = tables;
        if failure == Some(Failure::Unconfirmed) {
            return Err(CommitError::Unconfirmed);
        }
        let batch = Batch::encode(commands)?;
        Ok(Committed { messages: batch.messages(), bytes: batch.bytes() })
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        let mut log = self.log.borrow_mut();
        log.reads += 1;
        Ok(log.tables.get(&table.to_string()).cloned())
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        let log = self.log.borrow();
        let present = log.tables.get(&table.to_string()).and_then(|table| table.sets.get(&set.name));
        Ok(present.map(|(_, elements)| elements.clone()).unwrap_or_default())
    }

    fn foreign_writes(&mut self, _: &[TableName]) -> Result<ForeignWrites, ReadError> {
        Ok(std::mem::take(&mut self.log.borrow_mut().foreign))
    }

    fn udp_flows(&mut self, _: Family) -> io::Result<Vec<Flow>> {
        Ok(Vec::new())
    }

    fn delete_flows(&mut self, flows: &[Flow]) -> io::Result<usize> {
        Ok(flows.len())
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}

fn carry_out(tables: &mut BTreeMap<String, TableDump>, command: &Command) {
    let name = command.table().to_string();
    if let Command::AddTable(table) | Command::OwnTable(table) = command {
        let present = tables.entry(name).or_insert_with(|| TableDump::empty(table.clone()));
        present.dormant = false;
        if matches!(command, Command::OwnTable(_)) {
            present.ownership = Ownership::Ours;
        }
    } else if let Command::DeleteTable(_) = command {
        tables.remove(&name).unwrap_or_else(|| panic!("no table {name}"));
    } else {
        let table = tables.get_mut(&name).unwrap_or_else(|| panic!("no table {name}"));
        change(table, command);
    }
}

fn change(table: &mut TableDump, command: &Command) {
    match command {
        Command::AddFlowtable(..) => panic!("the sync loop makes no flowtables"),
        Command::AddTable(_) | Command::OwnTable(_) | Command::DeleteTable(_) => {
            unreachable!("not about what is in a table")
        }
        Command::AddChain(_, chain) => {
            table.chains.entry(Arc::clone(&chain.name)).or_insert_with(|| (chain.clone(), Vec::new()));
        }
        Command::DeleteChain(_, name) => drop(table.chains.remove(name).unwrap_or_else(|| panic!("no chain {name}"))),
        Command::FlushChain(_, name) => chain(table, name).clear(),
        Command::DeleteRule(..) => panic!("the sync loop deletes no single rules"),
        Command::AddRule(_, name, rule) => {
            let dump = rule.to_dump(table.table.name.family);
            chain(table, name).push(dump);
        }
        Command::AddSet(_, set) => {
            table.sets.entry(Arc::clone(&set.name)).or_insert_with(|| ((**set).clone(), Vec::new()));
        }
        Command::DeleteSet(_, set) => drop(table.sets.remove(&set.name).unwrap_or_else(|| panic!("no {}", set.name))),
        Command::DeleteObject(_, object) => {
            assert!(!object.in_use, "{object} is in use");
            let before = table.objects.len();
            table.objects.retain(|present| present != object);
            assert!(table.objects.len() < before, "no {object}");
        }
        Command::AddElements(_, set, list) => list.iter().for_each(|element| add(table, &set.name, element)),
        Command::DeleteElements(_, set, list) => list.iter().for_each(|element| delete(table, &set.name, element)),
    }
}

fn chain<'a>(table: &'a mut TableDump, name: &str) -> &'a mut Vec<nft::RuleDump> {
    &mut table.chains.get_mut(name).unwrap_or_else(|| panic!("no chain {name}")).1
}

fn add(table: &mut TableDump, set: &str, element: &Element) {
    if let Value::Verdict(verdict) = &element.value
        && let Some(target) = verdict.chain()
    {
        assert!(table.chains.contains_key(target), "{set}: no chain {target}");
    }
    let elements = &mut table.sets.get_mut(set).unwrap_or_else(|| panic!("no set {set}")).1;
    // Sorted, so that looking is fast in large sets.
    match elements.binary_search_by_key(&element.key, |present| present.key) {
        Ok(at) => assert_eq!(elements[at], *element, "{set}: there with another value"),
        Err(at) => elements.insert(at, element.clone()),
    }
}

fn delete(table: &mut TableDump, set: &str, element: &Element) {
    let elements = &mut table.sets.get_mut(set).unwrap_or_else(|| panic!("no set {set}")).1;
    let at = elements.binary_search_by_key(&element.key, |present| present.key);
    elements.remove(at.unwrap_or_else(|_| panic!("{set}: no element {element:?}")));
}
