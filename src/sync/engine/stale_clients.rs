//! Has the kernel forget clients that are remembered for an endpoint that is gone (E6).
//!
//! Rules remember clients, and the kernel forgets each when its time is over: at any moment, also between reading a map and the
//! transaction. So no transaction may fail for good because a client is not there any more, and one that does says nothing about a
//! Service. From Linux 6.3 on this is what `destroy element` is for. Older kernels refuse the whole transaction for a single client
//! that is missing, so there it is sent again without those that the kernel names, and at last without any; these are then
//! forgotten in small transactions of their own.
//!
//! Takes the commands of a sync and the clients to forget with it; gives the commands that the kernel carried out. What it refuses
//! of the commands comes back as it is; what it refuses of the rest never does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{Command, CommitError, Committed, Element, Elements, Refusal};
use tracing::{debug, warn};

use super::{Engine, Failed, Report};
use crate::kernel::Kernel;
use crate::sync::tables::StaleClients;

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
enum Manner {
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
    /// The commands that do it, and nothing for [`Manner::Apart`].
    fn commands(&self, manner: Manner) -> Vec<Command> {
        let command = |new: fn(_, _, _) -> Command, clients: &[_]| {
            new(self.table.clone(), Arc::clone(&self.map), Elements::from(clients))
        };
        match manner {
            Manner::Destroy => vec![command(Command::DestroyElements, &self.clients)],
            Manner::Delete => vec![command(Command::DeleteElements, &self.clients)],
            Manner::OneByOne => self.clients.chunks(1).map(|one| command(Command::DeleteElements, one)).collect(),
            Manner::Apart => Vec::new(),
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

/// What a transaction did.
pub(super) struct Done {
    pub(super) committed: Option<Committed>,
    /// The commands that were carried out.
    pub(super) commands: Vec<Command>,
    /// Clients that the kernel has not forgotten yet.
    pub(super) left: Vec<StaleClients>,
}

impl<K: Kernel> Engine<K> {
    /// Has the kernel carry out commands, and forget clients in the same transaction if the kernel accepts that.
    pub(super) fn commit(&mut self, commands: Vec<Command>, mut stale: Vec<StaleClients>) -> Result<Done, Failed> {
        let (own, mut commands, mut manner) = (commands.len(), commands, self.manner());
        loop {
            if manner == Manner::Delete {
                self.leave_almost_expired(&mut stale);
            }
            commands.truncate(own);
            commands.extend(stale.iter().flat_map(|stale| stale.commands(manner)));
            if commands.is_empty() {
                return Ok(Done { committed: None, commands, left: stale });
            }
            let refusals = match self.kernel.commit(&commands) {
                Ok(committed) => {
                    let left = if manner == Manner::Apart { stale } else { Vec::new() };
                    return Ok(Done { committed: Some(committed), commands, left });
                }
                Err(CommitError::Refused(refusals)) => refusals,
                Err(error) => return Err(self.not_committed(error, commands)),
            };
            let is_ours = |refusal: &Refusal| refusal.command.is_some_and(|command| command >= own);
            let (ours, others): (Vec<_>, Vec<_>) = refusals.into_iter().partition(is_ours);
            if !others.is_empty() {
                commands.truncate(own);
                return Err(self.not_committed(CommitError::Refused(others), commands));
            }
            debug!(?manner, refused = ours.len(), "The kernel refused to forget clients; sending the rest again");
            if manner == Manner::Delete || manner == Manner::OneByOne {
                remove_named(&mut stale, &commands, own, &ours);
            }
            manner = self.next_manner(manner, &ours);
        }
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

    fn not_committed(&mut self, error: CommitError, commands: Vec<Command>) -> Failed {
        self.tables.forget();
        Failed::Commit(error, commands)
    }

    fn manner(&self) -> Manner {
        if self.destroys { Manner::Destroy } else { Manner::Delete }
    }

    /// How to go on after these refusals of one manner. Never leads back to one that was tried.
    fn next_manner(&mut self, manner: Manner, refusals: &[Refusal]) -> Manner {
        match manner {
            Manner::Destroy if refusals.iter().all(Refusal::is_unknown) => {
                self.destroys = false;
                Manner::Delete
            }
            Manner::Delete if refusals.iter().all(Refusal::is_missing) => Manner::OneByOne,
            Manner::Destroy | Manner::Delete | Manner::OneByOne | Manner::Apart => Manner::Apart,
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
    /// when there were none. What fails is logged and tried again; it is no failed sync, and says nothing about a Service.
    pub fn check_clients(&mut self, now: Instant) -> Option<Report> {
        let mut report = Report::default();
        self.read_due_maps(now, &mut report);
        if report.removed == 0 {
            return None;
        }
        let families: Vec<_> = self.families().collect();
        report.flows = self.udp.reconcile(&self.state, &mut self.kernel, &families, &self.interfaces);
        Some(report)
    }

    /// When [`Engine::check_clients`] has a map to read, if ever.
    pub fn next_client_check(&self) -> Option<Instant> {
        self.tables.next_check()
    }

    fn read_due_maps(&mut self, now: Instant, report: &mut Report) {
        let begun = Instant::now();
        while let Some(map) = self.tables.due_check(now).filter(|_| begun.elapsed() < ENOUGH) {
            match self.tables.check(&mut self.kernel, &map, now) {
                Ok(Some(stale)) => self.forget_stale(&stale, now, report),
                Ok(None) => {}
                Err(error) => {
                    warn!(
                        err = %error, map = %map.1,
                        "Cannot look for clients of endpoints that are gone; trying again"
                    )
                }
            }
        }
        if report.removed > 0 {
            // Until now, such a client could make a flow to an endpoint that is gone.
            self.udp.all_changed();
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
                let manner = if self.destroys { Manner::Destroy } else { Manner::OneByOne };
                let commands: Vec<Command> = rest.iter().flat_map(|stale| stale.commands(manner)).collect();
                if commands.is_empty() {
                    break;
                }
                match self.kernel.commit(&commands) {
                    Ok(committed) => {
                        report.removed += commands.iter().map(Command::elements).sum::<usize>();
                        report.add_committed(committed);
                        break;
                    }
                    Err(CommitError::Refused(refusals)) if self.goes_on(manner, &refusals) => {
                        remove_named(&mut rest, &commands, 0, &refusals);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn goes_on(&mut self, manner: Manner, refusals: &[Refusal]) -> bool {
        match manner {
            Manner::Destroy => self.next_manner(manner, refusals) == Manner::Delete,
            _ => refusals.iter().all(Refusal::is_missing),
        }
    }
}
