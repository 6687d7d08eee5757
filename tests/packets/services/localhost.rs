//! Node ports on loopback addresses: the userspace proxy, and what the rules refuse there.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::run;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 3] =
    [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 8080), ("ss7", Proto::Sctp, 8080)];
const HTTP: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const NODE_PORT: u16 = 30080;
const PATIENCE: Duration = Duration::from_secs(20);

const LISTENERS: &str = "kubeproxy_nftables_localhost_nodeport_listeners";
const FAILURES: &str = "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total";
const REJECTED: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";

fn config(layout: Layout, gate: bool, addresses: &[&str]) -> Value {
    let mut config = config_in(layout);
    config["featureGates"] = json!({ "KubeProxyNFTablesLocalhostNodePorts": gate });
    config["nodePortAddresses"] = json!(addresses);
    config
}

fn served(layout: Layout) -> Value {
    config(layout, true, &["primary", "localhost"])
}

fn web() -> ServiceBuilder {
    service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT)
}

/// A Service with a node port of each protocol, and these endpoints.
fn objects(which: &[u8]) -> Vec<Value> {
    let web = web().port("dns", Proto::Udp, 80).node_port(NODE_PORT);
    let web = web.port("ss7", Proto::Sctp, 80).node_port(NODE_PORT);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", which, &PORTS));
    objects
}

fn to_loopback(family: Family, proto: Proto) -> Flow {
    Flow::new(proto, family.loopback(), family.loopback(), NODE_PORT)
}

fn assert_served(world: &World, which: &[u8]) {
    for family in Family::ALL {
        let flow = to_loopback(family, Proto::Tcp);
        assert_reaches(&world.node, flow, &endpoints(family, which, 8080), Source::Masqueraded, FEW);
    }
}

/// Waits until this holds, which says what is wrong as long as it does not.
fn wait_until(proxy: &Proxy<'_>, wrong: impl Fn() -> Option<String>) {
    let end = Instant::now() + PATIENCE;
    while let Some(wrong) = wrong() {
        assert!(Instant::now() < end, "{wrong}\n{}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// The value of one series.
fn value(proxy: &Proxy<'_>, series: &str) -> f64 {
    *proxy.series(series).first().unwrap_or(&-1.0)
}

fn wait_for_value(proxy: &Proxy<'_>, series: &str, wanted: f64) {
    wait_until(proxy, || {
        let found = value(proxy, series);
        ((found - wanted).abs() > 0.1).then(|| format!("{series} is {found}, not {wanted}"))
    });
}

/// What becomes of node ports on loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No rule looks at them, and nobody listens.
    Ignored,
    /// TCP is served, the rest refused.
    Served,
    /// All is refused by a rule.
    Refused,
}

fn assert_state(world: &World, proxy: &Proxy<'_>, state: State) {
    let refused = |family, proto| {
        let outcome = probe(&world.node, to_loopback(family, proto));
        assert!([Outcome::Refused, Outcome::NotPermitted].contains(&outcome), "{family:?} {proto:?}: {outcome:?}");
    };
    // A chain that nothing leads to any more is empty for a second before it is deleted (F8).
    wait_until(proxy, || {
        let listed = nft::list_ruleset(&world.node).contains("KUBE-LOCALHOST");
        (listed != (state != State::Ignored)).then(|| format!("{state:?}: a chain is there: {listed}"))
    });
    for family in Family::ALL {
        let before = Proto::ALL.map(|proto| value(proxy, &rejected(family, proto)));
        match state {
            State::Ignored => {
                assert_outcome(&world.node, to_loopback(family, Proto::Tcp), &Outcome::Reset);
                assert_outcome(&world.node, to_loopback(family, Proto::Udp), &Outcome::Refused);
            }
            State::Served => {
                let outcome = probe(&world.node, to_loopback(family, Proto::Tcp));
                assert!(matches!(outcome, Outcome::Reached(_)), "{family:?}: {outcome:?}");
                refused(family, Proto::Udp);
                refused(family, Proto::Sctp);
            }
            State::Refused => Proto::ALL.into_iter().for_each(|proto| refused(family, proto)),
        }
        for (proto, before) in Proto::ALL.into_iter().zip(before) {
            let counts = state == State::Refused || (state == State::Served && proto != Proto::Tcp);
            if counts {
                wait_until(proxy, || {
                    let now = value(proxy, &rejected(family, proto));
                    (now <= before).then(|| format!("{family:?} {proto:?}: {now} packets are counted"))
                });
            } else {
                let now = value(proxy, &rejected(family, proto));
                assert!((now - before).abs() < 0.1, "{family:?} {proto:?}: {before} {now}");
            }
        }
    }
}

fn rejected(family: Family, proto: Proto) -> String {
    let family = if family == Family::V4 { "IPv4" } else { "IPv6" };
    format!("{REJECTED}{{ip_family=\"{family}\",protocol=\"{}\"}}", proto.name())
}

test_in_each_layout!(tcp_is_served_on_loopback_and_the_rest_refused_and_counted);
fn tcp_is_served_on_loopback_and_the_rest_refused_and_counted(layout: Layout) {
    // A connection goes to any endpoint, evenly; it comes from this node (R3, R4). Nothing listens on any other address (R2).
    let world = World::new();
    let proxy = Proxy::start(&world.node, &served(layout), &objects(&[0, 1, 2, 3]));
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 1.0);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
    assert_served(&world, &[0, 1, 2, 3]);
    assert_state(&world, &proxy, State::Served);
    let listening = run(world.node.command("ss").arg("-Hltn"));
    let mut found: Vec<&str> = listening.split_whitespace().filter(|word| word.ends_with(":30080")).collect();
    found.sort_unstable();
    assert_eq!(found, ["127.0.0.1:30080", "[::1]:30080"], "{listening}");
    // The other addresses of the loopback ranges have no listener.
    let second: IpAddr = "127.0.0.2".parse().expect("an address");
    assert_outcome(&world.node, Flow::new(Proto::Tcp, second, second, NODE_PORT), &Outcome::Reset);
    // The node's other addresses are served by rules, as ever.
    for family in Family::ALL {
        let flow = Flow::new(Proto::Tcp, family.client(), family.node(), NODE_PORT);
        assert_reaches(&world.client, flow, &endpoints(family, &[0, 1, 2, 3], 8080), Source::Masqueraded, FEW);
    }
}

test_in_each_layout!(a_change_of_gate_or_list_takes_effect_across_restart_and_kill);
fn a_change_of_gate_or_list_takes_effect_across_restart_and_kill(layout: Layout) {
    // Off, refused and served follow the gate and the list, in any direction, after an end and after a kill; what was written in one state
    // is gone in the next (R1, R2, R5).
    let world = World::new();
    let off = config(layout, false, &["primary", "localhost"]);
    let refused = config(layout, true, &["primary"]);
    let wide = config(layout, true, &["all"]);
    let mut proxy = Proxy::start(&world.node, &off, &objects(&[0, 1, 2, 3]));
    assert_state(&world, &proxy, State::Ignored);
    let steps = [
        (refused.clone(), State::Refused, true),
        (served(layout), State::Served, true),
        (served(layout), State::Served, false),
        (wide, State::Refused, false),
        (config(layout, true, &["0.0.0.0/0", "127.0.0.1/32", "::1/128"]), State::Served, false),
        (off.clone(), State::Ignored, true),
        (served(layout), State::Served, false),
        (off, State::Ignored, false),
        (refused, State::Refused, false),
        (served(layout), State::Served, true),
    ];
    for (number, (config, state, stop)) in steps.into_iter().enumerate() {
        eprintln!("step {number}: {state:?}");
        if stop {
            proxy.stop();
        } else {
            proxy.kill();
        }
        proxy.configure(&config);
        proxy.launch();
        if state == State::Served {
            wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
        }
        assert_state(&world, &proxy, state);
    }
}

test_in_each_layout!(endpoints_follow_policy_affinity_and_changes);
fn endpoints_follow_policy_affinity_and_changes(layout: Layout) {
    // External policy Local: endpoints on this node, and without one no listener. Session affinity: one endpoint for all (R3, R4).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &served(layout), &[node(), service_cidr(), web().json()]);
    let refused = |what: &str| {
        for family in Family::ALL {
            let outcome = probe(&world.node, to_loopback(family, Proto::Tcp));
            assert_eq!(outcome, Outcome::Reset, "{what}, {family:?}");
        }
    };
    refused("without endpoints");
    proxy.apply(&slices("shop", "web", &[1, 2], &HTTP));
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
    assert_served(&world, &[1, 2]);
    proxy.apply(&[web().spec("externalTrafficPolicy", json!("Local")).json()]);
    assert_served(&world, &[1]);
    proxy.apply(&slices("shop", "web", &[2, 3], &HTTP));
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 0.0);
    refused("without a local endpoint");
    proxy.apply(&[web().client_ip_affinity(600).json()]);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
    for family in Family::ALL {
        let reached = || match probe(&world.node, to_loopback(family, Proto::Tcp)) {
            Outcome::Reached(answer) => answer.endpoint,
            other => panic!("{family:?}: {other:?}"),
        };
        let first = reached();
        assert!((0..30).all(|_| reached() == first), "{family:?} is not pinned");
    }
    // The pinned endpoint goes, so another one is pinned.
    proxy.apply(&slices("shop", "web", &[0], &HTTP));
    assert_served(&world, &[0]);
    // A connection is closed with its listener (R3).
    let held = Family::ALL.map(|family| Connection::open(&world.node, to_loopback(family, Proto::Tcp)).0);
    for connection in &held {
        connection.ask();
    }
    proxy.delete(&[web().json()]);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 0.0);
    refused("without the Service");
    assert!(held.iter().all(Connection::is_closed), "a connection outlives its listener");
}

test_in_each_layout!(another_endpoint_is_tried_when_one_refuses_or_is_silent);
fn another_endpoint_is_tried_when_one_refuses_or_is_silent(layout: Layout) {
    // Endpoint 0 serves. At the address of the shell nobody listens, and at the last one nobody is (R4).
    let world = World::new();
    let mut objects = vec![node(), service_cidr(), web().json()];
    for (family, silent) in Family::ALL.into_iter().zip(["198.51.100.77", "2001:db8:51::77"]) {
        let addresses = [family.endpoint(0), family.shell(), silent.parse().expect("an address")];
        let name = format!("web-{family:?}").to_lowercase();
        objects.push(slice("shop", "web", &name, &addresses, &HTTP));
    }
    let proxy = Proxy::start(&world.node, &served(layout), &objects);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
    for family in Family::ALL {
        for _ in 0..8 {
            let (_, answer) = Connection::open(&world.node, to_loopback(family, Proto::Tcp));
            assert_eq!(answer.endpoint, family.endpoint(0));
        }
    }
}

#[test]
fn a_busy_port_disturbs_no_other_and_is_taken_when_it_is_free() {
    // It is logged and counted once, and taken as soon as it is free (R6).
    let world = World::new();
    let listen = || TcpListener::bind(SocketAddr::new(Family::V4.loopback(), NODE_PORT)).expect("the port is free");
    let taken = world.node.enter(listen);
    let other = service("shop", "other").cluster_ips(2).port("http", Proto::Tcp, 80).node_port(30081);
    let mut objects = objects(&[0, 1, 2, 3]);
    objects.push(other.json());
    objects.extend(slices("shop", "other", &[2], &HTTP));
    let proxy = Proxy::start(&world.node, &served(Layout::Maps), &objects);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 2.0);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 1.0);
    let loopback = Family::V4.loopback();
    let to_other = Flow::new(Proto::Tcp, loopback, loopback, 30081);
    assert_reaches(&world.node, to_other, &endpoints(Family::V4, &[2], 8080), Source::Masqueraded, 5);
    thread::sleep(Duration::from_millis(2_500));
    assert!((value(&proxy, &format!("{FAILURES}{{ip_family=\"IPv4\"}}")) - 1.0).abs() < 0.1);
    assert!((value(&proxy, &format!("{FAILURES}{{ip_family=\"IPv6\"}}"))).abs() < 0.1);
    let line = r#""Cannot listen on a localhost node port" address="127.0.0.1:30080" portName="shop/web:http""#;
    assert_eq!(proxy.log().matches(line).count(), 1, "{}", proxy.log());
    drop(taken);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 2.0);
    assert_served(&world, &[0, 1, 2, 3]);
}

#[test]
fn open_connections_may_end_when_the_process_is_to_end() {
    // New ones are refused at once; the process ends when the last one has ended, or after 10 s. The same holds when new content of the
    // configuration file ends it (R8).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &served(Layout::Maps), &objects(&[0, 2]));
    for (by_signal, closes) in [(true, true), (true, false), (false, true)] {
        wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
        let held = Family::ALL.map(|family| Connection::open(&world.node, to_loopback(family, Proto::Tcp)).0);
        if by_signal {
            proxy.signal(rustix::process::Signal::TERM);
        } else {
            proxy.configure(&config(Layout::Maps, true, &["primary", "localhost", "192.0.2.0/24"]));
        }
        for family in Family::ALL {
            wait_until(&proxy, || match probe(&world.node, to_loopback(family, Proto::Tcp)) {
                Outcome::Reset => None,
                other => Some(format!("{other:?}")),
            });
        }
        for connection in &held {
            connection.ask();
        }
        assert!(proxy.is_running(), "it does not wait for its connections");
        let mut held = Vec::from(held);
        held.truncate(if closes { 0 } else { 2 });
        assert_eq!(proxy.wait_for_end().success(), by_signal, "{}", proxy.log());
        assert!(held.iter().all(Connection::is_closed));
        proxy.launch();
    }
    let log = proxy.log();
    assert_eq!(log.matches("Open connections to localhost node ports are closed").count(), 1, "{log}");
}

/// Takes connections on a port of endpoint 0, greets each, and keeps it open until the test ends.
fn keep_all(world: &World, port: u16) {
    let address = SocketAddr::new(Family::V4.endpoint(0), port);
    let listener = world.pods[0].enter(|| TcpListener::bind(address)).expect("the port is free");
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            stream.write_all(b"!").expect("it is open");
            kept.push(stream);
        }
    });
}

#[test]
fn thousands_of_open_connections_take_little_memory() {
    // What is held is sockets. One more connection than the user's share waits, and is served when there is room (R9).
    // The proxy inherits the limit of open files. Both ends of each connection are of this process.
    let hard = getrlimit(Resource::Nofile).maximum;
    let enough = Rlimit { current: Some(65_536), maximum: hard.map(|hard| hard.max(65_536)) };
    let has_enough = setrlimit(Resource::Nofile, enough).is_ok();
    if !has_enough {
        setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }).expect("the soft limit can be raised");
    }
    // With fewer open files there are fewer connections.
    let most = if has_enough { 10_000 } else { (hard.expect("there is a limit") - 4_096) / 6 };
    // A user may have as many connections as are free, beside a quarter of all that are made before users are looked up.
    let count = (most + most.div_ceil(4)).div_ceil(2);
    let world = World::new();
    keep_all(&world, 7777);
    let mut objects = vec![node(), service_cidr(), web().json()];
    objects.push(slice("shop", "web", "web-v4", &[Family::V4.endpoint(0)], &[("http", Proto::Tcp, 7777)]));
    let proxy = Proxy::start(&world.node, &served(Layout::Maps), &objects);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 1.0);
    let address = SocketAddr::new(Family::V4.loopback(), NODE_PORT);
    let greeted = |stream: &mut TcpStream, patience| {
        stream.set_read_timeout(Some(patience)).expect("it can be set");
        matches!(stream.read(&mut [0]), Ok(1))
    };
    let before = proxy.peak_memory();
    let mut held: Vec<TcpStream> = world.node.enter(|| {
        let connect = |_| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            assert!(greeted(&mut stream, PATIENCE), "no answer");
            stream
        };
        (0..count).map(connect).collect()
    });
    let more = proxy.peak_memory() - before;
    eprintln!("{count} connections take {more} MiB");
    assert!(more <= 8 + count / 200, "{count} connections take {more} MiB");
    let mut late = world.node.enter(|| TcpStream::connect(address)).expect("it listens");
    assert!(!greeted(&mut late, Duration::from_millis(500)), "there are more than the share of a user");
    // Its server keeps its side, so a connection ends with a reset.
    let going = held.pop().expect("there are many");
    set_socket_linger(&going, Some(Duration::ZERO)).expect("it is open");
    drop(going);
    assert!(greeted(&mut late, PATIENCE), "a connection that ended makes no room");
}

/// The open files that a proxy may have, and the connections that follow from that.
const FILES: usize = 2_048;
const CONNECTIONS: usize = (FILES - FILES / 2) / 6;

/// Takes connections on a port of endpoint 1, keeps them open until the test ends, and answers only what they send.
fn answer_only(world: &World, port: u16) {
    let address = SocketAddr::new(Family::V4.endpoint(1), port);
    let listener = world.pods[1].enter(|| TcpListener::bind(address)).expect("the port is free");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || while matches!(stream.read(&mut [0]), Ok(1)) && stream.write_all(b"!").is_ok() {});
        }
    });
}

/// A proxy with few open files that serves [`NODE_PORT`], and the next number for an endpoint that only answers.
fn with_few_files(world: &World) -> Proxy<'_> {
    answer_only(world, 7777);
    let quiet = service("shop", "quiet").cluster_ips(2).port("http", Proto::Tcp, 80).node_port(NODE_PORT + 1);
    let ports = [("http", Proto::Tcp, 7777)];
    let mut objects = [objects(&[0]), vec![quiet.json()]].concat();
    objects.push(slice("shop", "quiet", "quiet-v4", &[Family::V4.endpoint(1)], &ports));
    let limit = format!("--nofile={FILES}:{FILES}");
    let proxy = Proxy::start_under(&["prlimit", &limit], &world.node, &served(Layout::Maps), &objects);
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv4\"}}"), 2.0);
    proxy
}

/// Connects to a node port of the loopback address, sends a byte, and waits for one.
fn answered(port: u16) -> Option<TcpStream> {
    let address = SocketAddr::new(Family::V4.loopback(), port);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"?").ok()?;
    matches!(stream.read(&mut [0]), Ok(1)).then_some(stream)
}

#[test]
fn idle_connections_to_one_node_port_starve_no_other_client() {
    // A port has its share of the connections, and the oldest without data end for new ones (R9).
    let world = World::new();
    let proxy = with_few_files(&world);
    let quiet = SocketAddr::new(Family::V4.loopback(), NODE_PORT + 1);
    world.node.enter(|| {
        // The kernel's queue may be full.
        let connect = |_| TcpStream::connect_timeout(&quiet, Duration::from_millis(100)).ok();
        let held: Vec<TcpStream> = (0..2 * CONNECTIONS).filter_map(connect).collect();
        assert!(held.len() > CONNECTIONS, "only {} connections", held.len());
        assert!(answered(NODE_PORT).is_some(), "another port is not served");
        assert!(answered(NODE_PORT + 1).is_some(), "another client of the port is not served");
    });
    assert!(proxy.log().contains("Too many connections to localhost node ports"), "{}", proxy.log());
}

#[test]
fn the_connections_of_one_user_leave_some_to_others() {
    // A user has a share of the connections, whatever the ports; more wait, or are refused (R9).
    let nobody = Uid::from_raw(65_534);
    let world = World::new();
    let _proxy = with_few_files(&world);
    let held: Vec<TcpStream> = world.node.enter(|| {
        // Changes the user of this thread only.
        set_thread_res_uid(nobody, nobody, nobody).expect("it is root's");
        (0..2 * CONNECTIONS).map_while(|n| answered(NODE_PORT + u16::from(n % 2 == 0))).collect()
    });
    assert!((CONNECTIONS / 2..CONNECTIONS).contains(&held.len()), "{} of {CONNECTIONS} connections", held.len());
    world.node.enter(|| {
        for port in [NODE_PORT, NODE_PORT + 1] {
            assert!(answered(port).is_some(), "another user is not served at {port}");
        }
    });
}

test_in_each_layout!(names_of_what_serves_are_told);
fn names_of_what_serves_are_told(layout: Layout) {
    // `explain` says that kube-proxy itself serves the port, or which rule refuses it.
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &served(layout), &objects(&[0, 2]));
    wait_for_value(&proxy, &format!("{LISTENERS}{{ip_family=\"IPv6\"}}"), 1.0);
    let ask = |family: Family, suffix: &str| -> Value {
        let to = format!("{}{suffix}", SocketAddr::new(family.loopback(), NODE_PORT));
        let from = family.loopback().to_string();
        let args = ["explain", "--from", &from, "--to", &to, "-o", "json"];
        let (_, text, errors) = crate::inspect::outcome(&mut crate::inspect::command(&world.node, &args));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {errors}"))
    };
    for family in Family::ALL {
        let tcp = ask(family, "");
        assert_eq!((&tcp["verdict"], &tcp["service"]), (&json!("proxied"), &json!("shop/web:http")), "{tcp}");
        assert!(
            tcp["reason"].as_str().unwrap_or_default().contains(&format!("kube-proxy (process {})", proxy.pid())),
            "{tcp}"
        );
        let udp = ask(family, "/udp");
        assert_eq!(udp["verdict"], json!("refused"), "{udp}");
    }
    proxy.stop();
    for family in Family::ALL {
        let tcp = ask(family, "");
        assert_eq!(tcp["verdict"], json!("passed"), "{tcp}");
        assert!(tcp["reason"].as_str().unwrap_or_default().contains("no program listens"), "{tcp}");
    }
    proxy.configure(&config(layout, true, &["primary"]));
    proxy.launch();
    assert_eq!(ask(Family::V4, "")["verdict"], json!("refused"));
}
