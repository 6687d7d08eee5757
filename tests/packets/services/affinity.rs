//! Session affinity: which client stays with which endpoint, for how long, and what the maps show of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::judge::{Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::run;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::support::world::World;

const ALL: [u8; 4] = [0, 1, 2, 3];
const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
/// Long enough that nothing is forgotten during a test.
const LONG: u32 = 10_800;
/// So many that one of four endpoints gets no client by chance less than once in ten million times.
const CLIENTS: u8 = 64;

/// The endpoint of each client.
type Memory = BTreeMap<IpAddr, SocketAddr>;

/// The entry of a client in a map.
#[derive(Debug)]
struct Entry {
    endpoint: IpAddr,
    timeout: u64,
    expires: u64,
}

fn client(family: Family, n: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("203.0.113.{}", 100 + n) } else { format!("2001:db8:113::1:{n}") };
    text.parse().expect("a client's address is well-formed")
}

/// A world whose client has [`CLIENTS`] more addresses in each family.
fn world_of_clients() -> World {
    let world = World::new();
    for family in Family::ALL {
        let add = |n| format!("addr add {} dev eth0", host_prefix(client(family, n)));
        world.client.ip(&(0..CLIENTS).map(add).collect::<Vec<_>>());
    }
    world.node.ip(&[
        "route add 203.0.113.0/24 via 169.254.2.2 dev to-client",
        "route add 2001:db8:113::/64 via fe80::2 dev to-client",
    ]);
    world
}

fn web(seconds: u32) -> ServiceBuilder {
    let web = service("shop", "web").cluster_ips(1).client_ip_affinity(seconds);
    web.port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53)
}

fn objects(web: ServiceBuilder) -> Vec<Value> {
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &ALL, &PORTS));
    objects
}

/// The cluster IP's ports in both families.
fn frontends() -> impl Iterator<Item = (Family, Proto, SocketAddr)> {
    Family::ALL.into_iter().flat_map(|family| {
        [(Proto::Tcp, 80), (Proto::Udp, 53)]
            .map(|(proto, port)| (family, proto, SocketAddr::new(family.cluster_ip(1), port)))
    })
}

/// One new connection of a client.
fn connect(world: &World, client: IpAddr, proto: Proto, frontend: SocketAddr) -> SocketAddr {
    let flow = Flow::new(proto, client, frontend.ip(), frontend.port());
    match probe(&world.client, flow) {
        Outcome::Reached(answer) => SocketAddr::new(answer.endpoint, answer.port),
        outcome => panic!("{flow:?}: {outcome:?}"),
    }
}

/// One new connection of every client.
fn connect_all(world: &World, proto: Proto, frontend: SocketAddr) -> Memory {
    let family = Family::of(frontend.ip());
    let clients = (0..CLIENTS).map(|n| client(family, n));
    clients.map(|client| (client, connect(world, client, proto, frontend))).collect()
}

/// One new connection of every client to every frontend.
fn connect_everywhere(world: &World) -> Vec<Memory> {
    frontends().map(|(_, proto, frontend)| connect_all(world, proto, frontend)).collect()
}

fn used(memory: &Memory) -> BTreeSet<SocketAddr> {
    memory.values().copied().collect()
}

fn table(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

fn list_table(world: &World, family: Family) -> Vec<Value> {
    let text = run(world.node.command("nft").args(["-j", "list", "table", table(family), "kube-proxy"]));
    let mut listing: Value = serde_json::from_str(&text).expect("nft -j prints JSON");
    listing["nftables"].as_array_mut().map(std::mem::take).expect("a list of objects")
}

/// What the rules remember of the clients of a port of `shop/web`, as `nft -j` shows it.
fn entries(world: &World, layout: Layout, family: Family, proto: Proto) -> BTreeMap<IpAddr, Entry> {
    match layout {
        Layout::Chains => set_entries(world, family, proto),
        Layout::Maps | Layout::ServiceChains => map_entries(world, family, proto),
    }
}

/// The entries of the one map from client to endpoint that a port has.
fn map_entries(world: &World, family: Family, proto: Proto) -> BTreeMap<IpAddr, Entry> {
    let name = format!("affinity-shop/web/{}", map_of(proto));
    let objects = list_table(world, family);
    let map = objects.iter().filter_map(|object| object.get("map")).find(|map| map["name"] == *name);
    let elements = map.expect("the map is listed")["elem"].as_array().cloned().unwrap_or_default();
    elements.iter().map(|element| entry(&element[0], address(&element[1]))).collect()
}

/// The entries of layout `chains`, which has a set of clients for each endpoint, with the name of the endpoint's chain.
fn set_entries(world: &World, family: Family, proto: Proto) -> BTreeMap<IpAddr, Entry> {
    let objects = list_table(world, family);
    let endpoint = |name: &Value| {
        let rules = objects.iter().filter_map(|object| object.get("rule")).filter(|rule| rule["chain"] == *name);
        let dnat = rules.flat_map(|rule| rule["expr"].as_array()).flatten().find_map(|expr| expr.get("dnat"));
        address(&dnat.expect("an endpoint's chain translates")["addr"])
    };
    let sets = objects.iter().filter_map(|object| object.get("set")).filter(|set| set["comment"] == label_of(proto));
    let elements = sets.flat_map(|set| {
        let elements = set["elem"].as_array().cloned().unwrap_or_default();
        elements.into_iter().map(|element| (element, endpoint(&set["name"])))
    });
    elements.map(|(element, endpoint)| entry(&element, endpoint)).collect()
}

fn address(value: &Value) -> IpAddr {
    value.as_str().and_then(|text| text.parse().ok()).expect("an address")
}

fn entry(client: &Value, endpoint: IpAddr) -> (IpAddr, Entry) {
    let seconds = |field: &str| client["elem"][field].as_u64().expect("seconds");
    (address(&client["elem"]["val"]), Entry { endpoint, timeout: seconds("timeout"), expires: seconds("expires") })
}

fn map_of(proto: Proto) -> &'static str {
    if proto == Proto::Tcp { "http/tcp-8080" } else { "dns/udp-9090" }
}

fn label_of(proto: Proto) -> &'static str {
    if proto == Proto::Tcp { "shop/web:http" } else { "shop/web:dns" }
}

/// How many sets or maps remember the clients of a port in a family.
fn memories(layout: Layout) -> usize {
    if layout == Layout::Chains { ALL.len() } else { 1 }
}

// The endpoint of a client is remembered, and its new connections go there (E1, E2).
test_in_each_layout!(a_client_stays_with_its_endpoint_and_clients_are_spread);
fn a_client_stays_with_its_endpoint_and_clients_are_spread(layout: Layout) {
    let world = world_of_clients();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(LONG)));
    for (family, proto, frontend) in frontends() {
        let first = connect_all(&world, proto, frontend);
        let port = if proto == Proto::Tcp { 8080 } else { 9090 };
        assert_eq!(used(&first), endpoints(family, &ALL, port).into_iter().collect(), "{proto:?}");
        for _ in 0..4 {
            assert_eq!(connect_all(&world, proto, frontend), first);
        }
        let known = entries(&world, layout, family, proto);
        let remembered: BTreeMap<_, _> = known.iter().map(|(client, entry)| (*client, entry.endpoint)).collect();
        assert_eq!(remembered, first.iter().map(|(client, endpoint)| (*client, endpoint.ip())).collect());
        assert!(known.values().all(|entry| entry.timeout == u64::from(LONG)), "{known:?}");
    }
}

// Each new connection renews the time for which a client is remembered (E3).
test_in_each_layout!(each_new_connection_renews_the_time_and_afterwards_a_client_is_balanced_anew);
fn each_new_connection_renews_the_time_and_afterwards_a_client_is_balanced_anew(layout: Layout) {
    // A third of the time-out must be enough for a connection.
    let seconds = if is_slow() { 6 } else { 2 };
    let time = Duration::from_secs(seconds.into());
    let world = world_of_clients();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(seconds)));
    let all = || frontends().filter(|(_, proto, _)| *proto == Proto::Tcp);
    for (family, _, frontend) in all() {
        let me = client(family, 0);
        let endpoint = connect(&world, me, Proto::Tcp, frontend);
        for _ in 0..3 {
            sleep(time.mul_f32(0.65));
            assert_eq!(connect(&world, me, Proto::Tcp, frontend), endpoint);
            // Without renewal a third would be left; nft shows whole seconds.
            let known = entries(&world, layout, family, Proto::Tcp);
            assert!(known[&me].expires >= u64::from(seconds / 2), "{known:?}");
        }
    }
    let before: Vec<Memory> = all().map(|(_, _, frontend)| connect_all(&world, Proto::Tcp, frontend)).collect();
    sleep(time + Duration::from_millis(200));
    for ((family, _, frontend), before) in all().zip(before) {
        assert!(entries(&world, layout, family, Proto::Tcp).is_empty());
        assert_ne!(connect_all(&world, Proto::Tcp, frontend), before);
    }
}

// A client is its address, whichever address of the Service it uses (E4).
test_in_each_layout!(frontends_of_a_port_share_the_memory_and_ports_do_not);
fn frontends_of_a_port_share_the_memory_and_ports_do_not(layout: Layout) {
    let world = world_of_clients();
    let web = service("shop", "web").cluster_ips(1).client_ip_affinity(LONG);
    let web = web.port("http", Proto::Tcp, 80).node_port(30080).port("admin", Proto::Tcp, 81).node_port(30081);
    let web = Family::ALL
        .iter()
        .fold(web, |web, family| web.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1)));
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &ALL, &[("http", Proto::Tcp, 8080), ("admin", Proto::Tcp, 9090)]));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        let at = |address, port| connect_all(&world, Proto::Tcp, SocketAddr::new(address, port));
        let http = at(family.node(), 30080);
        for address in [family.cluster_ip(1), family.external_ip(1), family.load_balancer_ip(1)] {
            assert_eq!(at(address, 80), http, "{address}");
        }
        let admin = at(family.cluster_ip(1), 81);
        assert_eq!(at(family.node(), 30081), admin);
        let hosts = |memory: &Memory| memory.values().map(SocketAddr::ip).collect::<Vec<_>>();
        assert_ne!(hosts(&admin), hosts(&http));
    }
}

// With policy Local a client stays with its endpoint only if that is on this node (E5).
test_in_each_layout!(the_local_list_keeps_to_what_was_learnt_when_that_is_local);
fn the_local_list_keeps_to_what_was_learnt_when_that_is_local(layout: Layout) {
    let world = world_of_clients();
    let web = web(LONG).node_port(30053).spec("externalTrafficPolicy", "Local".into());
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects(web));
    for family in Family::ALL {
        let local: BTreeSet<SocketAddr> = endpoints(family, &[0, 1], 9090).into_iter().collect();
        let learnt = connect_all(&world, Proto::Udp, SocketAddr::new(family.cluster_ip(1), 53));
        let locally = connect_all(&world, Proto::Udp, SocketAddr::new(family.node(), 30053));
        assert_eq!(used(&locally), local);
        for (client, endpoint) in learnt.iter().filter(|(_, endpoint)| local.contains(endpoint)) {
            assert_eq!(locally[client], *endpoint, "{client}");
        }
        assert_eq!(connect_all(&world, Proto::Udp, SocketAddr::new(family.node(), 30053)), locally);
    }
}

// Clients of an endpoint that is gone are forgotten with the same sync (E6).
test_in_each_layout!(clients_of_a_removed_endpoint_move_and_the_others_stay);
fn clients_of_a_removed_endpoint_move_and_the_others_stay(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(LONG)));
    let before = connect_everywhere(&world);
    proxy.apply(&slices("shop", "web", &[0, 1, 2], &PORTS));
    for (family, proto, _) in frontends() {
        let known = entries(&world, layout, family, proto);
        assert!(!known.is_empty() && known.values().all(|entry| entry.endpoint != family.endpoint(3)), "{known:?}");
    }
    let moved = connect_everywhere(&world);
    for ((family, _, _), (before, moved)) in frontends().zip(before.iter().zip(&moved)) {
        assert!(moved.values().all(|endpoint| endpoint.ip() != family.endpoint(3)));
        let stayed = before.iter().filter(|(_, endpoint)| endpoint.ip() != family.endpoint(3));
        stayed.for_each(|(client, endpoint)| assert_eq!(moved[client], *endpoint, "{client}"));
    }
    proxy.apply(&slices("shop", "web", &ALL, &PORTS));
    assert_eq!(connect_everywhere(&world), moved, "an endpoint that came back was remembered");
}

// Clients of endpoints that stay are remembered across a restart (E6).
test_in_each_layout!(a_restart_forgets_no_client_and_writes_nothing);
fn a_restart_forgets_no_client_and_writes_nothing(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(LONG)));
    let rules = || nft::normalised(&nft::list_ruleset(&world.node));
    let memories = connect_everywhere(&world);
    let before = rules();
    proxy.stop();
    assert_eq!(connect_everywhere(&world), memories, "while no proxy runs");
    proxy.launch();
    assert_eq!(rules(), before);
    assert_eq!(connect_everywhere(&world), memories, "after the restart");
}

// A map or set that is full remembers no further client, and these are balanced (E7).
test_in_each_layout!(a_full_map_balances_new_clients);
fn a_full_map_balances_new_clients(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(LONG)));
    let listing = nft::list_ruleset(&world.node);
    assert_eq!(listing.matches("size 65536").count(), frontends().count() * memories(layout), "{listing}");
    // While it runs, the tables are the proxy's alone.
    proxy.stop();
    for family in Family::ALL {
        fill(&world, layout, family);
        assert_spread_without_memory(&world, family);
    }
    proxy.launch();
    Family::ALL.iter().for_each(|family| assert_spread_without_memory(&world, *family));
}

/// Puts 65,536 clients into what remembers those of the TCP port.
fn fill(world: &World, layout: Layout, family: Family) {
    let client = |n: u32| match family {
        Family::V4 => format!("100.64.{}.{}", n >> 8, n & 0xff),
        Family::V6 => format!("2001:db8:64::{n:x}"),
    };
    let clients = 0..65_536;
    let add = |name: &str, elements: Vec<String>| {
        let elements = elements.join(", ");
        nft::load(&world.node, &format!("add element {} kube-proxy {name} {{ {elements} }}\n", table(family)));
    };
    if layout != Layout::Chains {
        let endpoint = family.endpoint(0);
        let elements = clients.map(|n| format!("{} : {endpoint}", client(n))).collect();
        add(&format!("affinity-shop/web/{}", map_of(Proto::Tcp)), elements);
        return;
    }
    let sets = list_table(world, family);
    let sets = sets.iter().filter_map(|object| object.get("set"));
    for set in sets.filter(|set| set["comment"] == label_of(Proto::Tcp)) {
        add(set["name"].as_str().expect("a name"), clients.clone().map(client).collect());
    }
}

fn assert_spread_without_memory(world: &World, family: Family) {
    let flow = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(1), 80);
    assert_reaches(&world.client, flow, &endpoints(family, &ALL, 8080), Source::Masqueraded, 80);
}

// A new time-out holds for new connections (E8).
test_in_each_layout!(a_new_time_out_holds_for_new_connections_and_forgets_no_client);
fn a_new_time_out_holds_for_new_connections_and_forgets_no_client(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(300)));
    let memories = connect_everywhere(&world);
    proxy.apply(&[web(3_000).json()]);
    for ((family, proto, frontend), memory) in frontends().zip(&memories) {
        let (old, new) = (client(family, 0), family.client());
        assert_eq!(connect(&world, old, proto, frontend), memory[&old]);
        connect(&world, new, proto, frontend);
        let known = entries(&world, layout, family, proto);
        assert_eq!(known.len(), memory.len() + 1);
        assert!(known[&old].expires > 300, "{:?}", known[&old]);
        assert_eq!(known[&new].timeout, 3_000);
        assert!(known[&client(family, 1)].expires <= 300, "{:?}", known[&client(family, 1)]);
    }
    assert_eq!(connect_everywhere(&world), memories);
}

// Only a port with session affinity remembers clients (E1, E2).
test_in_each_layout!(affinity_that_is_switched_off_leaves_nothing);
fn affinity_that_is_switched_off_leaves_nothing(layout: Layout) {
    let world = world_of_clients();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects(web(LONG)));
    connect_everywhere(&world);
    // Only what remembers clients has a size.
    assert!(nft::list_ruleset(&world.node).contains("size 65536"));
    proxy.apply(&[web(LONG).spec("sessionAffinity", "None".into()).json()]);
    for family in Family::ALL {
        assert_spread_without_memory(&world, family);
    }
    sleep(Duration::from_secs(3));
    let listing = nft::list_ruleset(&world.node);
    assert!(!listing.contains("size 65536") && !listing.contains("affinity-shop"), "{listing}");
}
