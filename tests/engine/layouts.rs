//! A change of the layout: the rules of before find the elements of before until the last packet has passed them, so that each first packet
//! of a connection is translated, by the rules of before or by those of now (F8).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kube_proxy::sync::{Engine, Report};
use nft::{Command, Elements};
use node::kernel::{Kernel, Netfilter};
use rules::model::{Event, Family, Scheduler};
use rules::ruleset::Layout;
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::cluster::{address, config_from, node, served, service};
use crate::support::faulty::Faulty;
use crate::support::figures::Figures;
use crate::support::kernel::Recorder;
use crate::support::netns::Namespace;
use crate::support::nft::{list_json, load};
use crate::support::plan;
use crate::support::proxy;
use crate::support::wire::{SYN, tcp_segment};
use crate::support::world::World;

/// The layouts one after the other, with each change between two of them once a round.
const ROUND: [Layout; 6] =
    [Layout::Chains, Layout::ServiceChains, Layout::Maps, Layout::ServiceChains, Layout::Chains, Layout::Maps];
/// The number of changes under traffic, unless `KUBE_PROXY_LAYOUT_CHANGES` says otherwise (`make soak`).
const CHANGES: usize = 60;
/// The first packets that each of two senders sends in a second, at most; and those between two pauses.
const RATE: u32 = 60_000;
const AT_ONCE: u32 = 64;
/// Service 1 chooses an endpoint at random. A packet to Service 2 looks up some sixty places.
const SERVICES: [(u16, Option<Scheduler>); 2] = [(1, None), (2, Some(Scheduler::Maglev))];

/// Writes the tables in a layout with a number of maps of endpoints, as a process that starts with them.
fn start<K: Kernel>(kernel: K, (layout, maps): (Layout, u8)) -> Report {
    let mut config = proxy::config();
    config["nftables"]["endpointMaps"] = json!(maps);
    config["nftables"]["schedulerHash"] = json!("source-and-port");
    config["nftables"]["maglevTableSize"] = json!(127);
    let mut proxy = Engine::new(config_from(&config), layout, &Family::BOTH, kernel);
    let services = SERVICES.into_iter().flat_map(|(n, scheduler)| {
        let mut events = served(n, 2);
        let of_service = rules::model::Service { scheduler, ..service(n) };
        events[0] = Event::ServiceApplied(of_service);
        events
    });
    [node(None)].into_iter().chain(services).chain([Event::InitialListDone]).for_each(|event| {
        proxy.apply(event);
    });
    proxy.sync(false).expect("the kernel takes it")
}

/// The elements that a transaction deletes, and does not add with another value.
fn deleted(commands: &[Command]) -> usize {
    let is_replaced = |of: &nft::TableName, set: &nft::Set, key: &[u8]| {
        let added = |list: &Elements| list.iter().any(|element| element.key() == key);
        let adds = |command: &Command| matches!(command, Command::AddElements(table, added_to, list) if table == of && added_to.name == set.name && added(list));
        commands.iter().any(adds)
    };
    let gone = commands.iter().map(|command| match command {
        Command::DeleteElements(table, set, list) => {
            list.iter().filter(|element| !is_replaced(table, set, element.key())).count()
        }
        _ => 0,
    });
    gone.sum()
}

fn has(commands: &[Command], is_it: fn(&Command) -> bool) -> bool {
    commands.iter().any(is_it)
}

#[test]
fn the_transaction_with_the_rules_of_another_layout_or_of_more_maps_takes_no_element_from_those_of_before() {
    let forms = Layout::ALL.into_iter().flat_map(|layout| [1, 4, 16].map(|maps| (layout, maps)));
    for before in forms.clone() {
        for now in forms.clone().filter(|now| *now != before) {
            let kernel = Faulty::new(Recorder::default());
            start(kernel.clone(), before);
            kernel.inner.log.borrow_mut().sent.clear();
            let report = start(kernel.clone(), now);
            let sent = std::mem::take(&mut kernel.inner.log.borrow_mut().sent);
            let [rules, rest @ ..] = &sent[..] else { panic!("{before:?} to {now:?}: nothing is sent") };
            assert_eq!((report.transactions, sent.len() <= 2), (sent.len(), true), "{before:?} to {now:?}");
            assert!(before.0 == now.0 || has(rules, |command| matches!(command, Command::FlushChain(..))));
            // A chain at a hook that is made anew would see the packets beside the one of before.
            assert!(!has(rules, |command| matches!(command, Command::DeleteTable(_))), "{before:?} to {now:?}");
            assert!(!has(rules, |command| matches!(command, Command::DeleteSet(..))), "{before:?} to {now:?}");
            assert_eq!(deleted(rules), 0, "{before:?} to {now:?}");
            let is_deletion =
                |command: &Command| matches!(command, Command::DeleteSet(..) | Command::DeleteElements(..));
            assert!(rest.iter().flatten().all(is_deletion), "{before:?} to {now:?}: {rest:?}");
            let again = start(kernel.clone(), now);
            assert_eq!((again.committed, again.full), (None, true), "{before:?} to {now:?}");
        }
    }
}

/// Counts what leaves the node, or its sockets, for cluster IPs and for endpoints.
fn count(node: &Namespace) {
    let nets = [("untranslated", 96), ("translated", 244)].into_iter().flat_map(|(counter, block)| {
        let [v4, v6] = Family::BOTH.map(|family| address(family, block, 0));
        [format!("ip daddr {v4}/16 counter name {counter}"), format!("ip6 daddr {v6}/48 counter name {counter}")]
    });
    let rules = nets.collect::<Vec<_>>().join("\n");
    let chain = |hook| format!("chain {hook} {{ type filter hook {hook} priority -10\n{rules}\n}}");
    let counters = "counter untranslated { }\ncounter translated { }";
    load(node, &format!("table inet spy {{\n{counters}\n{}\n{}\n}}", chain("forward"), chain("output")));
}

/// The packets that a counter of [`count`] has seen.
fn counted(node: &Namespace, counter: &str) -> u64 {
    let listing = list_json(node);
    let objects = listing["nftables"].as_array().expect("a list of objects");
    let found = objects.iter().find(|object| object["counter"]["name"] == counter).expect("the counter is there");
    found["counter"]["packets"].as_u64().expect("a number")
}

/// Sends first segments of connections to the Services, from ever other ports, until `is_done`. Returns how many.
fn send(sources: fn(plan::Family) -> IpAddr, is_done: &AtomicBool) -> u64 {
    let sockets = [(plan::Family::V4, Family::V4), (plan::Family::V6, Family::V6)].map(|(source, family)| {
        let source = SocketAddr::new(sources(source), 0);
        let socket = Socket::new(Domain::for_address(source), Type::RAW, Some(Protocol::TCP)).expect("root may");
        socket.bind(&source.into()).expect("the address is there");
        (source.ip(), SERVICES.map(|(n, _)| SocketAddr::new(address(family, 96, n), 80)), socket)
    });
    let (start, mut sent) = (Instant::now(), 0_u64);
    while !is_done.load(Ordering::Relaxed) {
        for _ in 0..AT_ONCE {
            let (source, targets, socket) = &sockets[usize::from(sent % 2 == 1)];
            let target = targets[usize::from(sent / 2 % 2 == 1)];
            let port = u16::try_from(1_024 + sent / 4 % 64_000).expect("a port");
            let segment = tcp_segment(SocketAddr::new(*source, port), target, SYN);
            // A segment that a rule refuses has been counted before.
            let _ = socket.send_to(&segment, &SocketAddr::new(target.ip(), 0).into());
            sent += 1;
        }
        let due = start + Duration::from_secs(1) * u32::try_from(sent).expect("fewer than the test lasts") / RATE;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    sent
}

#[test]
fn a_change_of_the_layout_leaves_no_first_packet_untranslated() {
    // The endpoints are addresses that no host has, so that nothing answers.
    let changes = std::env::var("KUBE_PROXY_LAYOUT_CHANGES").map_or(CHANGES, |text| text.parse().expect("a number"));
    let world = World::new();
    // The senders come back to a port after some seconds.
    world.node.set_sysctl("netfilter/nf_conntrack_tcp_timeout_syn_sent", "1");
    count(&world.node);
    let change = |layout| {
        world.node.enter(|| start(Netfilter::open().expect("netlink sockets can be opened (needs root)"), (layout, 1)))
    };
    change(Layout::Maps);
    let is_done = AtomicBool::new(false);
    let sent: u64 = thread::scope(|scope| {
        let places =
            [(&world.client, plan::Family::client as fn(plan::Family) -> IpAddr), (&world.node, plan::Family::node)];
        let senders = places.map(|(from, sources)| {
            let is_done = &is_done;
            scope.spawn(move || {
                from.join();
                send(sources, is_done)
            })
        });
        for layout in ROUND.into_iter().cycle().take(changes) {
            change(layout);
        }
        is_done.store(true, Ordering::Relaxed);
        senders.map(|sender| sender.join().expect("a sender goes on to the end")).into_iter().sum()
    });
    let (translated, untranslated) = (counted(&world.node, "translated"), counted(&world.node, "untranslated"));
    let mut figures = Figures::default();
    figures.row("changes of the layout", changes);
    figures.row("first packets sent meanwhile", sent);
    figures.row("first packets translated", translated);
    figures.row("first packets not translated", untranslated);
    figures.publish();
    assert!(translated > sent / 2, "{translated} of {sent}");
    assert_eq!(untranslated, 0, "of {sent}");
}
