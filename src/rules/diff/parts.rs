//! Splits a sync into several transactions where one would not do.
//!
//! A sync is normally one transaction, so that packets see either the old or the new rules. But no packet passes a table without base
//! chains, so several transactions can fill it if the last one adds all its base chains. The kernel keeps every object of a transaction
//! in memory and holds its lock until the end (`src/decisions/0002-one-transaction.md`), so many objects for a new table are sent in parts.
//! So is what is longer than the kernel takes at once: a process in a user namespace has a short send buffer.
//!
//! A packet that is on its way through the rules when a transaction ends goes on with the rules of before, but what it looks up after that are
//! the elements of now (`nft_do_chain` and `nft_genmask_cur` in the kernel). So a transaction that replaces the rules of a table by those of
//! another layout deletes none of the elements that only the rules of before look up; a second one does ([`deferred`]).
//!
//! Takes the commands of a sync in the order that the kernel accepts, the names of the tables without base chains, and the length of the
//! longest batch; returns transactions that together have the same effect. The last one has all commands for other tables and the base
//! chains of the new tables. Only this one, which cannot be split, may be longer than the longest batch. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use nft::{Batch, Command, Elements, TableName};

/// The largest number of objects (including elements) for tables without base chains that one transaction may have. In our measurement
/// the kernel held its lock for a second to add four times as many.
const ONE: usize = 50_000;

/// The largest number of objects in each part. While a program listens to notifications, the kernel takes some 8 kB for each object.
const PART: usize = 10_000;

/// Splits the commands of a sync into transactions: only one, unless much is added to tables that no packet passes (`unseen`): many objects,
/// or a batch of more than `limit` bytes.
pub fn transactions(
    commands: Vec<Command>,
    unseen: &BTreeSet<TableName>,
    limit: Option<usize>,
) -> VecDeque<Vec<Command>> {
    let objects = commands.iter().filter(|command| unseen.contains(command.table())).map(objects_of).sum::<usize>();
    if objects <= ONE && parts_needed(&commands, limit).is_none() {
        return VecDeque::from([commands]);
    }
    let base = |command: &Command| match command {
        Command::AddChain(table, chain) if chain.base.is_some() => Some((table.clone(), Arc::clone(&chain.name))),
        _ => None,
    };
    let base: BTreeSet<(TableName, Arc<str>)> = commands.iter().filter_map(base).collect();
    let is_last = |command: &Command| !unseen.contains(command.table()) || is_about(command, &base);
    let (last, early): (Vec<Command>, Vec<Command>) = commands.into_iter().partition(is_last);
    let most = if objects > ONE { PART } else { ONE };
    let mut parts: VecDeque<_> = split(early, most).into_iter().flat_map(|part| fitting(part, limit)).collect();
    // The last part of the early commands and the last transaction are one, if they fit.
    let is_open = |part: &Vec<Command>| part.iter().map(objects_of).sum::<usize>() < most;
    let mut end = if parts.back().is_some_and(is_open) { parts.pop_back().unwrap_or_default() } else { Vec::new() };
    let count = end.len();
    end.extend(last);
    if count > 0 && parts_needed(&end, limit).is_some() {
        let last = end.split_off(count);
        parts.push_back(end);
        end = last;
    }
    parts.push_back(end);
    parts
}

/// Splits commands into transactions that each have at most `most` objects; all but the last have as many.
fn split(commands: Vec<Command>, most: usize) -> Vec<Vec<Command>> {
    let mut parts = Parts { most, ..Parts::default() };
    commands.into_iter().for_each(|command| parts.push(command));
    parts.full.extend(Some(parts.open).filter(|open| !open.is_empty()));
    parts.full
}

/// Splits commands into transactions that each are a batch of at most `limit` bytes: into as many equal parts as that takes if all objects
/// have the same length, and parts that are longer again. A single object is never too long.
fn fitting(commands: Vec<Command>, limit: Option<usize>) -> Vec<Vec<Command>> {
    let objects: usize = commands.iter().map(objects_of).sum();
    let Some(parts) = parts_needed(&commands, limit).filter(|_| objects > 1) else { return vec![commands] };
    split(commands, objects.div_ceil(parts)).into_iter().flat_map(|part| fitting(part, limit)).collect()
}

/// If a batch of these commands is longer than `limit`, the number of parts that fit, if all objects have the same length: a thirty-second of
/// each part is for the headers that it has more than its share of the batch. Commands that cannot be encoded have no length: the commit
/// reports the error.
fn parts_needed(commands: &[Command], limit: Option<usize>) -> Option<usize> {
    let limit = limit?.max(1);
    let bytes = Batch::encode(commands).ok()?.datagram_len();
    (bytes > limit).then(|| bytes.div_ceil(limit - limit / 32))
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
    /// The number of objects in each part.
    most: usize,
    full: Vec<Vec<Command>>,
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
            let piece: Elements = elements.by_ref().take(self.most - self.objects).collect();
            self.add(new(table.clone(), Arc::clone(&set), piece));
        }
    }

    /// Adds a command to `open`, and moves `open` to `full` once it has `most` objects.
    fn add(&mut self, command: Command) {
        self.objects += objects_of(&command);
        self.open.push(command);
        if self.objects >= self.most {
            self.full.push(mem::take(&mut self.open));
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
        assert_eq!(transactions(whole.clone(), &unseen, None), [whole]);
        let much = table(Family::Ip, 200_000);
        for unseen in [BTreeSet::new(), BTreeSet::from([name(Family::Ip6)])] {
            for limit in [None, Some(100_000)] {
                assert_eq!(transactions(much.clone(), &unseen, limit), slice::from_ref(&much));
            }
        }
    }

    #[test]
    fn a_new_table_is_filled_in_parts_and_the_last_one_has_its_base_chains() {
        let whole = [table(Family::Ip, 70_001), table(Family::Ip6, NEARLY)].concat();
        let unseen = BTreeSet::from([name(Family::Ip), name(Family::Ip6)]);
        let parts = transactions(whole.clone(), &unseen, None);
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
        let parts = transactions(whole, &BTreeSet::from([name(Family::Ip6)]), None);
        let (last, early) = parts.iter().collect::<Vec<_>>().split_last().map(|(l, e)| (*l, e.to_vec())).unwrap();
        assert_eq!(early.len(), 6);
        assert!(early.into_iter().flatten().all(|command| *command.table() == name(Family::Ip6)));
        assert_eq!(last.iter().filter(|command| *command.table() == name(Family::Ip)).count(), 7);
    }

    fn len(commands: &[Command]) -> usize {
        Batch::encode(commands).expect("it can be encoded").datagram_len()
    }

    // A new table is filled in as few transactions as the longest batch allows (G8).
    #[test]
    fn a_new_table_is_filled_in_parts_that_the_kernel_takes() {
        let whole = [table(Family::Ip, 30_000), table(Family::Ip6, 300)].concat();
        let unseen = BTreeSet::from([name(Family::Ip), name(Family::Ip6)]);
        for divisor in [1, 2, 3, 10, 100] {
            let limit = len(&whole).div_ceil(divisor);
            let parts = transactions(whole.clone(), &unseen, Some(limit));
            assert!((divisor..=divisor + divisor.div_ceil(4)).contains(&parts.len()), "{} of {divisor}", parts.len());
            for (number, part) in parts.iter().enumerate() {
                assert!(len(part) <= limit, "part {number} of {divisor}");
                let hooks = part.iter().filter(|command| command.to_string().contains("hooked")).count();
                assert_eq!(hooks, if number + 1 == parts.len() { 4 } else { 0 }, "part {number} of {divisor}");
            }
            let together: Vec<Command> = parts.into_iter().flatten().collect();
            assert_eq!(lines(&together), lines(&whole));
        }
        let parts = transactions(table(Family::Ip, 300), &unseen, Some(1));
        assert_eq!(parts.len(), 304 + 1, "each object alone, and the end");
    }
}
