//! A first sync of so much that it is several transactions, and a process that is killed between two of them.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::mixed;
use crate::support::netns::run;
use crate::support::objects::{service, slice};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;
use nft::{Chain, Command, Connection, Table, TableDump, TableName};
use node::kernel::{Kernel, Netfilter};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};

/// Services with ten endpoints: more elements than a first sync sends in one transaction.
const SERVICES: u32 = 5_100;
const ENDPOINTS: u32 = 10;

/// The Services that take the room, as one list.
fn many() -> Value {
    let address = |base: u32, n: u32| IpAddr::V4(Ipv4Addr::from(base + n));
    let objects = (0..SERVICES).flat_map(|n| {
        let name = format!("many-{n}");
        let endpoints: Vec<IpAddr> = (0..ENDPOINTS).map(|m| address(0x0af6_0000, n * ENDPOINTS + m)).collect();
        [
            service("many", &name).cluster_ip(address(0x0a60_4000, n)).port("http", Proto::Tcp, 80).json(),
            slice("many", &name, &name, &endpoints, &[("http", Proto::Tcp, 8080)]),
        ]
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>() })
}

fn ours() -> TableName {
    TableName::new(nft::Family::Ip, "kube-proxy")
}

fn read(world: &World) -> TableDump {
    let read = || Netfilter::open().expect("a socket").read(&ours());
    world.node.enter(read).expect("it can be read").expect("a table")
}

/// Base chains, and elements of all sets.
fn content(table: &TableDump) -> (usize, usize) {
    let base = table.chains.values().filter(|(chain, _)| chain.base.is_some()).count();
    (base, table.sets.values().map(|(_, elements)| elements.len()).sum())
}

fn is_served(world: &World) -> bool {
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.load_balancer_ip(1), 80);
    matches!(probe(&world.client, flow), Outcome::Reached(_))
}

#[test]
fn a_process_that_is_killed_within_a_large_first_sync_leaves_no_half_and_the_next_one_completes_it() {
    // Packets see nothing of a first sync or all of it, however many transactions it is (G8, O7).
    let world = World::new();
    let mut proxy = Proxy::prepare(&world.node, &config(), &mixed::cluster());
    proxy.manifests().apply(&many());
    proxy.spawn();
    world.node.enter(|| {
        let mut connection = Connection::open().expect("a netlink socket");
        let end = Instant::now() + Duration::from_secs(60);
        while connection.table(&ours()).expect("it can be asked for").is_none() {
            assert!(Instant::now() < end, "no table");
            thread::sleep(Duration::from_millis(1));
        }
    });
    proxy.kill();
    let (base, part) = content(&read(&world));
    println!("killed with {part} elements and {base} base chains");
    let all = usize::try_from(SERVICES * (ENDPOINTS + 1)).expect("a small number");
    assert!(base == 0 && (1..all).contains(&part), "{base} base chains, {part} elements");
    assert!(!is_served(&world), "no packet passes");

    proxy.launch();
    let (base, whole) = content(&read(&world));
    assert!(base > 0 && whole > all, "{base} base chains, {whole} elements");
    assert!(is_served(&world));
    let log = proxy.log();
    assert!(!log.contains("Sync failed") && !log.contains("changed our rules"), "{log}");
    let directory = proxy.manifests().path().to_str().expect("a temporary path is text").to_owned();
    run(world
        .node
        .command(binary())
        .args(["verify", "--manifests", &directory])
        .arg("--config")
        .arg(proxy.config_path()));

    // From nothing it is several transactions, and what comes afterwards is one.
    proxy.stop();
    run(world.node.command("nft").args(["flush", "ruleset"]));
    proxy.launch();
    let transactions = || proxy.series("kubeproxy_nft_transactions_total").iter().sum::<f64>();
    assert!(transactions() >= 6.0, "{}", transactions());
    assert_eq!(content(&read(&world)), (base, whole));
}

#[test]
fn tables_that_are_read_ahead_are_those_of_the_moment_when_they_are_needed() {
    let world = World::new();
    world.node.enter(|| {
        let table = || Table { name: ours(), comment: None };
        let chain = |name: &str| Command::AddChain(ours(), Chain { name: name.into(), base: None, comment: None });
        let mut other = Connection::open().expect("a socket");
        let mut kernel = Netfilter::open().expect("a socket");
        let mut chains = |kernel: &mut Netfilter, new: Option<&str>| {
            kernel.read_ahead(vec![ours()]);
            // In most runs the tables are read within this time, so that the change comes after the reading.
            thread::sleep(Duration::from_millis(100));
            new.into_iter().for_each(|name| drop(other.commit(&[Command::AddTable(table()), chain(name)])));
            let dump = kernel.read(&ours()).expect("it can be read");
            dump.map(|dump| dump.chains.into_keys().map(|name| name.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(chains(&mut kernel, None), None, "there is no table");
        assert_eq!(chains(&mut kernel, Some("a")), Some(vec!["a".to_owned()]));
        assert_eq!(chains(&mut kernel, None), Some(vec!["a".to_owned()]));
        assert_eq!(chains(&mut kernel, Some("b")), Some(vec!["a".to_owned(), "b".to_owned()]));
        // A second read of a table never uses tables that were read ahead.
        assert_eq!(kernel.read(&ours()).expect("it can be read").map(|dump| dump.chains.len()), Some(2));
    });
}
