//! ServiceCIDR objects.

use super::{Converted, Converter, Scope};
use crate::model::Event;
use crate::source::objects::ServiceCidr;

impl Converter {
    /// The ranges of a ServiceCIDR, normalised (A10).
    pub fn service_cidr(&mut self, object: &ServiceCidr) -> Converted {
        let mut scope = Scope::new("ServiceCIDR", &object.metadata);
        let Some(name) = self.cluster_name(&object.metadata, &mut scope) else {
            return scope.finish(None);
        };
        let cidrs = scope.cidrs("spec.cidrs", &object.spec.cidrs);
        scope.finish(Some(Event::ServiceCidrApplied(name, cidrs)))
    }
}
