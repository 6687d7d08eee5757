//! Converts EndpointSlices: decides whether the proxy uses a slice, and converts its ports, addresses, conditions and hints (B1 to B9).

use std::fmt::Arguments;
use std::sync::Arc;

use jiff::Timestamp;

use super::{Converted, Converter, Fields, parse_weight};
use crate::source::objects;
use component::dns_names::is_dns_subdomain;
use component::excerpt::quoted;
use rules::model::{
    Conditions, Endpoint, EndpointSlice, Event, Family, Hints, MOST_WEIGHT, ObjectName, SlicePort, TriggerTime,
};

impl Converter {
    /// Converts an EndpointSlice. The event is [`Event::SliceDeleted`] if the proxy does not use the slice (B1 to B3).
    pub fn endpoint_slice(&mut self, object: &objects::EndpointSlice<'_>) -> Converted {
        let mut fields = Fields::of("EndpointSlice", &object.metadata);
        let Some(name) = self.object_name(&object.metadata, &mut fields) else {
            return fields.finish(None);
        };
        let event = match self.usable_slice(&name, object, &mut fields) {
            Some(slice) => Event::SliceApplied(slice),
            None => Event::SliceDeleted(name),
        };
        fields.finish(Some(event))
    }

    fn usable_slice(
        &mut self,
        name: &ObjectName,
        object: &objects::EndpointSlice<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<EndpointSlice> {
        // Proxies ignore the slices of headless Services (B1).
        if object.metadata.label(objects::HEADLESS).is_some() {
            return None;
        }
        // The label names the Service (B2).
        let service = object.metadata.label(objects::SERVICE_NAME).unwrap_or_default();
        if !is_dns_subdomain(service) {
            let text = format!("{} is not the name of a Service; slice ignored", quoted(service));
            fields.problem(format_args!("metadata.labels[{}]", objects::SERVICE_NAME), text);
            return None;
        }
        let family = slice_family(&object.address_type, fields)?;
        Some(EndpointSlice {
            name: name.clone(),
            service: ObjectName::new(Arc::clone(&name.namespace), service),
            family,
            ports: self.slice_ports(object, fields),
            endpoints: self.slice_endpoints(object, family, fields),
            weight: weight(object.metadata.annotation(objects::WEIGHT), fields),
            trigger: trigger(object.metadata.annotation(objects::TRIGGER_TIME)),
        })
    }

    fn slice_ports(&mut self, object: &objects::EndpointSlice<'_>, fields: &mut Fields<'_>) -> Vec<SlicePort> {
        // Allocate no more than the list of ports can need, because it is kept as long as the slice exists.
        let mut ports = Vec::with_capacity(object.ports.len());
        let decoded = object.ports.iter().enumerate();
        ports.extend(decoded.filter_map(|(i, port)| self.slice_port(port, format_args!("ports[{i}]"), fields)));
        ports
    }

    fn slice_port(
        &mut self,
        port: &objects::EndpointPort<'_>,
        field: Arguments<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<SlicePort> {
        // A port without a name cannot be matched with a port of the Service (B5).
        let Some(name) = port.name.as_deref() else {
            fields.problem(format_args!("{field}.name"), "not set (\"\" for an unnamed port); port ignored");
            return None;
        };
        let name = self.port_name(name, field, fields)?;
        let protocol = fields.protocol(field, &port.protocol)?;
        let port = fields.port(format_args!("{field}.port"), port.port, "port ignored")?;
        Some(SlicePort { name, protocol, port })
    }

    fn slice_endpoints(
        &mut self,
        object: &objects::EndpointSlice<'_>,
        family: Family,
        fields: &mut Fields<'_>,
    ) -> Vec<Endpoint> {
        // Allocate no more than the list can need, because it is kept as long as the slice exists.
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        let decoded = object.endpoints.iter().enumerate();
        endpoints.extend(decoded.filter_map(|(index, endpoint)| self.endpoint(endpoint, index, family, fields)));
        endpoints
    }

    fn endpoint(
        &mut self,
        endpoint: &objects::Endpoint<'_>,
        index: usize,
        family: Family,
        fields: &mut Fields<'_>,
    ) -> Option<Endpoint> {
        // Only the first address is used (B6).
        let Some(text) = endpoint.addresses.get() else {
            fields.problem(format_args!("endpoints[{index}].addresses"), "empty; endpoint ignored");
            return None;
        };
        let address = fields.ip(format_args!("endpoints[{index}].addresses[0]"), text)?;
        // All addresses of a slice have to be of the slice's address type (B3).
        if Family::of(address) != family {
            let text = format!("{} is not an {family} address; ignored", quoted(text));
            fields.problem(format_args!("endpoints[{index}].addresses[0]"), text);
            return None;
        }
        let node = Some(&*endpoint.node_name).filter(|node| !node.is_empty());
        Some(Endpoint {
            address,
            conditions: conditions(&endpoint.conditions),
            node: node.map(|node| self.names.share(node)),
            zone: endpoint.zone.0,
            hints: endpoint.hints.as_ref().and_then(|hints| self.hints(hints)),
        })
    }

    /// Returns the topology hints; `None` if there are none (B9).
    fn hints(&mut self, hints: &objects::Hints<'_>) -> Option<Box<Hints>> {
        let (zones, nodes) = (&hints.for_zones, &hints.for_nodes);
        if zones.is_empty() && nodes.is_empty() {
            return None;
        }
        Some(Box::new(Hints {
            zones: zones.iter().map(|zone| self.names.share(&zone.name)).collect(),
            nodes: nodes.iter().map(|node| self.names.share(&node.name)).collect(),
        }))
    }
}

/// Returns the time of the change that made the EndpointSlice controller write the slice, for the metric of programming latency (P7). An
/// invalid time counts as absent, as in upstream.
fn trigger(text: Option<&str>) -> TriggerTime {
    let time = text.and_then(|text| text.parse::<Timestamp>().ok());
    TriggerTime(time.and_then(|time| i64::try_from(time.as_nanosecond()).ok()))
}

/// Returns the weight that an annotation gives to the endpoints of a slice (E16): 1 without a valid one.
fn weight(text: Option<&str>, fields: &mut Fields<'_>) -> u8 {
    let Some(text) = text else { return 1 };
    parse_weight(text).unwrap_or_else(|| {
        let field = format_args!("metadata.annotations[{}]", objects::WEIGHT);
        fields.problem(field, format!("{} is not a weight (1 to {MOST_WEIGHT}); 1 is used", quoted(text)));
        1
    })
}

/// Returns the IP family of a slice, from its `addressType` (B3); `None` with a problem for another type.
fn slice_family(address_type: &str, fields: &mut Fields<'_>) -> Option<Family> {
    match address_type {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        other => {
            fields.problem("addressType", format!("{} is not IPv4 or IPv6; slice ignored", quoted(other)));
            None
        }
    }
}

/// Returns the conditions of an endpoint, with defaults for absent conditions (B7).
fn conditions(conditions: &objects::EndpointConditions) -> Conditions {
    Conditions {
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
    }
}
