//! UDP clients that keep their port and send all the time, while the frontends that they use are taken away.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Answer;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("dns", Proto::Udp, 8080), ("more", Proto::Udp, 9090)];
/// Time between two packets of a client.
const PAUSE: Duration = Duration::from_millis(20);
/// Answers that were on their way at a change have been read after this time, also on a machine that is busy.
const ON_THEIR_WAY: Duration = Duration::from_millis(400);
/// How long answers are looked for after a change.
const WATCHED: Duration = Duration::from_millis(500);

/// A client that sends from one port all the time.
struct Client {
    name: &'static str,
    source: SocketAddr,
    target: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    answers: Arc<std::sync::Mutex<Vec<(Instant, IpAddr)>>>,
}

impl Client {
    /// Starts to send, and waits for the first answer.
    fn start(name: &'static str, space: &Namespace, from: IpAddr, to: IpAddr, port: u16) -> Self {
        let target = SocketAddr::new(to, port);
        let socket = space.enter(|| {
            let socket = UdpSocket::bind((from, 0)).expect("a port is free");
            socket.connect(target).expect("a UDP socket connects");
            socket.set_read_timeout(Some(PAUSE)).expect("a time-out can be set");
            socket
        });
        let source = socket.local_addr().expect("a bound socket has an address");
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<std::sync::Mutex<Vec<_>>>::default());
        let (stopped, list) = (Arc::clone(&stop), Arc::clone(&answers));
        let thread = Some(thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // All answers that have arrived are read, so that none of a slow server counts as a later one.
                let mut text = [0; 256];
                let mut outcome = socket.send(b"?");
                while let Ok(length) = outcome.and_then(|_| socket.recv(&mut text)) {
                    let answer: Answer = String::from_utf8_lossy(&text[..length]).parse().expect("the server's answer");
                    list.lock().expect("no panic").push((Instant::now(), answer.endpoint));
                    outcome = Ok(length);
                }
                // A frontend that is gone may be refused at once.
                thread::sleep(PAUSE / 4);
            }
        }));
        let client = Self { name, source, target, stop, thread, answers };
        let end = Instant::now() + Duration::from_secs(10);
        while client.since(None).is_empty() {
            assert!(Instant::now() < end, "{name}: no answer from {target}");
            thread::sleep(PAUSE);
        }
        client
    }

    /// The endpoints that answered after a moment.
    fn since(&self, moment: Option<Instant>) -> Vec<IpAddr> {
        let answers = self.answers.lock().expect("no panic");
        answers
            .iter()
            .filter(|(at, _)| moment.is_none_or(|moment| *at > moment))
            .map(|(_, endpoint)| *endpoint)
            .collect()
    }

    /// The number of the flow in the node's table; a flow that was made anew has another one.
    fn flow(&self, node: &Namespace) -> String {
        let family = if self.target.is_ipv4() { "ipv4" } else { "ipv6" };
        let (from, to) = (self.source.ip().to_string(), self.target.ip().to_string());
        let ports = [self.source.port(), self.target.port()].map(|port| port.to_string());
        let text = run(node
            .command("conntrack")
            .args(["-L", "-o", "id", "-f", family, "-p", "udp", "-s", &from, "-d"])
            .args([&to, "--sport", &ports[0], "--dport", &ports[1]]));
        text.split_whitespace().find(|word| word.starts_with("id=")).unwrap_or("no flow").to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _result = thread.join();
        }
    }
}

/// The Service after so many of the changes.
fn dns(changes: usize) -> Value {
    let dns = service("shop", "dns").cluster_ips(1).port("dns", Proto::Udp, 53);
    let dns = if changes < 2 { dns.node_port(30053) } else { dns };
    let dns = if changes < 1 { dns.port("more", Proto::Udp, 54) } else { dns };
    let dns = Family::ALL.into_iter().fold(dns, |mut dns, family| {
        if changes < 3 {
            dns = dns.external_ip(family.external_ip(1));
        }
        if changes < 4 {
            dns = dns.load_balancer_ip(family.load_balancer_ip(1));
        }
        dns.load_balancer_ip(family.load_balancer_ip(2))
    });
    let ranges = Family::ALL.map(|family| host_prefix(family.shell()));
    if changes < 5 { dns.json() } else { dns.spec("loadBalancerSourceRanges", json!(ranges)).json() }
}

/// Another Service, which stays as it is. It has none of the endpoints of the first one, so that these are known by what is read only.
fn kept() -> Vec<Value> {
    let kept = service("shop", "kept").cluster_ips(2).port("dns", Proto::Udp, 53).node_port(30054);
    let kept = Family::ALL.into_iter().fold(kept, |kept, family| kept.external_ip(family.external_ip(2)));
    [vec![kept.json()], slices("shop", "kept", &[3], &PORTS[..1])].concat()
}

/// Clients of everything that is taken away, in the order of the changes.
fn clients_of_dns(world: &World, family: Family) -> [Client; 6] {
    let (shell, client) = (family.shell(), family.client());
    [
        Client::start("a port", &world.shell, shell, family.cluster_ip(1), 54),
        Client::start("a node port", &world.client, client, family.node(), 30053),
        Client::start("an external IP", &world.client, client, family.external_ip(1), 53),
        Client::start("a load balancer IP", &world.client, client, family.load_balancer_ip(1), 53),
        Client::start("a client out of the source ranges", &world.client, client, family.load_balancer_ip(2), 53),
        Client::start("the Service", &world.shell, shell, family.cluster_ip(1), 53),
    ]
}

/// Clients whose flows no change concerns.
fn clients_of_others(world: &World, family: Family) -> [Client; 3] {
    let (shell, client) = (family.shell(), family.client());
    [
        Client::start("a cluster IP of another Service", &world.shell, shell, family.cluster_ip(2), 53),
        Client::start("a node port of another Service", &world.client, client, family.node(), 30054),
        Client::start("an external IP of another Service", &world.client, client, family.external_ip(2), 53),
    ]
}

/// The client of another program's translation. It begins just before the external IP is taken away: as long as the Service has the
/// address, a flow there that is answered by something else than its endpoints is deleted (J5).
fn client_of_another_program(world: &World, family: Family) -> Client {
    Client::start("a translation of another program", &world.shell, family.shell(), family.external_ip(1), 53)
}

/// Another program sends packets of the shell pod to the external IP to a server that is no endpoint.
fn translate_for_another_program(node: &Namespace) {
    let table = |family: Family, name: &str, protocol: &str| {
        let [to, from, server] = [family.external_ip(1), family.shell(), family.endpoint(3)];
        let server = if family == Family::V4 { format!("{server}:9090") } else { format!("[{server}]:9090") };
        format!(
            "table {name} other {{ chain prerouting {{ type nat hook prerouting priority -110; \
             {protocol} daddr {to} {protocol} saddr {from} udp dport 53 dnat to {server}; }}; }}\n"
        )
    };
    let tables = [table(Family::V4, "ip", "ip"), table(Family::V6, "ip6", "ip6")].concat();
    run_with_input(node.command("nft").args(["-f", "-"]), &tables);
}

/// What is wrong a moment after a change: clients of `gone` that got answers, and clients of `left` whose flow is another one.
fn wrong(node: &Namespace, gone: &[&Client], left: &[(&Client, String)]) -> Vec<String> {
    thread::sleep(ON_THEIR_WAY);
    let change = Instant::now();
    thread::sleep(WATCHED);
    let mut found = Vec::new();
    for client in gone {
        let answers = client.since(Some(change)).len();
        if answers > 0 {
            found.push(format!("{} ({}): {answers} answers after it was gone", client.name, client.target));
        }
    }
    for (client, flow) in left {
        let (all, now) = (client.since(None), client.flow(node));
        if client.since(Some(change)).is_empty() || all.iter().any(|endpoint| *endpoint != all[0]) || now != *flow {
            found.push(format!("{} ({}): {all:?}, flow {flow} became {now}", client.name, client.target));
        }
    }
    found
}

fn with_flows<'a>(node: &Namespace, clients: impl Iterator<Item = &'a Client>) -> Vec<(&'a Client, String)> {
    clients.map(|client| (client, client.flow(node))).collect()
}

test_in_each_layout!(udp_flows_end_with_the_sync_that_takes_their_frontend_away);
fn udp_flows_end_with_the_sync_that_takes_their_frontend_away(layout: Layout) {
    // UDP flows to what is gone are deleted, and so are those of clients that source ranges exclude; others stay (J10, J11).
    let world = World::new();
    translate_for_another_program(&world.node);
    let mut objects = vec![node(), service_cidr(), dns(0)];
    objects.extend(slices("shop", "dns", &[0, 1, 2], &PORTS));
    objects.extend(kept());
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let clients = Family::ALL.map(|family| clients_of_dns(&world, family));
    let others = Family::ALL.map(|family| clients_of_others(&world, family));
    let within = Family::ALL
        .map(|family| Client::start("a client within", &world.shell, family.shell(), family.load_balancer_ip(2), 53));
    let (mut found, mut foreign) = (Vec::new(), Vec::new());
    for changes in 1..=6 {
        let stays = changes < 6;
        if changes == 3 {
            foreign.extend(Family::ALL.map(|family| client_of_another_program(&world, family)));
        }
        let left = clients.iter().flat_map(|clients| &clients[changes..]).chain(within.iter().filter(|_| stays));
        let left = with_flows(&world.node, left.chain(others.iter().flatten()).chain(&foreign));
        if stays {
            proxy.apply(&[dns(changes)])
        } else {
            proxy.delete(&[dns(5)])
        }
        let gone: Vec<&Client> = clients.iter().map(|clients| &clients[changes - 1]).collect();
        found.extend(wrong(&world.node, &gone, &left));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

test_in_each_layout!(udp_flows_of_what_went_while_no_process_ran_end_with_the_first_sync);
fn udp_flows_of_what_went_while_no_process_ran_end_with_the_first_sync(layout: Layout) {
    // The tables of the process before say what is gone (J10).
    let world = World::new();
    translate_for_another_program(&world.node);
    let mut objects = vec![node(), service_cidr(), dns(0)];
    objects.extend(slices("shop", "dns", &[0, 1, 2], &PORTS));
    objects.extend(kept());
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let clients = Family::ALL.map(|family| clients_of_dns(&world, family));
    let others = Family::ALL.map(|family| clients_of_others(&world, family));
    let foreign = Family::ALL.map(|family| client_of_another_program(&world, family));
    let mut found = Vec::new();
    for (changes, gone) in [(4, 0..4), (6, 4..6)] {
        proxy.kill();
        let left = clients.iter().flat_map(|clients| &clients[gone.end..]).chain(others.iter().flatten());
        let left = with_flows(&world.node, left.chain(&foreign));
        match changes {
            6 => {
                let slices = slices("shop", "dns", &[0, 1, 2], &PORTS);
                [dns(4)].iter().chain(&slices).for_each(|object| proxy.manifests().delete(object));
            }
            changes => proxy.manifests().apply(&dns(changes)),
        }
        proxy.launch();
        let gone: Vec<&Client> = clients.iter().flat_map(|clients| &clients[gone.clone()]).collect();
        found.extend(wrong(&world.node, &gone, &left));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
