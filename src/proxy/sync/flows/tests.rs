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
    others: Vec<Listing>,
    /// The number of lists of TCP and SCTP that still have a flow that leads nowhere.
    unanswered: usize,
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
        let mut flow = flow_to(if family == Family::V4 { "10.96.0.10:53" } else { "[fd00::10]:53" });
        if listing != Listing::Udp {
            self.others.push(listing);
            let is_there = self.unanswered > 0;
            self.unanswered = self.unanswered.saturating_sub(1);
            flow = Flow { protocol: Protocol::Tcp, is_unanswered: true, ..flow_to("10.96.0.11:80") };
            return Ok([flow].into_iter().filter(|_| is_there).filter(is_wanted).collect());
        }
        self.listed.push(family);
        if self.fails {
            return Err(io::Error::from_raw_os_error(1));
        }
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

/// A UDP flow that was never translated.
fn flow_to(to: &str) -> Flow {
    let to: SocketAddr = to.parse().unwrap();
    let (protocol, handle) = (Protocol::Udp, Vec::new());
    Flow { protocol, client: to, original_destination: to, reply_source: to, is_unanswered: false, timeout: 30, handle }
}

/// Returns a cluster with a DNS Service that has a UDP endpoint, and a Service that only has TCP.
fn cluster() -> State {
    let mut dns = testing::service("shop/dns", &["10.96.0.10", "fd00::1"]);
    dns.ports = vec![port("dns/udp", 53)];
    let mut web = testing::service("shop/web", &["10.96.0.11", "fd00::2"]);
    web.ports = vec![port("http", 80)];
    testing::state([
        Event::ServiceApplied(dns),
        Event::SliceApplied(slice("shop/dns-1", "shop/dns", &[slice_port("dns/udp", 5353)], &["10.244.0.1"])),
        Event::ServiceApplied(web),
        Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port("http", 80)], &["10.244.0.2"])),
    ])
}

/// The [`Flows`] of a process that has already examined the flows that an earlier process left.
fn flows() -> Flows {
    Flows { uncommitted: false, is_new: false, ..Flows::default() }
}

/// Notes a change of a Service; `fits` says whether the Service is within the limit of elements.
fn changed(flows: &mut Flows, state: &State, service: &str, fits: bool) {
    let service = name(service);
    flows.service_changed(&service, fits.then(|| Gathered::of(state, &service).has_udp_endpoints()));
}

fn reconcile(flows: &mut Flows, state: &State, kernel: &mut Tracker) -> Vec<usize> {
    let now = flows.rested(Listing::Unanswered).max(Instant::now());
    flows.reconcile(state, kernel, &Family::BOTH, &[], (Moment::Idle, now)).iter().map(|done| done.deleted).collect()
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
    assert_eq!(
        (examine(&mut flows, &mut kernel, Moment::Idle, now), flows.next_try()),
        (0, None),
        "not before a commit"
    );
    flows.committed(now);
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

// First packets are looked for as soon as an endpoint is gone, open connections two seconds after that (J12, J13).
#[test]
fn open_connections_wait_until_their_endpoint_has_been_gone_for_a_while() {
    let (mut state, mut flows, mut kernel) = (cluster(), flows(), Tracker::default());
    let mut web = state.service(&name("shop/web")).unwrap().clone();
    web.close_connections = Some(CloseConnections::EndpointGone);
    let left = slice("shop/web-1", "shop/web", &[slice_port("http", 80)], &["10.244.0.3"]);
    for event in [Event::ServiceApplied(web), Event::SliceApplied(left)] {
        let change = state.apply(event).expect("it changes something");
        flows.event(&state, &change);
    }
    let now = flows.listed.0;
    flows.committed(now);
    assert_eq!(flows.next_try(), Some(now));
    for (at, listing) in [(now, Listing::Unanswered), (now + losses::PATIENCE, Listing::Translated)] {
        assert_eq!(flows.next_try(), Some(at));
        flows.reconcile(&state, &mut kernel, &[Family::V4], &[], (Moment::Idle, at - Duration::from_millis(1)));
        flows.reconcile(&state, &mut kernel, &[Family::V4], &[], (Moment::Idle, at));
        assert_eq!(std::mem::take(&mut kernel.others), [listing]);
    }
    assert_eq!(flows.next_try(), None);
}

// First packets are looked for after the commit that removes their endpoint, and again until a list finds none (J12).
#[test]
fn first_packets_are_looked_for_after_the_commit_and_until_a_list_finds_none() {
    let (mut state, mut flows) = (cluster(), flows());
    let mut kernel = Tracker { unanswered: 2, ..Tracker::default() };
    let change = state.apply(Event::SliceDeleted(name("shop/web-1"))).expect("it changes something");
    flows.event(&state, &change);
    assert_eq!(flows.next_try(), None, "the rules still make such flows");
    flows.committed(Instant::now());
    let mut lists = 0;
    while let Some(at) = flows.next_try() {
        let deleted = flows.reconcile(&state, &mut kernel, &[Family::V4], &[], (Moment::Idle, at));
        assert_eq!(deleted.iter().map(|done| done.deleted).sum::<usize>(), usize::from(lists < 2));
        lists += 1;
    }
    assert_eq!((lists, kernel.deleted), (3, 2));
}
