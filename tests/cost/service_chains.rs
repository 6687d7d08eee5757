//! What a change costs in layout `chains`: the messages that go over netlink, by kind.

use std::collections::BTreeMap;

use crate::support::cluster::{address, endpoint, endpoints, name, served, service};
use crate::support::ledger::{Cluster, ENDPOINTS};
use crate::support::plan::NODE;
use crate::{one_replaced, v4_slice};
use kube_proxy::sync::Report;
use nft::Command;
use rules::model::{Event, Family, Service};
use rules::ruleset::Layout;

/// Frontends of a Service in a family: its cluster IP, two external ones, and its node port.
const FRONTENDS: usize = 3 + 1;
/// The maps of their endpoints: one for addresses, one for node ports.
const MAPS: usize = 2;
/// The rules of KUBE-SVC-H: one marks, and one leads to the choice for each map.
const RULES_THAT_CHOOSE: usize = 1 + MAPS;

/// The number of commands of each kind.
type Sent = BTreeMap<&'static str, usize>;

fn kind(command: &Command) -> &'static str {
    match command {
        Command::AddTable(_) | Command::OwnTable(_) | Command::LockTable(_) => "add table",
        Command::DeleteTable(_) => "delete table",
        Command::AddChain(..) => "add chain",
        Command::DeleteChain(..) => "delete chain",
        Command::FlushChain(..) => "flush chain",
        Command::AddRule(..) => "add rule",
        Command::DeleteRule(..) => "delete rule",
        Command::AddSet(..) => "add set",
        Command::DeleteSet(..) => "delete set",
        Command::AddFlowtable(..) => "add flowtable",
        Command::DeleteObject(..) => "delete object",
        Command::AddElements(..) => "add elements",
        Command::DeleteElements(..) => "delete elements",
        Command::DestroyElements(..) => "destroy elements",
    }
}

fn sent(commands: &[Command]) -> Sent {
    let mut sent = Sent::new();
    commands.iter().for_each(|command| *sent.entry(kind(command)).or_default() += 1);
    sent
}

fn elements(commands: &[Command]) -> usize {
    commands.iter().map(Command::elements).sum()
}

fn each_size(test: impl FnMut(&mut Cluster)) {
    Cluster::each_size(Layout::ServiceChains, test);
}

/// Asserts that the only thing left to do a second later is to delete `chains` chains that were emptied.
fn assert_collected(cluster: &mut Cluster, chains: usize) {
    assert_eq!(cluster.change([]), (Report::default(), Vec::new()), "not within a second");
    assert!(cluster.engine.has_emptied_chains());
    assert_eq!(sent(&cluster.sync(true).1), Sent::from([("delete chain", chains)]));
    assert!(!cluster.engine.has_emptied_chains());
    assert_eq!(cluster.sync(true), (Report::default(), Vec::new()));
}

#[test]
fn nothing_new_costs_nothing() {
    each_size(|cluster| {
        assert_eq!(cluster.change([]), (Report::default(), Vec::new()));
        assert!(!cluster.engine.has_emptied_chains());
    });
}

#[test]
fn a_replaced_endpoint_costs_one_element_of_each_frontend() {
    // Whichever it is: no chain has its name. Nothing that the kernel would check again is written (F8).
    each_size(|cluster| {
        let mut first = endpoints(0, Family::V4, ENDPOINTS);
        first[0] = endpoint(address(Family::V4, 245, 2));
        for list in [one_replaced(), first] {
            let (report, commands) = cluster.change([v4_slice(0, list.clone())]);
            let changed = if list == one_replaced() { 1 } else { 2 };
            assert_eq!(sent(&commands), Sent::from([("delete elements", MAPS), ("add elements", MAPS)]));
            assert_eq!(elements(&commands), 2 * FRONTENDS * changed);
            assert!(!report.full, "only what was touched is compared");
            assert!(!cluster.engine.has_emptied_chains());
        }
    });
}

#[test]
fn another_endpoint_costs_one_element_of_each_frontend_and_the_rules_that_choose() {
    each_size(|cluster| {
        let (_, commands) = cluster.change([v4_slice(0, endpoints(0, Family::V4, ENDPOINTS + 1))]);
        let rules = [("flush chain", 1), ("add rule", RULES_THAT_CHOOSE)];
        assert_eq!(sent(&commands), Sent::from_iter(rules.into_iter().chain([("add elements", MAPS)])));
        assert_eq!(elements(&commands), FRONTENDS);
        let (_, commands) = cluster.change([v4_slice(0, endpoints(0, Family::V4, ENDPOINTS))]);
        assert_eq!(sent(&commands), Sent::from_iter(rules.into_iter().chain([("delete elements", MAPS)])));
        assert!(!cluster.engine.has_emptied_chains());
    });
}

#[test]
fn a_service_costs_its_own_chains() {
    // The chains of a deleted Service are emptied, and deleted later (F8).
    each_size(|cluster| {
        let (_, commands) = cluster.change(served(2047, ENDPOINTS));
        // KUBE-SVC-H, and KUBE-EXT-H with two rules; a family.
        let (chains, rules) = (2 * 2, 2 * (RULES_THAT_CHOOSE + 2));
        // In each family elements of the two maps of frontends, of the cluster IPs, and of the maps of endpoints.
        let of_elements = 2 * (2 + 1 + MAPS);
        let expected = [("add chain", chains), ("add rule", rules), ("add elements", of_elements)];
        assert_eq!(sent(&commands), Sent::from(expected));
        assert_eq!(elements(&commands), 2 * (FRONTENDS + 1 + FRONTENDS * usize::from(ENDPOINTS)));
        let (_, commands) = cluster.change([Event::ServiceDeleted(name(2047))]);
        assert_eq!(sent(&commands), Sent::from([("flush chain", chains), ("delete elements", of_elements)]));
        assert_collected(cluster, chains);
    });
}

#[test]
fn affinity_costs_a_map_whatever_the_number_of_endpoints() {
    // A service port has one map of clients, from which those of an endpoint that is gone are deleted (E1, E6).
    each_size(|cluster| {
        let mut sticky = service(0);
        sticky.affinity_seconds = Some(300);
        let (_, commands) = cluster.change([Event::ServiceApplied(sticky)]);
        assert_eq!(sent(&commands).get("add set"), Some(&2), "one a family");
        let (_, commands) = cluster.change([v4_slice(0, one_replaced())]);
        assert_eq!(sent(&commands), Sent::from([("delete elements", MAPS), ("add elements", MAPS)]));
    });
}

#[test]
fn a_chain_that_is_wanted_again_before_it_was_deleted_is_filled_again() {
    // A chain that waits for its deletion keeps its name, and may be used again (F8).
    each_size(|cluster| {
        cluster.change([Event::ServiceDeleted(name(0))]);
        let (_, commands) = cluster.change([Event::ServiceApplied(service(0))]);
        assert_eq!(sent(&commands).get("add chain"), None, "{commands:?}");
        assert!(!cluster.engine.has_emptied_chains());
    });
}

#[test]
fn when_syncs_never_pause_chains_are_deleted_after_two_notes_of_a_second() {
    // Chains are deleted a second after they were emptied, at the earliest (F8).
    each_size(|cluster| {
        let chains = 2 * 2;
        cluster.engine.second_passed();
        cluster.change([Event::ServiceDeleted(name(0))]);
        assert_eq!(cluster.change([]).1, [], "a second has not passed");
        cluster.engine.second_passed();
        let (_, commands) = cluster.change([Event::ServiceDeleted(name(2))]);
        assert_eq!(sent(&commands).get("delete chain"), Some(&chains), "{commands:?}");
        // The chains that this emptied were filled and emptied again since, so the next note of a second is too early.
        cluster.change([Event::ServiceApplied(service(2))]);
        cluster.change([Event::ServiceDeleted(name(2))]);
        cluster.engine.second_passed();
        assert_eq!(cluster.change([]).1, []);
        cluster.engine.second_passed();
        assert_eq!(sent(&cluster.change([]).1), Sent::from([("delete chain", chains)]));
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
        let cost = |(what, events)| (what, cluster.change(events).0.committed.expect("something was sent"));
        costs.push(changes.clone().map(cost));
    });
    assert_eq!(costs[0], costs[1]);
    let (_, replaced) = costs[0][0];
    assert_eq!(replaced.messages, 2 * MAPS);
    assert!(replaced.bytes < 2048, "{replaced:?}");
}

#[test]
fn the_number_of_local_endpoints_costs_no_verdict_of_a_frontend() {
    // The number of local endpoints is an element of a map that no rule uses, because the kernel checks a map of verdicts again at each
    // change (K2).
    each_size(|cluster| {
        let checked = Service { health_check_node_port: Some(32_000), ..service(0) };
        cluster.change([Event::ServiceApplied(checked)]);
        let mut list = endpoints(0, Family::V4, ENDPOINTS);
        list[0].node = Some(NODE.into());
        let (_, commands) = cluster.change([v4_slice(0, list)]);
        let sets: Vec<(&str, usize)> = commands
            .iter()
            .filter_map(|command| match command {
                Command::AddElements(_, set, list) | Command::DeleteElements(_, set, list) => {
                    Some((&*set.name, list.len()))
                }
                _ => None,
            })
            .collect();
        assert_eq!(sets, [("health-check-nodeports", 1), ("health-check-nodeports", 1), ("hairpin", 1)]);
    });
}

#[test]
fn the_counts_of_elements_are_as_many_for_2_000_services_as_for_10() {
    const MAP: &str = "counted-endpoints";
    let mut names = Vec::new();
    each_size(|cluster| {
        let size = |cluster: &Cluster| {
            let of_v4 = cluster.engine.table_counts().filter(|(family, _)| *family == Family::V4);
            let counts: BTreeMap<String, usize> =
                of_v4.flat_map(|(_, counts)| counts.map(|(name, count)| (name.to_owned(), count))).collect();
            counts
        };
        let before = size(cluster);
        cluster.change([v4_slice(0, endpoints(0, Family::V4, ENDPOINTS + 1))]);
        assert_eq!(size(cluster)[MAP], before[MAP] + (FRONTENDS - 1));
        cluster.change([Event::ServiceDeleted(name(0))]);
        assert_eq!(size(cluster)[MAP], before[MAP] - (FRONTENDS - 1) * usize::from(ENDPOINTS));
        // After reading back the numbers of elements are the same.
        cluster.engine.compare_everything();
        cluster.sync(false);
        assert_eq!(size(cluster)[MAP], before[MAP] - (FRONTENDS - 1) * usize::from(ENDPOINTS));
        names.push(before.into_keys().collect::<Vec<_>>());
    });
    assert_eq!(names[0], names[1]);
}
