//! Converts the kinds without a namespace: Node and ServiceCIDR.

use std::net::IpAddr;

use super::{Converted, Converter, Fields};
use crate::source::objects;
use component::config::{MarkKind, NodeMark};
use rules::model::{Event, Family, Node};

/// The taint that the cluster autoscaler sets on a Node that it is about to delete (L5).
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Converter {
    pub(in crate::source) fn node(&mut self, object: &objects::Node<'_>) -> Converted {
        let mut fields = Fields::of("Node", &object.metadata);
        let Some(name) = self.cluster_name(&object.metadata, &mut fields) else {
            return fields.finish(None);
        };
        let zone = object.metadata.label(objects::ZONE);
        let node = Node {
            name,
            zone: zone.filter(|zone| !zone.is_empty()).map(|zone| self.names.share(zone)),
            ips: raw_ips(object, &mut fields),
            pod_cidrs: fields.cidrs("spec.podCIDRs", &object.spec.pod_cidrs),
            eligible: is_eligible(object),
            drained: self.options.drain_on.as_ref().is_some_and(|mark| has(object, mark)),
        };
        fields.finish(Some(Event::NodeApplied(node)))
    }

    /// Converts a ServiceCIDR, and normalises its ranges (A10).
    pub(in crate::source) fn service_cidr(&mut self, object: &objects::ServiceCidr<'_>) -> Converted {
        let mut fields = Fields::of("ServiceCIDR", &object.metadata);
        let Some(name) = self.cluster_name(&object.metadata, &mut fields) else {
            return fields.finish(None);
        };
        let cidrs = fields.cidrs("spec.cidrs", &object.spec.cidrs);
        fields.finish(Some(Event::ServiceCidrApplied(name, cidrs)))
    }
}

/// Returns at most one address of each IP family: first the Node's first InternalIP or, if it has none, its first ExternalIP, and then the
/// first address of the other IP family, chosen in the same way (M4).
fn raw_ips(object: &objects::Node<'_>, fields: &mut Fields<'_>) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        let addresses = object.status.addresses.iter().enumerate();
        for (index, address) in addresses.filter(|(_, address)| *address.type_ == *wanted) {
            all.extend(fields.ip(format_args!("status.addresses[{index}].address"), &address.address));
        }
    }
    let Some(first) = all.first().copied() else {
        return Vec::new();
    };
    let other = all.into_iter().find(|ip| Family::of(*ip) != Family::of(first));
    [Some(first), other].into_iter().flatten().collect()
}

/// Returns whether the Node is eligible for the traffic of load balancers: it is not being deleted, and the cluster autoscaler is not about
/// to delete it (L5).
fn is_eligible(object: &objects::Node<'_>) -> bool {
    object.metadata.deletion_timestamp.is_none()
        && !object.spec.taints.iter().any(|taint| *taint.key == *DELETION_TAINT)
}

/// Returns whether a Node has this mark, with which an operator drains a node (L10).
fn has(object: &objects::Node<'_>, mark: &NodeMark) -> bool {
    let is_mark = |(key, value): (&str, &str)| mark.is(key, value);
    match mark.kind {
        MarkKind::Taint => object.spec.taints.iter().any(|taint| mark.is(&taint.key, &taint.value)),
        MarkKind::Label => object.metadata.labels.iter().any(is_mark),
        MarkKind::Annotation => object.metadata.annotations.iter().any(is_mark),
    }
}
