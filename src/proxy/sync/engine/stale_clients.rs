//! Has the kernel forget clients that are remembered for an endpoint that is gone (E6).
//!
//! Rules remember clients, and the kernel forgets each when its time is over: at any moment, also between reading a map and the
//! transaction. So no transaction may fail for good because a client is not there any more, and one that does says nothing about a
//! Service. From Linux 6.3 on this is what `destroy element` is for. Older kernels refuse the whole transaction for a single client
//! that is missing, so there it is sent again without those that the kernel names, and at last without any; these are then
//! forgotten in small transactions of their own.
//!
//! Takes the clients to forget with a transaction, and what the kernel refused of that; gives the commands to add to the transaction, and the clients
//! that are left. Clients are read again later, whatever the kernel refuses: that never fails a sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{Command, CommitError, Element, Elements, Refusal};
use tracing::{debug, warn};

use super::{Engine, Report};
use crate::sync::tables::StaleClients;
use node::kernel::Kernel;

/// Clients in one transaction of their own where each may be refused: few enough that hardly one expires meanwhile.
const FEW: usize = 256;

/// How often such a transaction is tried before the map is read again.
const TRIES: usize = 8;

/// Without `destroy element`, a client with less time left than this is not deleted: it would often be missing by then, and a refused
/// transaction costs a grace period of the kernel (RCU), some 10 to 100 ms. If a packet renews it, the next check deletes it.
const ALMOST_EXPIRED: Duration = Duration::from_millis(200);

/// How long maps are read in one go: a sync must not wait for thousands of them.
const ENOUGH: Duration = Duration::from_millis(50);

/// How clients are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForgetMode {
    /// All clients in one message, with `destroy element`: some may be missing.
    Destroy,
    /// All clients in one message, with `delete element`: each must be there.
    Delete,
    /// Each client in a message of its own, and each must be there: the kernel gives one error a message, so it names all that are missing.
    OneByOne,
    /// No client in this transaction.
    Apart,
}

impl StaleClients {
    /// The commands that do it, and nothing for [`ForgetMode::Apart`].
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

/// Takes the clients out that the kernel names in these refusals of `commands`, of which the first `own` are about something else.
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

/// Whether a client will have expired before it could be deleted.
fn is_almost_expired(client: &Element) -> bool {
    client.timeout.is_some_and(|left| left <= ALMOST_EXPIRED)
}

/// The clients that are to be forgotten with a transaction, and how.
pub(super) struct Forgetting {
    stale: Vec<StaleClients>,
    mode: ForgetMode,
}

impl Forgetting {
    /// What a transaction does beside its own commands.
    pub(super) fn commands(&self) -> impl Iterator<Item = Command> {
        self.stale.iter().flat_map(|stale| stale.commands(self.mode))
    }

    /// The clients that are not forgotten with a transaction that has been carried out.
    pub(super) fn left(self) -> Vec<StaleClients> {
        if self.mode == ForgetMode::Apart { self.stale } else { Vec::new() }
    }
}

impl<K: Kernel> Engine<K> {
    /// Has clients forgotten with the next transaction.
    pub(super) fn forgetting(&mut self, stale: Vec<StaleClients>) -> Forgetting {
        let mode = if self.destroys { ForgetMode::Destroy } else { ForgetMode::Delete };
        self.in_mode(stale, mode)
    }

    /// What to try after the kernel refused `commands` because of clients only. The first `own` commands are about something else.
    pub(super) fn forgetting_less(
        &mut self,
        before: Forgetting,
        commands: &[Command],
        own: usize,
        refusals: &[Refusal],
    ) -> Forgetting {
        let Forgetting { mut stale, mode } = before;
        debug!(
            ?mode,
            refused = refusals.len(),
            "Kernel refused to delete session affinity entries; retrying without them"
        );
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

    /// Takes clients out that are about to expire, and has their maps read soon after.
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

    /// How to go on after these refusals of one mode. Never leads back to one that was tried.
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

    /// Deals with the clients that a transaction left: without them the endpoint is out of the rules already, so this cannot wait.
    pub(super) fn finish(&mut self, left: &[StaleClients], report: &mut Report) {
        if left.is_empty() {
            return;
        }
        let now = Instant::now();
        left.iter().for_each(|stale| self.tables.check_again(stale, false, now));
        self.read_due_maps(now, report);
    }

    /// Reads the maps that are due, and has clients forgotten that are remembered there for an endpoint that is gone: because a
    /// packet was on its way when the endpoint was taken away, or because they could not be forgotten together with that. `None`
    /// when there were none. Then, and when that failed before, UDP flows are examined. What fails is logged and tried again; it is no
    /// failed sync, and says nothing about a Service.
    pub fn check_clients(&mut self, now: Instant) -> Option<Report> {
        let mut report = Report::default();
        self.read_due_maps(now, &mut report);
        if report.removed == 0 && self.observers.udp.next_try().is_none_or(|at| now < at) {
            return None;
        }
        report.flows = self.reconcile_flows(now);
        Some(report)
    }

    /// When [`Engine::check_clients`] has a map to read, or flows to examine again, if ever.
    pub fn next_client_check(&self) -> Option<Instant> {
        self.tables.next_check().into_iter().chain(self.observers.udp.next_try()).min()
    }

    fn read_due_maps(&mut self, now: Instant, report: &mut Report) {
        let begun = Instant::now();
        while let Some(map) = self.tables.due_check(now).filter(|_| begun.elapsed() < ENOUGH) {
            if let Some(stale) = self.tables.check(&mut self.kernel, &map, now) {
                self.forget_stale(&stale, now, report);
            }
        }
        if report.removed > 0 {
            // Until now, such a client could make a flow to an endpoint that is gone.
            self.observers.udp.all_changed();
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

    /// Has clients forgotten apart from anything else. Those that are named as missing are forgotten already; the rest of a
    /// transaction that goes on failing is left for the next check.
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
