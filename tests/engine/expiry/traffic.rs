//! 5,000 clients connect to Services that remember them for 1, 3 and 10 seconds, while ten times a second an endpoint is replaced.
//!
//! No sync may be refused, no Service left out, and no client sent to an endpoint that has been gone for more than a second. Every
//! address of the endpoints' network is served at all times and no endpoint comes back, so that the address that answers shows where
//! a connection was sent.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{env, fs};

use kube_proxy::health;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{Engine, NotProgrammed, Schedule, Sync};
use rules::model::{Event, Family};
use rules::ruleset::Layout;
use rustix::process::setpriority_process;
use rustix::thread::gettid;
use socket2::{Domain, Socket, Type};

use super::kernel::{Age, Aged};
use crate::support::cluster::{address, config, endpoint, node, service, slice};
use crate::support::figures::Figures;
use crate::support::netns::Namespace;
use crate::support::wiring::{attach, new_node};

/// The time-out of each Service, in seconds.
const TIMEOUTS: [u32; 3] = [1, 3, 10];
const CLIENTS: u16 = 5_000;
const ENDPOINTS: u16 = 10;
const BETWEEN_CHANGES: Duration = Duration::from_millis(100);
/// How long an endpoint that is gone may get connections.
const GONE_FOR: Duration = Duration::from_secs(1);
/// How long each test goes on at least.
const SHORT: Duration = Duration::from_secs(4);
/// Threads that connect.
const DIALLERS: u16 = 2;
const PORT: u16 = 8080;
/// Connections that each test makes at least, and how much longer than planned it goes on for them.
const LEAST: usize = 2_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Each of them rests after each connection: 5,000 clients connect every two or three seconds.
const PAUSE: Duration = Duration::from_micros(500);
const ANSWER: Duration = Duration::from_secs(10);

/// The endpoints that are gone and since when, and the connections so far.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    made: AtomicUsize,
    gone: RwLock<BTreeMap<Ipv4Addr, Instant>>,
    failed: Mutex<Vec<String>>,
    unanswered: AtomicUsize,
    late: Mutex<Vec<Late>>,
    /// The thread of the proxy, and for how long it had waited for a processor, at times some milliseconds apart.
    proxy: AtomicI32,
    waited: Mutex<Vec<(Instant, Duration)>>,
}

/// A connection to an endpoint that had been gone for more than a second.
struct Late {
    endpoint: Ipv4Addr,
    gone: Instant,
    begun: Instant,
}

/// Stops the load when dropped, also when a test fails.
struct Stop<'a>(&'a Load);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// A thread that panicked has failed the test by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lowers the priority of this thread, so that on a busy machine the proxy runs first: the load of this thread is not under test.
fn give_way() {
    const NICE: i32 = 10;
    setpriority_process(None, NICE).expect("a thread may have less priority");
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("an IPv4 address was asked for"),
    }
}

impl Load {
    /// Connects from every client whose number leaves `rest`, to one Service after the other.
    fn dial(&self, rest: u16) {
        give_way();
        let clients = (0..CLIENTS).filter(|n| n % DIALLERS == rest).cycle();
        // Next to each other in time, a client's connections go to different Services.
        for (client, service) in clients.zip((0..TIMEOUTS.len()).cycle()) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let begun = Instant::now();
            match connect(v4(address(Family::V4, 244, client)), frontend(service)) {
                Ok(endpoint) => self.reached(endpoint, begun),
                // The servers' thread has to wait for a processor as well.
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => lock(&self.failed).push(format!("client {client} to Service {service}: {error}")),
            }
            self.made.fetch_add(1, Ordering::Relaxed);
            sleep(PAUSE);
        }
    }

    /// Whether to go on: on a machine that is busy, until there were enough connections for the changes to meet.
    fn goes_on(&self, elapsed: Duration, duration: Duration) -> bool {
        elapsed < duration || self.made.load(Ordering::Relaxed) < LEAST && elapsed < duration + PATIENCE
    }

    fn reached(&self, endpoint: Ipv4Addr, begun: Instant) {
        let gone = self.gone.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = gone.get(&endpoint).filter(|gone| begun.saturating_duration_since(**gone) > GONE_FOR) {
            lock(&self.late).push(Late { endpoint, gone: *gone, begun });
        }
    }

    /// Notes how long the proxy waited for a processor: on a machine that is busy with other things, a second is less for it.
    fn watch_the_proxy(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let path = format!("/proc/self/task/{}/schedstat", self.proxy.load(Ordering::Relaxed));
            let text = fs::read_to_string(path).unwrap_or_default();
            let waited = text.split_whitespace().nth(1).and_then(|nanoseconds| nanoseconds.parse().ok());
            lock(&self.waited).extend(waited.map(|waited| (Instant::now(), Duration::from_nanos(waited))));
            sleep(Duration::from_millis(10));
        }
    }

    /// Why a connection was late; nothing if the proxy only had no processor for so long.
    fn judge(&self, late: &Late) -> Option<String> {
        let waited = lock(&self.waited);
        let at = |time: Instant| waited.partition_point(|(noted, _)| *noted <= time);
        let before = waited.get(at(late.gone).saturating_sub(1)).map_or(Duration::ZERO, |(_, waited)| *waited);
        let after = waited.get(at(late.begun)).or(waited.last()).map_or(Duration::ZERO, |(_, waited)| *waited);
        let (since, waited) = (late.begun - late.gone, after.saturating_sub(before));
        let text = || format!("{} had been gone for {since:.2?}; the proxy waited for {waited:.2?}", late.endpoint);
        (since > GONE_FOR + waited).then(text)
    }

    /// The last late connection to each endpoint that had one.
    fn last_of_each(&self, late: &[Late]) -> Vec<String> {
        let last: BTreeMap<Ipv4Addr, &Late> = late.iter().map(|late| (late.endpoint, late)).collect();
        last.values().filter_map(|late| self.judge(late)).collect()
    }

    /// Answers each connection with the address that was reached.
    fn serve(&self, listener: &Socket) {
        give_way();
        while !self.stop.load(Ordering::Relaxed) {
            // No answer for a while is an error too.
            let Ok((stream, _)) = listener.accept() else { continue };
            let here = stream.local_addr().ok().and_then(|here| here.as_socket_ipv4());
            let _client_is_gone = here.map(|here| (&stream).write_all(&here.ip().octets()));
        }
    }
}

/// The endpoint that answers.
fn connect(from: Ipv4Addr, to: Ipv4Addr) -> io::Result<Ipv4Addr> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.set_read_timeout(Some(ANSWER))?;
    // Closing sends a reset: no TIME_WAIT is left behind.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&SocketAddr::from((to, 80)).into(), ANSWER)?;
    let mut answer = [0; 4];
    (&socket).read_exact(&mut answer)?;
    Ok(answer.into())
}

/// Waits until each Service has an endpoint for the calling thread's namespace.
fn wait_for_rules() {
    let start = Instant::now();
    let is_served = |service: usize| connect(v4(address(Family::V4, 244, 0)), frontend(service)).is_ok();
    while !(0..TIMEOUTS.len()).all(is_served) {
        assert!(start.elapsed() < PATIENCE, "the Services are not served");
        sleep(Duration::from_millis(20));
    }
}

/// The address of a Service.
fn frontend(service: usize) -> Ipv4Addr {
    v4(address(Family::V4, 96, u16::try_from(service).expect("a few Services")))
}

/// What [`Load::serve`] serves, on every address of the calling thread's namespace.
fn listen() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
    socket.listen(1024)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(socket)
}

/// A node, its clients and the endpoints.
struct Network {
    node: Namespace,
    clients: Namespace,
    endpoints: Namespace,
}

impl Network {
    fn new() -> Self {
        let node = new_node([]);
        let places = ["clients", "endpoints"].map(|name| (name.to_owned(), Vec::new()));
        let [clients, endpoints] = attach(&node, 1, &places).try_into().unwrap_or_else(|_| unreachable!("two places"));
        // The clients are in the cluster's network, so that nothing is masqueraded.
        clients.ip(&["route add local 10.244.0.0/16 dev lo"]);
        endpoints.ip(&["route add local 10.245.0.0/16 dev lo"]);
        node.ip(&[
            "route add 10.244.0.0/16 via 169.254.1.2 dev to-clients",
            "route add 10.245.0.0/16 via 169.254.2.2 dev to-endpoints",
        ]);
        Self { node, clients, endpoints }
    }
}

/// The Services and their endpoints.
struct Cluster {
    events: Sender<Event>,
    serving: Vec<VecDeque<u16>>,
    next: u16,
}

impl Cluster {
    fn start(events: Sender<Event>) -> Self {
        let mut cluster = Self { events, serving: vec![VecDeque::new(); TIMEOUTS.len()], next: 0 };
        cluster.send(node(None));
        for (n, seconds) in (0..).zip(TIMEOUTS) {
            let mut web = service(n);
            web.affinity_seconds = Some(seconds);
            web.cluster_ips.v4 = Some(v4(address(Family::V4, 96, n)));
            cluster.send(Event::ServiceApplied(web));
            (0..ENDPOINTS).for_each(|_| cluster.add(n));
            cluster.send_endpoints(n);
        }
        cluster.send(Event::InitialListDone);
        cluster
    }

    fn send(&self, event: Event) {
        // A loop that ended early is noticed when its thread is joined.
        let _ended = self.events.send(event);
    }

    fn add(&mut self, service: u16) {
        self.serving[usize::from(service)].push_back(self.next);
        self.next += 1;
    }

    fn send_endpoints(&self, service: u16) {
        let serving = &self.serving[usize::from(service)];
        let endpoints = serving.iter().map(|n| endpoint(address(Family::V4, 245, *n))).collect();
        self.send(Event::SliceApplied(slice(service, Family::V4, endpoints)));
    }

    /// Replaces the oldest endpoint of a Service.
    fn replace(&mut self, service: u16, load: &Load) {
        let oldest = self.serving[usize::from(service)].pop_front().expect("it has endpoints");
        self.add(service);
        self.send_endpoints(service);
        let mut gone = load.gone.write().unwrap_or_else(PoisonError::into_inner);
        gone.insert(v4(address(Family::V4, 245, oldest)), Instant::now());
    }
}

/// The figures of the proxy at the end.
struct Outcome {
    metrics: Metrics,
    left_out: Vec<NotProgrammed>,
    tried: usize,
    refused: usize,
}

/// The proxy's loop until there are no more events; on a thread of the node.
fn run_proxy(layout: Layout, age: Age, events: Receiver<Event>) -> Outcome {
    let kernel = Aged::open(age);
    let engine = Engine::new(config(), layout, &[Family::V4], kernel.clone());
    let (metrics, (reporter, _servers)) = (Metrics::new(), health::new(Duration::from_secs(60)));
    let schedule = Schedule::new(Some(Duration::from_millis(10)), Duration::from_secs(10));
    let (sender, receiver) = channel();
    let sync = Sync::new(engine, schedule, metrics.clone(), reporter, Box::new(|_| Ok(())));
    let sync = sync.on_not_programmed(Box::new(move |service| sender.send(service).expect("the test listens")));
    sync.run(&events).expect("nothing is wrong with this node");
    let orders = kernel.orders.borrow();
    Outcome { metrics, left_out: receiver.try_iter().collect(), tried: orders.tried, refused: orders.refused }
}

fn series(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.text();
    let value = |line: &str| line.strip_prefix(series)?.split_whitespace().last()?.parse::<f64>().ok();
    text.lines().filter_map(value).fold(0.0, |sum, value| sum + value)
}

/// `KUBE_PROXY_EXPIRY_SECONDS`, of which this test takes a part.
fn duration(part: u32) -> Duration {
    let seconds = env::var("KUBE_PROXY_EXPIRY_SECONDS").map_or(0, |text| text.parse().expect("a number of seconds"));
    SHORT.max(Duration::from_secs(seconds) / part)
}

fn clients_come_and_go(title: &str, layout: Layout, age: Age, duration: Duration) {
    let (network, load) = (Network::new(), Load::default());
    // Closed connections need not be tracked for ten seconds.
    network.node.set_sysctl("netfilter/nf_conntrack_tcp_timeout_close", "1");
    let listener = network.endpoints.enter(listen).expect("a free port");
    let (sender, events) = channel();
    let mut cluster = Cluster::start(sender);
    let mut changes = 0_u32;
    let (outcome, took) = thread::scope(|scope| {
        scope.spawn(|| load.serve(&listener));
        let proxy = scope.spawn(|| {
            network.node.enter(|| {
                load.proxy.store(gettid().as_raw_pid(), Ordering::Relaxed);
                run_proxy(layout, age, events)
            })
        });
        let stop = Stop(&load);
        scope.spawn(|| load.watch_the_proxy());
        network.clients.enter(wait_for_rules);
        for rest in 0..DIALLERS {
            let (network, load) = (&network, &load);
            scope.spawn(move || network.clients.enter(|| load.dial(rest)));
        }
        let start = Instant::now();
        while load.goes_on(start.elapsed(), duration) {
            sleep((start + BETWEEN_CHANGES * (changes + 1)).saturating_duration_since(Instant::now()));
            cluster.replace(u16::try_from(changes % 3).expect("a small number"), &load);
            changes += 1;
        }
        // Long enough to see clients that are sent to an endpoint that is gone.
        sleep(GONE_FOR * 2);
        drop((stop, cluster));
        (proxy.join().expect("the proxy does not panic"), start.elapsed())
    });
    let failed_syncs = series(&outcome.metrics, "kubeproxy_nft_errors_total");
    let (failed, all_late) = (lock(&load.failed), lock(&load.late));
    let late: Vec<String> = all_late.iter().filter_map(|late| load.judge(late)).collect();
    let mut figures = Figures::default();
    figures.row(format!("Clients that expire, {title}: seconds"), took.as_secs());
    figures.row("endpoints replaced", changes);
    figures.row("connections", load.made.load(Ordering::Relaxed));
    figures.row("  of them refused", failed.len());
    figures.row("  without an answer within ten seconds", load.unanswered.load(Ordering::Relaxed));
    figures.row("  to an endpoint gone for more than a second", late.len());
    figures.row("  the same while the proxy waited for a processor", all_late.len() - late.len());
    let waited = lock(&load.waited).last().map_or(Duration::ZERO, |(_, waited)| *waited);
    figures.row("time that the proxy waited for a processor", format!("{waited:.1?}"));
    figures.row("transactions, those refused and sent again included", outcome.tried);
    figures.row("  of them refused", outcome.refused);
    figures.row("syncs that failed", failed_syncs);
    figures.row("Services left out", outcome.left_out.len());
    figures.publish();
    assert_eq!(outcome.left_out, Vec::new());
    assert!(failed_syncs == 0.0, "{failed_syncs} syncs failed");
    assert!(
        late.is_empty(),
        "{} connections, of each endpoint the last: {:#?}",
        late.len(),
        load.last_of_each(&all_late)
    );
    assert!(failed.is_empty(), "{} connections failed, the first: {:?}", failed.len(), &failed[..failed.len().min(5)]);
    assert!(load.made.load(Ordering::Relaxed) >= LEAST, "there is hardly any load");
}

#[test]
fn clients_that_expire_fail_no_sync_and_reach_no_removed_endpoint() {
    // Clients of a removed endpoint are forgotten with the same sync, while others expire (E6).
    clients_come_and_go("layout maps", Layout::Maps, Age::Present, duration(1));
}

#[test]
fn clients_that_expire_cost_no_sync_on_an_old_kernel() {
    // The same without the message that deletes an element only if it is there (E6).
    clients_come_and_go("layout maps, as before Linux 6.3", Layout::Maps, Age::Old, duration(5));
}

#[test]
fn clients_that_expire_cost_no_sync_in_chains_of_services() {
    // The same with a map of clients for each service port (E6).
    clients_come_and_go("layout chains, without chains of endpoints", Layout::ServiceChains, Age::Present, duration(5));
}

#[test]
fn clients_that_expire_cost_no_sync_in_the_chains() {
    // The same with a set of clients for each endpoint (E6).
    clients_come_and_go("layout chains", Layout::Chains, Age::Present, duration(5));
}
