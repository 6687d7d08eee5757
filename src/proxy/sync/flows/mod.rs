//! Ends conntrack flows that lead nowhere after a sync: notes which flows to list, which Services to examine for UDP and which frontends the
//! sync removed, and when to try again.
//!
//! UDP flows are listed at the end of a sync in which a Service with UDP endpoints changed (B15), which removed a UDP frontend (J10), or
//! which repaired what another program changed; and after clients of session affinity were deleted, also between two syncs (J1).
//! Flows of TCP and SCTP are listed if some of them may lead to an endpoint that does not answer, for example after the commit that removes
//! an endpoint, and after a start that finds rules, and again until a list finds none; open connections are included only if an annotation of
//! a Service asks to close connections (J12, J13), and only once what they lead to has been gone for two seconds ([`losses`]). No
//! sync waits for the list of TCP and SCTP flows, because the kernel walks its whole table for it, even if the table is empty
//! (`src/decisions/0008-flows.md`). For the same reason, a family is listed only if a flow of it can be concerned, and none if the kernel
//! tracks no flow.
//!
//! Removed frontends are found in the tables, not in the state: a frontend is gone once the kernel has committed the transaction that
//! removes it, whichever Service had it. UDP frontends are also looked for in tables that were read, so a process that takes over another
//! one's tables finds those that were removed between the two processes. It does not find such frontends of TCP and SCTP, because only the
//! process before knew that their Service asked to close connections (J13); but it finds the endpoints that left meanwhile.

mod losses;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::tables::{ChangedIn, Tables};
use component::logging::duration;
use losses::Losses;
use nft::packed::ValueRef;
use node::kernel::Kernel;
use rules::conntrack::{Examiner, Flow, Gone, Listing, Lost, loses_endpoints, lost_addresses};
use rules::diff::{Content, Entry};
use rules::model::{Change, CloseConnections, Family, Frontend, ObjectName, Protocol, Service, State};
use rules::ruleset::reading;

/// The first and the longest pause after a listing or a deletion that failed; each further failure doubles the pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// The longest pause between two lists of TCP and SCTP flows. It is shorter after a list that took little time, see [`rest`].
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Returns the pause after a list that took the time `took`, before the list `next`. Lists for connections that an annotation asks to close
/// take at most about a hundredth of the time, lists of unanswered flows a third of that, unless [`LONGEST_REST`] makes the pause shorter.
fn rest(took: Duration, next: Listing) -> Duration {
    let times = if next == Listing::Unanswered { 300 } else { 100 };
    (took * times).min(LONGEST_REST)
}

/// About the most removed frontends, and the most endpoints, that are remembered while flows cannot be examined. Flows to further frontends
/// and endpoints end by their conntrack timeout.
const MOST: usize = 1 << 16;

/// Remembers which Services have UDP endpoints, which of these changed since the flows were last examined, which frontends and endpoints are
/// gone, and whether TCP and SCTP flows are to be listed.
#[derive(Debug)]
pub(super) struct Flows {
    known: HashSet<ObjectName>,
    /// The changed Services that have or had UDP endpoints, by name. The value says whether to examine their UDP flows: `false` for a
    /// Service that is left out because it is too large.
    changed: BTreeMap<ObjectName, bool>,
    gone: Gone,
    /// Whether flows may lead to an endpoint that does not answer the first packet (J12).
    unanswered: bool,
    /// The same, because of changes that are not committed yet: until then the rules make such flows.
    uncommitted: bool,
    /// What open connections may lead to although it is gone (J13).
    losses: Losses,
    /// The changed Services that asked to close connections to frontends that they no longer have.
    closing: BTreeSet<ObjectName>,
    /// When to try again after a failure, and the pause until then.
    retry: Option<(Instant, Duration)>,
    /// When flows of TCP and SCTP were last listed, and how long that took.
    listed: (Instant, Duration),
    /// Whether no sync has succeeded and no transaction was committed yet.
    is_new: bool,
}

/// When flows are examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At the end of a sync: UDP flows only.
    Sync,
    /// Between two syncs.
    Idle,
}

impl Default for Flows {
    /// `uncommitted` is set, because an earlier process may have left flows.
    fn default() -> Self {
        let (known, changed, closing) = Default::default();
        let (gone, losses, listed) = (Gone::default(), Losses::default(), (Instant::now(), Duration::ZERO));
        let (unanswered, uncommitted, is_new) = (false, true, true);
        Self { known, changed, gone, unanswered, uncommitted, losses, closing, retry: None, listed, is_new }
    }
}

/// The result of examining the flows of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// The family whose flows were examined.
    pub family: Family,
    /// How long the examination took.
    pub took: Duration,
    /// The number of flows that were deleted.
    pub deleted: usize,
    /// The number of lists of flows, for each of which the kernel walks over its whole table.
    pub walks: usize,
}

impl Flows {
    /// Notes which endpoints a change of the state took away, and whether connections may have to be closed because of it.
    pub(super) fn event(&mut self, state: &State, change: &Change) {
        match change {
            Change::Slice { name, before: Some(before) } => {
                if self.gone.endpoints.len() < MOST {
                    self.gone.add_endpoints(before);
                }
                let after = state.slice(name);
                self.losses.endpoints(&before.service, lost_addresses(before, after));
                self.uncommitted |= state.service(&before.service).is_some() && loses_endpoints(before, after);
            }
            Change::Service { name, before } => {
                let wish = |service: &Service| service.close_connections;
                self.losses.service(name, state.service(name).and_then(wish).is_some());
                if before.as_deref().and_then(wish) == Some(CloseConnections::EndpointOrServiceGone) {
                    self.closing.insert(name.clone());
                }
            }
            _ => {}
        }
    }

    /// Returns whether a Service had UDP endpoints when it was last noted.
    pub(super) fn knows(&self, name: &ObjectName) -> bool {
        self.known.contains(name)
    }

    /// Notes that a Service changed, and whether it has UDP endpoints now (B15). `has_udp_endpoints` is `None` for a Service that is left
    /// out because it is too large: its frontends are gone.
    pub(super) fn service_changed(&mut self, name: &ObjectName, has_udp_endpoints: Option<bool>) {
        let has = has_udp_endpoints.unwrap_or(false);
        if !has && self.known.is_empty() {
            return;
        }
        let had = if has { !self.known.insert(name.clone()) } else { self.known.remove(name) };
        if has || had || self.changed.contains_key(name) {
            self.changed.insert(name.clone(), has_udp_endpoints.is_some());
        }
    }

    /// Marks the flows of all Services with UDP endpoints, and unanswered TCP and SCTP flows, to be examined: flows may have been made
    /// under another program's rules, or to removed endpoints because of session affinity.
    pub(super) fn all_changed(&mut self) {
        self.unanswered = true;
        self.changed.extend(self.known.iter().map(|name| (name.clone(), true)));
    }

    /// Notes which frontends a transaction removed, as far as their flows are examined. Called after the kernel committed it, and before
    /// `tables` takes it over.
    pub(super) fn transaction(&mut self, state: &State, tables: &Tables, now: Instant) {
        if std::mem::take(&mut self.is_new) && tables.each_read().next().is_none() {
            // No earlier process left rules, so none translated a flow.
            self.uncommitted = false;
        }
        let Self { changed, gone, closing, losses, .. } = self;
        let mut wanted = Vec::new();
        if !changed.is_empty() || !closing.is_empty() {
            tables.each_changed(|_, name, table, _| {
                let frontend = |entry| changed_frontend(table, entry);
                for frontend in table.changed.before_entries().filter_map(frontend) {
                    match frontend.protocol {
                        Protocol::Udp if changed.contains_key(name) => _ = gone.frontends.insert(frontend),
                        Protocol::Tcp | Protocol::Sctp if closing.contains(name) => {
                            losses.frontend(frontend, name, now)
                        }
                        _ => {}
                    }
                }
                wanted.extend(table.changed.entries().filter_map(frontend));
            });
        }
        closing.clear();
        for frontend in &wanted {
            gone.frontends.remove(frontend);
            losses.has_frontend(frontend);
        }
        if losses.is_asked() {
            losses.read(read_addresses(state, tables), now);
        }
        add_read(tables, gone);
        if gone.frontends.len() > MOST {
            let more = gone.frontends.len() - MOST;
            warn!(
                frontends = more,
                "Too many frontends are gone whose flows could not be examined; flows of some are left to end by themselves"
            );
            gone.frontends = std::mem::take(&mut gone.frontends).into_iter().take(MOST).collect();
        }
    }

    /// Notes that the kernel has committed all changes so far.
    pub(super) fn committed(&mut self, now: Instant) {
        self.unanswered |= std::mem::take(&mut self.uncommitted);
        self.losses.committed(now);
    }

    /// Returns when to examine flows between two syncs: after a failure, or because TCP and SCTP flows are to be listed; `None` if there is
    /// no need. The first sync comes before all lists: nothing is served until then, and the old rules may make new flows.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let due = self.retry.map(|(at, _)| at).or_else(|| self.others().map(|(_, at)| at).min());
        due.filter(|_| !self.is_new)
    }

    /// Ends the flows that lead to no endpoint, and those to frontends and endpoints that are gone (J1, J10, J12, J13). A failure is logged
    /// and tried again (J8).
    pub(super) fn reconcile(
        &mut self,
        state: &State,
        kernel: &mut impl Kernel,
        families: &[Family],
        node_addresses: &[IpAddr],
        (moment, now): (Moment, Instant),
    ) -> Vec<Reconciled> {
        self.is_new = false;
        if self.retry.is_some_and(|(at, _)| now < at) {
            return Vec::new();
        }
        let others = self.others().find(|(_, at)| moment == Moment::Idle && *at <= now).map(|(listing, _)| listing);
        let listings: Vec<Listing> = self.udp().into_iter().chain(others).collect();
        if listings.is_empty() {
            self.done(None, now);
            return Vec::new();
        }
        let examined = self.changed.iter().filter(|(_, is_looked_at)| **is_looked_at).map(|(name, _)| name);
        let lost = if others == Some(Listing::Translated) { self.losses.due(now) } else { Lost::default() };
        let mut examiner = Examiner::new(state, examined, &mut self.gone, &lost, node_addresses);
        let (mut results, mut failure, mut found) = (Vec::new(), None, false);
        // After an error, a list fails as well, and says why.
        let tracks_flows = kernel.tracks_flows().unwrap_or(true);
        for family in families {
            let start = Instant::now();
            let mut walks = 0;
            let examine = |listing: &Listing| {
                if !tracks_flows || !examiner.concerns(*family, *listing) {
                    return Ok(0);
                }
                walks += 1;
                let stale = kernel.flows(*family, *listing, &mut |flow| examiner.is_stale(flow))?;
                found |= *listing != Listing::Udp && !stale.is_empty();
                end(kernel, &stale, *family, node_addresses)
            };
            let outcome = listings.iter().map(examine).sum::<io::Result<usize>>();
            match outcome {
                Ok(deleted) => {
                    let took = start.elapsed();
                    let elapsed = duration(took);
                    debug!(
                        ipFamily = %family, entriesDeleted = deleted, %elapsed,
                        "Finished reconciling conntrack entries"
                    );
                    results.push(Reconciled { family: *family, took, deleted, walks });
                }
                Err(error) => failure = Some((*family, error)),
            }
        }
        let Some((family, error)) = failure else {
            if others.is_some() {
                self.listed = (now, results.iter().map(|done| done.took).sum());
            }
            // A packet that was on its way during the commit may have made a flow behind the list.
            self.done(others.filter(|_| !found), now);
            return results;
        };
        self.failed(family, &error, now);
        results
    }

    /// Notes that the flows of a family could not be examined.
    fn failed(&mut self, family: Family, error: &io::Error, now: Instant) {
        let (first, most) = PAUSES;
        let pause = self.retry.map_or(first, |(_, pause)| (pause * 2).min(most));
        self.retry = Some((now + pause, pause));
        warn!(
            err = %error, ipFamily = %family, retryAfter = %duration(pause),
            "Cannot examine flows; some may lead to endpoints that are gone until that works"
        );
    }

    /// Returns [`Listing::Udp`] if UDP flows have to be listed.
    fn udp(&self) -> Option<Listing> {
        let is_needed = self.changed.values().any(|is_looked_at| *is_looked_at) || !self.gone.frontends.is_empty();
        is_needed.then_some(Listing::Udp)
    }

    /// Returns which flows of TCP and SCTP have to be listed, and from when on. The first listing includes the second one's.
    fn others(&self) -> impl Iterator<Item = (Listing, Instant)> {
        let open = self.losses.next().map(|at| (Listing::Translated, at.max(self.rested(Listing::Translated))));
        let unanswered = self.unanswered.then(|| (Listing::Unanswered, self.rested(Listing::Unanswered)));
        open.into_iter().chain(unanswered)
    }

    /// Returns from when on TCP and SCTP flows may be listed with `next`.
    fn rested(&self, next: Listing) -> Instant {
        let (listed, took) = self.listed;
        listed + rest(took, next)
    }

    /// Forgets the changes for which flows were examined: those of UDP, and those of the flows of TCP and SCTP that were listed at `now`.
    fn done(&mut self, others: Option<Listing>, now: Instant) {
        self.retry = None;
        self.changed.clear();
        self.gone = Gone::default();
        self.unanswered &= others.is_none();
        if others == Some(Listing::Translated) {
            self.losses.done(now);
        }
    }
}

/// Deletes flows of a family, and makes this node reset the clients of open TCP connections among them, if the node has an address for which
/// [`has_route`] is true. Returns how many flows still existed.
fn end(kernel: &mut impl Kernel, flows: &[Flow], family: Family, node_addresses: &[IpAddr]) -> io::Result<usize> {
    if flows.is_empty() {
        return Ok(0);
    }
    let answers = |address: &IpAddr| Family::of(*address) == family && has_route(*address);
    kernel.delete_flows(flows, node_addresses.iter().copied().find(answers))
}

/// Returns whether packets from any interface can be sent to this address; loopback and link-local addresses are valid on one interface
/// only.
fn has_route(address: IpAddr) -> bool {
    !address.is_loopback()
        && match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        }
}

/// Decodes a key of a set of frontends; `None` if it is not the key of a UDP frontend.
fn udp_frontend(set: reading::FrontendSet, family: Family, key: &[u8]) -> Option<Frontend> {
    set.frontend(family, key).filter(|frontend| frontend.protocol == Protocol::Udp)
}

/// Returns the frontend that an element belongs to; `None` if `entry` is no element of a set of frontends.
fn changed_frontend(table: ChangedIn<'_>, entry: Entry<'_>) -> Option<Frontend> {
    let Content::Element(element) = entry.content else { return None };
    reading::frontend_set(table.set_name(entry))?.frontend(table.family, element.key())
}

/// Returns the addresses to which the rules that were read send packets, and that are in no slice.
fn read_addresses(state: &State, tables: &Tables) -> HashSet<IpAddr> {
    let mut read: HashSet<IpAddr> = HashSet::new();
    for (family, dump, _) in tables.each_read() {
        let maps = dump.sets.iter().filter(|(name, _)| reading::is_endpoint_map(name));
        let endpoints =
            maps.flat_map(|(_, (_, elements))| elements).filter_map(|element| match element.parts().value {
                ValueRef::Data(value) => reading::slot_endpoint(family, value),
                _ => None,
            });
        let rules = dump.chains.values().flat_map(|(_, rules)| rules);
        read.extend(endpoints.chain(rules.filter_map(reading::rule_endpoint)).map(|endpoint| endpoint.ip()));
    }
    if !read.is_empty() {
        let slices = state.services_unordered().flat_map(|service| state.slices_of(&service.name));
        for endpoint in slices.flat_map(|slice| &slice.endpoints) {
            read.remove(&endpoint.address);
        }
    }
    read
}

/// Adds the UDP frontends that the tables held when they were read and no longer should hold, and the endpoints to which the rules in those
/// tables sent the frontends' packets.
fn add_read(tables: &Tables, gone: &mut Gone) {
    for (family, dump, records) in tables.each_read() {
        let mut frontends: HashSet<Frontend> = HashSet::new();
        for (name, (_, elements)) in &dump.sets {
            if let Some(set) = reading::frontend_set(name) {
                frontends.extend(elements.iter().filter_map(|element| udp_frontend(set, family, element.key())));
            }
        }
        frontends.extend(&gone.frontends);
        if frontends.is_empty() {
            continue;
        }
        records.each_wanted(reading::frontend_set, |set, key| {
            if let Some(frontend) = set.frontend(family, key) {
                frontends.remove(&frontend);
                gone.frontends.remove(&frontend);
            }
        });
        if frontends.is_empty() {
            continue;
        }
        for (name, (_, elements)) in &dump.sets {
            let Some(set) = reading::frontends_of_endpoints(name) else { continue };
            let is_gone =
                |key: &[u8]| udp_frontend(set, family, key).is_some_and(|frontend| frontends.contains(&frontend));
            let of_gone = elements.iter().filter(|element| is_gone(element.key()));
            let endpoints = of_gone.filter_map(|element| match element.parts().value {
                ValueRef::Data(value) => reading::slot_endpoint(family, value),
                _ => None,
            });
            gone.endpoints.extend(endpoints.take(MOST));
        }
        // In the ruleset layout `chains` an endpoint may be a chain. The code does not follow which frontends jump to such a chain, and
        // adds the endpoints of all chains: that is harmless, because a flow is deleted only if its frontend is gone as well.
        let rules = dump.chains.values().flat_map(|(_, rules)| rules);
        gone.endpoints.extend(rules.filter_map(reading::rule_endpoint).take(MOST));
        gone.frontends.extend(frontends);
    }
}
