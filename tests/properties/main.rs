//! Properties of the whole line from events to the kernel, over random small clusters.
//!
//! What is wanted depends on the last content of each object only; and a real kernel that followed changes one by one holds the same
//! as one that got the last state at once. Root, for a network namespace. The seeds are fixed, so a failure comes back.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;
mod tables;
mod world;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;

use component::config::Config;
use kube_proxy::sync::{Engine, NoKernel};
use nft::{ElementRef, TableDump, TableName};
use node::kernel::{Kernel, Netfilter};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestCaseResult, TestRunner};
use rules::model::{Event, Family, ObjectName};
use rules::ruleset::Layout;
use serde_json::json;
use support::cluster::{config, config_from, endpoints, service, slice};
use support::netns::{Namespace, run};
use support::{nft as listing, proxy};

fn fixed(cases: u32, seed: u64) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(seed);
    ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// With a program that depends on the Node: its pod CIDRs and its addresses.
fn config_by_node() -> Config {
    let mut configuration = proxy::config();
    configuration["detectLocalMode"] = json!("NodeCIDR");
    configuration["clusterCIDR"] = json!("");
    configuration["nodePortAddresses"] = json!(["primary"]);
    config_from(&configuration)
}

/// The wanted ruleset after these events, without what may differ between equal ones.
fn wanted(layout: Layout, events: impl IntoIterator<Item = Event>) -> BTreeMap<String, Vec<String>> {
    let mut engine = Engine::new(config_by_node(), layout, &Family::BOTH, NoKernel::default());
    events.into_iter().for_each(|event| {
        engine.apply(event);
    });
    listing::normalised(&engine.content().to_string())
}

/// The last event of each object.
fn last_events(events: &[Event]) -> Vec<Event> {
    let last: BTreeMap<String, &Event> = events.iter().map(|event| (world::object(event), event)).collect();
    last.into_values().cloned().collect()
}

/// A history and the last event of each of its objects, some of them repeated, in any order among deletions of unknown objects.
fn history_and_disturbed_end() -> impl Strategy<Value = (Vec<Event>, Vec<Event>)> {
    world::changes().prop_flat_map(|changes| {
        let history = changes.concat();
        let last = last_events(&history);
        let repeats = prop::sample::subsequence(last.clone(), 0..=last.len());
        let spurious = prop::collection::vec(world::deletion_of_unknown(), 0..4);
        let disturbed = (repeats, spurious)
            .prop_map(move |(repeats, spurious)| [last.clone(), repeats, spurious].concat())
            .prop_shuffle();
        (Just(history), disturbed)
    })
}

proptest! {
    #![proptest_config(fixed(200, 1))]

    // The order of events, repeats and what came before do not matter (A6, B4, B14).
    #[test]
    fn the_wanted_ruleset_depends_on_the_end_only((history, disturbed) in history_and_disturbed_end()) {
        for layout in Layout::ALL {
            prop_assert_eq!(wanted(layout, history.clone()), wanted(layout, disturbed.clone()));
        }
    }
}

/// What the kernel of this namespace holds in both tables, without what may differ between equal rulesets: the slots of endpoints
/// (but not which slots are taken), chains that nothing leads to, and the sizes of sets, which stay when the elements become fewer.
type Held = Vec<Option<HeldTable>>;

#[derive(Debug, PartialEq)]
struct HeldTable {
    table: nft::Table,
    chains: BTreeMap<String, String>,
    sets: BTreeMap<String, (nft::Set, Elements)>,
}

/// Of each element the key and the rest; in slotted maps slots and values by their frontend.
type Elements = BTreeSet<(Vec<u8>, String)>;

fn tables() -> [TableName; 2] {
    [nft::Family::Ip, nft::Family::Ip6].map(|family| TableName::new(family, "kube-proxy"))
}

fn held(kernel: &mut Netfilter) -> Held {
    let read = |name| kernel.read(&name).expect("a table can be read").map(normalised);
    tables().map(read).into()
}

fn normalised(dump: TableDump) -> HeldTable {
    assert!(dump.unreadable.is_empty(), "{:?}", dump.unreadable);
    let used = used_chains(&dump);
    let chains = dump.chains.into_iter().filter(|(name, _)| used.contains(&**name));
    let sets = dump.sets.into_iter().map(|(name, (mut set, elements))| {
        set.size = set.size.filter(|_| set.flags.dynamic);
        let is_verdict_map = set.value.is_some() && set.key.data_types() == [nft::DataType::Integer];
        let is_slotted =
            is_verdict_map || name.ends_with("endpoints") && set.value.is_some() && !name.starts_with("no-");
        let elements = elements.iter().map(ElementRef::element).flat_map(|element| {
            let (key, rest) = (element.key.as_slice(), (&element.key_end, &element.value, &element.comment));
            match key.split_last_chunk::<4>() {
                Some((frontend, slot)) if is_slotted => {
                    vec![(frontend.to_vec(), format!("slot {slot:?}")), (frontend.to_vec(), format!("{rest:?}"))]
                }
                _ => vec![(key.to_vec(), format!("{rest:?}"))],
            }
        });
        (name.to_string(), (set, elements.collect()))
    });
    HeldTable {
        table: dump.table,
        chains: chains.map(|(name, content)| (name.to_string(), format!("{content:?}"))).collect(),
        sets: sets.collect(),
    }
}

/// The chains with a hook, those that elements lead to, and those that the rules of such chains name.
fn used_chains(dump: &TableDump) -> BTreeSet<String> {
    let elements = dump.sets.values().flat_map(|(_, elements)| elements);
    let targets = elements.filter_map(ElementRef::target).map(ToString::to_string);
    let hooks = dump.chains.values().filter(|(chain, _)| chain.base.is_some()).map(|(chain, _)| chain.name.to_string());
    let mut open: Vec<String> = targets.chain(hooks).collect();
    let mut used = BTreeSet::new();
    while let Some(name) = open.pop() {
        let (_, rules) =
            dump.chains.get(&*name).unwrap_or_else(|| panic!("something leads to {name}, which is not there"));
        let rules = format!("{rules:?}");
        if used.insert(name) {
            open.extend(
                dump.chains.keys().filter(|other| rules.contains(&format!("{other:?}"))).map(ToString::to_string),
            );
        }
    }
    used
}

fn failed(error: impl std::fmt::Display) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn engine(config: &Config, layout: Layout) -> Engine<Netfilter> {
    let kernel = Netfilter::open().expect("a netlink socket can be opened");
    Engine::new(config.clone(), layout, &Family::BOTH, kernel)
}

/// Syncs after each change; then lets a new engine find nothing to do, and compares with a sync of the end from nothing.
fn follow(config: &Config, layout: Layout, changes: &[Vec<Event>], elements: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    remove_tables(&mut kernel);
    let mut follower = engine(config, layout);
    for events in changes {
        events.iter().cloned().for_each(|event| {
            follower.apply(event);
        });
        follower.sync(false).map_err(failed)?;
    }
    let followed = held(&mut kernel);
    run(Command::new("nft").args(["list", "ruleset"]));

    let end = last_events(&changes.concat());
    let mut restarted = engine(config, layout);
    end.iter().cloned().for_each(|event| {
        restarted.apply(event);
    });
    let report = restarted.sync(false).map_err(failed)?;
    prop_assert_eq!(report.committed, None, "a restart has nothing to do");

    remove_tables(&mut kernel);
    let mut fresh = engine(config, layout);
    end.into_iter().for_each(|event| {
        fresh.apply(event);
    });
    elements.set(elements.get() + fresh.sync(false).map_err(failed)?.added);
    prop_assert_eq!(followed, held(&mut kernel));
    Ok(())
}

fn remove_tables(kernel: &mut Netfilter) {
    for name in tables() {
        if kernel.read(&name).expect("a table can be read").is_some() {
            kernel.commit(&[nft::Command::DeleteTable(name)]).expect("a table can be deleted");
        }
    }
}

fn assert_following_is_as_good(config: &Config, layout: Layout, seed: u64) {
    const CASES: u32 = 60;
    Namespace::new("follow").enter(|| {
        let elements = Cell::new(0);
        let outcome = TestRunner::new(fixed(CASES, seed))
            .run(&world::changes(), |changes| follow(config, layout, &changes, &elements));
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(
            elements.get() > 10 * usize::try_from(CASES).expect("a small number"),
            "the clusters were all but empty: {} elements",
            elements.get()
        );
    });
}

// A sync that looks only at what changed gives the same tables as a full one, in one transaction (G7, G8).
#[test]
fn a_kernel_that_followed_every_change_holds_what_one_holds_that_got_the_end() {
    assert_following_is_as_good(&config(), Layout::Maps, 2);
}

// The same, with node-port addresses and local pods that follow the Node (G7, H2, I2).
#[test]
fn following_is_as_good_when_the_rules_themselves_depend_on_the_node() {
    assert_following_is_as_good(&config_by_node(), Layout::Maps, 3);
}

// The same in layout `chains` (G7, G8).
#[test]
fn following_is_as_good_in_layout_chains() {
    assert_following_is_as_good(&config(), Layout::Chains, 4);
}

// The same in layout `chains`, with node-port addresses and local pods that follow the Node (G7, H2, I2).
#[test]
fn following_is_as_good_in_layout_chains_when_the_rules_depend_on_the_node() {
    assert_following_is_as_good(&config_by_node(), Layout::Chains, 5);
}

// The same without chains of endpoints (G7, G8).
#[test]
fn following_is_as_good_in_chains_of_services() {
    assert_following_is_as_good(&config(), Layout::ServiceChains, 7);
}

// The same without chains of endpoints, with node-port addresses and local pods that follow the Node (G7, H2, I2).
#[test]
fn following_is_as_good_in_chains_of_services_when_the_rules_depend_on_the_node() {
    assert_following_is_as_good(&config_by_node(), Layout::ServiceChains, 8);
}

// A restart reads the tables back and has nothing to write, also when the kernel's limits shorten comments (O7).
#[test]
fn a_restart_has_nothing_to_do_with_the_longest_names() {
    let name = ObjectName::new("n".repeat(63), "s".repeat(63));
    let port: Arc<str> = "p".repeat(63).into();
    let mut web = service(0);
    web.name = name.clone();
    web.affinity_seconds = Some(300);
    web.ports[0].name = Arc::clone(&port);
    let mut of_web = slice(0, Family::V4, endpoints(0, Family::V4, 3));
    of_web.service = name;
    of_web.ports[0].name = port;
    let events = [Event::ServiceApplied(web), Event::SliceApplied(of_web), Event::InitialListDone];
    Namespace::new("long").enter(|| {
        for layout in Layout::ALL {
            let sync = || {
                let mut engine = engine(&config(), layout);
                events.iter().cloned().for_each(|event| {
                    engine.apply(event);
                });
                engine.sync(false).expect("the kernel takes it")
            };
            assert!(sync().added > 3, "{layout:?}");
            assert_eq!(sync().committed, None, "{layout:?}: a restart has nothing to do");
        }
    });
}

#[test]
fn a_change_of_layout_leaves_nothing_of_the_one_before() {
    Namespace::new("switch").enter(|| {
        let elements = Cell::new(0);
        let switch = |changes: Vec<Vec<Event>>| switch(&config_by_node(), &changes, &elements);
        TestRunner::new(fixed(20, 6)).run(&world::changes(), switch).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(elements.get() > 200, "the clusters were all but empty: {} elements", elements.get());
    });
}

/// From each layout to each other one, one transaction each; the tables are then as if written anew.
fn switch(config: &Config, changes: &[Vec<Event>], elements: &Cell<usize>) -> TestCaseResult {
    let mut kernel = Netfilter::open().expect("a netlink socket can be opened");
    let end = last_events(&changes.concat());
    let mut write = |layout, from_nothing: bool| -> Result<Held, TestCaseError> {
        if from_nothing {
            remove_tables(&mut kernel);
        }
        let mut engine = engine(config, layout);
        end.iter().cloned().for_each(|event| {
            engine.apply(event);
        });
        elements.set(elements.get() + engine.sync(false).map_err(failed)?.added);
        prop_assert_eq!(engine.sync(false).map_err(failed)?.committed, None, "one transaction was enough");
        Ok(held(&mut kernel))
    };
    for [from, to] in [(0, 1), (0, 2), (1, 2)].map(|(a, b): (usize, usize)| [Layout::ALL[a], Layout::ALL[b]]) {
        let fresh = [write(from, true)?, write(to, true)?];
        let switched = [write(from, false)?, write(to, false)?];
        prop_assert_eq!(fresh, switched, "{:?} and {:?}", from, to);
    }
    Ok(())
}
