//! Node objects (M4, L5).

use std::net::IpAddr;

use super::{Converted, Converter, Scope};
use crate::model::{Event, Family, Node};
use crate::source::objects;

/// Taint by which the cluster autoscaler announces that it deletes the node (L5).
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Converter {
    /// The facts of a Node.
    pub fn node(&mut self, object: &objects::Node) -> Converted {
        let mut scope = Scope::new("Node", &object.metadata);
        let Some(name) = self.cluster_name(&object.metadata, &mut scope) else {
            return scope.finish(None);
        };
        let zone = object.metadata.labels.zone.as_deref();
        let node = Node {
            name,
            zone: zone.filter(|zone| !zone.is_empty()).map(|zone| self.names.share(zone)),
            ips: raw_ips(object, &mut scope),
            pod_cidrs: scope.cidrs("spec.podCIDRs", &object.spec.pod_cidrs),
            eligible: is_eligible(object),
        };
        scope.finish(Some(Event::NodeApplied(node)))
    }
}

/// The first InternalIP, else the first ExternalIP; then the first of the other family in the same order (M4).
fn raw_ips(object: &objects::Node, scope: &mut Scope) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        let addresses = object.status.addresses.iter().enumerate();
        for (index, address) in addresses.filter(|(_, address)| &*address.type_ == wanted) {
            all.extend(scope.ip(format_args!("status.addresses[{index}].address"), &address.address));
        }
    }
    let Some(first) = all.first().copied() else {
        return Vec::new();
    };
    let other = all.into_iter().find(|ip| Family::of(*ip) != Family::of(first));
    [Some(first), other].into_iter().flatten().collect()
}

/// Neither being deleted nor announced to be (L5).
fn is_eligible(object: &objects::Node) -> bool {
    !object.metadata.is_being_deleted && !object.spec.taints.iter().any(|taint| &*taint.key == DELETION_TAINT)
}
