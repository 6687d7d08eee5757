//! What a committed Service means beside its rules, as values that [plans](super::planned) give and [observers](super::observers) take.

use super::no_local_endpoints::Counts;
use crate::localhost::NodePort;
use rules::endpoints::health::HealthCheck;

/// What follows from a Service's endpoints beside its rules; empty for one that is gone or left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) health_checks: Vec<HealthCheck>,
    /// Whether it has UDP endpoints; `None` when it is too large to be looked at.
    pub(super) has_udp_endpoints: Option<bool>,
    /// Its ports without a local endpoint, by family.
    pub(super) no_local_endpoints: [Counts; 2],
    /// Its TCP node ports for loopback addresses, in the families that these are served in.
    pub(super) localhost: Vec<NodePort>,
}

/// A Service whose rules are committed, and what the rules in force mean for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// They are those that were planned.
    AsPlanned(Effects),
    /// It has none, because the kernel refuses them: health-check node ports stay open, and say that there is no endpoint.
    Without(Effects),
}
