//! Property tests of the model and the selection together: the selection depends only on the last content of each object, and the dirty
//! set (the changes that [`State::take_dirty`] reports) names every Service whose selection changes.

pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use ipnet::IpNet;
use proptest::prelude::*;

use crate::endpoints::causes::{Counts, Taken};
use crate::endpoints::{Action, Category, Gathered, ServiceSelection, Topology, select};
use crate::model::testing::{NODE, name};
use crate::model::{
    Conflict, Destination, Dirty, Event, Family, Frontend, FrontendKind, Node, ObjectName, State, Winner,
};

/// What the tests compare of a [`State`].
#[derive(Debug, PartialEq)]
struct View {
    selections: Selections,
    conflicts: Vec<Conflict>,
    node: Option<Node>,
    service_cidrs: Vec<IpNet>,
}

type Selections = BTreeMap<ObjectName, ServiceSelection>;

fn view_after(events: impl IntoIterator<Item = Event>) -> View {
    let mut state = State::new(NODE);
    events.into_iter().for_each(|event| {
        state.apply(event);
    });
    View {
        selections: select_all(&state),
        conflicts: take_conflicts(&mut state),
        node: state.node().cloned(),
        service_cidrs: state.service_cidrs(),
    }
}

/// All conflicts that arose since the last call, sorted.
fn take_conflicts(state: &mut State) -> Vec<Conflict> {
    let contests = state.take_conflicts(usize::MAX).into_iter();
    let conflicts: BTreeSet<Conflict> = contests.flat_map(|contest| contest.conflicts).collect();
    conflicts.into_iter().collect()
}

fn select_all(state: &State) -> Selections {
    state.services().map(|service| (service.name.clone(), select(state, &service.name).unwrap())).collect()
}

/// What is taken from endpoints with these counts, if hints do not restrict them.
fn taken(from: Counts) -> Taken {
    match from {
        Counts { ready: 0, terminating: 0, .. } => Taken { category: Category::Nothing, count: 0 },
        Counts { ready: 0, terminating, .. } => Taken { category: Category::Terminating, count: terminating },
        Counts { ready, .. } => Taken { category: Category::Ready, count: ready },
    }
}

/// Kind and name of the object that an event changes.
fn object(event: &Event) -> String {
    match event {
        Event::ServiceApplied(service) => format!("Service {}", service.name),
        Event::ServiceDeleted(name) => format!("Service {name}"),
        Event::SliceApplied(slice) => format!("EndpointSlice {}", slice.name),
        Event::SliceDeleted(name) => format!("EndpointSlice {name}"),
        Event::NodeApplied(node) => format!("Node {}", node.name),
        Event::NodeDeleted(name) => format!("Node {name}"),
        Event::ServiceCidrApplied(name, _) | Event::ServiceCidrDeleted(name) => format!("ServiceCIDR {name}"),
        Event::ApiServerAt(_) => "API server".to_owned(),
        Event::InitialListDone | Event::Wake => String::new(),
    }
}

/// The last event of each object. Deletions of the Node are left out, because the state keeps a deleted Node (L6).
fn last_events(history: &[Event]) -> Vec<Event> {
    let lasting = history.iter().filter(|event| !matches!(event, Event::NodeDeleted(_)));
    let last: BTreeMap<String, &Event> = lasting.map(|event| (object(event), event)).collect();
    last.into_values().cloned().collect()
}

/// A history of events, and a second history that has the same result: the last event of each object, some repeated, shuffled with
/// deletions of unknown objects.
fn history_and_disturbed_end() -> impl Strategy<Value = (Vec<Event>, Vec<Event>)> {
    world::history().prop_flat_map(|history| {
        let last = last_events(&history);
        let repeats = prop::sample::subsequence(last.clone(), 0..=last.len());
        let spurious = prop::collection::vec(world::deletion_of_unknown(), 0..4);
        let disturbed = (repeats, spurious)
            .prop_map(move |(repeats, spurious)| [last.clone(), repeats, spurious].concat())
            .prop_shuffle();
        (Just(history), disturbed)
    })
}

/// A history of events, and a shuffled history in which the events of each object keep their order.
fn history_and_other_interleaving() -> impl Strategy<Value = (Vec<Event>, Vec<Event>)> {
    world::history().prop_flat_map(|history| {
        let objects: Vec<String> = history.iter().map(object).collect();
        let other = Just(objects).prop_shuffle().prop_map({
            let history = history.clone();
            move |order| interleave(&history, order)
        });
        (Just(history), other)
    })
}

fn interleave(history: &[Event], order: Vec<String>) -> Vec<Event> {
    let mut versions: BTreeMap<String, VecDeque<Event>> = BTreeMap::new();
    for event in history {
        versions.entry(object(event)).or_default().push_back(event.clone());
    }
    order.into_iter().map(|object| versions.get_mut(&object).unwrap().pop_front().unwrap()).collect()
}

/// A program that computes only dirty Services again, and keeps its other results.
#[derive(Default)]
struct Follower {
    selections: Selections,
    node: Option<Node>,
    service_cidrs: Vec<IpNet>,
}

impl Follower {
    fn follow(&mut self, state: &State, dirty: Dirty) {
        for name in dirty.services {
            match select(state, &name) {
                Some(selection) => self.selections.insert(name, selection),
                None => self.selections.remove(&name),
            };
        }
        if dirty.node {
            self.node = state.node().cloned();
        }
        if dirty.service_cidrs {
            self.service_cidrs = state.service_cidrs();
        }
    }
}

/// The claims on every frontend: kind of frontend, age and name of the Service, and index of the port.
fn claims(state: &State) -> BTreeMap<Frontend, BTreeSet<(FrontendKind, i64, ObjectName, usize)>> {
    let mut claims: BTreeMap<Frontend, BTreeSet<_>> = BTreeMap::new();
    for service in state.services() {
        for (index, port) in service.ports.iter().enumerate() {
            for (kind, frontend) in Family::BOTH.into_iter().flat_map(|family| service.frontends(port, family)) {
                claims.entry(frontend).or_default().insert((kind, service.created, service.name.clone(), index));
            }
        }
    }
    claims
}

/// Whether a frontend is an endpoint of the API server.
fn is_of_api_server(state: &State, frontend: &Frontend) -> bool {
    let kubernetes = name("default/kubernetes");
    state.slices_of(&kubernetes).any(|slice| {
        let has_port = slice.ports.iter().any(|port| port.port == frontend.port && port.protocol == frontend.protocol);
        has_port
            && slice.endpoints.iter().any(|endpoint| Destination::Address(endpoint.address) == frontend.destination)
    })
}

fn is_in_service_cidr(state: &State, frontend: &Frontend) -> bool {
    let ranges = state.service_cidrs();
    matches!(frontend.destination, Destination::Address(ip) if ranges.iter().any(|range| range.contains(&ip)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // The state does not depend on earlier versions, the order of objects, repeats or deletions of unknown objects (A6, B4, B14).
    #[test]
    fn only_the_last_version_of_each_object_counts((history, disturbed) in history_and_disturbed_end()) {
        prop_assert_eq!(view_after(disturbed), view_after(history));
    }

    // The state does not depend on how the events of different objects interleave (A6, B4).
    #[test]
    fn interleaving_does_not_matter((history, other) in history_and_other_interleaving()) {
        prop_assert_eq!(view_after(other), view_after(history));
    }

    // A Service that is not dirty still has the same selection as before (B14, C9).
    #[test]
    fn following_the_dirty_set_misses_nothing(history in world::history(), batch in 1..5_usize) {
        let mut state = State::new(NODE);
        let mut follower = Follower::default();
        for events in history.chunks(batch) {
            events.iter().cloned().for_each(|event| { state.apply(event); });
            let dirty = state.take_dirty();
            follower.follow(&state, dirty);
            prop_assert_eq!(&follower.selections, &select_all(&state));
            prop_assert_eq!(&follower.node, &state.node().cloned());
            prop_assert_eq!(&follower.service_cidrs, &state.service_cidrs());
        }
    }

    // The causes of the endpoints of a port agree with the selection (C3, C4, C5, C6, A15).
    #[test]
    fn the_causes_are_those_of_the_selection(history in world::history()) {
        let mut state = State::new(NODE);
        history.into_iter().for_each(|event| { state.apply(event); });
        for (name, selection) in select_all(&state) {
            let causes = Gathered::of(&state, &name).causes().unwrap();
            prop_assert!(causes.is_complete && causes.ports.len() == selection.ports.len());
            let of_family = |family| selection.ports.iter().filter(move |port| port.family == family);
            let ports = Family::BOTH.into_iter().flat_map(of_family);
            for (cause, port) in causes.ports.iter().zip(ports) {
                prop_assert_eq!((cause.family, &cause.label, cause.protocol), (port.family, &port.label, port.protocol));
                let counts = [cause.cluster.map_or(0, |(taken, _)| taken.count), cause.local.map_or(0, |taken| taken.count)];
                // With weights an endpoint has several entries in a list, one after the other (E15).
                let different = |list: &[SocketAddr]| list.chunk_by(|one, next| one == next).count();
                prop_assert_eq!(counts, [different(&port.cluster), different(&port.local)]);
                prop_assert_eq!(cause.local.unwrap_or(taken(cause.here)), taken(cause.here));
                let expected = taken(cause.endpoints);
                match cause.cluster {
                    Some((found, Topology::Ignored(_))) => prop_assert_eq!(found, expected),
                    Some((found, Topology::Used(_))) => {
                        prop_assert_eq!((found.category, expected.category), (Category::Ready, Category::Ready));
                        prop_assert!((1..=expected.count).contains(&found.count));
                    }
                    None => {}
                }
                for frontend in &port.frontends {
                    prop_assert_eq!(frontend.action == Action::Reject, expected.count == 0);
                }
            }
        }
    }

    // An object that is sent again with the same content makes nothing dirty (A6, B4).
    #[test]
    fn repeats_dirty_nothing(history in world::history()) {
        let mut state = State::new(NODE);
        history.iter().cloned().for_each(|event| { state.apply(event); });
        state.take_dirty();
        take_conflicts(&mut state);
        last_events(&history).into_iter().for_each(|event| { state.apply(event); });
        prop_assert_eq!(state.take_dirty(), Dirty::default());
        prop_assert_eq!(take_conflicts(&mut state), []);
    }

    // The state's owners and conflicts equal those that a walk over all Services finds.
    #[test]
    fn the_smallest_claim_owns_each_frontend_and_the_others_conflict(history in world::history()) {
        let mut state = State::new(NODE);
        history.into_iter().for_each(|event| { state.apply(event); });
        let (mut conflicts, mut lost) = (BTreeSet::new(), 0);
        for (frontend, claims) in claims(&state) {
            let (strongest, _, owner, _) = claims.first().unwrap();
            let is_external = *strongest == FrontendKind::ExternalIp;
            let winner = if is_external && is_of_api_server(&state, &frontend) {
                Winner::ApiServer
            } else if is_external && is_in_service_cidr(&state, &frontend) {
                Winner::None
            } else {
                Winner::Service(owner.clone(), *strongest)
            };
            for (place, (kind, _, service, port)) in claims.iter().enumerate() {
                let wins = place == 0 && matches!(winner, Winner::Service(..));
                prop_assert_eq!(state.owns(service, *port, &frontend), wins);
                if !wins {
                    let (winner, loser) = (winner.clone(), service.clone());
                    conflicts.insert(Conflict { frontend, winner, loser, kind: *kind });
                    lost += 1;
                }
            }
        }
        prop_assert_eq!(state.lost_claims(), lost);
        prop_assert_eq!(take_conflicts(&mut state), conflicts.into_iter().collect::<Vec<_>>());
    }
}
