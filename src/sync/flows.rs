//! UDP flows after a sync: which Services to look through, and when.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::conntrack;
use crate::kernel::Kernel;
use crate::model::{Family, ObjectName, State};

/// Remembers which Services have UDP endpoints, and which of these changed since flows were looked through last.
#[derive(Debug, Default)]
pub(super) struct UdpFlows {
    known: HashSet<ObjectName>,
    changed: BTreeSet<ObjectName>,
}

/// What looking through the flows of a family did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// The family.
    pub family: Family,
    /// How long it took.
    pub took: Duration,
    /// Flows deleted.
    pub deleted: usize,
}

impl UdpFlows {
    /// B15: a Service counts that had UDP endpoints before the change or has them after it.
    pub(super) fn service_changed(&mut self, state: &State, name: &ObjectName) {
        let has = conntrack::has_udp_endpoints(state, name);
        let had = if has { !self.known.insert(name.clone()) } else { self.known.remove(name) };
        if has || had {
            self.changed.insert(name.clone());
        }
    }

    /// Deletes the flows that lead nowhere (J1). What fails is logged, and not tried again before the next change (J8).
    pub(super) fn reconcile(
        &mut self,
        state: &State,
        kernel: &mut impl Kernel,
        families: &[Family],
        node_addresses: &[IpAddr],
    ) -> Vec<Reconciled> {
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return Vec::new();
        }
        let mut results = Vec::new();
        for family in families {
            let start = Instant::now();
            let outcome = kernel.udp_flows(*family).and_then(|flows| {
                let stale = conntrack::stale(state, &changed, node_addresses, flows);
                if stale.is_empty() { Ok(0) } else { kernel.delete_flows(&stale) }
            });
            match outcome {
                Ok(deleted) => {
                    debug!(%family, deleted, "looked through UDP flows");
                    results.push(Reconciled { family: *family, took: start.elapsed(), deleted });
                }
                Err(error) => warn!(%error, %family, "cannot look through UDP flows; some may lead nowhere"),
            }
        }
        results
    }
}
