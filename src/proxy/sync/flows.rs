//! Ends conntrack flows that lead nowhere after a sync: notes which flows to list, which Services to examine for UDP and which frontends the
//! sync removed, and when to try again.
//!
//! UDP flows are listed at the end of a sync in which a Service with UDP endpoints changed (B15), which removed a UDP frontend (J10), or
//! which repaired what another program changed; and after clients of session affinity were deleted, also between two syncs (J1).
//! Flows of TCP and SCTP are listed if some of them may lead to an endpoint that does not answer, for example after a Service lost an
//! endpoint, and after a start that finds rules; open connections are included only if an annotation of a Service asks to close connections (J12, J13). No
//! sync waits for the list of TCP and SCTP flows, because the kernel walks its whole table for it, even if the table is empty
//! (`src/decisions/0008-flows.md`). For the same reason, a family is listed only if a flow of it can be concerned, and none if the kernel
//! tracks no flow.
//!
//! Removed frontends are found in the tables, not in the state: a frontend is gone once the kernel has committed the transaction that
//! removes it, whichever Service had it. UDP frontends are also looked for in tables that were read, so a process that takes over another
//! one's tables finds those that were removed between the two processes. It does not find such frontends of TCP and SCTP, because only the
//! process before knew that their Service asked to close connections (J13).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::tables::{ChangedIn, Tables};
use component::logging::duration;
use nft::packed::ValueRef;
use node::kernel::Kernel;
use rules::conntrack::{Examiner, Flow, Gone, Listing, loses_endpoints, may_answer};
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
    /// Whether connections may be open to endpoints that are gone from Services that ask to close them (J13).
    open: bool,
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
    /// `unanswered` is set, because an earlier process may have left flows.
    fn default() -> Self {
        let (known, changed, closing) = Default::default();
        let (gone, listed) = (Gone::default(), (Instant::now(), Duration::ZERO));
        Self { known, changed, gone, unanswered: true, open: false, closing, retry: None, listed, is_new: true }
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
                let Some(service) = state.service(&before.service) else { return };
                let after = state.slice(name);
                self.unanswered |= loses_endpoints(before, after, may_answer);
                self.open |= service.close_connections.is_some() && loses_endpoints(before, after, |_| true);
            }
            Change::Service { name, before } => {
                let wish = |service: &Service| service.close_connections;
                let (before, now) = (before.as_deref().and_then(wish), state.service(name).and_then(wish));
                self.open |= now.is_some() && before.is_none();
                if before == Some(CloseConnections::EndpointOrServiceGone) {
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
    pub(super) fn committed(&mut self, tables: &Tables) {
        if std::mem::take(&mut self.is_new) && tables.each_read().next().is_none() {
            // No earlier process left rules, so none translated a flow.
            self.unanswered = false;
        }
        let Self { changed, gone, closing, .. } = self;
        let mut wanted = Vec::new();
        if !changed.is_empty() || !closing.is_empty() {
            tables.each_changed(|_, name, table, _| {
                let is_examined = |frontend: &Frontend| match frontend.protocol {
                    Protocol::Udp => changed.contains_key(name),
                    Protocol::Tcp | Protocol::Sctp => closing.contains(name),
                };
                let frontend = |entry| changed_frontend(table, entry);
                gone.frontends.extend(table.changed.before_entries().filter_map(frontend).filter(is_examined));
                wanted.extend(table.changed.entries().filter_map(frontend));
            });
        }
        closing.clear();
        wanted.iter().for_each(|frontend| {
            gone.frontends.remove(frontend);
        });
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

    /// Returns when to examine flows between two syncs: after a failure, or because TCP and SCTP flows are to be listed; `None` if there is
    /// no need. The first sync comes before all lists: nothing is served until then, and the old rules may make new flows.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let due = self.retry.map(|(at, _)| at).or_else(|| self.others().map(|next| self.rested(next)));
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
        let others = self.others().filter(|next| moment == Moment::Idle && now >= self.rested(*next));
        let listings: Vec<Listing> = self.udp().into_iter().chain(others).collect();
        if listings.is_empty() {
            self.done(false);
            return Vec::new();
        }
        let examined = self.changed.iter().filter(|(_, is_looked_at)| **is_looked_at).map(|(name, _)| name);
        let mut examiner = Examiner::new(state, examined, &mut self.gone, node_addresses);
        let (mut results, mut failure) = (Vec::new(), None);
        // After an error, a list fails as well, and says why.
        let tracks_flows = kernel.tracks_flows().unwrap_or(true);
        for family in families {
            let start = Instant::now();
            let concerned = |listing: &Listing| tracks_flows && examiner.concerns(*family, *listing);
            let listings: Vec<Listing> = listings.iter().copied().filter(concerned).collect();
            let walks = listings.len();
            let examine = |listing| {
                let stale = kernel.flows(*family, listing, &mut |flow| examiner.is_stale(flow))?;
                end(kernel, &stale, *family, node_addresses)
            };
            let outcome = listings.into_iter().map(examine).sum::<io::Result<usize>>();
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
            self.done(others.is_some());
            return results;
        };
        let (first, most) = PAUSES;
        let pause = self.retry.map_or(first, |(_, pause)| (pause * 2).min(most));
        self.retry = Some((now + pause, pause));
        warn!(
            err = %error, ipFamily = %family, retryAfter = %duration(pause),
            "Cannot examine flows; some may lead to endpoints that are gone until that works"
        );
        results
    }

    /// Returns [`Listing::Udp`] if UDP flows have to be listed.
    fn udp(&self) -> Option<Listing> {
        let is_needed = self.changed.values().any(|is_looked_at| *is_looked_at) || self.gone.has_frontends(true);
        is_needed.then_some(Listing::Udp)
    }

    /// Returns which flows of TCP and SCTP have to be listed; `None` if none.
    fn others(&self) -> Option<Listing> {
        let open = self.open || self.gone.has_frontends(false);
        if open { Some(Listing::Translated) } else { self.unanswered.then_some(Listing::Unanswered) }
    }

    /// Returns from when on TCP and SCTP flows may be listed with `next`.
    fn rested(&self, next: Listing) -> Instant {
        let (listed, took) = self.listed;
        listed + rest(took, next)
    }

    /// Forgets the changes for which flows were examined: those of UDP, and with `others` those of TCP and SCTP.
    fn done(&mut self, others: bool) {
        self.retry = None;
        self.changed.clear();
        self.gone.endpoints.clear();
        self.gone.frontends.retain(|frontend| frontend.protocol != Protocol::Udp && !others);
        if others {
            (self.unanswered, self.open) = (false, false);
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use nft::{Command, CommitError, Committed, Element, ReadError, Set, TableDump, TableName};

    use super::*;
    use node::kernel::ForeignWrites;
    use rules::endpoints::Gathered;
    use rules::model::Event;
    use rules::model::testing::{self, name, port, slice, slice_port};

    /// A fake kernel that has one UDP flow in each family, which leads to no endpoint. Records the listings and the number of deleted
    /// flows.
    #[derive(Default)]
    struct Tracker {
        listed: Vec<Family>,
        deleted: usize,
        fails: bool,
    }

    impl Kernel for Tracker {
        fn commit(&mut self, _: &[Command]) -> Result<Committed, CommitError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn read(&mut self, _: &TableName) -> Result<Option<TableDump>, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn elements(&mut self, _: &TableName, _: &Set) -> Result<Vec<Element>, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn foreign_writes(&mut self, _: &[TableName], _: Instant) -> Result<ForeignWrites, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn flows(
            &mut self,
            family: Family,
            listing: Listing,
            is_wanted: &mut dyn FnMut(&Flow) -> bool,
        ) -> io::Result<Vec<Flow>> {
            if listing != Listing::Udp {
                return Ok(Vec::new());
            }
            self.listed.push(family);
            if self.fails {
                return Err(io::Error::from_raw_os_error(1));
            }
            let to = if family == Family::V4 { "10.96.0.10:53" } else { "[fd00::10]:53" };
            let to: SocketAddr = to.parse().unwrap();
            let (protocol, handle) = (Protocol::Udp, Vec::new());
            let flow = Flow {
                protocol,
                client: to,
                original_destination: to,
                reply_source: to,
                is_unanswered: false,
                timeout: 30,
                handle,
            };
            Ok([flow].into_iter().filter(is_wanted).collect())
        }

        fn delete_flows(&mut self, flows: &[Flow], _: Option<IpAddr>) -> io::Result<usize> {
            self.deleted += flows.len();
            Ok(flows.len())
        }

        fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
            unreachable!("given by the caller")
        }
    }

    /// Returns a cluster with a DNS Service that has a UDP endpoint, and a Service that only has TCP.
    fn cluster() -> State {
        let mut dns = testing::service("shop/dns", &["10.96.0.10", "fd00::1"]);
        dns.ports = vec![port("dns/udp", 53)];
        let web = testing::service("shop/web", &["10.96.0.11", "fd00::2"]);
        testing::state([
            Event::ServiceApplied(dns),
            Event::SliceApplied(slice("shop/dns-1", "shop/dns", &[slice_port("dns/udp", 5353)], &["10.244.0.1"])),
            Event::ServiceApplied(web),
            Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port("http", 80)], &["10.244.0.2"])),
        ])
    }

    /// The [`Flows`] of a process that has already examined the flows that an earlier process left.
    fn flows() -> Flows {
        Flows { unanswered: false, ..Flows::default() }
    }

    /// Notes a change of a Service; `fits` says whether the Service is within the limit of elements.
    fn changed(flows: &mut Flows, state: &State, service: &str, fits: bool) {
        let service = name(service);
        flows.service_changed(&service, fits.then(|| Gathered::of(state, &service).has_udp_endpoints()));
    }

    fn reconcile(flows: &mut Flows, state: &State, kernel: &mut Tracker) -> Vec<usize> {
        let now = flows.rested(Listing::Unanswered).max(Instant::now());
        flows
            .reconcile(state, kernel, &Family::BOTH, &[], (Moment::Idle, now))
            .iter()
            .map(|done| done.deleted)
            .collect()
    }

    // UDP flows are listed once for each family, after a sync that changed a Service with a UDP port (B15, J1).
    #[test]
    fn flows_are_listed_once_a_family_and_only_when_a_service_with_udp_changed() {
        let (state, mut flows, mut kernel) = (cluster(), flows(), Tracker::default());
        changed(&mut flows, &state, "shop/web", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0]);
        assert_eq!(kernel.listed, [], "no UDP in it");
        changed(&mut flows, &state, "shop/dns", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0], "the flow to the cluster IP");
        assert_eq!(kernel.listed, Family::BOTH);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0], "not again before the next change");
        assert_eq!((kernel.listed.len(), kernel.deleted), (2, 1));
    }

    #[test]
    fn a_service_that_is_left_out_is_not_looked_at() {
        let (state, mut flows, mut kernel) = (cluster(), flows(), Tracker::default());
        changed(&mut flows, &state, "shop/dns", true);
        changed(&mut flows, &state, "shop/dns", false);
        flows.all_changed();
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0, 0], "the flows that nobody answered");
        assert_eq!(kernel.listed, []);
        changed(&mut flows, &state, "shop/dns", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0], "it is small enough again");
    }

    // A flow that was made while other rules were in force may lead nowhere, so UDP flows are examined after a repair (G10, J1, J7).
    #[test]
    fn flows_made_under_the_rules_of_others_are_looked_through() {
        let (state, mut flows, mut kernel) = (cluster(), flows(), Tracker::default());
        changed(&mut flows, &state, "shop/dns", true);
        changed(&mut flows, &state, "shop/web", true);
        reconcile(&mut flows, &state, &mut kernel);
        flows.all_changed();
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0]);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0], "once");
    }

    // The list of TCP and SCTP flows takes the kernel milliseconds even when there are none, so no sync waits for it, and a pause follows
    // each list (J12).
    #[test]
    fn no_sync_waits_for_lists_of_connections_and_they_take_a_hundredth_of_the_time_or_less() {
        let (state, mut flows, mut kernel) = (cluster(), Flows::default(), Tracker::default());
        let examine = |flows: &mut Flows, kernel: &mut Tracker, moment, now| {
            flows.reconcile(&state, kernel, &Family::BOTH, &[], (moment, now)).len()
        };
        let now = flows.listed.0;
        assert_eq!(examine(&mut flows, &mut kernel, Moment::Sync, now), 0);
        assert_eq!(flows.next_try(), Some(now), "at once, and after the sync");
        assert_eq!(examine(&mut flows, &mut kernel, Moment::Idle, now), 2, "both families");
        assert_eq!(flows.next_try(), None);
        let next = [Listing::Translated, Listing::Unanswered].map(|next| flows.rested(next));
        assert!(now < next[0] && next[0] < next[1] && next[1] <= now + LONGEST_REST, "{next:?}");
        flows.unanswered = true;
        assert_eq!(examine(&mut flows, &mut kernel, Moment::Idle, now), 0, "not so soon again");
        let next = flows.next_try().expect("later");
        assert_eq!(examine(&mut flows, &mut kernel, Moment::Idle, next), 2);
        assert_eq!(rest(Duration::from_millis(9), Listing::Unanswered), Duration::from_millis(2_700));
        assert_eq!(rest(Duration::from_millis(9), Listing::Translated), Duration::from_millis(900));
        assert_eq!(rest(Duration::from_secs(9), Listing::Translated), LONGEST_REST);
    }

    // A failed listing is repeated after growing pauses until it works, without any further change of the cluster (J8).
    #[test]
    fn a_list_that_fails_is_repeated_until_it_works() {
        let (state, mut flows) = (cluster(), flows());
        let mut kernel = Tracker { fails: true, ..Tracker::default() };
        changed(&mut flows, &state, "shop/dns", true);
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(flows.reconcile(&state, &mut kernel, &Family::BOTH, &[], (Moment::Idle, now)), []);
            let next = flows.next_try().expect("it is tried again");
            pauses.push((next - now).as_millis());
            let tries = kernel.listed.len();
            flows.reconcile(&state, &mut kernel, &Family::BOTH, &[], (Moment::Idle, next - Duration::from_millis(1)));
            assert_eq!(kernel.listed.len(), tries, "not before its time, whatever changes");
            now = next;
        }
        assert_eq!(pauses[..3], [100, 200, 400]);
        assert_eq!(pauses[10..], [60_000, 60_000]);
        kernel.fails = false;
        let done = flows.reconcile(&state, &mut kernel, &Family::BOTH, &[], (Moment::Idle, now));
        assert_eq!(done.iter().map(|done| done.deleted).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((flows.next_try(), kernel.deleted), (None, 1));
    }
}
