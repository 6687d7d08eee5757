//! Measures what the rules cost packets: the time of new connections with and without the rules, and how many of this program's rules a
//! packet of an established connection meets.
//!
//! A client in a pod connects to a pod of another node, through the node under test: directly, or through the cluster IP of the last
//! Service of a cluster.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rules::ruleset::Layout;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket, Type};

use crate::cluster::{Shape, address, cluster_ip, counting, scheduled};
use crate::measure::Bench;
use crate::support::world::World;
use crate::support::{cluster, nft};
use crate::table::Table;

/// The number of connections in one measurement.
const CONNECTIONS: u32 = 2_000;
/// The number of measurements; the best counts.
const ROUNDS: u32 = 15;
const ENDPOINTS: u32 = 10;
const PORT: u16 = 8080;

/// The rules between client and pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    None,
    /// A single DNAT rule: shows what address translation itself costs.
    One,
    Layout(Layout),
    /// The rules of a ruleset layout, with `nftables.counters: endpoints`.
    Counting(Layout),
    /// The rules of layout `maps` with this scheduler.
    Scheduled(&'static str),
}

/// Adds rows for small and large clusters and each layout. `quick` leaves out clusters that take long to fill.
pub(crate) fn rows(table: &mut Table, large: u32, quick: bool) {
    let one = Path::new(Rules::One, 10, ENDPOINTS);
    let [direct, translated] = compare(&Path::new(Rules::None, 10, ENDPOINTS), &one);
    table.text("new connections, directly to the pod", &rate(direct), "");
    table.text("new connections, one rule that translates, and nothing else", &rate(translated), "");
    table.ratio("  time against connections directly to the pod, in turns with these", translated, direct, "");
    let mut plans = vec![
        ("layout maps", Rules::Layout(Layout::Maps), 10, "1.1"),
        ("layout maps", Rules::Layout(Layout::Maps), large, "1.1"),
        ("layout chains", Rules::Layout(Layout::Chains), 10, "1.1"),
        ("layout maps with counters", Rules::Counting(Layout::Maps), 10, ""),
        ("layout maps with counters", Rules::Counting(Layout::Maps), large, ""),
        ("layout chains with counters", Rules::Counting(Layout::Chains), 10, ""),
    ];
    if !quick {
        plans.push(("layout chains", Rules::Layout(Layout::Chains), large / 4, "1.1"));
        let service_chains = Rules::Layout(Layout::ServiceChains);
        plans.push(("layout chains without chains of endpoints", service_chains, large / 4, "1.1"));
    }
    for (what, rules, services, goal) in plans {
        let [least, with] = compare(&one, &Path::new(rules, services, ENDPOINTS));
        table.text(&format!("new connections, {what}, {services} Services"), &rate(with), "");
        table.ratio("  time against that one rule, in turns", with, least, goal);
    }
    for (what, layout) in [("maps", Layout::Maps), ("chains", Layout::Chains)] {
        let rules = Path::new(Rules::Layout(layout), 10, ENDPOINTS).rules_met();
        table.text(&format!("rules of ours for a forwarded packet of an established connection, {what}"), &rules, "");
    }
}

/// Adds rows for each scheduler, with each number of endpoints: the number of endpoints decides how many map entries a packet looks up.
pub(crate) fn of_schedulers(table: &mut Table, schedulers: &[&'static str], endpoints: &[u32]) {
    for endpoints in endpoints {
        let paths =
            schedulers.iter().map(|scheduler| (scheduler, Path::new(Rules::Scheduled(scheduler), 10, *endpoints)));
        let paths: Vec<_> = paths.collect();
        for (scheduler, path) in &paths {
            let [first, this] = compare(&paths[0].1, path);
            table.text(&format!("new connections, {scheduler}, {endpoints} endpoints"), &rate(this), "");
            table.ratio("  time against the first of these, in turns", this, first, "");
        }
    }
}

fn rate(time: Duration) -> String {
    format!("{:.0} /s", f64::from(CONNECTIONS) / time.as_secs_f64())
}

/// Returns the shortest times of [`CONNECTIONS`] connections over each of two paths, measured in turns: a machine may be faster at one time
/// than at another.
fn compare(one: &Path, other: &Path) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    one.serving(|| {
        let mut rounds = || {
            for _ in 0..ROUNDS {
                for (path, best) in [one, other].into_iter().zip(&mut best) {
                    *best = (*best).min(path.world.shell.enter(|| connections(path.target)));
                }
            }
        };
        if std::ptr::eq(one, other) { rounds() } else { other.serving(rounds) }
    });
    best
}

/// A cluster whose last Service leads to a pod that accepts connections.
struct Path {
    world: World,
    services: u32,
    endpoints: u32,
    target: SocketAddr,
}

impl Path {
    fn new(rules: Rules, services: u32, count: u32) -> Self {
        let world = World::new();
        let endpoints = || (0..count).map(|i| address(services - 1, i));
        world.remote.ip(&endpoints().map(|ip| format!("addr add {ip}/32 dev eth0")).collect::<Vec<_>>());
        let route = |ip| format!("route add {ip}/32 via 169.254.3.2 dev to-remote");
        world.node.ip(&endpoints().map(route).collect::<Vec<_>>());
        let shape = Shape::plain(services, count);
        match rules {
            Rules::None => {}
            Rules::One => {
                let (ip, pod) = (cluster_ip(services - 1), address(services - 1, 0));
                let rule = format!("ip daddr {ip} tcp dport 80 dnat to {pod}:{PORT}");
                let chain = format!("chain one {{ type nat hook prerouting priority -100; {rule}; }}");
                nft::load(&world.node, &format!("table ip one {{ {chain}; }}"));
            }
            Rules::Layout(layout) => world.node.enter(|| drop(Bench::new(&cluster::config(), layout, shape))),
            Rules::Counting(layout) => {
                world.node.enter(|| drop(Bench::new(&counting("endpoints"), layout, shape)));
            }
            Rules::Scheduled(scheduler) => {
                world.node.enter(|| drop(Bench::new(&scheduled(scheduler), Layout::Maps, shape)));
            }
        }
        let target = match rules {
            Rules::None => (address(services - 1, 0), PORT).into(),
            Rules::One | Rules::Layout(_) | Rules::Counting(_) | Rules::Scheduled(_) => {
                (cluster_ip(services - 1), 80).into()
            }
        };
        Self { world, services, endpoints: count, target }
    }

    /// Runs `work` while the pod accepts connections and echoes what it receives.
    fn serving<T>(&self, work: impl FnOnce() -> T) -> T {
        let bind = || (0..self.endpoints).map(|i| listener((address(self.services - 1, i), PORT).into())).collect();
        let listeners: io::Result<Vec<TcpListener>> = self.world.remote.enter(bind);
        let listeners = listeners.expect("the pod listens");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| accept_all(&listeners, &over));
            let result = work();
            over.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Returns how many rules of this program one packet of an established connection meets on its way through the node, according to `nft
    /// monitor trace`.
    fn rules_met(&self) -> String {
        nft::load(
            &self.world.node,
            "table ip trace { chain prerouting { type filter hook prerouting priority -150;
             tcp flags & (syn | fin | rst) == 0 ct direction original meta length > 100 meta nftrace set 1; }; }",
        );
        let mut monitor = self.world.node.command("stdbuf");
        monitor.args(["-oL", "nft", "monitor", "trace"]).stdout(Stdio::piped());
        let mut monitor = monitor.spawn().expect("nft runs");
        let mut output = monitor.stdout.take().expect("standard output was piped");
        thread::sleep(Duration::from_secs(1));
        self.serving(|| {
            self.world.shell.enter(|| {
                let mut stream = TcpStream::connect(self.target).expect("the pod accepts");
                // Large enough to be distinguished from acknowledgements.
                stream.write_all(&[7; 200]).and_then(|()| stream.read_exact(&mut [0; 200])).expect("the pod answers");
            });
        });
        thread::sleep(Duration::from_secs(1));
        monitor.kill().and_then(|()| monitor.wait()).expect("nft can be ended");
        let mut text = String::new();
        output.read_to_string(&mut text).expect("nft prints text");
        let packets = text.lines().filter(|line| line.contains(" packet: ") && line.contains("kube-proxy")).count();
        let rules = text.lines().filter(|line| line.contains("kube-proxy") && line.contains(" rule ")).count();
        let policies = text.lines().filter(|line| line.contains("kube-proxy") && line.contains(" policy ")).count();
        assert!(packets > 0 && packets == policies, "the trace is not that of one accepted packet:\n{text}");
        format!("{rules} match, in {packets} chains")
    }
}

/// Returns a listener whose backlog holds all connections of a measurement: with a full backlog, a client would try again only after a
/// second.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&address.into())?;
    socket.listen(2 * CONNECTIONS.cast_signed())?;
    Ok(socket.into())
}

fn accept_all(listeners: &[TcpListener], over: &AtomicBool) {
    let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    thread::scope(|scope| {
        while !over.load(Ordering::Relaxed) {
            let mut fds: Vec<PollFd<'_>> =
                listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)).collect();
            if poll(&mut fds, Some(&tick)).is_err() {
                continue;
            }
            let ready: Vec<usize> = (0..fds.len()).filter(|index| !fds[*index].revents().is_empty()).collect();
            for index in ready {
                let Ok((stream, _)) = listeners[index].accept() else { continue };
                // A client that has not sent anything yet is one of those that connect and reset, and needs no answer.
                if SockRef::from(&stream).peek(&mut [std::mem::MaybeUninit::uninit()]).is_ok_and(|read| read > 0) {
                    scope.spawn(move || echo(stream));
                }
            }
        }
    });
}

/// Sends back everything that the client sends, until it ends.
fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(read) = stream.read(&mut buffer) {
        if read == 0 || stream.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}

/// Connects and resets [`CONNECTIONS`] times, and returns the time that this took. A reset leaves no connection in TIME_WAIT.
fn connections(target: SocketAddr) -> Duration {
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(target).expect("the pod accepts");
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket option");
    }
    start.elapsed()
}
