//! Makes the Kubernetes Event object for a [`ReportedEvent`]: reason, action, note, and the object that the event is about. Does no I/O.

use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use super::ReportedEvent;

/// The name of the reporting controller. It is upstream's, so that a search for the events of kube-proxy finds these as well (P9).
const CONTROLLER: &str = "kube-proxy";
/// The longest note and the longest name of a reporting instance that the API accepts, in bytes (`NoteLengthLimit` and
/// `ReportingInstanceLengthLimit` in Kubernetes' `pkg/apis/core/validation/events.go`).
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;

/// Returns the `events.k8s.io/v1` object that is sent to report an event.
pub(super) fn object(node: &str, event: &ReportedEvent, now: SystemTime) -> Event {
    let regarding = regarding(node, event);
    // The conversion fails only if the clock shows a year that a `Timestamp` cannot hold. The event then has the time 1970-01-01.
    let now = Timestamp::try_from(now).unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", regarding.name.as_deref().unwrap_or_default(), now.as_nanosecond())),
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if matches!(event, ReportedEvent::Starting) { "Normal" } else { "Warning" }.to_owned()),
        reason: Some(reason(event).to_owned()),
        action: Some(action(event).to_owned()),
        note: Some(truncated(note(node, event), MAX_NOTE)).filter(|note| !note.is_empty()),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(truncated(format!("{CONTROLLER}-{node}"), MAX_INSTANCE)),
        ..Event::default()
    }
}

/// Returns the reference to the object that an event is about. As in upstream, field `uid` has the name of a Node, or `namespace/name` of a
/// Service.
pub(super) fn regarding(node: &str, event: &ReportedEvent) -> ObjectReference {
    match event {
        ReportedEvent::Starting
        | ReportedEvent::AnotherProxy
        | ReportedEvent::Mode(_)
        | ReportedEvent::EphemeralNodePorts(_)
        | ReportedEvent::HealthzFailed(_)
        | ReportedEvent::MetricsFailed(_) => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        ReportedEvent::ServiceHealthCheckFailed { service, .. }
        | ReportedEvent::ServiceNotProgrammed { service, .. }
        | ReportedEvent::FrontNotProgrammed { service, .. } => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(service.namespace.to_string()),
            name: Some(service.name.to_string()),
            uid: Some(service.to_string()),
            ..ObjectReference::default()
        },
    }
}

fn reason(event: &ReportedEvent) -> &'static str {
    match event {
        ReportedEvent::Starting => "Starting",
        ReportedEvent::HealthzFailed(_) => "FailedToStartProxierHealthcheck",
        ReportedEvent::MetricsFailed(_) => "FailedToStartMetricServer",
        ReportedEvent::AnotherProxy => "AnotherKubeProxy",
        ReportedEvent::Mode(_) => "ProxyModeIsNftables",
        ReportedEvent::EphemeralNodePorts(_) => "NodePortIsEphemeral",
        ReportedEvent::ServiceHealthCheckFailed { .. } => "FailedToStartServiceHealthcheck",
        ReportedEvent::ServiceNotProgrammed { .. } => "ServiceNotProgrammed",
        ReportedEvent::FrontNotProgrammed { .. } => "FrontNotProgrammed",
    }
}

fn action(event: &ReportedEvent) -> &'static str {
    match event {
        ReportedEvent::ServiceHealthCheckFailed { .. } => "Listen",
        ReportedEvent::AnotherProxy
        | ReportedEvent::EphemeralNodePorts(_)
        | ReportedEvent::ServiceNotProgrammed { .. }
        | ReportedEvent::FrontNotProgrammed { .. } => "Program",
        ReportedEvent::Mode(_) => "ProxyModeCheck",
        _ => "StartKubeProxy",
    }
}

fn note(node: &str, event: &ReportedEvent) -> String {
    match event {
        ReportedEvent::Starting => String::new(),
        ReportedEvent::AnotherProxy => {
            format!(
                "another kube-proxy, in mode nftables, writes to the same tables of node {node}: end one of the two"
            )
        }
        ReportedEvent::EphemeralNodePorts(text) => format!("node {node}: {text}"),
        ReportedEvent::Mode(text) | ReportedEvent::HealthzFailed(text) | ReportedEvent::MetricsFailed(text) => {
            text.clone()
        }
        ReportedEvent::ServiceHealthCheckFailed { service, port, error } => {
            format!("node {node} failed to start healthcheck {:?} on port {port}: {error}", service.to_string())
        }
        ReportedEvent::ServiceNotProgrammed { error, .. } => {
            format!("node {node} goes on without the changes of this Service: {error}")
        }
        ReportedEvent::FrontNotProgrammed { reason, .. } => format!("node {node}: {reason}"),
    }
}

/// Cuts a text to at most `max` bytes, but not within a character.
fn truncated(mut text: String, max: usize) -> String {
    while text.len() > max {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rules::model::ObjectName;
    use serde_json::json;

    use super::*;

    fn failed(error: &str) -> ReportedEvent {
        let service = ObjectName::new("demo", "web");
        ReportedEvent::ServiceHealthCheckFailed { service, port: 30_500, error: error.to_owned() }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    // The start is reported as an event about the node (O11).
    #[test]
    fn the_start_is_an_event_of_the_node() {
        let event = serde_json::to_value(object("node-1", &ReportedEvent::Starting, at(1))).unwrap();
        let expected = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "node-1.3b9aca00", "namespace": "default"},
            "eventTime": "1970-01-01T00:00:01.000000Z",
            "type": "Normal",
            "reason": "Starting",
            "action": "StartKubeProxy",
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"},
            "reportingController": "kube-proxy",
            "reportingInstance": "kube-proxy-node-1",
        });
        assert_eq!(event, expected);
    }

    // Mode ipvs in the configuration is reported as a warning about the node (P12).
    #[test]
    fn another_mode_is_a_warning_of_the_node() {
        let event = object("node-1", &ReportedEvent::Mode("mode is \"ipvs\"".to_owned()), at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("ProxyModeIsNftables")));
        assert_eq!(
            (event.action.as_deref(), event.note.as_deref()),
            (Some("ProxyModeCheck"), Some("mode is \"ipvs\""))
        );
        assert_eq!(event.regarding.and_then(|about| about.kind).as_deref(), Some("Node"));
    }

    // Node ports that other programs may get are reported as a warning about the node (N6).
    #[test]
    fn ephemeral_node_ports_are_a_warning_of_the_node() {
        let event = object("node-1", &ReportedEvent::EphemeralNodePorts("node ports 30080".to_owned()), at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("NodePortIsEphemeral")));
        assert_eq!(
            (event.action.as_deref(), event.note.as_deref()),
            (Some("Program"), Some("node node-1: node ports 30080"))
        );
        assert_eq!(event.regarding.and_then(|about| about.kind).as_deref(), Some("Node"));
    }

    // A health check that cannot listen is reported as an event about its Service (K4).
    #[test]
    fn a_health_check_that_cannot_listen_is_an_event_of_its_service() {
        let event = object("node-1", &failed("address in use"), at(1));
        assert_eq!(event.metadata.namespace.as_deref(), Some("demo"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("FailedToStartServiceHealthcheck"));
        assert_eq!(event.action.as_deref(), Some("Listen"));
        let note = "node node-1 failed to start healthcheck \"demo/web\" on port 30500: address in use";
        assert_eq!(event.note.as_deref(), Some(note));
        let about = event.regarding.unwrap();
        assert_eq!((about.kind.as_deref(), about.name.as_deref()), (Some("Service"), Some("web")));
    }

    #[test]
    fn a_service_that_the_kernel_refuses_has_an_event() {
        let service = ObjectName::new("demo", "web");
        let event = ReportedEvent::ServiceNotProgrammed { service, error: "set full".to_owned() };
        let event = object("node-1", &event, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("ServiceNotProgrammed")));
        assert_eq!((event.metadata.namespace.as_deref(), event.action.as_deref()), (Some("demo"), Some("Program")));
        assert!(event.note.is_some_and(|note| note.contains("node-1") && note.ends_with("set full")));
        assert_eq!(event.regarding.and_then(|about| about.name).as_deref(), Some("web"));
    }

    #[test]
    fn a_claim_that_loses_is_an_event_of_its_service() {
        let service = ObjectName::new("demo", "web");
        let event = ReportedEvent::FrontNotProgrammed { service, reason: "a/b gets it".to_owned() };
        let event = object("node-1", &event, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("FrontNotProgrammed")));
        assert_eq!(event.action.as_deref(), Some("Program"));
        assert_eq!(event.note.as_deref(), Some("node node-1: a/b gets it"));
        assert_eq!(event.regarding.and_then(|about| about.name).as_deref(), Some("web"));
    }

    // A healthz or metrics server that cannot listen ends the process, and is reported as an event about the node (O8).
    #[test]
    fn servers_that_end_the_process_are_events_of_the_node() {
        for (event, reason) in [
            (ReportedEvent::HealthzFailed("in use".to_owned()), "FailedToStartProxierHealthcheck"),
            (ReportedEvent::MetricsFailed("in use".to_owned()), "FailedToStartMetricServer"),
        ] {
            let event = object("node-1", &event, at(1));
            assert_eq!(event.reason.as_deref(), Some(reason));
            assert_eq!((event.type_.as_deref(), event.note.as_deref()), (Some("Warning"), Some("in use")));
            assert_eq!(event.action.as_deref(), Some("StartKubeProxy"));
        }
    }

    #[test]
    fn another_kube_proxy_is_an_event_of_the_node() {
        let event = object("node-1", &ReportedEvent::AnotherProxy, at(1));
        assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("AnotherKubeProxy")));
        assert_eq!(event.regarding.and_then(|about| about.kind).as_deref(), Some("Node"));
        assert!(event.note.is_some_and(|note| note.contains("another kube-proxy") && note.contains("node-1")));
    }

    #[test]
    fn long_texts_are_cut_to_what_the_api_accepts() {
        let event = object(&"n".repeat(253), &failed(&"ä".repeat(2_000)), at(1));
        assert!(event.note.is_some_and(|note| note.len() <= MAX_NOTE && note.ends_with('ä')));
        assert_eq!(event.reporting_instance.map(|instance| instance.len()), Some(MAX_INSTANCE));
    }
}
