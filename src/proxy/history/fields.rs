//! Lists the fields in which two versions of a Service differ.

use std::fmt::Display;

use inspect::history::{FieldChange, cut};
use rules::model::{Family, Service, ServicePort, TrafficPolicy};

/// Formats the value of a field.
type Value = fn(&Service) -> String;

/// Returns those of the fields listed here that differ, in the order of the list.
#[must_use]
pub fn between(before: &Service, after: &Service) -> Vec<FieldChange> {
    let fields: [(&str, Value); 10] = [
        ("clusterIPs", |service| list(Family::BOTH.into_iter().filter_map(|family| service.cluster_ips.get(family)))),
        ("externalIPs", |service| list(&service.external_ips)),
        ("loadBalancerIPs", |service| list(&service.load_balancer_ips)),
        ("loadBalancerSourceRanges", |service| list(&service.source_ranges)),
        ("externalTrafficPolicy", |service| policy(service.external_policy)),
        ("internalTrafficPolicy", |service| policy(service.internal_policy)),
        ("sessionAffinity", |service| match service.affinity_seconds {
            Some(seconds) => format!("ClientIP for {seconds} s"),
            None => "None".to_owned(),
        }),
        ("weights", |service| service.weights.to_string()),
        ("healthCheckNodePort", |service| list(service.health_check_node_port)),
        ("ports", |service| list(service.ports.iter().map(port))),
    ];
    let changed = fields.into_iter().map(|(field, value)| (field, value(before), value(after)));
    let changed = changed.filter(|(_, before, after)| before != after);
    changed
        .map(|(field, before, after)| FieldChange { field: field.to_owned(), before: cut(before), after: cut(after) })
        .collect()
}

/// Adds later changes to `changes`. A field that has its first value again is removed from `changes`.
pub fn merge(changes: &mut Vec<FieldChange>, later: Vec<FieldChange>) {
    for change in later {
        match changes.iter_mut().find(|known| known.field == change.field) {
            Some(known) => known.after = change.after,
            None => changes.push(change),
        }
    }
    changes.retain(|change| change.before != change.after);
}

fn list(values: impl IntoIterator<Item = impl Display>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

fn policy(policy: TrafficPolicy) -> String {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
    .to_owned()
}

/// Formats a port as `http:80/TCP`, or with a node port as `http:80/TCP (node port 30080)`.
fn port(port: &ServicePort) -> String {
    let name = if port.name.is_empty() { String::new() } else { format!("{}:", port.name) };
    let node_port = port.node_port.map(|number| format!(" (node port {number})")).unwrap_or_default();
    format!("{name}{}/{}{node_port}", port.port, port.protocol.to_string().to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::model::testing;

    fn change(field: &str, before: &str, after: &str) -> FieldChange {
        FieldChange { field: field.to_owned(), before: before.to_owned(), after: after.to_owned() }
    }

    #[test]
    fn a_policy_a_port_and_affinity_are_told_with_both_values() {
        let mut before = testing::service("shop/web", &["10.96.0.10"]);
        before.ports = vec![testing::port("http", 80)];
        let mut after = before.clone();
        after.external_policy = TrafficPolicy::Local;
        after.affinity_seconds = Some(10_800);
        after.ports[0].node_port = Some(30080);
        let found = between(&before, &after);
        let names: Vec<&str> = found.iter().map(|change| &*change.field).collect();
        assert_eq!(names, ["externalTrafficPolicy", "sessionAffinity", "ports"]);
        assert_eq!(found[0], change("externalTrafficPolicy", "Cluster", "Local"));
        assert_eq!((&*found[1].before, &*found[1].after), ("None", "ClientIP for 10800 s"));
        assert!(found[2].after.ends_with("(node port 30080)"), "{found:?}");
        assert_eq!(between(&before, &before), []);
    }

    #[test]
    fn of_several_changes_the_first_and_the_last_value_count() {
        let mut changes = vec![change("a", "1", "2"), change("b", "x", "y")];
        merge(&mut changes, vec![change("a", "2", "3"), change("b", "y", "x"), change("c", "", "z")]);
        assert_eq!(changes, [change("a", "1", "3"), change("c", "", "z")]);
    }

    #[test]
    fn a_long_value_is_cut() {
        let before = testing::service("shop/web", &["10.96.0.10"]);
        let mut after = before.clone();
        after.source_ranges = (0..255).map(|n| format!("10.{n}.0.0/16").parse().unwrap()).collect();
        let found = between(&before, &after);
        assert!(found[0].after.len() <= 512 && found[0].after.ends_with("..."), "{found:?}");
    }
}
