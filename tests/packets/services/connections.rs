//! Connections whose endpoint is gone: first packets that nobody answered, open connections and UDP flows, without and with the annotations
//! of the Service.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::manifests::Manifests;
use crate::support::netns::{Namespace, run, run_with_input};
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Answer;
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 3] =
    [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 8080), ("sig", Proto::Sctp, 8080)];
/// Longer than the pauses before the first four repetitions of a SYN.
const REPEATED: Duration = Duration::from_secs(20);
/// The longest rest between two lists of connections.
const RESTED: Duration = Duration::from_secs(10);
/// Within this time a change is in force, also for flows: longer than a rest and the two seconds for which an endpoint has to be gone.
const IN_FORCE: Duration = Duration::from_secs(20);

fn web(name: &str, n: u8) -> ServiceBuilder {
    let ports = service("shop", name).cluster_ips(n).port("http", Proto::Tcp, 80).node_port(30080 + u16::from(n));
    let ports = ports.port("dns", Proto::Udp, 53).port("sig", Proto::Sctp, 99);
    Family::ALL.into_iter().fold(ports, |web, family| web.external_ip(family.external_ip(n)))
}

fn annotated(service: ServiceBuilder, annotation: &str, value: &str) -> Value {
    let mut object = service.json();
    object["metadata"]["annotations"] = json!({ format!("kube-proxy-nft/{annotation}"): value });
    object
}

/// The slices of a Service, whose endpoints have these conditions.
fn slices_with(name: &str, which: &[u8], [ready, serving, terminating]: [bool; 3]) -> Vec<Value> {
    let mut slices = slices("shop", name, which, &PORTS);
    let endpoints = slices.iter_mut().flat_map(|slice| slice["endpoints"].as_array_mut().expect("a list"));
    let conditions = json!({ "ready": ready, "serving": serving, "terminating": terminating });
    endpoints.for_each(|endpoint| endpoint["conditions"] = conditions.clone());
    slices
}

/// A client of the node, of a pod and from outside: where it is, its address and where it connects to.
fn ways(world: &World, family: Family, n: u8) -> [(&Namespace, IpAddr, SocketAddr); 4] {
    let node_port = SocketAddr::new(family.node(), 30080 + u16::from(n));
    [
        (&world.shell, family.shell(), SocketAddr::new(family.cluster_ip(n), 80)),
        (&world.node, family.node(), SocketAddr::new(family.cluster_ip(n), 80)),
        (&world.client, family.client(), SocketAddr::new(family.external_ip(n), 80)),
        (&world.client, family.client(), node_port),
    ]
}

/// An open connection of a client.
struct Client<'world> {
    space: &'world Namespace,
    stream: Socket,
    target: SocketAddr,
}

impl<'world> Client<'world> {
    fn connect(
        space: &'world Namespace,
        source: SocketAddr,
        target: SocketAddr,
        patience: Duration,
    ) -> io::Result<Self> {
        let stream = space.enter(|| -> io::Result<Socket> {
            let stream = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
            stream.set_reuse_address(true)?;
            stream.bind(&source.into())?;
            stream.set_read_timeout(Some(Duration::from_secs(3)))?;
            stream.connect_timeout(&target.into(), patience)?;
            Ok(stream)
        })?;
        let client = Self { space, stream, target };
        client.read().map(|_| client)
    }

    /// All clients of a Service, in both families.
    fn all(world: &'world World, n: u8) -> Vec<Self> {
        let ways = Family::ALL.into_iter().flat_map(|family| ways(world, family, n));
        let connect = |(space, source, target)| {
            Self::connect(space, SocketAddr::new(source, 0), target, REPEATED)
                .unwrap_or_else(|error| panic!("{source} to {target}: {error}"))
        };
        ways.map(connect).collect()
    }

    fn read(&self) -> io::Result<Answer> {
        let mut text = [0; 256];
        let length = (&self.stream).read(&mut text)?;
        String::from_utf8_lossy(&text[..length]).parse().map_err(io::Error::other)
    }

    fn ask(&self) -> io::Result<Answer> {
        (&self.stream).write_all(b"?")?;
        self.read()
    }

    /// Fails unless the server still answers.
    fn assert_open(&self) {
        self.ask().unwrap_or_else(|error| panic!("{}: {error}", self.target));
    }

    /// Fails unless a packet of the client is answered with a reset at once, as soon as the change is in force.
    fn assert_reset(&self) {
        let end = Instant::now() + IN_FORCE;
        loop {
            let start = Instant::now();
            match self.ask() {
                Ok(_) => assert!(Instant::now() < end, "{}: still open", self.target),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{}: {error}", self.target);
                    return assert!(start.elapsed() < Duration::from_secs(1), "{}: {:?}", self.target, start.elapsed());
                }
            }
        }
    }

    /// Connects again from the same port. Returns the endpoint.
    fn again(&self) -> IpAddr {
        let source = self.stream.local_addr().ok().and_then(|address| address.as_socket()).expect("it is bound");
        let again = Self::connect(self.space, source, self.target, REPEATED)
            .unwrap_or_else(|error| panic!("{source} to {}: {error}", self.target));
        again.ask().expect("an answer").endpoint
    }
}

/// The flows of a protocol that the node tracks, with their conntrack ids.
fn tracked(node: &Namespace, protocol: &str, has: &str) -> Vec<String> {
    let list = |family| run(node.command("conntrack").args(["-L", "-o", "id", "-f", family, "-p", protocol]));
    let lines = ["ipv4", "ipv6"].map(list).concat();
    lines.lines().filter(|line| line.contains(has)).map(str::to_owned).collect()
}

/// Makes the first endpoint stop answering.
fn silence(world: &World) {
    let rule = "chain in { type filter hook input priority 0; meta l4proto { tcp, sctp } drop; }";
    nft::load(&world.pods[0], &format!("table inet silent {{\n{rule}\n}}"));
}

test_in_each_layout!(first_packets_that_nobody_answered_find_another_endpoint);
fn first_packets_that_nobody_answered_find_another_endpoint(layout: Layout) {
    // The flow of a SYN or INIT is deleted with the endpoint, and the next one finds another; open connections stay (J9, J12).
    let world = World::new();
    let objects = [vec![node(), service_cidr(), web("web", 1).json()], slices("shop", "web", &[0], &PORTS)].concat();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let open = Connection::open(&world.shell, Flow::new(Proto::Tcp, Family::V4.shell(), Family::V4.cluster_ip(1), 80));
    assert_eq!(open.1.endpoint, Family::V4.endpoint(0));
    let open = tracked(&world.node, "tcp", "dport=80 ");
    silence(&world);
    for family in Family::ALL {
        let init = Flow::new(Proto::Sctp, family.shell(), family.cluster_ip(1), 99);
        assert_eq!(probe(&world.shell, init), Outcome::Dropped);
    }
    assert_eq!(tracked(&world.node, "sctp", "").len(), 2);
    let ways: Vec<_> = Family::ALL.into_iter().flat_map(|family| ways(&world, family, 1)).collect();
    thread::scope(|scope| {
        let connect = |(space, source, target): (_, IpAddr, SocketAddr)| {
            Client::connect(space, SocketAddr::new(source, 0), target, REPEATED)
                .unwrap_or_else(|error| panic!("{source} to {target}: {error}"))
        };
        let waiting: Vec<_> = ways.iter().map(|way| scope.spawn(move || connect(*way).ask())).collect();
        let end = Instant::now() + REPEATED;
        while tracked(&world.node, "tcp", "SYN_SENT").len() < ways.len() {
            assert!(Instant::now() < end, "{:?}", tracked(&world.node, "tcp", ""));
        }
        // An endpoint that terminates may still answer, so its flows stay.
        let flows = tracked(&world.node, "sctp", "");
        let terminating = slices_with("web", &[0], [false, true, true]);
        proxy.apply(&terminating);
        assert_eq!(id_of(&tracked(&world.node, "sctp", "")), id_of(&flows));
        proxy.apply(&slices("shop", "web", &[2], &PORTS));
        for waiting in waiting {
            let answer = waiting.join().expect("no panic").expect("an answer");
            assert_eq!(answer.endpoint, Family::of(answer.endpoint).endpoint(2));
        }
    });
    assert_eq!(tracked(&world.node, "sctp", ""), Vec::<String>::new());
    let now = tracked(&world.node, "tcp", "dport=80 ");
    assert!(id_of(&open).iter().all(|id| id_of(&now).contains(id)), "an open connection was cut: {open:?}, {now:?}");
}

/// Begins connections to port 80 of a cluster IP, one a millisecond.
fn begin(world: &World, n: u8, count: usize) -> Vec<Socket> {
    let connect = || {
        thread::sleep(Duration::from_millis(1));
        let stream = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        stream.set_nonblocking(true).expect("it cannot block");
        let _in_progress = stream.connect(&SocketAddr::new(Family::V4.cluster_ip(n), 80).into());
        stream
    };
    world.shell.enter(|| std::iter::repeat_with(connect).take(count).collect())
}

test_in_each_layout!(no_first_packet_stays_with_an_endpoint_that_leaves_while_connections_begin);
fn no_first_packet_stays_with_an_endpoint_that_leaves_while_connections_begin(layout: Layout) {
    // Flows are listed after the commit, so those that the old rules made until then are among them (J12).
    let world = World::new();
    let objects = [vec![node(), service_cidr(), web("web", 1).json()], slices("shop", "web", &[0, 2], &PORTS)].concat();
    let proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    silence(&world);
    // Then flows may be listed as soon as the endpoint is gone.
    thread::sleep(RESTED);
    let mut open = thread::scope(|scope| {
        let begun = scope.spawn(|| begin(&world, 1, 700));
        thread::sleep(Duration::from_millis(350));
        slices("shop", "web", &[2], &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
        begun.join().expect("no panic")
    });
    let end = Instant::now() + REPEATED;
    while !open.is_empty() {
        assert!(Instant::now() < end, "{} of 700 connections hang", open.len());
        open.retain(|stream| stream.peer_addr().is_err());
        thread::sleep(Duration::from_millis(100));
    }
}

/// The conntrack ids of flows.
fn id_of(lines: &[String]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.split(' ').find(|word| word.starts_with("id="))).collect()
}

/// Makes the node track an open SCTP association to an endpoint of a Service.
fn load_association(node: &Namespace, n: u8) {
    let (from, to, endpoint) = (Family::V4.shell(), Family::V4.cluster_ip(n), Family::V4.endpoint(0));
    let line = format!(
        "-A -t 600 -u SEEN_REPLY,ASSURED -p sctp -s {from} -d {to} --sport 400{n} --dport 99 --dst-nat {endpoint}:8080 \
         --state ESTABLISHED --orig-vtag 1 --reply-vtag 2\n"
    );
    run_with_input(node.command("conntrack").args(["--load-file", "-"]), &line);
}

test_in_each_layout!(connections_to_an_endpoint_that_is_gone_are_closed_where_that_is_asked_for);
fn connections_to_an_endpoint_that_is_gone_are_closed_where_that_is_asked_for(layout: Layout) {
    // The client gets a reset once the endpoint has been in no slice for a while, whether another one is ready or none; not while it
    // terminates (J13).
    let world = World::new();
    let closing = annotated(web("web", 1), "close-connections", "endpoint-gone");
    let mut objects = vec![node(), service_cidr(), closing.clone(), web("kept", 2).json()];
    objects.extend(["web", "kept"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let kept = Client::all(&world, 2);
    [1, 2].into_iter().for_each(|n| load_association(&world.node, n));
    for left in [&[2][..], &[]] {
        let clients = Client::all(&world, 1);
        for conditions in [[false, true, true], [false, false, true], [false, false, false]] {
            proxy.apply(&slices_with("web", &[0], conditions));
            clients.iter().for_each(Client::assert_open);
        }
        let slices_left = || ["web", "kept"].iter().flat_map(|name| slices_of(name, left)).collect::<Vec<_>>();
        proxy.apply(&slices_left());
        clients.iter().for_each(Client::assert_reset);
        kept.iter().for_each(Client::assert_open);
        assert_eq!(tracked(&world.node, "sctp", "dport=99").len(), 1, "the association of the other Service is left");
        if !left.is_empty() {
            clients.iter().for_each(|client| assert_eq!(client.again(), Family::of(client.target.ip()).endpoint(2)));
        }
        proxy.apply(&["web", "kept"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)).collect::<Vec<_>>());
    }
    // Connections to a Service that is deleted go on; an annotation that is added later also closes connections to endpoints that are gone
    // already.
    let clients = Client::all(&world, 1);
    proxy.delete(&[closing]);
    clients.iter().chain(&kept).for_each(Client::assert_open);
    proxy.apply(&slices_of("kept", &[2]));
    kept.iter().for_each(Client::assert_open);
    proxy.apply(&[annotated(web("kept", 2), "close-connections", "endpoint-gone")]);
    kept.iter().for_each(Client::assert_reset);
    // A restarted process finds the endpoints that left meanwhile in the rules of the former one.
    let kept = Client::all(&world, 2);
    proxy.stop();
    slices_of("kept", &[0]).iter().for_each(|slice| proxy.manifests().apply(slice));
    proxy.launch();
    kept.iter().for_each(Client::assert_reset);
}

#[test]
fn connections_are_closed_in_conntrack_zones() {
    // If all arriving packets are in one zone, the endpoint that is left sends the reset. If only packets of the clients' direction are in
    // a zone, the node sends it (J13).
    for (zones, left) in [("ct zone set 5", &[0][..]), ("iifname to-client ct original zone set 7", &[])] {
        let world = World::new();
        let rule = format!("chain raw {{ type filter hook prerouting priority raw; {zones}; }}");
        nft::load(&world.node, &format!("table inet zones {{\n{rule}\n}}"));
        let closing = annotated(web("web", 1), "close-connections", "endpoint-gone");
        let objects = [vec![node(), service_cidr(), closing], slices("shop", "web", &[2], &PORTS)].concat();
        let mut proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &objects);
        let connect = |family: Family| {
            let (source, target) = (family.client(), SocketAddr::new(family.external_ip(1), 80));
            Client::connect(&world.client, SocketAddr::new(source, 0), target, REPEATED)
                .unwrap_or_else(|error| panic!("{zones}: {target}: {error}"))
        };
        let clients = Family::ALL.map(connect);
        clients.iter().for_each(Client::assert_open);
        proxy.apply(&slices_of("web", left));
        clients.iter().for_each(Client::assert_reset);
    }
}

/// The slices of a Service in both families, also without endpoints.
fn slices_of(name: &str, which: &[u8]) -> Vec<Value> {
    let mut slices = slices("shop", name, &[0], &PORTS);
    for (slice, of) in slices.iter_mut().zip(self::slices("shop", name, which, &PORTS)) {
        slice["endpoints"] = of["endpoints"].clone();
    }
    slices
}

test_in_each_layout!(connections_to_a_service_that_is_gone_are_closed_where_that_is_asked_for);
fn connections_to_a_service_that_is_gone_are_closed_where_that_is_asked_for(layout: Layout) {
    // The client gets a reset when the port that it uses or the Service is deleted; clients of another Service stay (J13).
    let world = World::new();
    let value = "endpoint-or-service-gone";
    let closing = annotated(web("web", 1), "close-connections", value);
    let mut without_node_port = closing.clone();
    without_node_port["spec"]["ports"][0].as_object_mut().expect("a port").remove("nodePort");
    let mut objects = vec![node(), service_cidr(), closing, web("kept", 2).json()];
    objects.extend(["web", "kept"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let (clients, kept) = (Client::all(&world, 1), Client::all(&world, 2));
    proxy.apply(&[without_node_port.clone()]);
    let (at_node_port, others): (Vec<_>, Vec<_>) = clients.iter().partition(|client| client.target.port() == 30081);
    assert_eq!((at_node_port.len(), others.len()), (2, 6));
    at_node_port.into_iter().for_each(Client::assert_reset);
    others.iter().for_each(|client| client.assert_open());
    proxy.delete(&[without_node_port]);
    others.into_iter().for_each(Client::assert_reset);
    kept.iter().for_each(Client::assert_open);
    let log = proxy.log();
    proxy.apply(&[annotated(web("kept", 2), "close-connections", value)]);
    proxy.apply(&[annotated(web("kept", 2), "close-connections", "always")]);
    let news = proxy.log()[log.len()..].to_owned();
    assert!(news.contains("is unknown, known are: endpoint-gone, endpoint-or-service-gone; ignored"), "{news}");
}

/// Has another program translate connections to endpoint 1: those to an external IP of Service `n`, and those with the number of its node
/// port to the node's second address, at which there are no node ports.
fn translate_before_us(world: &World, n: u8) {
    let rule = |family: Family, to: IpAddr, port: u16| {
        let ip = if family == Family::V4 { "ip" } else { "ip6" };
        let at = SocketAddr::new(family.endpoint(1), 8080);
        format!("{ip} daddr {to} tcp dport {port} dnat {ip} to {at}\n")
    };
    let of_family = |family: Family| {
        [rule(family, family.external_ip(n), 80), rule(family, family.node_second(), 30080 + u16::from(n))].concat()
    };
    let rules = Family::ALL.map(of_family).concat();
    let chain = format!("chain hostports {{ type nat hook prerouting priority dstnat - 10; {rules} }}");
    nft::load(&world.node, &format!("table inet portmap {{\n{chain}\n}}"));
}

test_in_each_layout!(connections_that_another_program_translated_are_left_alone);
fn connections_that_another_program_translated_are_left_alone(layout: Layout) {
    // A connection ends only if its endpoint was one of the Service (J13).
    let world = World::new();
    translate_before_us(&world, 1);
    let closing = annotated(web("web", 1), "close-connections", "endpoint-or-service-gone");
    let objects = [vec![node(), service_cidr(), closing.clone()], slices("shop", "web", &[0], &PORTS)].concat();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let connect = |target: SocketAddr| {
        let source = SocketAddr::new(Family::of(target.ip()).client(), 0);
        Client::connect(&world.client, source, target, REPEATED).unwrap_or_else(|error| panic!("{target}: {error}"))
    };
    let to =
        |address: fn(Family) -> IpAddr, port| Family::ALL.map(|family| connect(SocketAddr::new(address(family), port)));
    let others: Vec<Client> =
        [to(|family| family.external_ip(1), 80), to(Family::node_second, 30081)].into_iter().flatten().collect();
    for client in &others {
        assert_eq!(client.ask().expect("an answer").endpoint, Family::of(client.target.ip()).endpoint(1));
    }
    let own = to(Family::node, 30081);
    proxy.apply(&slices("shop", "web", &[2], &PORTS));
    own.iter().for_each(Client::assert_reset);
    others.iter().for_each(Client::assert_open);
    let own = to(Family::node, 30081);
    proxy.delete(&[closing]);
    own.iter().for_each(Client::assert_reset);
    others.iter().for_each(Client::assert_open);
}

/// The slices of a Service with endpoint 0, as a controller names them when it creates them again.
fn created_again(service: &str) -> Vec<Value> {
    let mut slices = slices("shop", service, &[0], &PORTS);
    for slice in &mut slices {
        slice["metadata"]["name"] = format!("{}-again", slice["metadata"]["name"].as_str().expect("a name")).into();
    }
    slices
}

test_in_each_layout!(an_endpoint_that_comes_back_at_once_keeps_its_connections);
fn an_endpoint_that_comes_back_at_once_keeps_its_connections(layout: Layout) {
    // A connection ends once its endpoint, or the Service, has been gone for two seconds (J13).
    let world = World::new();
    let closing = |name, n| annotated(web(name, n), "close-connections", "endpoint-or-service-gone");
    let mut objects = vec![node(), service_cidr(), closing("web", 1), closing("moved", 2), closing("replaced", 3)];
    objects.extend(["web", "moved", "replaced"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let [clients, moved, of_replaced] = [1, 2, 3].map(|n| Client::all(&world, n));
    // Later, connections may be listed as soon as an endpoint is gone.
    thread::sleep(RESTED);
    let each = |change: fn(&Manifests, &Value), slices: fn(&str) -> Vec<Value>| {
        let objects = ["web", "replaced"].into_iter().flat_map(slices).chain([closing("replaced", 3)]);
        objects.for_each(|object| change(proxy.manifests(), &object));
    };
    each(Manifests::delete, |name| slices("shop", name, &[0], &PORTS));
    thread::sleep(Duration::from_millis(300));
    each(Manifests::apply, created_again);
    proxy.apply(&slices_of("moved", &[2]));
    // This endpoint left last, so the others have been looked at.
    moved.iter().for_each(Client::assert_reset);
    clients.iter().chain(&of_replaced).for_each(Client::assert_open);
}

test_in_each_layout!(udp_flows_of_endpoints_that_are_not_ready_are_kept_where_that_is_asked_for);
fn udp_flows_of_endpoints_that_are_not_ready_are_kept_where_that_is_asked_for(layout: Layout) {
    // A UDP flow stays with an endpoint that fails its readiness as long as a slice has it (J3).
    let world = World::new();
    let keeping = annotated(web("web", 1), "keep-udp-flows", "not-ready");
    let mut objects = vec![node(), service_cidr(), keeping, web("moved", 2).json()];
    objects.extend(["web", "moved"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let open = |family: Family, n| {
        Connection::open(&world.shell, Flow::new(Proto::Udp, family.shell(), family.cluster_ip(n), 53)).0
    };
    for family in Family::ALL {
        let [kept, moved] = [1, 2].map(|n| open(family, n));
        let unready = |name| {
            let mut slices = slices("shop", name, &[0, 2], &PORTS);
            let conditions = json!({ "ready": false, "serving": false, "terminating": false });
            slices.iter_mut().for_each(|slice| slice["endpoints"][0]["conditions"] = conditions.clone());
            slices
        };
        proxy.apply(&[unready("web"), unready("moved")].concat());
        wait_until_at(&moved, family.endpoint(2));
        assert_eq!(kept.ask().endpoint, family.endpoint(0));
        assert_eq!(open(family, 1).ask().endpoint, family.endpoint(2), "new flows go to ready endpoints");
        proxy.apply(&slices("shop", "web", &[2], &PORTS));
        wait_until_at(&kept, family.endpoint(2));
        proxy.apply(&["web", "moved"].iter().flat_map(|name| slices("shop", name, &[0], &PORTS)).collect::<Vec<_>>());
    }
}

/// Fails unless an endpoint answers a connection as soon as the change is in force.
fn wait_until_at(connection: &Connection, endpoint: IpAddr) {
    let end = Instant::now() + IN_FORCE;
    while connection.ask().endpoint != endpoint {
        assert!(Instant::now() < end, "{endpoint} does not answer");
    }
}
