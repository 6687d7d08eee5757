//! Deletes clients that session affinity remembers for an endpoint that is gone (E6).
//!
//! Rules add clients to a map, and the kernel deletes each at its timeout, which may be between the read of the map and the transaction. So
//! a missing client must not make a transaction fail for good, nor make a Service count as refused. From Linux 6.3 on, `destroy element`
//! accepts missing elements. Older kernels refuse the whole transaction for a single missing client, so it is sent again without the
//! clients that the kernel names, and at last without any client; small separate transactions then delete the clients.
//!
//! Takes the clients to delete with a transaction, and what the kernel refused of it; returns the commands to add to the transaction, and
//! the clients that are left. Maps are read again later, so a refused deletion never fails a sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{Command, CommitError, Element, Elements, Refusal};
use tracing::{debug, warn};

use super::{Engine, Report};
use crate::sync::flows::Moment;
use crate::sync::tables::StaleClients;
use node::kernel::Kernel;

/// The most clients in one separate transaction without `destroy element`: in a small transaction hardly any client is missing.
const FEW: usize = 256;

/// How often a separate transaction is tried before the map is read again.
const TRIES: usize = 8;

/// Without `destroy element`, a client with this time left or less is not deleted: often it would be missing when the command runs, and the
/// kernel would refuse the transaction. If a packet renews such a client, the next check deletes it.
const ALMOST_EXPIRED: Duration = Duration::from_millis(200);

/// How long maps that are due are read at a time; the rest waits for the next check, because a sync must not wait for thousands of maps.
const ENOUGH: Duration = Duration::from_millis(50);

/// How the clients are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForgetMode {
    /// All clients of a map in one command, `destroy element`: some may be missing.
    Destroy,
    /// All clients of a map in one command, `delete element`: each must be there.
    Delete,
    /// Each client in a separate command, and each must be there: the kernel reports one error for each netlink message, so it names all
    /// missing clients.
    OneByOne,
    /// No client in this transaction; separate transactions delete the clients.
    Apart,
}

impl StaleClients {
    /// Returns the commands that delete the clients; none for [`ForgetMode::Apart`].
    fn commands(&self, mode: ForgetMode) -> Vec<Command> {
        let command = |new: fn(_, _, _) -> Command, clients: &[_]| {
            new(self.table.clone(), Arc::clone(&self.map), Elements::from(clients))
        };
        match mode {
            ForgetMode::Destroy => vec![command(Command::DestroyElements, &self.clients)],
            ForgetMode::Delete => vec![command(Command::DeleteElements, &self.clients)],
            ForgetMode::OneByOne => self.clients.chunks(1).map(|one| command(Command::DeleteElements, one)).collect(),
            ForgetMode::Apart => Vec::new(),
        }
    }
}

/// Removes from `stale` the clients that the kernel names in the refusals of `commands`, whose first `own` commands are about something
/// else.
fn remove_named(stale: &mut Vec<StaleClients>, commands: &[Command], own: usize, refusals: &[Refusal]) {
    let named = refusals.iter().filter_map(|refusal| {
        let (at, element) = (refusal.command.filter(|command| *command >= own)?, refusal.element?);
        match commands.get(at)? {
            Command::DeleteElements(table, set, list) => {
                Some((table.clone(), Arc::clone(&set.name), list.get(element)?.element().key))
            }
            _ => None,
        }
    });
    let named: BTreeSet<_> = named.collect();
    for stale in &mut *stale {
        let (table, map) = (&stale.table, &stale.map.name);
        stale.clients.retain(|client| !named.contains(&(table.clone(), Arc::clone(map), client.key)));
    }
    stale.retain(|stale| !stale.clients.is_empty());
}

/// Returns whether a client will probably have expired before it can be deleted.
fn is_almost_expired(client: &Element) -> bool {
    client.timeout.is_some_and(|left| left <= ALMOST_EXPIRED)
}

/// The clients to delete with a transaction, and how.
pub(super) struct Forgetting {
    stale: Vec<StaleClients>,
    mode: ForgetMode,
}

impl Forgetting {
    /// Returns the commands to add to a transaction.
    pub(super) fn commands(&self) -> impl Iterator<Item = Command> {
        self.stale.iter().flat_map(|stale| stale.commands(self.mode))
    }

    /// Returns the clients that are still to be deleted after the transaction was committed.
    pub(super) fn left(self) -> Vec<StaleClients> {
        if self.mode == ForgetMode::Apart { self.stale } else { Vec::new() }
    }
}

impl<K: Kernel> Engine<K> {
    /// Prepares the deletion of clients with the next transaction.
    pub(super) fn forgetting(&mut self, stale: Vec<StaleClients>) -> Forgetting {
        let mode = if self.destroys { ForgetMode::Destroy } else { ForgetMode::Delete };
        self.in_mode(stale, mode)
    }

    /// Prepares the next try after the kernel refused `commands` because of clients only. The first `own` commands are about something
    /// else.
    pub(super) fn forgetting_less(
        &mut self,
        before: Forgetting,
        commands: &[Command],
        own: usize,
        refusals: &[Refusal],
    ) -> Forgetting {
        let Forgetting { mut stale, mode } = before;
        debug!(refused = refusals.len(), "Kernel refused to delete session affinity entries; retrying without them");
        if mode == ForgetMode::Delete || mode == ForgetMode::OneByOne {
            remove_named(&mut stale, commands, own, refusals);
        }
        let mode = self.next_mode(mode, refusals);
        self.in_mode(stale, mode)
    }

    fn in_mode(&mut self, mut stale: Vec<StaleClients>, mode: ForgetMode) -> Forgetting {
        if mode == ForgetMode::Delete {
            self.leave_almost_expired(&mut stale);
        }
        Forgetting { stale, mode }
    }

    /// Removes the clients that are about to expire from `stale`, and schedules a read of their maps soon after.
    fn leave_almost_expired(&mut self, stale: &mut Vec<StaleClients>) {
        for stale in &mut *stale {
            let before = stale.clients.len();
            stale.clients.retain(|client| !is_almost_expired(client));
            if stale.clients.len() < before {
                self.tables.check_soon(stale, Instant::now());
            }
        }
        stale.retain(|stale| !stale.clients.is_empty());
    }

    /// Returns the mode to try after `refusals` in `mode`: a later one in the order of [`ForgetMode`]. In the last one there is nothing about
    /// clients that the kernel could refuse.
    fn next_mode(&mut self, mode: ForgetMode, refusals: &[Refusal]) -> ForgetMode {
        match mode {
            ForgetMode::Destroy if refusals.iter().all(Refusal::is_unknown) => {
                self.destroys = false;
                ForgetMode::Delete
            }
            ForgetMode::Delete if refusals.iter().all(Refusal::is_missing) => ForgetMode::OneByOne,
            ForgetMode::Destroy | ForgetMode::Delete | ForgetMode::OneByOne | ForgetMode::Apart => ForgetMode::Apart,
        }
    }

    /// Reads the maps of clients that a transaction did not delete, and deletes these clients. Does not wait for the next check, because
    /// the rules no longer have the clients' endpoints.
    pub(super) fn finish(&mut self, left: &[StaleClients], report: &mut Report) {
        if left.is_empty() {
            return;
        }
        let now = Instant::now();
        left.iter().for_each(|stale| self.tables.check_again(stale, false, now));
        self.read_due_maps(now, report);
    }

    /// Reads the maps that are due, and deletes their clients of endpoints that are gone. Such clients exist if a packet was on its way
    /// when the endpoint was removed, or if the client could not be deleted together with the endpoint. Then examines the flows, if any
    /// client was deleted, or if an examination is due. Returns `None` if neither was the case. A failure is logged and tried again; it
    /// does not fail a sync, and says nothing about a Service.
    pub fn check_clients(&mut self, now: Instant) -> Option<Report> {
        let mut report = Report::default();
        self.read_due_maps(now, &mut report);
        if report.removed == 0 && self.observers.flows.next_try().is_none_or(|at| now < at) {
            return None;
        }
        report.flows = self.reconcile_flows(Moment::Idle, now);
        Some(report)
    }

    /// Returns when [`Engine::check_clients`] next has a map to read, or flows to examine; `None` if neither is planned.
    pub fn next_client_check(&self) -> Option<Instant> {
        self.tables.next_check().into_iter().chain(self.observers.flows.next_try()).min()
    }

    fn read_due_maps(&mut self, now: Instant, report: &mut Report) {
        let begun = Instant::now();
        while let Some(map) = self.tables.due_check(now).filter(|_| begun.elapsed() < ENOUGH) {
            if let Some(stale) = self.tables.check(&mut self.kernel, &map, now) {
                self.forget_stale(&stale, now, report);
            }
        }
        if report.removed > 0 {
            // Until now, session affinity could send the deleted clients to an endpoint that is gone, which makes a flow to that
            // endpoint.
            self.observers.flows.all_changed();
        }
    }

    fn forget_stale(&mut self, stale: &StaleClients, now: Instant, report: &mut Report) {
        let start = Instant::now();
        let outcome = self.forget_clients(stale, report);
        report.kernel_time += start.elapsed();
        if let Err(error) = outcome {
            warn!(
                err = %error, map = %stale.map.name,
                "Cannot forget clients of endpoints that are gone; trying again"
            );
            self.tables.check_again(stale, true, now);
        }
    }

    /// Deletes clients in separate transactions. Clients that the kernel names as missing are gone already; the rest of a transaction that
    /// keeps failing is left for the next check.
    fn forget_clients(&mut self, stale: &StaleClients, report: &mut Report) -> Result<(), CommitError> {
        let few = if self.destroys { usize::MAX } else { FEW };
        let StaleClients { table, owner, map, clients } = stale;
        for clients in clients.chunks(few).map(<[Element]>::to_vec) {
            let (table, owner, map) = (table.clone(), owner.clone(), Arc::clone(map));
            let mut rest = vec![StaleClients { table, owner, map, clients }];
            if !self.destroys {
                self.leave_almost_expired(&mut rest);
            }
            for _ in 0..TRIES {
                let mode = if self.destroys { ForgetMode::Destroy } else { ForgetMode::OneByOne };
                let commands: Vec<Command> = rest.iter().flat_map(|stale| stale.commands(mode)).collect();
                if commands.is_empty() {
                    break;
                }
                match self.kernel.commit(&commands) {
                    Ok(committed) => {
                        report.removed += commands.iter().map(Command::elements).sum::<usize>();
                        report.add_committed(committed);
                        break;
                    }
                    Err(CommitError::Refused(refusals)) if self.goes_on(mode, &refusals) => {
                        remove_named(&mut rest, &commands, 0, &refusals);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn goes_on(&mut self, mode: ForgetMode, refusals: &[Refusal]) -> bool {
        match mode {
            ForgetMode::Destroy => self.next_mode(mode, refusals) == ForgetMode::Delete,
            _ => refusals.iter().all(Refusal::is_missing),
        }
    }
}
