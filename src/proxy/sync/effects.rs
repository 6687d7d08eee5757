//! The effects of a Service beyond its rules, such as health checks: values that [plans](super::planned) make and
//! [observers](super::observers) take.

use super::no_local_endpoints::Counts;
use crate::localhost::NodePort;
use rules::endpoints::health::HealthCheck;

/// The effects of a Service's endpoints beyond its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) health_checks: Vec<HealthCheck>,
    /// Whether the Service has UDP endpoints; `None` when it is over the limit of elements, and so is not examined.
    pub(super) has_udp_endpoints: Option<bool>,
    /// The Service's ports without a local endpoint, by family.
    pub(super) no_local_endpoints: [Counts; 2],
    /// The Service's TCP node ports for loopback addresses, in the families in which loopback node ports are served.
    pub(super) localhost: Vec<NodePort>,
}

/// The result of a sync for one Service, with its effects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// The planned rules are in force.
    AsPlanned(Effects),
    /// The Service has no rules, because the kernel refuses them: its health-check node ports stay open, and report that there is no
    /// endpoint.
    Without(Effects),
}
