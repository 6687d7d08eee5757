//! Finds the Services that the kernel refuses, and programs the rest.
//!
//! All Services that may be at fault are held back: each keeps the part that it had at the last commit. If the rest is accepted,
//! groups of them are let in again, halved when refused, until those at fault are alone. Every try is a whole transaction, so the
//! tables are at no time a mixture of old and new parts of one Service.
//!
//! Bounded: [`TRIES`] transactions in one sync. What was not tried by then is left for the next sync, and what was accepted stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nft::{Command, CommitError, Committed};

use super::{Engine, Refused, Report};
use crate::diff::Scope;
use crate::kernel::Kernel;
use crate::model::ObjectName;
use crate::ruleset::Layout;
use crate::sync::quarantine::Fault;
use crate::sync::tables::Parts;

/// Transactions that one search may take: room for one culprit among 20,000 Services, or for several among hundreds.
const TRIES: usize = 40;

type Names = BTreeSet<ObjectName>;

/// A search under way.
#[derive(Default)]
struct Search {
    tries: usize,
    /// What was accepted so far.
    report: Report,
    /// What those that are held back should contribute.
    wanted: BTreeMap<ObjectName, Parts>,
    culprits: Vec<(ObjectName, String)>,
}

/// What is left of a Service that is held back.
#[derive(Clone, Copy)]
enum Remains {
    /// The part that the kernel accepted before.
    Former,
    /// Nothing, because the former part cannot stay either.
    Nothing,
}

impl<K: Kernel, L: Layout> Engine<K, L> {
    /// After a refusal, does as much as the kernel accepts. The failure comes back when it is not about single Services.
    pub(super) fn isolate(&mut self, refused: Refused) -> Result<Report, Refused> {
        let Refused::Commit(error, commands) = &refused else { return Err(refused) };
        let fault = Fault::of(error);
        if !self.quarantine.is_time(fault) {
            return Err(refused);
        }
        self.tables.read_back(&mut self.kernel)?;
        let mut search = Search::default();
        let Some((suspects, remains)) = self.hold_back_suspects(&mut search, error, commands) else {
            self.tables.forget();
            return Err(refused);
        };
        let open = self.search(&mut search, suspects, remains);
        self.conclude(search, fault, &open, refused)
    }

    /// Holds back Services so that the kernel accepts the rest: those that it named, else all that the transaction is about.
    fn hold_back_suspects(
        &mut self,
        search: &mut Search,
        error: &CommitError,
        commands: &[Command],
    ) -> Option<(Names, Remains)> {
        let named = match error {
            CommitError::Refused(refusals) => self.tables.refused(commands, refusals),
            _ => Names::new(),
        };
        let all = self.tables.contributors(commands);
        for suspects in [named, all] {
            for remains in [Remains::Former, Remains::Nothing] {
                if suspects.is_empty() {
                    continue;
                }
                self.hold_back(search, &suspects, remains);
                if self.attempt(search).is_ok() {
                    return Some((suspects, remains));
                }
                self.let_in(search, &suspects);
            }
        }
        None
    }

    /// Lets groups of the suspects in again until those at fault are alone. Gives those that were not tried.
    fn search(&mut self, search: &mut Search, suspects: Names, remains: Remains) -> Names {
        // All of them come first: what passed by itself is nobody's fault.
        let mut groups = vec![suspects];
        while let Some(group) = groups.pop() {
            if search.tries >= TRIES {
                return groups.into_iter().flatten().chain(group).collect();
            }
            self.let_in(search, &group);
            let reason = match self.attempt_twice(search, &group) {
                Ok(()) => continue,
                Err(Refused::Commit(error, _)) if Fault::of(&error) != Fault::Elsewhere => error.to_string(),
                // Nothing can be learnt any more.
                Err(_) => return groups.into_iter().flatten().chain(group).collect(),
            };
            self.hold_back(search, &group, remains);
            match single(&group) {
                Some(name) => search.culprits.push((name.clone(), reason)),
                None => groups.extend(halves(group)),
            }
        }
        Names::new()
    }

    /// Before a Service that is alone is held responsible for what is there or not there, the tables are read again: another
    /// program may have changed them since.
    fn attempt_twice(&mut self, search: &mut Search, group: &Names) -> Result<(), Refused> {
        match self.attempt(search) {
            Err(Refused::Commit(error, _)) if single(group).is_some() && Fault::may_be_outdated(&error) => {
                self.tables.forget();
                self.attempt(search)
            }
            outcome => outcome,
        }
    }

    /// Puts those at fault into quarantine, if it is their fault; lets the others in with the next sync.
    fn conclude(&mut self, search: Search, fault: Fault, open: &Names, refused: Refused) -> Result<Report, Refused> {
        let Search { report, culprits, mut wanted, .. } = search;
        // A kernel that accepts nothing at all, for a reason that may pass, says nothing about single Services.
        let guilty = fault == Fault::Content || report.committed.is_some();
        let free = culprits.iter().map(|(name, _)| name).filter(|_| !guilty).chain(open);
        let mut is_done = true;
        for name in free {
            is_done = false;
            wanted.remove(name).into_iter().for_each(|parts| self.tables.put(name, parts));
        }
        if guilty {
            let now = Instant::now();
            culprits.into_iter().for_each(|(name, reason)| self.quarantine.add(name, reason, now));
        }
        if is_done && self.tables.known() {
            return Ok(report);
        }
        self.tables.forget();
        Err(refused)
    }

    fn hold_back(&mut self, search: &mut Search, names: &Names, remains: Remains) {
        for name in names {
            search.wanted.entry(name.clone()).or_insert_with(|| self.tables.parts(name));
            let parts = match remains {
                Remains::Former => self.tables.former(name),
                Remains::Nothing => self.tables.nothing(),
            };
            self.tables.put(name, parts);
        }
    }

    fn let_in(&mut self, search: &mut Search, names: &Names) {
        for name in names {
            if let Some(parts) = search.wanted.remove(name) {
                self.tables.put(name, parts);
            }
        }
    }

    /// Has the kernel do what is wanted now. A refusal changes nothing, so what it holds stays known.
    fn attempt(&mut self, search: &mut Search) -> Result<(), Refused> {
        search.tries += 1;
        if !self.tables.known() {
            self.tables.read_back(&mut self.kernel)?;
        }
        let report = self.carry_out(Scope::Everything, false);
        if let Err(Refused::Commit(error, _)) = &report
            && matches!(error, CommitError::Refused(_) | CommitError::Encode(_) | CommitError::TooLarge { .. })
        {
            self.tables.remember();
        }
        search.report.add(report?);
        Ok(())
    }
}

impl Report {
    /// Adds what a further transaction of the same sync did.
    fn add(&mut self, other: Self) {
        self.full |= other.full;
        self.added += other.added;
        self.removed += other.removed;
        self.kernel_time += other.kernel_time;
        self.programmed.extend(other.programmed);
        if let Some(committed) = other.committed {
            self.add_committed(committed);
        }
    }

    /// Adds one transaction to those of the same sync.
    pub(super) fn add_committed(&mut self, committed: Committed) {
        let sum = self.committed.get_or_insert_default();
        sum.messages += committed.messages;
        sum.bytes += committed.bytes;
    }
}

fn single(group: &Names) -> Option<&ObjectName> {
    group.first().filter(|_| group.len() == 1)
}

fn halves(mut group: Names) -> [Names; 2] {
    let middle = group.iter().nth(group.len() / 2).cloned();
    let upper = middle.map(|middle| group.split_off(&middle)).unwrap_or_default();
    [upper, group]
}
