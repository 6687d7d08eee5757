//! What a change costs in layout `maps`: which elements go over netlink, in how many transactions.

use std::collections::BTreeMap;

use crate::support::cluster::{endpoints, name, node, served, service, service_cidr, slice};
use crate::support::kernel::Failure;
use crate::support::ledger::{Cluster, ENDPOINTS};
use crate::support::plan::NODE;
use crate::{LOCAL, one_replaced, v4_slice, weighted, with_local};
use kube_proxy::sync::Report;
use nft::{Command, NamedObject, ObjectKind, Ownership, TableDump};
use node::kernel::ForeignWrites;
use rules::model::{Endpoint, Event, Family, Hints, Scheduler, Service, TrafficPolicy};
use rules::ruleset::Layout;

/// Frontends of a Service in a family that are addresses: cluster IP, external IP, load balancer IP. A node port comes on top.
const ADDRESSES: usize = 3;
/// What one sync sent: elements added and removed by "table set", and the number of other commands.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    added: BTreeMap<String, usize>,
    removed: BTreeMap<String, usize>,
    others: usize,
}

impl Sent {
    fn expect(added: &[(&str, usize)], removed: &[(&str, usize)]) -> Self {
        let map = |list: &[(&str, usize)]| list.iter().map(|(set, count)| ((*set).to_owned(), *count)).collect();
        Self { added: map(added), removed: map(removed), others: 0 }
    }

    fn of(transaction: &[Command]) -> Self {
        let mut sent = Self::default();
        for command in transaction {
            let (counts, set) = match command {
                Command::AddElements(_, set, _) => (&mut sent.added, set),
                Command::DeleteElements(_, set, _) | Command::DestroyElements(_, set, _) => (&mut sent.removed, set),
                _ => {
                    sent.others += 1;
                    continue;
                }
            };
            *counts.entry(format!("{} {}", command.table().family, set.name)).or_default() += command.elements();
        }
        sent
    }
}

trait Costs {
    fn cost(&mut self, events: impl IntoIterator<Item = Event>) -> (Report, Sent);
    fn assert_cost(&mut self, events: impl IntoIterator<Item = Event>, expected: &Sent);
}

impl Costs for Cluster {
    fn cost(&mut self, events: impl IntoIterator<Item = Event>) -> (Report, Sent) {
        let (report, commands) = self.change(events);
        (report, Sent::of(&commands))
    }

    fn assert_cost(&mut self, events: impl IntoIterator<Item = Event>, expected: &Sent) {
        let (report, sent) = self.cost(events);
        assert_eq!(sent, *expected);
        assert_eq!(report.committed.is_none(), *expected == Sent::default());
        assert!(!report.full, "only what was touched is compared");
        assert_eq!(self.cost([]).1, Sent::default(), "a sync without changes");
    }
}

fn each_size(test: impl FnMut(&mut Cluster)) {
    Cluster::each_size(Layout::Maps, test);
}

#[test]
fn a_sync_is_one_transaction_for_both_families() {
    // The first sync comes after the initial objects and is one transaction, but for very much, of which packets pass nothing before the
    // last one (G1, G8).
    each_size(|cluster| {
        let log = cluster.kernel.log.borrow();
        let objects: usize = log.sent.iter().flatten().map(|command| command.elements().max(1)).sum();
        let (commands, early) = log.sent.split_last().expect("a first sync");
        assert_eq!(early.is_empty(), objects <= 50_000, "{} transactions for {objects} objects", log.sent.len());
        let hooks = |command: &Command| matches!(command, Command::AddChain(_, chain) if chain.base.is_some());
        assert!(!early.iter().flatten().any(hooks) && commands.iter().any(hooks));
        let tables: Vec<String> = commands.iter().map(|command| command.table().to_string()).collect();
        assert!(tables.iter().any(|table| table == "ip kube-proxy"), "{:?}", tables.first());
        assert!(tables.iter().any(|table| table == "ip6 kube-proxy"), "{:?}", tables.last());
    });
}

#[test]
fn nothing_new_costs_nothing() {
    // A sync without a change sends nothing (G14).
    each_size(|cluster| {
        let (report, sent) = cluster.cost([]);
        assert_eq!((report, sent), (Report::default(), Sent::default()));
        assert_eq!(cluster.kernel.log.borrow().reads, 2, "each table was read once, at the start");
    });
}

#[test]
fn a_change_of_metadata_costs_nothing() {
    // The model's object stays the same (A6, B4).
    each_size(|cluster| {
        let again = [served(0, ENDPOINTS), vec![node(Some("a"))]].concat();
        let (report, sent) = cluster.cost(again);
        assert_eq!((report, sent), (Report::default(), Sent::default()));
    });
}

#[test]
fn a_replaced_endpoint_costs_one_slot_a_frontend() {
    each_size(|cluster| {
        let slots = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        cluster.assert_cost([v4_slice(0, one_replaced())], &Sent::expect(&slots, &slots));
    });
}

#[test]
fn a_local_endpoint_costs_its_hairpin_element_too() {
    // A local endpoint may connect to itself, which the set `hairpin` has to know (D10).
    each_size(|cluster| {
        let mut list = one_replaced();
        list.last_mut().expect("there are three").node = Some(NODE.into());
        let added = [("ip endpoints", ADDRESSES), ("ip hairpin", 1), ("ip nodeport-endpoints", 1)];
        let removed = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        cluster.assert_cost([v4_slice(0, list)], &Sent::expect(&added, &removed));
    });
}

#[test]
fn another_endpoint_costs_one_slot_and_the_verdict_a_frontend() {
    each_size(|cluster| {
        let verdicts = [("ip nodeports", 1), ("ip services", ADDRESSES)];
        let slots = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        let more = [slots, verdicts].concat();
        let grown = v4_slice(0, endpoints(0, Family::V4, ENDPOINTS + 1));
        cluster.assert_cost([grown], &Sent::expect(&more, &verdicts));
        let shrunk = v4_slice(0, endpoints(0, Family::V4, ENDPOINTS));
        cluster.assert_cost([shrunk], &Sent::expect(&verdicts, &more));
    });
}

// All other endpoints stay in their slots (E15).
#[test]
fn a_weighted_endpoint_costs_as_many_slots_as_it_counts() {
    each_size(|cluster| {
        cluster.change([weighted(), with_local(1, endpoints(0, Family::V4, ENDPOINTS))]);
        let one = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        cluster.assert_cost([with_local(1, one_replaced())], &Sent::expect(&one, &one));
        let heavy = [("ip endpoints", LOCAL * ADDRESSES), ("ip hairpin", 1), ("ip nodeport-endpoints", LOCAL)];
        cluster.assert_cost([with_local(2, one_replaced())], &Sent::expect(&heavy, &heavy));
    });
}

/// Service 0 with this scheduler.
fn scheduled(scheduler: Scheduler) -> Event {
    Event::ServiceApplied(Service { scheduler: Some(scheduler), ..service(0) })
}

#[test]
fn with_maglev_an_endpoint_costs_its_places_and_no_verdict() {
    // Places of the others are left alone, but for those that two endpoints wanted (E10).
    const PLACES: usize = 15;
    each_size(|cluster| {
        cluster.change([scheduled(Scheduler::Maglev)]);
        let frontends = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        let assert_few = |list: &BTreeMap<String, usize>, most: usize| {
            assert_eq!(list.keys().collect::<Vec<_>>(), frontends.map(|(set, _)| set), "{list:?}");
            assert!(frontends.iter().all(|(set, frontends)| list[*set] <= frontends * most), "{list:?}");
        };
        let (_, replaced) = cluster.cost([v4_slice(0, one_replaced())]);
        assert_few(&replaced.added, PLACES + 3);
        assert_few(&replaced.removed, PLACES + 3);
        // Two that are new, and the one that was replaced.
        let (_, grown) = cluster.cost([v4_slice(0, endpoints(0, Family::V4, ENDPOINTS + 2))]);
        assert_few(&grown.added, 3 * PLACES + 5);
        assert_few(&grown.removed, PLACES + 5);
        assert_eq!((replaced.others, grown.others), (0, 0), "neither chains nor rules");
    });
}

#[test]
fn with_source_hash_an_endpoint_costs_no_more_than_all_slots_of_its_frontends() {
    // The slots are in the order of addresses, so that nodes agree (E9, E11).
    each_size(|cluster| {
        cluster.change([scheduled(Scheduler::SourceHash)]);
        let slots = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        // The new address is the last one, as the old one was.
        cluster.assert_cost([v4_slice(0, one_replaced())], &Sent::expect(&slots, &slots));
    });
}

#[test]
fn a_number_of_endpoints_seen_for_the_first_time_brings_its_chains_once() {
    each_size(|cluster| {
        let (_, sent) = cluster.cost([v4_slice(0, endpoints(0, Family::V4, 7))]);
        // lb-7, masq-lb-7 and the same for node ports: a chain and two rules each.
        assert_eq!(sent.others, 4 * 3);
        let (_, sent) = cluster.cost([v4_slice(2, endpoints(2, Family::V4, 7))]);
        assert_eq!(sent.others, 0);
        // The chains stay, for the next Service that has as many endpoints.
        cluster.cost([0, 2].map(|n| v4_slice(n, endpoints(n, Family::V4, ENDPOINTS))));
        let (_, sent) = cluster.cost([v4_slice(0, endpoints(0, Family::V4, 7))]);
        assert_eq!(sent.others, 0);
    });
}

#[test]
fn a_service_costs_its_own_elements() {
    each_size(|cluster| {
        let count = usize::from(ENDPOINTS);
        let of_family = |family: &str| {
            [
                (format!("{family} cluster-ips"), 1),
                (format!("{family} endpoints"), ADDRESSES * count),
                (format!("{family} nodeport-endpoints"), count),
                (format!("{family} nodeports"), 1),
                (format!("{family} services"), ADDRESSES),
            ]
        };
        let own: BTreeMap<String, usize> = ["ip", "ip6"].into_iter().flat_map(of_family).collect();
        let added = Sent { added: own.clone(), ..Sent::default() };
        cluster.assert_cost(served(2047, ENDPOINTS), &added);
        let removed = Sent { removed: own, ..Sent::default() };
        cluster.assert_cost([Event::ServiceDeleted(name(2047))], &removed);
        // The slices of the deleted Service are still there, and cost nothing when they are deleted.
        let slices = Family::BOTH.map(|family| Event::SliceDeleted(slice(2047, family, Vec::new()).name));
        cluster.assert_cost(slices, &Sent::default());
    });
}

#[test]
fn a_policy_costs_the_frontends_that_it_concerns() {
    // Outside traffic gets maps of its own; the cluster IP stays untouched (D6).
    each_size(|cluster| {
        let mut local = service(0);
        local.external_policy = TrafficPolicy::Local;
        let (_, sent) = cluster.cost([Event::ServiceApplied(local)]);
        let verdicts = [("ip", ADDRESSES - 1), ("ip6", ADDRESSES - 1)];
        for (family, frontends) in verdicts {
            for map in ["services", "cluster-policy", "local-policy"] {
                assert_eq!(sent.added.get(&format!("{family} {map}")), Some(&frontends), "{map}: {sent:?}");
            }
            assert_eq!(sent.removed.get(&format!("{family} services")), Some(&frontends), "{sent:?}");
        }
        assert_eq!(sent.added.get("ip endpoints"), None, "the slots stay: {sent:?}");
    });
}

#[test]
fn a_zone_change_costs_what_hints_make_of_it() {
    // Endpoints are chosen again for the new zone where they have zone hints (C2, C9).
    each_size(|cluster| {
        let hinted = |zones: &[&[&str]]| -> Event {
            let list = endpoints(0, Family::V4, ENDPOINTS).into_iter().zip(zones).map(|(endpoint, zones)| {
                let zones = zones.iter().map(|zone| (*zone).into()).collect();
                Endpoint { hints: Some(Box::new(Hints { zones, nodes: Vec::new() })), ..endpoint }
            });
            v4_slice(0, list.collect())
        };
        cluster.cost([hinted(&[&["a"], &["b"], &["a", "b"]])]);
        let slots = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        cluster.assert_cost([node(Some("b"))], &Sent::expect(&slots, &slots));
        cluster.cost([v4_slice(0, endpoints(0, Family::V4, ENDPOINTS))]);
        cluster.assert_cost([node(Some("a"))], &Sent::default());
    });
}

#[test]
fn a_service_cidr_costs_its_ranges() {
    // Ranges of ServiceCIDRs are elements of a set, and change with a sync at once (D15, D16).
    each_size(|cluster| {
        let one = [("ip service-cidrs", 1)];
        cluster.assert_cost([service_cidr("more", &["10.99.0.0/16"])], &Sent::expect(&one, &[]));
        // A neighbour is one range with it; the kernel holds no overlapping ones.
        cluster.assert_cost([service_cidr("more", &["10.98.0.0/15"])], &Sent::expect(&one, &one));
        cluster.assert_cost([Event::ServiceCidrDeleted("more".into())], &Sent::expect(&[], &one));
    });
}

#[test]
fn after_a_failed_commit_everything_is_read_and_compared_and_only_the_rest_is_sent() {
    // A failed sync is tried again, and begins with reading the tables back (G5, G7).
    each_size(|cluster| {
        let slots = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        for (failure, endpoints, expected) in [
            (Failure::Refused, one_replaced(), Sent::expect(&slots, &slots)),
            // The transaction was carried out although its acknowledgement was lost, so there is nothing left to do.
            (Failure::Unconfirmed, endpoints(0, Family::V4, ENDPOINTS), Sent::default()),
        ] {
            let reads = cluster.kernel.log.borrow().reads;
            cluster.kernel.log.borrow_mut().next = Some(failure);
            cluster.apply([v4_slice(0, endpoints)]);
            cluster.engine.sync(false).expect_err("the kernel refuses as the test asked");
            let (report, sent) = cluster.cost([]);
            assert!(report.full, "{failure:?}");
            assert_eq!(sent, expected, "{failure:?}");
            assert_eq!(cluster.kernel.log.borrow().reads, reads + 2, "{failure:?}");
            assert_eq!(cluster.cost([]), (Report::default(), Sent::default()), "{failure:?}");
        }
    });
}

#[test]
fn what_comes_between_a_failed_commit_and_the_next_is_not_lost() {
    // The sync after a failure also takes the changes that came since (G2, G5).
    each_size(|cluster| {
        cluster.kernel.log.borrow_mut().next = Some(Failure::Refused);
        cluster.apply([v4_slice(0, one_replaced())]);
        cluster.engine.sync(false).expect_err("the kernel refuses as the test asked");
        let (report, sent) = cluster.cost([service_cidr("more", &["10.99.0.0/16"])]);
        assert!(report.full);
        let removed = [("ip endpoints", ADDRESSES), ("ip nodeport-endpoints", 1)];
        let added = [removed.as_slice(), &[("ip service-cidrs", 1)]].concat();
        assert_eq!(sent, Sent::expect(&added, &removed));
    });
}

#[test]
fn a_foreign_write_to_our_tables_costs_a_comparison_and_nothing_when_it_left_all_as_it_was() {
    // After a write of another program the tables are read back and compared (G10).
    each_size(|cluster| {
        assert_eq!(cluster.engine.foreign_writes(), None);
        cluster.kernel.log.borrow_mut().foreign = ForeignWrites::Unknown;
        assert!(cluster.engine.foreign_writes().is_some());
        let (report, sent) = cluster.cost([]);
        assert!(report.full);
        assert_eq!(sent, Sent::default());
        assert_eq!(cluster.engine.foreign_writes(), None);
    });
}

#[test]
fn a_dormant_table_and_foreign_objects_cost_a_command_each_unless_they_are_in_use_or_a_base_chain_is_missing() {
    each_size(|cluster| {
        let object = |kind, in_use| NamedObject { kind, name: "foreign".into(), in_use };
        let (flowtable, counter) = (ObjectKind::Flowtable, ObjectKind::Stateful(1));
        let mut sent = |change: &dyn Fn(&mut TableDump)| {
            {
                let mut log = cluster.kernel.log.borrow_mut();
                let mut table = log.tables()["ip kube-proxy"].clone();
                change(&mut table);
                log.put(table);
                log.foreign = ForeignWrites::Unknown;
            }
            assert!(cluster.engine.foreign_writes().is_some());
            let (_, sent) = cluster.sync(false);
            let found = cluster.engine.take_findings().concat();
            assert_eq!(cluster.sync(false).1, [], "nothing is left to do");
            (sent, found)
        };
        let (commands, found) = sent(&|table| {
            table.dormant = true;
            table.objects = vec![object(flowtable, false), object(counter, false)];
        });
        let [Command::AddTable(_), Command::DeleteObject(..), Command::DeleteObject(..)] = &commands[..] else {
            panic!("{commands:?}")
        };
        assert_eq!(found, "table ip kube-proxy is dormant, holds flowtable foreign, holds counter foreign");
        let is_anew = |commands: &[Command]| matches!(&commands[..1], [Command::DeleteTable(_)]);
        assert!(is_anew(&sent(&|table| table.objects = vec![object(counter, true)]).0));
        assert!(is_anew(&sent(&|table| table.unknown_flags = 8).0));
        assert!(is_anew(&sent(&|table| table.ownership = Ownership::Orphaned).0));
        assert!(is_anew(
            &sent(&|table| {
                table.dormant = true;
                table.chains.remove("nat-prerouting");
            })
            .0
        ));
    });
}

#[test]
fn bytes_and_messages_of_a_change_do_not_depend_on_the_size_of_the_cluster() {
    let changes: [(&str, Vec<Event>); 4] = [
        ("an endpoint replaced", vec![v4_slice(0, one_replaced())]),
        ("an endpoint more", vec![v4_slice(0, endpoints(0, Family::V4, ENDPOINTS + 1))]),
        ("a Service more", served(2047, ENDPOINTS)),
        ("a Service less", vec![Event::ServiceDeleted(name(0))]),
    ];
    let mut costs = Vec::new();
    each_size(|cluster| {
        let cost = |(what, events)| (what, cluster.cost(events).0.committed.expect("something was sent"));
        costs.push(changes.clone().map(cost));
    });
    assert_eq!(costs[0], costs[1]);
    let (_, replaced) = costs[0][0];
    assert!(replaced.bytes < 2048, "{replaced:?}");
}

#[test]
fn the_number_of_local_endpoints_costs_no_verdict() {
    // The kernel checks a map of verdicts again whenever one of its elements changes (K2).
    each_size(|cluster| {
        let checked = Service { health_check_node_port: Some(32_000), ..service(0) };
        cluster.cost([Event::ServiceApplied(checked)]);
        let mut list = one_replaced();
        list.last_mut().expect("there are three").node = Some(NODE.into());
        let slots = [("ip endpoints", ADDRESSES), ("ip health-check-nodeports", 1), ("ip nodeport-endpoints", 1)];
        let added = [slots.as_slice(), &[("ip hairpin", 1)]].concat();
        cluster.assert_cost([v4_slice(0, list)], &Sent::expect(&added, &slots));
    });
}
