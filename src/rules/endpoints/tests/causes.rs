//! Tests of [`Causes`]. Endpoints are written as in the [other tests](super).

use super::{CLUSTER, LOCAL, exposed, selection, web, with_endpoints};
use crate::endpoints::causes::{Causes, Counts, MOST_WORK, PORT_WORK, PortCause, Taken};
use crate::endpoints::{Category, Gathered, Hint, Ignored, Topology};
use crate::model::testing::{name, node, port, service, slice, slice_port, state};
use crate::model::{Event, Family, Service, State};

fn causes(state: &State) -> Causes {
    Gathered::of(state, &name("default/web")).causes().unwrap()
}

/// The cause of the only port of Service default/web.
fn only_cause(state: &State) -> PortCause {
    let causes = causes(state);
    assert!(causes.is_complete);
    let [cause] = <[PortCause; 1]>::try_from(causes.ports).unwrap();
    cause
}

const fn counts(all: usize, ready: usize, terminating: usize) -> Counts {
    Counts { all, ready, terminating }
}

const fn taken(category: Category, count: usize) -> Taken {
    Taken { category, count }
}

#[test]
fn an_unknown_service_has_no_causes() {
    assert_eq!(Gathered::of(&State::new("here"), &name("default/web")).causes(), None);
}

#[test]
fn the_counts_tell_the_causes_apart() {
    // The counts show whether there is no pod, none that is Ready, none on this node, or only terminating ones (C3, C4, C5, C8).
    use Category::{Nothing, Ready, Terminating};
    type Case = (&'static str, &'static [&'static str], [Counts; 2], Taken, Taken);
    let cases: [Case; 7] = [
        ("no pods", &[], [counts(0, 0, 0); 2], taken(Nothing, 0), taken(Nothing, 0)),
        (
            "none is ready",
            &["1 @here unready", "2 dead"],
            [counts(2, 0, 0), counts(1, 0, 0)],
            taken(Nothing, 0),
            taken(Nothing, 0),
        ),
        ("ready", &["1 @here", "2", "3 unready"], [counts(3, 2, 0), counts(1, 1, 0)], taken(Ready, 2), taken(Ready, 1)),
        ("none is local", &["1 @there", "2"], [counts(2, 2, 0), counts(0, 0, 0)], taken(Ready, 2), taken(Nothing, 0)),
        (
            "all terminate",
            &["1 @here terminating", "2 terminating"],
            [counts(2, 0, 2), counts(1, 0, 1)],
            taken(Terminating, 2),
            taken(Terminating, 1),
        ),
        (
            "the local one terminates",
            &["1 @here terminating", "2"],
            [counts(2, 1, 1), counts(1, 0, 1)],
            taken(Ready, 1),
            taken(Terminating, 1),
        ),
        (
            "ready while it terminates",
            &["1 @here published"],
            [counts(1, 1, 0), counts(1, 1, 0)],
            taken(Ready, 1),
            taken(Ready, 1),
        ),
    ];
    for (case, endpoints, [all, here], cluster, local) in cases {
        let cause = only_cause(&with_endpoints(exposed(CLUSTER, LOCAL), endpoints));
        assert_eq!((cause.pods, cause.endpoints, cause.here), (all, all, here), "{case}");
        assert_eq!((cause.cluster.map(|(taken, _)| taken), cause.local), (Some(cluster), Some(local)), "{case}");
    }
}

#[test]
fn a_list_that_no_frontend_uses_has_no_cause() {
    let endpoints = ["1 @here"];
    let of = |service| {
        let cause = only_cause(&with_endpoints(service, &endpoints));
        (cause.cluster.is_some(), cause.local.is_some(), cause.internal, cause.external)
    };
    assert_eq!(of(web()), (true, false, CLUSTER, None));
    assert_eq!(of(Service { internal_policy: LOCAL, ..web() }), (false, true, LOCAL, None));
    assert_eq!(of(exposed(LOCAL, CLUSTER)), (true, true, LOCAL, Some(CLUSTER)));
}

#[test]
fn pods_without_the_port_are_counted_apart() {
    let slice = |slice_name, port, endpoints: &[&str]| {
        Event::SliceApplied(slice(slice_name, "default/web", &[slice_port(port, 8080)], endpoints))
    };
    // The pod 10.244.0.1 is in two slices with different ports, and counts once.
    let events = [
        Event::ServiceApplied(Service { ports: vec![port("http", 80), port("http/udp", 80)], ..web() }),
        slice("default/web-1", "http", &["10.244.0.1", "10.244.0.2 unready"]),
        slice("default/web-2", "admin", &["10.244.0.1", "10.244.0.3 terminating", "10.244.0.4"]),
    ];
    let causes = causes(&state(events));
    assert_eq!(causes.ports.iter().map(|cause| cause.pods).collect::<Vec<_>>(), [counts(4, 2, 1); 2]);
    assert_eq!(
        causes.ports.iter().map(|cause| cause.endpoints).collect::<Vec<_>>(),
        [counts(2, 1, 0), counts(0, 0, 0)]
    );
}

#[test]
fn hints_that_are_not_used_have_a_reason() {
    // Hints for nodes or for zones apply only if each Ready endpoint has some and one is for this node or zone (C2, C9).
    use Topology::Used;
    let ignored = Topology::Ignored;
    let missing = |hint, without| ignored(Ignored::Missing { hint, without });
    let cases: [(&[&str], Topology); 11] = [
        (&[], ignored(Ignored::NoneReady)),
        (&["1 zones=a unready", "2 zones=a terminating"], ignored(Ignored::NoneReady)),
        (&["1", "2"], ignored(Ignored::NoHints)),
        (&["1", "2 zones=a terminating"], ignored(Ignored::NoHints)),
        (&["1 zones=a", "2 zones=b"], Used(Hint::Zone)),
        (&["1 nodes=here zones=a", "2 nodes=there zones=a"], Used(Hint::Node)),
        (&["1 nodes=here zones=b", "2 zones=a"], Used(Hint::Zone)),
        (&["1 zones=a", "2", "3"], missing(Hint::Zone, 2)),
        (&["1 nodes=here", "2"], missing(Hint::Node, 1)),
        (&["1 zones=b", "2 zones=c"], ignored(Ignored::NotHere(Hint::Zone))),
        (&["1 nodes=there", "2 nodes=there"], ignored(Ignored::NotHere(Hint::Node))),
    ];
    for (endpoints, topology) in cases {
        let cause = only_cause(&with_endpoints(web(), endpoints));
        assert_eq!(cause.cluster.map(|(_, topology)| topology), Some(topology), "{endpoints:?}");
    }
    let mut zoneless = with_endpoints(web(), &["1 zones=a"]);
    zoneless.apply(Event::NodeApplied(node(None)));
    assert_eq!(only_cause(&zoneless).cluster.map(|(_, topology)| topology), Some(ignored(Ignored::NoZone)));
    assert_eq!((causes(&zoneless).zone, causes(&with_endpoints(web(), &[])).zone), (None, Some("a".into())));
}

#[test]
fn each_family_has_its_own_causes() {
    let dual = Service { ports: vec![port("http", 80)], ..service("default/web", &["10.96.0.1", "fd00::1"]) };
    let causes = causes(&with_endpoints(dual, &["1"]));
    let found: Vec<_> = causes.ports.iter().map(|cause| (cause.family, cause.pods.all, &*cause.label)).collect();
    assert_eq!(found, [(Family::V4, 1, "default/web:http"), (Family::V6, 0, "default/web:http")]);
}

#[test]
fn a_service_that_takes_too_long_is_cut_and_says_so() {
    let ports = |count: usize| (0..count).map(|n| port(&format!("p{n}"), 80)).collect();
    let most = MOST_WORK / PORT_WORK;
    for (count, is_complete) in [(most, true), (most + 5, false)] {
        let causes = causes(&with_endpoints(Service { ports: ports(count), ..web() }, &[]));
        assert_eq!((causes.ports.len(), causes.is_complete), (most, is_complete));
    }
}

#[test]
fn the_counts_are_those_of_the_selection() {
    let state = with_endpoints(exposed(LOCAL, LOCAL), &["1 @here zones=a", "2 @there zones=b", "3 @here zones=b"]);
    let (cause, selection) = (only_cause(&state), selection(&state));
    let lists = [selection.ports[0].cluster.len(), selection.ports[0].local.len()];
    assert_eq!([cause.cluster.unwrap().0.count, cause.local.unwrap().count], lists);
    assert_eq!(lists, [1, 2]);
}
