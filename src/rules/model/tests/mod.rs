mod claims;

use super::testing::{NODE, name, node, port, ranges, service, slice, slice_port, state};
use super::*;

fn dirty_after(state: &mut State, event: Event) -> Dirty {
    state.apply(event);
    taken(state)
}

/// Takes the dirty set, with the Services sorted by name.
fn taken(state: &mut State) -> Dirty {
    let mut dirty = state.take_dirty();
    dirty.services.sort();
    dirty
}

fn dirty_services(names: &[&str]) -> Dirty {
    Dirty { services: names.iter().map(|text| name(text)).collect(), ..Dirty::default() }
}

fn web() -> Service {
    Service { ports: vec![port("http", 80)], ..service("default/web", &["10.96.0.1"]) }
}

fn web_slice() -> EndpointSlice {
    slice("default/web-1", "default/web", &[slice_port("http", 8080)], &["10.244.0.1"])
}

#[test]
fn only_a_change_of_content_dirties() {
    // A Service or slice with the same content as before is no change (A6, B4).
    let mut state = State::new(NODE);
    let cidr = || Event::ServiceCidrApplied("kubernetes".into(), ranges(&["10.96.0.0/16"]));
    let steps = [
        ("a new Service", Event::ServiceApplied(web()), dirty_services(&["default/web"])),
        ("the same Service", Event::ServiceApplied(web()), Dirty::default()),
        ("an unknown Service goes", Event::ServiceDeleted(name("default/none")), Dirty::default()),
        ("a new slice", Event::SliceApplied(web_slice()), dirty_services(&["default/web"])),
        ("the same slice", Event::SliceApplied(web_slice()), Dirty::default()),
        ("an unknown slice goes", Event::SliceDeleted(name("default/none-1")), Dirty::default()),
        ("the slice goes", Event::SliceDeleted(name("default/web-1")), dirty_services(&["default/web"])),
        ("the slice goes again", Event::SliceDeleted(name("default/web-1")), Dirty::default()),
        ("the node", Event::NodeApplied(node(None)), Dirty { node: true, ..Dirty::default() }),
        ("the same node", Event::NodeApplied(node(None)), Dirty::default()),
        ("a ServiceCIDR", cidr(), Dirty { service_cidrs: true, ..Dirty::default() }),
        ("the same ServiceCIDR", cidr(), Dirty::default()),
        ("an unknown ServiceCIDR goes", Event::ServiceCidrDeleted("none".into()), Dirty::default()),
        ("the list is done", Event::InitialListDone, Dirty::default()),
        ("the Service goes", Event::ServiceDeleted(name("default/web")), dirty_services(&["default/web"])),
        ("the Service goes again", Event::ServiceDeleted(name("default/web")), Dirty::default()),
    ];
    for (step, event, expected) in steps {
        assert_eq!(dirty_after(&mut state, event), expected, "{step}");
    }
    assert!(state.take_dirty().is_empty());
}

#[test]
fn dirt_gathers_until_it_is_taken() {
    let mut state = State::new(NODE);
    state.apply(Event::ServiceApplied(web()));
    state.apply(Event::ServiceApplied(Service { name: name("default/api"), ..service("default/api", &[]) }));
    state.apply(Event::NodeApplied(node(None)));
    let dirty = taken(&mut state);
    assert_eq!(dirty, Dirty { node: true, ..dirty_services(&["default/api", "default/web"]) });
    assert!(!dirty.is_empty());
}

#[test]
fn complete_once_the_initial_list_is_done() {
    // The state is complete once all objects have been listed; before that the proxy writes no rules (G1).
    let mut state = State::new(NODE);
    state.apply(Event::ServiceApplied(web()));
    assert!(!state.is_complete());
    state.apply(Event::InitialListDone);
    assert!(state.is_complete());
}

#[test]
fn slices_wait_for_their_service() {
    // The state keeps endpoints whose Service is not known yet (B13).
    let mut state = state([Event::SliceApplied(web_slice())]);
    assert_eq!(state.service(&name("default/web")), None);
    state.apply(Event::ServiceApplied(web()));
    assert_eq!(state.slices_of(&name("default/web")).collect::<Vec<_>>(), [&web_slice()]);
    state.apply(Event::ServiceDeleted(name("default/web")));
    assert_eq!(state.slices_of(&name("default/web")).count(), 1);
}

#[test]
fn slices_come_in_order_of_name() {
    // The slices of a Service are merged in the order of their names (B4).
    let named = |slice_name: &str| EndpointSlice { name: name(slice_name), ..web_slice() };
    let order = ["default/b", "default/d", "default/a", "default/c", "default/b"];
    let state = state(order.map(|slice_name| Event::SliceApplied(named(slice_name))));
    let names: Vec<String> = state.slices_of(&name("default/web")).map(|slice| slice.name.to_string()).collect();
    assert_eq!(names, ["default/a", "default/b", "default/c", "default/d"]);
}

#[test]
fn a_slice_that_changes_its_service_dirties_both() {
    // A slice's label names its Service. When the label changes, both Services become dirty (B2).
    let mut state = state([Event::SliceApplied(web_slice())]);
    let moved = EndpointSlice { service: name("default/api"), ..web_slice() };
    let dirty = dirty_after(&mut state, Event::SliceApplied(moved.clone()));
    assert_eq!(dirty, dirty_services(&["default/api", "default/web"]));
    assert_eq!(state.slices_of(&name("default/web")).count(), 0);
    assert_eq!(state.slices_of(&name("default/api")).collect::<Vec<_>>(), [&moved]);
    let dirty = dirty_after(&mut state, Event::SliceDeleted(moved.name));
    assert_eq!(dirty, dirty_services(&["default/api"]));
}

#[test]
fn a_zone_change_dirties_services_with_slices() {
    // A change of this node's zone takes effect at once (C9).
    let lonely = Service { name: name("default/lonely"), ..web() };
    let mut state =
        state([Event::ServiceApplied(web()), Event::SliceApplied(web_slice()), Event::ServiceApplied(lonely)]);
    let with_services = Dirty { node: true, ..dirty_services(&["default/web"]) };
    let node_only = Dirty { node: true, ..Dirty::default() };
    let ineligible = Node { eligible: false, ..node(Some("b")) };
    let steps = [
        ("first seen without zone", node(None), node_only.clone()),
        ("zone set", node(Some("a")), with_services.clone()),
        ("zone changed", node(Some("b")), with_services.clone()),
        ("another fact changed", ineligible, node_only),
        ("zone removed", node(None), with_services),
    ];
    for (step, node, expected) in steps {
        assert_eq!(dirty_after(&mut state, Event::NodeApplied(node)), expected, "{step}");
    }
}

#[test]
fn only_our_node_counts() {
    let mut state = State::new(NODE);
    let other = Node { name: "there".into(), ..node(Some("a")) };
    assert_eq!(dirty_after(&mut state, Event::NodeApplied(other)), Dirty::default());
    assert_eq!(state.node(), None);
    assert_eq!(state.node_name(), NODE);
}

#[test]
fn a_deleted_node_stays_as_last_seen() {
    // Deleting the Node object changes nothing in the state (L6).
    let mut state = state([Event::NodeApplied(node(Some("a")))]);
    assert_eq!(dirty_after(&mut state, Event::NodeDeleted(NODE.into())), Dirty::default());
    assert_eq!(state.node(), Some(&node(Some("a"))));
}

#[test]
fn service_cidrs_are_sorted_and_distinct() {
    // The ranges of all ServiceCIDRs are used together, to drop packets to addresses that no Service has (D15).
    let mut state = state([
        Event::ServiceCidrApplied("b".into(), ranges(&["fd00::/112", "10.96.0.0/16"])),
        Event::ServiceCidrApplied("a".into(), ranges(&["10.97.0.0/16", "10.96.0.7/16"])),
    ]);
    assert_eq!(state.service_cidrs(), ranges(&["10.96.0.0/16", "10.97.0.0/16", "fd00::/112"]));
    let dirty = dirty_after(&mut state, Event::ServiceCidrDeleted("b".into()));
    assert_eq!(dirty, Dirty { service_cidrs: true, ..Dirty::default() });
    assert_eq!(state.service_cidrs(), ranges(&["10.96.0.0/16", "10.97.0.0/16"]));
}

#[test]
fn services_come_in_order_of_name() {
    let named = |text: &str| Event::ServiceApplied(Service { name: name(text), ..web() });
    let state = state([named("b/a"), named("a/b"), named("a/a")]);
    let names: Vec<String> = state.services().map(|service| service.name.to_string()).collect();
    assert_eq!(names, ["a/a", "a/b", "b/a"]);
}

#[test]
fn a_change_of_the_nodes_address_dirties_services_with_source_ranges() {
    // The rules for source ranges depend on the node's own address (D18).
    let restricted = Service { source_ranges: ranges(&["192.168.0.0/24"]), ..web() };
    let other = Service { name: name("default/other"), ..web() };
    let mut state = state([Event::ServiceApplied(restricted), Event::ServiceApplied(other)]);
    let moved = Node { ips: vec!["192.168.0.9".parse().unwrap()], ..node(None) };
    let expected = Dirty { node: true, ..dirty_services(&["default/web"]) };
    assert_eq!(dirty_after(&mut state, Event::NodeApplied(moved)), expected);
}
