//! EndpointSlice objects (B1 to B9).

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1 as discovery;

use super::text::is_dns_subdomain;
use super::{Converted, Converter, Scope};
use crate::model::{Conditions, Endpoint, EndpointSlice, Event, Family, Hints, ObjectName, SlicePort, TriggerTime};

/// Label of slices that are not for proxies (B1).
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label that names the Service of a slice (B2).
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Annotation that says when the slice had to change.
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

impl Converter {
    /// An EndpointSlice; [`Event::SliceDeleted`] when it is not usable (B1 to B3).
    pub fn endpoint_slice(&mut self, object: &discovery::EndpointSlice) -> Converted {
        let mut scope = Scope::new("EndpointSlice", &object.metadata);
        let Some(name) = self.object_name(&object.metadata, &mut scope) else {
            return scope.finish(None);
        };
        let event = match self.usable_slice(&name, object, &mut scope) {
            Some(slice) => Event::SliceApplied(slice),
            None => Event::SliceDeleted(name),
        };
        scope.finish(Some(event))
    }

    fn usable_slice(
        &mut self,
        name: &ObjectName,
        object: &discovery::EndpointSlice,
        scope: &mut Scope,
    ) -> Option<EndpointSlice> {
        let label = |key| object.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        if label(HEADLESS_LABEL).is_some() {
            return None; // B1
        }
        let service = label(SERVICE_LABEL).map(String::as_str).unwrap_or_default();
        if !is_dns_subdomain(service) {
            let problem = format!("{service:?} is not the name of a Service; slice ignored");
            scope.notice(format!("metadata.labels[{SERVICE_LABEL}]"), problem);
            return None; // B2
        }
        let family = slice_family(&object.address_type, scope)?;
        Some(EndpointSlice {
            name: name.clone(),
            service: ObjectName { namespace: Arc::clone(&name.namespace), name: self.names.share(service) },
            family,
            ports: self.slice_ports(object, scope),
            endpoints: self.slice_endpoints(object, family, scope),
            trigger: trigger(object.metadata.annotations.as_ref()),
        })
    }

    fn slice_ports(&mut self, object: &discovery::EndpointSlice, scope: &mut Scope) -> Vec<SlicePort> {
        let ports = object.ports.as_deref().unwrap_or_default().iter().enumerate();
        ports.filter_map(|(index, port)| self.slice_port(port, &format!("ports[{index}]"), scope)).collect()
    }

    fn slice_port(&mut self, port: &discovery::EndpointPort, field: &str, scope: &mut Scope) -> Option<SlicePort> {
        let Some(name) = port.name.as_deref() else {
            scope.notice(format!("{field}.name"), "not set (\"\" for an unnamed port); port ignored");
            return None; // B5
        };
        let name = self.port_name(name, field, scope)?;
        let protocol = scope.protocol(field, port.protocol.as_deref())?;
        let port = scope.port(format_args!("{field}.port"), port.port.unwrap_or_default(), "port ignored")?;
        Some(SlicePort { name, protocol, port })
    }

    fn slice_endpoints(
        &mut self,
        object: &discovery::EndpointSlice,
        family: Family,
        scope: &mut Scope,
    ) -> Vec<Endpoint> {
        let endpoints = object.endpoints.as_deref().unwrap_or_default().iter().enumerate();
        endpoints.filter_map(|(index, endpoint)| self.endpoint(endpoint, index, family, scope)).collect()
    }

    fn endpoint(
        &mut self,
        endpoint: &discovery::Endpoint,
        index: usize,
        family: Family,
        scope: &mut Scope,
    ) -> Option<Endpoint> {
        let Some(text) = endpoint.addresses.first() else {
            scope.notice(format!("endpoints[{index}].addresses"), "empty; endpoint ignored");
            return None; // B6
        };
        let address = scope.ip(format_args!("endpoints[{index}].addresses[0]"), text)?;
        if Family::of(address) != family {
            let problem = format!("{text:?} is not an {family} address; ignored");
            scope.notice(format!("endpoints[{index}].addresses[0]"), problem);
            return None; // B3
        }
        let node = endpoint.node_name.as_deref().filter(|node| !node.is_empty());
        Some(Endpoint {
            address,
            conditions: conditions(endpoint.conditions.as_ref()),
            node: node.map(|node| self.names.share(node)),
            hints: endpoint.hints.as_ref().and_then(|hints| self.hints(hints)),
        })
    }

    /// Topology hints; `None` when there are none (B9).
    fn hints(&mut self, hints: &discovery::EndpointHints) -> Option<Box<Hints>> {
        let zones = hints.for_zones.as_deref().unwrap_or_default();
        let nodes = hints.for_nodes.as_deref().unwrap_or_default();
        if zones.is_empty() && nodes.is_empty() {
            return None;
        }
        Some(Box::new(Hints {
            zones: zones.iter().map(|zone| self.names.share(&zone.name)).collect(),
            nodes: nodes.iter().map(|node| self.names.share(&node.name)).collect(),
        }))
    }
}

/// When the slice had to change; what cannot be read is as if it were not there (surface.md section 6).
fn trigger(annotations: Option<&BTreeMap<String, String>>) -> TriggerTime {
    let text = annotations.and_then(|annotations| annotations.get(TRIGGER_ANNOTATION));
    let time = text.and_then(|text| text.parse::<Timestamp>().ok());
    TriggerTime(time.and_then(|time| i64::try_from(time.as_nanosecond()).ok()))
}

/// The family of a slice (B3).
fn slice_family(address_type: &str, scope: &mut Scope) -> Option<Family> {
    match address_type {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        other => {
            scope.notice("addressType", format!("{other:?} is not IPv4 or IPv6; slice ignored"));
            None
        }
    }
}

/// Conditions with their defaults (B7).
fn conditions(conditions: Option<&discovery::EndpointConditions>) -> Conditions {
    conditions.map_or(Conditions::READY, |conditions| Conditions {
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
    })
}
