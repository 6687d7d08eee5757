//! ServiceCIDR objects.

use k8s_openapi::api::networking::v1::ServiceCIDR;

use super::{Converted, Converter, Scope};
use crate::model::Event;

impl Converter {
    /// The ranges of a ServiceCIDR, normalised (A10).
    pub fn service_cidr(&mut self, object: &ServiceCIDR) -> Converted {
        let mut scope = Scope::new("ServiceCIDR", &object.metadata);
        let Some(name) = self.cluster_name(&object.metadata, &mut scope) else {
            return scope.finish(None);
        };
        let cidrs = object.spec.as_ref().and_then(|spec| spec.cidrs.as_deref());
        let cidrs = scope.cidrs("spec.cidrs", cidrs);
        scope.finish(Some(Event::ServiceCidrApplied(name, cidrs)))
    }
}
