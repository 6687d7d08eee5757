//! UDP flows after a sync: the flows of which Services are examined, and when.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::conntrack;
use crate::kernel::Kernel;
use crate::logging::duration;
use crate::model::{Family, ObjectName, State};

/// Remembers which Services have UDP endpoints, and which of these changed since the flows were last examined.
#[derive(Debug, Default)]
pub(super) struct UdpFlows {
    known: HashSet<ObjectName>,
    changed: BTreeSet<ObjectName>,
}

/// The result of examining the flows of a family.
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
    /// Notes a Service that had UDP endpoints before the change or has them after it (B15). `has_udp_endpoints` is `None` for one that
    /// is left out, because it is too large to be looked at: it keeps its flows as one that is gone does.
    pub(super) fn service_changed(&mut self, name: &ObjectName, has_udp_endpoints: Option<bool>) {
        let Some(has) = has_udp_endpoints else {
            self.known.remove(name);
            self.changed.remove(name);
            return;
        };
        if !has && self.known.is_empty() {
            return;
        }
        let had = if has { !self.known.insert(name.clone()) } else { self.known.remove(name) };
        if has || had {
            self.changed.insert(name.clone());
        }
    }

    /// Notes that flows may have been made under another program's rules, or to endpoints that clients were still remembered for.
    pub(super) fn all_changed(&mut self) {
        self.changed.extend(self.known.iter().cloned());
    }

    /// Deletes the flows that lead to no endpoint (J1). What fails is logged, and not tried again before the next change (J8).
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
                    let took = start.elapsed();
                    let elapsed = duration(took);
                    debug!(
                        ipFamily = %family, entriesDeleted = deleted, %elapsed,
                        "Finished reconciling conntrack entries"
                    );
                    results.push(Reconciled { family: *family, took, deleted });
                }
                Err(error) => {
                    warn!(
                        err = %error, ipFamily = %family,
                        "Cannot examine UDP flows; some may lead to endpoints that are gone"
                    )
                }
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use nft::{Command, CommitError, Committed, Element, ReadError, Set, TableDump, TableName};

    use super::*;
    use crate::conntrack::Flow;
    use crate::kernel::ForeignWrites;
    use crate::model::Event;
    use crate::model::testing::{self, name, port, slice, slice_port};

    /// A kernel that tracks one flow in each family, which leads to no endpoint, and records the calls.
    #[derive(Default)]
    struct Tracker {
        listed: Vec<Family>,
        deleted: usize,
        fails: bool,
    }

    impl Kernel for Tracker {
        fn commit(&mut self, _: &[Command]) -> Result<Committed, CommitError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn read(&mut self, _: &TableName) -> Result<Option<TableDump>, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn elements(&mut self, _: &TableName, _: &Set) -> Result<Vec<Element>, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn foreign_writes(&mut self, _: &[TableName]) -> Result<ForeignWrites, ReadError> {
            unreachable!("flows are no business of nf_tables")
        }

        fn udp_flows(&mut self, family: Family) -> io::Result<Vec<Flow>> {
            self.listed.push(family);
            if self.fails {
                return Err(io::Error::from_raw_os_error(1));
            }
            let to = if family == Family::V4 { "10.96.0.10:53" } else { "[fd00::10]:53" };
            let to = to.parse().unwrap();
            Ok(vec![Flow { original_destination: to, reply_source: to, handle: Vec::new() }])
        }

        fn delete_flows(&mut self, flows: &[Flow]) -> io::Result<usize> {
            self.deleted += flows.len();
            Ok(flows.len())
        }

        fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
            unreachable!("given by the caller")
        }
    }

    /// A DNS Service with an endpoint, and one that only has TCP.
    fn cluster() -> State {
        let mut dns = testing::service("shop/dns", &["10.96.0.10"]);
        dns.ports = vec![port("dns/udp", 53)];
        let web = testing::service("shop/web", &["10.96.0.11"]);
        testing::state([
            Event::ServiceApplied(dns),
            Event::SliceApplied(slice("shop/dns-1", "shop/dns", &[slice_port("dns/udp", 5353)], &["10.244.0.1"])),
            Event::ServiceApplied(web),
            Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port("http", 80)], &["10.244.0.2"])),
        ])
    }

    /// Notes a change of a Service that is small enough, or of one that is not.
    fn changed(flows: &mut UdpFlows, state: &State, service: &str, fits: bool) {
        let service = name(service);
        flows.service_changed(&service, fits.then(|| conntrack::has_udp_endpoints(state, &service)));
    }

    fn reconcile(flows: &mut UdpFlows, state: &State, kernel: &mut Tracker) -> Vec<usize> {
        flows.reconcile(state, kernel, &Family::BOTH, &[]).iter().map(|done| done.deleted).collect()
    }

    // UDP flows are listed once for each family, after a sync that changed a Service with a UDP port (B15, J1).
    #[test]
    fn flows_are_listed_once_a_family_and_only_when_a_service_with_udp_changed() {
        let (state, mut flows, mut kernel) = (cluster(), UdpFlows::default(), Tracker::default());
        changed(&mut flows, &state, "shop/web", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0]);
        assert_eq!(kernel.listed, [], "no UDP in it");
        changed(&mut flows, &state, "shop/dns", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0], "the flow to the cluster IP");
        assert_eq!(kernel.listed, Family::BOTH);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0], "not again before the next change");
        assert_eq!((kernel.listed.len(), kernel.deleted), (2, 1));
    }

    #[test]
    fn a_service_that_is_left_out_keeps_its_flows_and_is_not_looked_at() {
        let (state, mut flows, mut kernel) = (cluster(), UdpFlows::default(), Tracker::default());
        changed(&mut flows, &state, "shop/dns", true);
        changed(&mut flows, &state, "shop/dns", false);
        flows.all_changed();
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0]);
        changed(&mut flows, &state, "shop/dns", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0], "it is small enough again");
    }

    // A flow that was made while other rules were in force may lead nowhere, so a repair has all flows examined (G10, J7).
    #[test]
    fn flows_made_under_the_rules_of_others_are_looked_through() {
        let (state, mut flows, mut kernel) = (cluster(), UdpFlows::default(), Tracker::default());
        changed(&mut flows, &state, "shop/dns", true);
        changed(&mut flows, &state, "shop/web", true);
        reconcile(&mut flows, &state, &mut kernel);
        flows.all_changed();
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [1, 0]);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0], "once");
    }

    // A listing that fails is an error in the log; the flows wait for the next change (J8).
    #[test]
    fn a_list_that_fails_is_given_up_and_counts_for_nothing() {
        let (state, mut flows) = (cluster(), UdpFlows::default());
        let mut kernel = Tracker { fails: true, ..Tracker::default() };
        changed(&mut flows, &state, "shop/dns", true);
        assert_eq!(reconcile(&mut flows, &state, &mut kernel), [0; 0]);
        assert_eq!((kernel.listed.len(), kernel.deleted), (2, 0));
    }
}
