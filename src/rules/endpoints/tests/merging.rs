//! Tests of the merging of a Service's slices into one list of endpoints.

use super::{CLUSTER, LOCAL, exposed, lists, only_port, selection, web};
use crate::model::testing::{port, service, slice, slice_port, state};
use crate::model::{EndpointSlice, Event, Service};

fn texts(endpoints: &[std::net::SocketAddr]) -> Vec<String> {
    endpoints.iter().map(ToString::to_string).collect()
}

fn http_slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
    slice(name, "default/web", &[slice_port("http", 8080)], endpoints)
}

#[test]
fn slices_are_merged() {
    // The endpoints of all slices of a Service are merged; without slices the lists are empty (B4, C1).
    let mut state = state([Event::ServiceApplied(web())]);
    assert_eq!(lists(&state), ["", ""]);
    let one = http_slice("default/web-1", &["10.244.0.3", "10.244.0.1"]);
    state.apply(Event::SliceApplied(one.clone()));
    state.apply(Event::SliceApplied(http_slice("default/web-2", &["10.244.0.2"])));
    state.apply(Event::SliceApplied(slice("default/api-1", "default/api", &one.ports, &["10.244.0.9"])));
    assert_eq!(lists(&state), ["1 2 3", ""]);
    state.apply(Event::SliceDeleted(one.name));
    assert_eq!(lists(&state), ["2", ""]);
}

#[test]
fn lists_are_sorted_by_address_not_by_text() {
    // Endpoints are sorted by address as a number, and not as text as upstream does (B11).
    let state = state([
        Event::ServiceApplied(web()),
        Event::SliceApplied(http_slice("default/web-1", &["10.244.0.10", "10.244.0.2", "10.244.0.2"])),
    ]);
    assert_eq!(lists(&state), ["2 10", ""]);
}

#[test]
fn a_named_port_may_have_another_number_in_each_slice() {
    // Slices are merged by the name of the port, not by its number (A5, B4).
    let ports = vec![port("web", 80), port("dns", 53), port("dns/udp", 53)];
    let slices = [
        slice("default/web-1", "default/web", &[slice_port("web", 8080), slice_port("dns/udp", 5353)], &["10.244.0.1"]),
        slice("default/web-2", "default/web", &[slice_port("web", 9090), slice_port("dns", 53)], &["10.244.0.2"]),
        slice("default/web-3", "default/web", &[slice_port("other", 1)], &["10.244.0.3"]),
    ];
    let mut state = state([Event::ServiceApplied(Service { ports, ..web() })]);
    slices.into_iter().for_each(|slice| {
        state.apply(Event::SliceApplied(slice));
    });
    let clusters: Vec<Vec<String>> = selection(&state).ports.iter().map(|port| texts(&port.cluster)).collect();
    // The slice that has only a port `other` adds no endpoint (B12).
    assert_eq!(clusters, [vec!["10.244.0.1:8080", "10.244.0.2:9090"], vec!["10.244.0.2:53"], vec!["10.244.0.1:5353"]]);
}

#[test]
fn of_duplicates_the_running_and_then_the_later_wins() {
    // The duplicates differ in node or condition, so the two lists show which duplicate was used (B10).
    let cases: [(&str, &str, &str, [&str; 2]); 6] = [
        ("the later wins", "@there", "@here", ["1", "1"]),
        ("the later wins, local first", "@here", "@there", ["1", ""]),
        ("running beats terminating", "@there", "@here terminating", ["1", ""]),
        ("running beats terminating, in any order", "@here terminating", "@there", ["1", ""]),
        ("the first of two terminating ones stays", "@here terminating", "@there terminating", ["1", "1"]),
        ("even an unready one beats a terminating one", "@here unready", "@here terminating", ["", ""]),
    ];
    for (case, first, second, expected) in cases {
        let [first, second] = [first, second].map(|words| format!("10.244.0.1 {words}"));
        let web = || Event::ServiceApplied(exposed(CLUSTER, LOCAL));
        let within = http_slice("default/web-1", &[&first, &second]);
        assert_eq!(lists(&state([web(), Event::SliceApplied(within)])), expected, "{case}, within a slice");

        let across = [http_slice("default/web-2", &[&second]), http_slice("default/web-1", &[&first])];
        let events = std::iter::once(web()).chain(across.map(Event::SliceApplied));
        assert_eq!(lists(&state(events)), expected, "{case}, across slices that came in the other order");
    }
}

#[test]
fn families_never_mix() {
    // An endpoint serves only frontends of its own family (B3, D24).
    let dual = Service { ports: vec![port("http", 80)], ..service("default/web", &["10.96.0.1", "fd00::1"]) };
    let state = state([
        Event::ServiceApplied(dual),
        Event::SliceApplied(http_slice("default/web-1", &["10.244.0.1"])),
        Event::SliceApplied(http_slice("default/web-2", &["fd01::1"])),
    ]);
    let clusters: Vec<Vec<String>> = selection(&state).ports.iter().map(|port| texts(&port.cluster)).collect();
    assert_eq!(clusters, [["10.244.0.1:8080"], ["[fd01::1]:8080"]]);
}

#[test]
fn endpoints_that_came_before_the_service_are_used() {
    // Endpoints that came before their Service are used when it appears (B13).
    let slice = http_slice("default/web-1", &["10.244.0.1"]);
    let state = state([Event::SliceApplied(slice), Event::ServiceApplied(web())]);
    assert_eq!(texts(&only_port(&state).cluster), ["10.244.0.1:8080"]);
}

#[test]
fn a_change_of_several_slices_is_one_change() {
    // When several slices of a Service change, the state reports the Service as changed once (B14).
    let mut state = state([Event::ServiceApplied(web())]);
    state.apply(Event::SliceApplied(http_slice("default/web-1", &["10.244.0.1"])));
    state.apply(Event::SliceApplied(http_slice("default/web-2", &["10.244.0.2"])));
    let dirty = state.take_dirty();
    assert_eq!(dirty.services, [web().name]);
    assert_eq!(lists(&state), ["1 2", ""]);
}
