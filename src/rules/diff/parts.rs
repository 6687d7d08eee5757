//! Splits a sync into several transactions where one would not do.
//!
//! A sync is normally one transaction, so that packets see either the old or the new rules. But no packet passes a table without base
//! chains, so several transactions can fill it if the last one adds all its base chains. The kernel keeps every object of a transaction
//! in memory and holds its lock until the end (`src/decisions/0002-one-transaction.md`), so many objects for a new table are sent in parts.
//!
//! A packet that is on its way through the rules when a transaction ends goes on with the rules of before, but what it looks up after that are
//! the elements of now (`nft_do_chain` and `nft_genmask_cur` in the kernel). So a transaction that replaces the rules of a table by those of
//! another layout deletes none of the elements that only the rules of before look up; a second one does ([`deferred`]).
//!
//! Takes the commands of a sync in the order that the kernel accepts, and the names of the tables without base chains; returns
//! transactions that together have the same effect. The last one has all commands for other tables and the base chains of the new tables.
//! Pure.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use nft::{Command, Elements, TableName};

/// The largest number of objects (including elements) for tables without base chains that one transaction may have. In our measurement
/// the kernel held its lock for a second to add four times as many.
const ONE: usize = 50_000;

/// The largest number of objects in each part. While a program listens to notifications, the kernel takes some 8 kB for each object.
const PART: usize = 10_000;

/// Splits the commands of a sync into transactions: only one, unless many objects are added to tables that no packet passes (`unseen`).
pub fn transactions(commands: Vec<Command>, unseen: &BTreeSet<TableName>) -> VecDeque<Vec<Command>> {
    let objects = commands.iter().filter(|command| unseen.contains(command.table())).map(objects_of).sum::<usize>();
    if objects <= ONE {
        return VecDeque::from([commands]);
    }
    let base = |command: &Command| match command {
        Command::AddChain(table, chain) if chain.base.is_some() => Some((table.clone(), Arc::clone(&chain.name))),
        _ => None,
    };
    let base: BTreeSet<(TableName, Arc<str>)> = commands.iter().filter_map(base).collect();
    let is_last = |command: &Command| !unseen.contains(command.table()) || is_about(command, &base);
    let (last, early): (Vec<Command>, Vec<Command>) = commands.into_iter().partition(is_last);
    let mut parts = Parts::default();
    early.into_iter().for_each(|command| parts.push(command));
    parts.full.push_back(parts.open.into_iter().chain(last).collect());
    parts.full
}

/// Takes the deletions at the end of the commands for one table, unless there is nothing before them.
pub fn deferred(commands: &mut Vec<Command>) -> Vec<Command> {
    use Command::{DeleteChain, DeleteElements, DeleteObject, DeleteSet};
    let is_deletion =
        |command: &Command| matches!(command, DeleteElements(..) | DeleteSet(..) | DeleteObject(..) | DeleteChain(..));
    let end = commands.iter().rposition(|command| !is_deletion(command)).map_or(0, |last| last + 1);
    if end > 0 { commands.split_off(end) } else { Vec::new() }
}

/// The number of objects that the kernel keeps for a command until the end of its transaction.
fn objects_of(command: &Command) -> usize {
    command.elements().max(1)
}

/// Whether a command adds or changes one of `chains`.
fn is_about(command: &Command, chains: &BTreeSet<(TableName, Arc<str>)>) -> bool {
    let chain = match command {
        Command::AddChain(_, chain) => &chain.name,
        Command::AddRule(_, chain, _) | Command::FlushChain(_, chain) => chain,
        _ => return false,
    };
    chains.contains(&(command.table().clone(), Arc::clone(chain)))
}

#[derive(Default)]
struct Parts {
    full: VecDeque<Vec<Command>>,
    open: Vec<Command>,
    /// The number of objects in `open`.
    objects: usize,
}

impl Parts {
    fn push(&mut self, command: Command) {
        let (new, table, set, list): (fn(_, _, _) -> Command, _, _, _) = match command {
            Command::AddElements(table, set, list) => (Command::AddElements, table, set, list),
            Command::DeleteElements(table, set, list) => (Command::DeleteElements, table, set, list),
            other => return self.add(other),
        };
        let mut elements = list.iter().peekable();
        while elements.peek().is_some() {
            let piece: Elements = elements.by_ref().take(PART - self.objects).collect();
            self.add(new(table.clone(), Arc::clone(&set), piece));
        }
    }

    /// Adds a command to `open`, and moves `open` to `full` once it has [`PART`] objects.
    fn add(&mut self, command: Command) {
        self.objects += objects_of(&command);
        self.open.push(command);
        if self.objects >= PART {
            self.full.push_back(mem::take(&mut self.open));
            self.objects = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use nft::{
        BaseChain, Chain, ChainType, Data, DataType, Element, Family, Hook, Rule, Set, Statement, Table, Types, Verdict,
    };

    use super::*;

    fn name(family: Family) -> TableName {
        TableName::new(family, "kube-proxy")
    }

    fn chain(family: Family, name: &str, base: Option<BaseChain>) -> Command {
        Command::AddChain(self::name(family), Chain { name: name.into(), base, comment: None })
    }

    fn rule(family: Family, chain: &str) -> Command {
        Command::AddRule(name(family), chain.into(), Rule::new([Statement::Verdict(Verdict::Drop)]))
    }

    /// The commands for a table with a base chain, a regular chain, and a set with this many elements.
    fn table(family: Family, elements: u32) -> Vec<Command> {
        let set = Arc::new(Set::new("s", Types::Named(vec![DataType::Ipv4Addr])));
        let base = BaseChain { kind: ChainType::Nat, hook: Hook::Prerouting, priority: -100 };
        let list: Vec<Element> = (0..elements).map(|n| Element::new(Data::from(n))).collect();
        vec![
            Command::AddTable(Table { name: name(family), comment: None }),
            Command::AddSet(name(family), Arc::clone(&set)),
            chain(family, "hooked", Some(base)),
            chain(family, "plain", None),
            rule(family, "hooked"),
            rule(family, "plain"),
            Command::AddElements(name(family), set, Elements::from(&list[..])),
        ]
    }

    /// The commands as text, with one line for each element, so that split and whole commands can be compared.
    fn lines(commands: &[Command]) -> BTreeSet<String> {
        let one = |command: &Command| match command {
            Command::AddElements(table, set, list) => {
                let each = list.iter().map(|element| {
                    Command::AddElements(table.clone(), Arc::clone(set), [element].into_iter().collect()).to_string()
                });
                each.collect()
            }
            other => vec![other.to_string()],
        };
        commands.iter().flat_map(one).collect()
    }

    const NEARLY: u32 = 49_994;

    #[test]
    fn what_fits_is_one_transaction_and_so_is_everything_about_tables_that_packets_pass() {
        let whole = table(Family::Ip, NEARLY);
        let unseen = BTreeSet::from([name(Family::Ip)]);
        assert_eq!(transactions(whole.clone(), &unseen), [whole]);
        let much = table(Family::Ip, 200_000);
        for unseen in [BTreeSet::new(), BTreeSet::from([name(Family::Ip6)])] {
            assert_eq!(transactions(much.clone(), &unseen), slice::from_ref(&much));
        }
    }

    #[test]
    fn a_new_table_is_filled_in_parts_and_the_last_one_has_its_base_chains() {
        let whole = [table(Family::Ip, 70_001), table(Family::Ip6, NEARLY)].concat();
        let unseen = BTreeSet::from([name(Family::Ip), name(Family::Ip6)]);
        let parts = transactions(whole.clone(), &unseen);
        assert_eq!(parts.len(), 13, "120,000 elements and the rest");
        for (number, part) in parts.iter().enumerate() {
            let objects: usize = part.iter().map(objects_of).sum();
            assert!(objects <= PART, "part {number} has {objects}");
            let hooks = part.iter().filter(|command| command.to_string().contains("hooked")).count();
            assert_eq!(hooks, if number + 1 == parts.len() { 4 } else { 0 }, "part {number}");
        }
        let together: Vec<Command> = parts.into_iter().flatten().collect();
        assert_eq!(lines(&together), lines(&whole));
        let place = |text: &str| together.iter().position(|command| command.to_string().contains(text));
        assert!(place("add chain ip kube-proxy plain") < place("add element ip kube-proxy"));
    }

    #[test]
    fn a_table_that_packets_pass_changes_in_the_last_transaction_only() {
        let whole = [table(Family::Ip, 60_000), table(Family::Ip6, 60_000)].concat();
        let parts = transactions(whole, &BTreeSet::from([name(Family::Ip6)]));
        let (last, early) = parts.iter().collect::<Vec<_>>().split_last().map(|(l, e)| (*l, e.to_vec())).unwrap();
        assert_eq!(early.len(), 6);
        assert!(early.into_iter().flatten().all(|command| *command.table() == name(Family::Ip6)));
        assert_eq!(last.iter().filter(|command| *command.table() == name(Family::Ip)).count(), 7);
    }
}
