//! Load on node ports of loopback addresses, while endpoints come, go, and refuse: no connection fails that a serving endpoint could have
//! taken, and memory stays flat. `KUBE_PROXY_SOAK_SECONDS` has it go on for so long (`make soak`). Needs root, iproute2 and nft.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use serde_json::json;

use crate::support::figures::Figures;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::server::Server;
use crate::support::world::World;
use crate::turns;

const PORT: u16 = 7000;
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, PORT)];
const NODE_PORT: u16 = 30080;
/// Less than the time after which an endpoint that does not answer is given up.
const ANSWER: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(5);
/// How long an endpoint that gets no new connections has to finish those that it has.
const DRAIN: Duration = Duration::from_millis(300);
/// What memory may grow by after the first rounds, in MiB: what an allocator may keep.
const GROWTH: u64 = 8;

/// What the clients have seen.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    made: AtomicU64,
    lost: Mutex<Vec<String>>,
}

impl Load {
    /// Connects again and again until it is stopped.
    fn go_on(&self, family: Family, resets: bool) {
        let target = SocketAddr::new(family.loopback(), NODE_PORT);
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(error) = exchange(target, resets) {
                let text = format!("{target}, after {} connections: {error}", self.made.load(Ordering::Relaxed));
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            }
            self.made.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }
}

/// A connection, the server's greeting, and an answer.
fn exchange(target: SocketAddr, resets: bool) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut line = [0; 256];
    if stream.read(&mut line)? == 0 {
        return Err(io::Error::other("closed before the greeting"));
    }
    stream.write_all(b"?")?;
    if stream.read(&mut line)? == 0 {
        return Err(io::Error::other("closed before the answer"));
    }
    if resets {
        set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    Ok(())
}

/// The resident memory of the proxy, in MiB.
fn resident(proxy: &Proxy<'_>) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", proxy.pid())).expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// A server on the addresses of an endpoint.
fn start_server(world: &World, n: u8) -> Server {
    let addresses: Vec<IpAddr> = Family::ALL.map(|family| family.endpoint(n)).to_vec();
    let place = if n < 2 { &world.pods[usize::from(n)] } else { &world.remote };
    Server::start(place, &addresses, &[PORT])
}

#[test]
fn no_connection_to_a_localhost_node_port_is_lost_while_endpoints_roll() {
    // Another endpoint is tried when one refuses (R4), and what ends takes no memory with it (R9).
    let _turn = turns::alone();
    let seconds = env::var("KUBE_PROXY_SOAK_SECONDS").map_or(6, |text| text.parse().expect("a number of seconds"));
    let duration = Duration::from_secs(seconds);
    let world = World::new();
    let mut config = config();
    config["featureGates"] = json!({ "KubeProxyNFTablesLocalhostNodePorts": true });
    config["nodePortAddresses"] = json!(["primary", "localhost"]);
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[0, 1, 2, 3], &PORTS));
    let mut servers: Vec<Option<Server>> = (0..4).map(|n| Some(start_server(&world, n))).collect();
    let proxy = Proxy::start(&world.node, &config, &objects);
    let has_listeners = || proxy.series("kubeproxy_nftables_localhost_nodeport_listeners").iter().sum::<f64>() > 1.5;
    let end = Instant::now() + Duration::from_secs(20);
    while !has_listeners() {
        assert!(Instant::now() < end, "{}", proxy.log());
        thread::sleep(Duration::from_millis(20));
    }
    let load = Load::default();
    let (start, mut rolled, mut before) = (Instant::now(), 0_u8, 0);
    thread::scope(|scope| {
        for family in Family::ALL {
            for resets in [true, false] {
                let (load, world) = (&load, &world);
                scope.spawn(move || world.node.enter(|| load.go_on(family, resets)));
            }
        }
        while start.elapsed() < duration || rolled < 4 {
            let list = |which: &[u8]| {
                slices("shop", "web", which, &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
            };
            let n = rolled % 4;
            let others: Vec<u8> = (0..4).filter(|other| *other != n).collect();
            list(&others);
            thread::sleep(DRAIN);
            servers[usize::from(n)] = None;
            // It is listed as ready, and refuses.
            list(&[0, 1, 2, 3]);
            thread::sleep(DRAIN);
            servers[usize::from(n)] = Some(start_server(&world, n));
            thread::sleep(DRAIN / 3);
            rolled = rolled.wrapping_add(1).max(1);
            if before == 0 && start.elapsed() * 5 >= duration {
                before = resident(&proxy);
            }
        }
        load.stop.store(true, Ordering::Relaxed);
    });
    let (after, made) = (resident(&proxy), load.made.load(Ordering::Relaxed));
    let lost = load.lost.lock().unwrap_or_else(PoisonError::into_inner);
    let mut figures = Figures::default();
    figures.row("Localhost node ports under load: seconds", start.elapsed().as_secs());
    figures.row("Localhost node ports: connections, of them lost", format!("{made}, {}", lost.len()));
    figures.row("Localhost node ports: resident MiB after a fifth, at the end", format!("{before}, {after}"));
    figures.publish();
    assert!(lost.is_empty(), "{} were lost: {:#?}", lost.len(), lost.iter().take(20).collect::<Vec<_>>());
    assert!(made > 100, "only {made} connections");
    assert!(after <= before + GROWTH, "memory grew from {before} to {after} MiB");
}
