//! A thousand clients that hold connections and send nothing, or too little, and connect again as soon as they lose them: other requests
//! are answered within a tenth of a second all the same, and the proxy goes on with its work.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::client::{PATIENCE, cluster, config, get, get_until, node_namespace};
use crate::support::netns::{Namespace, run};
use crate::support::nft::list_ruleset;
use crate::support::objects::{service, slices};
use crate::support::probe::Proto;
use crate::support::proxy::Proxy;

const HEALTHZ: &str = "127.0.0.1:10256";

/// How long a probe may take at most.
const WITHIN: Duration = Duration::from_millis(100);
/// How long the time between two probes is.
const BETWEEN: Duration = Duration::from_millis(25);
/// How long probes are sent: longer than the header time-out of the proxy.
const PROBED_FOR: Duration = Duration::from_secs(6);
/// How many probes are sent at least, on a machine that is busy too.
const AT_LEAST: usize = 50;
/// How often the attackers check whether they lost a connection.
const TICK: Duration = Duration::from_millis(10);
/// The most connections that the attackers open in one [`TICK`], which makes 2,000 a second: more is an attack on the CPU of this machine.
const DIALS_A_TICK: usize = 20;

/// What a client does with a connection.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Sends nothing.
    Silent,
    /// Sends a part of a header.
    Begun,
    /// Sends a header byte by byte.
    Slow,
    /// Asks once, does not read the answer, and stays.
    Deaf,
}

const HABITS: [Habit; 4] = [Habit::Silent, Habit::Begun, Habit::Slow, Habit::Deaf];

/// A connection of an attacker, under way or established.
struct Client {
    address: SocketAddr,
    habit: Habit,
    stream: TcpStream,
    /// How often it was checked.
    ticks: usize,
}

/// A slow client sends a byte every this many ticks.
const SLOWNESS: usize = 25;

impl Client {
    fn dial(address: SocketAddr, habit: Habit) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket can be made");
        socket.set_nonblocking(true).expect("a socket can be made non-blocking");
        // Refused at once or under way: the next tick shows which.
        let _in_progress = socket.connect(&address.into());
        Self { address, habit, stream: socket.into(), ticks: 0 }
    }

    /// Whether a connection goes on that the server has not closed: sends some more, as the habit has it.
    fn goes_on(&mut self) -> bool {
        let ticks = self.ticks;
        self.ticks += 1;
        let sent = match self.habit {
            Habit::Begun if ticks == 0 => self.stream.write(b"GET /livez HTTP/1.1\r\nX-Slow: "),
            Habit::Slow if ticks.is_multiple_of(SLOWNESS) => self.stream.write(b"x"),
            Habit::Deaf if ticks == 0 => self.stream.write(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n"),
            _ => Ok(1),
        };
        !matches!(sent, Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected))
    }
}

/// Keeps `count` connections to each of the addresses, until it is stopped. Gives how often it connected.
fn attack(addresses: &[SocketAddr], habits: &[Habit], count: usize, stop: &AtomicBool) -> usize {
    let wanted = (0..count).flat_map(|n| addresses.iter().map(move |address| (*address, habits[n % habits.len()])));
    let mut wanted: Vec<_> = wanted.collect();
    let (mut clients, mut dialled): (Vec<Client>, usize) = (Vec::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        for (address, habit) in wanted.split_off(wanted.len().saturating_sub(DIALS_A_TICK)) {
            clients.push(Client::dial(address, habit));
            dialled += 1;
        }
        thread::sleep(TICK);
        // Poll reports errors and hang-ups without being asked.
        let mut fds: Vec<_> = clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::RDHUP)).collect();
        poll(&mut fds, Some(&Timespec::default())).expect("sockets can be polled");
        let closed: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut closed = closed.into_iter();
        clients.retain_mut(|client| {
            let goes_on = closed.next() == Some(false) && client.goes_on();
            if !goes_on {
                wanted.push((client.address, client.habit));
            }
            goes_on
        });
    }
    dialled
}

/// What became of a probe.
struct Probe {
    address: SocketAddr,
    /// From the first packet to the end of the answer, without the time for which the prober's thread or the proxy's wanted a CPU and
    /// another program had it.
    took: Duration,
    answer: Result<String, String>,
}

impl Probe {
    /// Sends one. `waited` is what [`waited_for_cpu`] gave after the probe before: what came while the proxy did not run has to be
    /// served as well.
    fn send(address: SocketAddr, proxy: u32, waited: &mut Duration) -> Self {
        let start = Instant::now();
        let exchange = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text.lines().next().unwrap_or_default().to_owned())
        };
        let answer = exchange().map_err(|error| error.to_string());
        let (took, now) = (start.elapsed(), waited_for_cpu(proxy));
        let lost = now.saturating_sub(std::mem::replace(waited, now));
        Self { address, took: took.saturating_sub(lost), answer }
    }

    fn is_good(&self) -> bool {
        self.took <= WITHIN && self.answer.as_deref() == Ok("HTTP/1.1 200 OK")
    }
}

/// How long this thread and the proxy's first one, which answers, were ready to run and did not: a machine with more work than CPUs
/// is not the proxy's fault.
fn waited_for_cpu(proxy: u32) -> Duration {
    let nanos = |thread: &str| {
        let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or_default()
    };
    Duration::from_nanos(nanos("thread-self")) + Duration::from_nanos(nanos(&format!("{proxy}/task/{proxy}")))
}

/// Probes each of the addresses in turn from the address that the attackers have.
fn probe(addresses: &[SocketAddr], proxy: u32) -> Vec<Probe> {
    let (end, mut waited, mut probes) = (Instant::now() + PROBED_FOR, waited_for_cpu(proxy), Vec::new());
    while Instant::now() < end || probes.len() < AT_LEAST {
        for address in addresses {
            probes.push(Probe::send(*address, proxy, &mut waited));
            thread::sleep(BETWEEN);
        }
    }
    probes
}

/// A value that is set when it is dropped, also by a panic.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while this many clients of these habits attack each of the addresses; it begins when all of them have dialled.
fn under_attack<T>(
    node: &Namespace,
    addresses: &[SocketAddr],
    (habits, count): (&[Habit], usize),
    work: impl FnOnce() -> T,
) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let attackers = scope.spawn(|| {
            node.join();
            attack(addresses, habits, count, &stop)
        });
        let stopped = Flag(&stop);
        thread::sleep(Duration::from_secs(1));
        let result = work();
        drop(stopped);
        let dialled = attackers.join().expect("the attackers do not panic");
        println!("{habits:?}: dialled {dialled} times");
        result
    })
}

/// A Service with a health-check node port, and endpoints on this node.
fn checked(n: u16) -> Vec<Value> {
    let name = format!("web{n}");
    let number = u8::try_from(n).expect("a few Services");
    let web = service("shop", &name).cluster_ips(1 + number).port("http", Proto::Tcp, 80).node_port(30_080 + n);
    let web = web.spec("type", json!("LoadBalancer")).spec("externalTrafficPolicy", json!("Local"));
    let web = web.spec("healthCheckNodePort", json!(31_900 + n)).json();
    [vec![web], slices("shop", &name, &[0, 1], &[("http", Proto::Tcp, 8080)])].concat()
}

fn check_port(n: u16) -> String {
    format!("192.0.2.2:{}", 31_900 + n)
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the proxy runs").count()
}

/// Memory of its own, in KiB: without the pages of the binary, which come as they are used.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the proxy runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel lists the memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Asserts that probes are answered while a thousand clients of each of these kinds attack the health port and a health-check node port.
/// The proxy runs with these limits of open files, and may open `at_most` files.
fn every_probe_is_answered(kinds: &[&[Habit]], limits: &str, at_most: usize) {
    let node = node_namespace();
    let prlimit = format!("--nofile={limits}");
    let proxy = Proxy::start_under(&["prlimit", &prlimit], &node, &config(), &[cluster(), checked(0)].concat());
    get_until(&node, &check_port(0), "/", |answer| answer.status == "HTTP/1.1 200 OK");
    let before = memory(proxy.pid());
    let addresses: Vec<SocketAddr> = [HEALTHZ, &check_port(0)].map(|text| text.parse().expect("an address")).to_vec();
    for habits in kinds {
        let probes = under_attack(&node, &addresses, (habits, 1_000 / addresses.len()), || {
            let probes = node.enter(|| probe(&addresses, proxy.pid()));
            let (open, more) = (descriptors(proxy.pid()), memory(proxy.pid()).saturating_sub(before) / 1024);
            println!("{habits:?}: {open} descriptors, {more} MiB more than before");
            assert!(open <= at_most, "{habits:?}: {open} descriptors");
            assert!(more <= 64, "{habits:?}: {more} MiB more than before");
            probes
        });
        let late = probes.iter().filter(|probe| !probe.is_good());
        let late: Vec<_> = late.map(|probe| (probe.address, probe.took, &probe.answer)).collect();
        let slowest = probes.iter().map(|probe| probe.took).max().unwrap_or_default();
        println!("{habits:?}: {} probes, {} late or unanswered, slowest {slowest:?}", probes.len(), late.len());
        assert!(late.is_empty(), "{habits:?}: {} of {} probes failed: {late:#?}", late.len(), probes.len());
    }
}

#[test]
fn a_thousand_idle_or_slow_clients_delay_no_probe() {
    let each = HABITS.iter().map(std::slice::from_ref);
    every_probe_is_answered(&each.chain([&HABITS[..]]).collect::<Vec<_>>(), "1024:4096", 2_048);
}

#[test]
fn a_thousand_idle_or_slow_clients_delay_no_probe_where_descriptors_are_few() {
    every_probe_is_answered(&[&HABITS], "1024:1024", 1_000);
}

/// Eighteen health-check node ports with 64 idle clients each, which is more than 1,024 descriptors.
fn work_goes_on(limits: &str) {
    const PORTS: u16 = 18;
    let node = node_namespace();
    let prlimit = format!("--nofile={limits}");
    let objects = [cluster(), (0..PORTS).flat_map(checked).collect()].concat();
    let mut proxy = Proxy::start_under(&["prlimit", &prlimit], &node, &config(), &objects);
    (0..PORTS).for_each(|n| drop(get_until(&node, &check_port(n), "/", |answer| answer.status == "HTTP/1.1 200 OK")));
    let addresses: Vec<SocketAddr> = (0..PORTS).map(|n| check_port(n).parse().expect("an address")).collect();
    let is_there = || list_ruleset(&node).contains("shop/other:http");
    under_attack(&node, &addresses, (&[Habit::Silent], 64), || {
        println!("{} descriptors", descriptors(proxy.pid()));
        for _ in 0..10 {
            assert_eq!(get(&node, HEALTHZ, "/livez").status, "HTTP/1.1 200 OK");
        }
        assert!(!is_there());
        proxy.apply(&[service("shop", "other").cluster_ips(200).port("http", Proto::Tcp, 80).json()]);
        assert!(is_there(), "a new manifest was read");
        run(node.command("nft").arg("flush ruleset"));
        let end = Instant::now() + PATIENCE;
        while !is_there() {
            assert!(Instant::now() < end, "not repaired: {}", list_ruleset(&node));
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(!proxy.log().contains("Too many open files"), "{}", proxy.log());
}

#[test]
fn idle_clients_of_many_ports_leave_descriptors_for_the_proxys_own_work() {
    work_goes_on("1024:4096");
}

#[test]
fn idle_clients_of_many_ports_leave_descriptors_where_the_limit_cannot_be_raised() {
    work_goes_on("1024:1024");
}

#[test]
fn the_soft_limit_of_open_files_is_raised_as_far_as_it_is_of_use() {
    for (limits, expected) in [("512:4096", "4096"), ("512:512", "512"), ("512:1024", "1024")] {
        let node = node_namespace();
        let prlimit = format!("--nofile={limits}");
        let proxy = Proxy::start_under(&["prlimit", &prlimit], &node, &config(), &cluster());
        let text = fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).expect("the proxy runs");
        let line = text.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
        assert_eq!(line.split_whitespace().nth(3), Some(expected), "{limits}: {line}");
    }
}
