//! Finds the Services that the kernel refuses, and programs the rest.
//!
//! All Services that the refusal may be about are held back: the tables keep what was last committed for them or, if the kernel refuses
//! that too, nothing. If the kernel accepts the rest, groups of the held-back Services are let in again, and a refused group is halved,
//! until each refused Service is alone. Each try is a whole transaction, so the tables never mix old and new rules of one Service.
//!
//! Bounded: after [`TRIES`] tries in one sync, no further group is let in. Services not tried by then wait for the next sync, and accepted
//! ones stay in force.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nft::{Command, CommitError, Committed};

use super::commit::{Failed, is_repair};
use super::{Engine, Report};
use crate::sync::quarantine::Cause;
use crate::sync::tables::{HeldBack, ServiceRecords, Transactions};
use node::kernel::Kernel;
use rules::model::ObjectName;

/// The number of tries after which a search ends: enough to find one refused Service among 20,000.
const TRIES: usize = 40;

type Names = BTreeSet<ObjectName>;

/// A search under way.
#[derive(Default)]
struct Search {
    tries: usize,
    /// The sum of the transactions that the kernel accepted so far.
    report: Report,
    /// The Services that are held back, the way in which each is held back, and the records (rules and elements) that the tables should
    /// hold for it.
    held_back: BTreeMap<ObjectName, (HeldBack, ServiceRecords)>,
    /// Services that the kernel refused when they were let in alone, with the reason.
    refused: Vec<(ObjectName, String)>,
}

impl<K: Kernel> Engine<K> {
    /// After a refusal, commits as much as the kernel accepts. Fails if it is not time for a search, if the kernel accepts no attempt, or if
    /// Services are left for the next sync.
    pub(super) fn isolate(&mut self, failed: Failed) -> Result<Report, Failed> {
        let Failed::Commit(error, commands) = &failed else { return Err(failed) };
        let cause = Cause::of(error);
        if !self.quarantine.is_time(cause) {
            return Err(failed);
        }
        self.tables.read_back(&mut self.kernel)?;
        let mut search = Search::default();
        let Some((candidates, how)) = self.hold_back_candidates(&mut search, error, commands) else {
            self.tables.forget();
            return Err(failed);
        };
        let untried = self.search(&mut search, candidates, how);
        self.conclude(search, cause, &untried, failed)
    }

    /// Commits the transaction without the Services that the refusal names or, if the kernel refuses that too, without all Services in it.
    /// For a Service that is held back the tables first keep what was last committed; if the kernel refuses that as well, they hold
    /// nothing for it. Returns the Services that are held back, and in which of these two ways; `None` if the kernel accepted no attempt.
    fn hold_back_candidates(
        &mut self,
        search: &mut Search,
        error: &CommitError,
        commands: &[Command],
    ) -> Option<(Names, HeldBack)> {
        let named = match error {
            CommitError::Refused(refusals) => self.tables.refused(commands, refusals),
            _ => Names::new(),
        };
        let all = self.tables.contributors(commands);
        for candidates in [named, all] {
            for how in [HeldBack::AsCommitted, HeldBack::Removed] {
                if candidates.is_empty() {
                    continue;
                }
                self.hold_back(search, &candidates, how);
                if self.attempt(search).is_ok() {
                    return Some((candidates, how));
                }
                self.let_in(search, &candidates);
            }
        }
        None
    }

    /// Lets groups of the candidates in again until the refused ones are alone. Returns the Services of which it was not found out whether the
    /// kernel refuses them.
    fn search(&mut self, search: &mut Search, candidates: Names, how: HeldBack) -> Names {
        // The first group is all candidates: if the kernel accepts them now, it refuses none of them.
        let mut groups = vec![candidates];
        while let Some(group) = groups.pop() {
            if search.tries >= TRIES {
                return groups.into_iter().flatten().chain(group).collect();
            }
            self.let_in(search, &group);
            let reason = match self.attempt_twice(search, &group) {
                Ok(()) => continue,
                Err(Failed::Commit(error, _)) if Cause::of(&error) != Cause::Elsewhere => error.to_string(),
                // Further tries would not show which Service is refused.
                Err(_) => return groups.into_iter().flatten().chain(group).collect(),
            };
            self.hold_back(search, &group, how);
            match single(&group) {
                Some(name) => search.refused.push((name.clone(), reason)),
                None => groups.extend(halves(group)),
            }
        }
        Names::new()
    }

    /// Tries to commit. If a single Service is refused because an object exists already or is missing, reads the tables again and tries
    /// once more: another program may have changed them.
    fn attempt_twice(&mut self, search: &mut Search, group: &Names) -> Result<(), Failed> {
        match self.attempt(search) {
            Err(Failed::Commit(error, _)) if single(group).is_some() && Cause::may_be_outdated(&error) => {
                self.tables.forget();
                self.attempt(search)
            }
            outcome => outcome,
        }
    }

    /// Puts the refused Services into quarantine, if the refusals are about Services. Returns `failed` if other held-back Services are
    /// left, which the next sync lets in.
    fn conclude(&mut self, search: Search, cause: Cause, untried: &Names, failed: Failed) -> Result<Report, Failed> {
        let Search { report, refused, mut held_back, .. } = search;
        // If the kernel accepted nothing at all, for a reason that may pass, the refusals say nothing about single Services.
        let is_about_services = matches!(cause, Cause::Content | Cause::Length) || report.committed.is_some();
        let others = refused.iter().map(|(name, _)| name).filter(|_| !is_about_services).chain(untried);
        let mut is_done = true;
        for name in others {
            is_done = false;
            held_back.remove(name).into_iter().for_each(|(_, wanted)| self.tables.put_records(name, wanted));
        }
        if is_about_services {
            let now = Instant::now();
            refused.into_iter().for_each(|(name, reason)| self.quarantine.add(name, reason, now));
        }
        if is_done && self.tables.known() {
            return Ok(report);
        }
        self.tables.forget();
        Err(failed)
    }

    fn hold_back(&mut self, search: &mut Search, names: &Names, how: HeldBack) {
        for name in names {
            let wanted = self.tables.records(name);
            search.held_back.entry(name.clone()).or_insert((how, wanted));
        }
        self.tables.hold_back(search.held_back.iter().map(|(name, (how, _))| (name, *how)));
    }

    fn let_in(&mut self, search: &mut Search, names: &Names) {
        for name in names {
            if let Some((_, wanted)) = search.held_back.remove(name) {
                self.tables.put_records(name, wanted);
            }
        }
    }

    /// Commits the difference between the kernel's tables and the present records. A refusal changes nothing in the kernel, so it stays
    /// known what the kernel holds.
    fn attempt(&mut self, search: &mut Search) -> Result<(), Failed> {
        search.tries += 1;
        if !self.tables.known() {
            self.tables.read_back(&mut self.kernel)?;
        }
        // Each try repeats both calls: a Service that took over a frontend of a held-back Service may itself be held back by now.
        self.tables.hold_back(search.held_back.iter().map(|(name, (how, _))| (name, *how)));
        self.tables.give_way(search.held_back.keys().chain(self.quarantine.names()));
        let own = self.own_changes(false);
        let transactions = Transactions::one(self.tables.transaction(false));
        let repaired = is_repair(own.as_deref(), &transactions);
        let report = self.carry_out(transactions, repaired);
        if let Err(Failed::Commit(error, _)) = &report
            && !matches!(error, CommitError::Socket(_) | CommitError::Unconfirmed)
        {
            self.tables.remember();
        }
        search.report.add(report?);
        Ok(())
    }
}

impl Report {
    /// Adds the report of a further attempt of the same sync.
    fn add(&mut self, other: Self) {
        self.full |= other.full;
        self.repaired |= other.repaired;
        self.added += other.added;
        self.removed += other.removed;
        self.kernel_time += other.kernel_time;
        self.programmed.extend(other.programmed);
        if let Some(committed) = other.committed {
            self.add_committed(committed);
            self.transactions += other.transactions.saturating_sub(1);
        }
    }

    /// Adds a committed transaction to the numbers of this report.
    pub(super) fn add_committed(&mut self, committed: Committed) {
        self.transactions += 1;
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
