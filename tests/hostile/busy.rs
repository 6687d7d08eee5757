//! A cluster that changes five times a second: everything that the proxy does now and then happens in time all the same.
//!
//! `KUBE_PROXY_BUSY_SECONDS` says for how long (18 by default); the hourly comparison comes every two seconds here.

use std::collections::BTreeSet;
use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::figures::Figures;
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::run;
use crate::support::objects::{node, service, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::support::world::World;
use crate::turns;
use nft::{Connection, TableName};

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
/// Between two changes of the cluster.
const EVERY: Duration = Duration::from_millis(200);
/// Within this time everything has to happen: the time between two syncs, half of that again, and room for a busy machine.
const SOON: Duration = Duration::from_millis(3_500);
/// The seconds between two comparisons of everything, and the environment variable that sets them.
const COMPARED_EVERY: u64 = 2;
const COMPARED: &str = "KUBE_PROXY_NFT_COMPARE_SECONDS=2";
/// The address that comes and goes, and the node port that it serves.
const FAILOVER: &str = "198.18.0.77";
const NODE_PORT: u16 = 30080;

fn seconds() -> Duration {
    Duration::from_secs(
        env::var("KUBE_PROXY_BUSY_SECONDS").map_or(18, |text| text.parse().expect("a number of seconds")),
    )
}

/// A Service that stays, one whose clients are remembered, and one that changes all the time.
fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let sticky = service("shop", "sticky").cluster_ips(2).client_ip_affinity(10_800).port("http", Proto::Tcp, 80);
    let churn = service("shop", "churn").cluster_ips(3).port("http", Proto::Tcp, 80);
    let mut objects = vec![node(), web.json(), sticky.json(), churn.json(), churned(0)];
    objects.extend(slices("shop", "web", &[0, 2], &PORTS));
    objects.extend(slices("shop", "sticky", &[0], &PORTS));
    objects
}

/// The slice that changes, with an endpoint that it never had before.
fn churned(round: u32) -> Value {
    let endpoints: Vec<IpAddr> = (0..2).map(|n| Ipv4Addr::from(0x0af5_0000 + round + n).into()).collect();
    slice("shop", "churn", "churn", &endpoints, &PORTS)
}

fn to(address: IpAddr, port: u16) -> Flow {
    Flow::new(Proto::Tcp, Family::V4.client(), address, port)
}

/// The chains of the IPv4 table that have no rules and are no base chains.
fn empty_chains(world: &World) -> usize {
    let ours = TableName::new(nft::Family::Ip, "kube-proxy");
    let dump = world.node.enter(|| {
        Connection::open().and_then(|mut connection| connection.read_table(&ours).map_err(std::io::Error::other))
    });
    let dump = dump.expect("readable").expect("our table");
    dump.chains.values().filter(|(chain, rules)| chain.base.is_none() && rules.is_empty()).count()
}

/// Waits until something is so; gives how long that took.
fn wait_for(what: &str, proxy: &Proxy<'_>, is_so: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not in {:?}\n{}", start.elapsed(), proxy.log());
        thread::sleep(Duration::from_millis(20));
    }
    let took = start.elapsed();
    assert!(is_slow() || took <= SOON, "{what} took {took:?}");
    took
}

/// What is done beside the changes, and how long each took at most.
struct Chores<'a> {
    world: &'a World,
    proxy: &'a Proxy<'a>,
    /// An address that came and is served, a foreign write that is repaired, and clients that leave an endpoint that is gone.
    worst: [Duration; 3],
    rounds: u32,
}

impl Chores<'_> {
    fn once(&mut self) {
        let endpoint = u8::try_from(self.rounds % 2).expect("0 or 1");
        let took = [self.address(), self.foreign_write(), self.clients(1 - endpoint)];
        self.worst = [0, 1, 2].map(|n| self.worst[n].max(took[n]));
        self.rounds += 1;
    }

    fn reached(&self, flow: Flow) -> Option<SocketAddr> {
        match probe(&self.world.client, flow) {
            Outcome::Reached(answer) => Some(SocketAddr::new(answer.endpoint, answer.port)),
            _ => None,
        }
    }

    /// A failover address comes, is served, and goes (G11).
    fn address(&self) -> Duration {
        let flow = to(FAILOVER.parse().expect("an address"), NODE_PORT);
        self.world.node.ip(&[format!("address add {FAILOVER}/32 dev lo")]);
        let took = wait_for("the address is served", self.proxy, || self.reached(flow).is_some());
        self.world.node.ip(&[format!("address del {FAILOVER}/32 dev lo")]);
        wait_for("the address is served no more", self.proxy, || self.reached(flow).is_none());
        took
    }

    /// Another program deletes rules; they come back, and that is counted (G10).
    fn foreign_write(&self) -> Duration {
        let count = |name: &str| self.proxy.series(name).first().copied().unwrap_or_default();
        let [noticed, repaired] = ["kubeproxy_nft_foreign_changes_total", "kubeproxy_nft_repairs_total"];
        let before = [noticed, repaired].map(count);
        run(self.world.node.command("nft").arg("flush chain ip kube-proxy KUBE-SERVICES"));
        let took =
            wait_for("the rules are repaired", self.proxy, || self.reached(to(Family::V4.cluster_ip(1), 80)).is_some());
        wait_for("the repair is counted", self.proxy, || {
            [noticed, repaired].map(count).iter().zip(before).all(|(now, before)| *now > before)
        });
        took
    }

    /// A client that is remembered for an endpoint that goes finds the one that comes (E6).
    fn clients(&self, endpoint: u8) -> Duration {
        let flow = to(Family::V4.cluster_ip(2), 80);
        wait_for("the client is served", self.proxy, || self.reached(flow).is_some());
        let slices = slices("shop", "sticky", &[endpoint], &PORTS);
        slices.iter().for_each(|slice| self.proxy.manifests().apply(slice));
        let wanted = Family::V4.endpoint(endpoint);
        wait_for("the client leaves the endpoint that is gone", self.proxy, || {
            self.reached(flow).is_some_and(|found| found.ip() == wanted)
        })
    }
}

/// The times at which everything was compared while nothing but the cluster changed, for so long.
fn compared(proxy: &Proxy<'_>, during: Duration) -> usize {
    let (start, mut seen) = (Instant::now(), BTreeSet::new());
    while start.elapsed() < during {
        let times = proxy.series("kubeproxy_nft_tables_verified_timestamp_seconds");
        seen.extend(times.iter().map(|time| time.to_bits()));
        thread::sleep(Duration::from_millis(100));
    }
    seen.len() - 1
}

test_in_each_layout!(while_the_cluster_changes_five_times_a_second_all_that_happens_now_and_then_happens);
fn while_the_cluster_changes_five_times_a_second_all_that_happens_now_and_then_happens(layout: Layout) {
    let _turn = turns::beside_others();
    let world = World::new();
    // Left by mode iptables: it goes after the first sync (O1).
    run(world.node.command("iptables-nft").args(["-t", "nat", "-N", "KUBE-SEP-ZX7GRIZKSNUQ3LAJ"]));
    let mut config = config_in(layout);
    config["nodePortAddresses"] = json!(["198.18.0.0/24"]);
    config["nftables"]["minSyncPeriod"] = json!("1s");
    let proxy = Proxy::start_under(&["env", COMPARED], &world.node, &config, &cluster());
    let (stop, changes, lasts, start) = (AtomicBool::new(false), AtomicU32::new(0), seconds(), Instant::now());
    let empty_before = empty_chains(&world);
    let mut chores = Chores { world: &world, proxy: &proxy, worst: [Duration::ZERO; 3], rounds: 0 };
    let (comparisons, empty) = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let round = changes.fetch_add(1, Ordering::Relaxed);
                proxy.manifests().apply(&churned(round));
                thread::sleep(EVERY);
            }
        });
        // Ends the changes also when an assertion below fails.
        let _end = Ends(&stop);
        let comparisons = compared(&proxy, lasts / 2);
        while start.elapsed() < lasts || chores.rounds < 2 {
            chores.once();
        }
        (comparisons, empty_chains(&world))
    });
    let took = start.elapsed();
    let one = |name: &str| proxy.series(name).first().copied().unwrap_or_default();
    let syncs = one("kubeproxy_nft_transactions_total");
    let mut figures = Figures::default();
    figures.row(
        format!("Busy cluster, layout {}: seconds, changes", layout.name()),
        format!("{}, {}", took.as_secs(), changes.load(Ordering::Relaxed)),
    );
    figures.row("syncs; comparisons in the first half, one due every 2 s", format!("{syncs}; {comparisons}"));
    let [address, foreign, clients] = chores.worst.map(|worst| worst.as_millis());
    figures.row("worst ms: address served, repaired, client moved", format!("{address}, {foreign}, {clients}"));
    figures.publish();

    // Each waits for a moment without a change that waits, which there is after each sync.
    let due = (lasts / 2).as_secs() / COMPARED_EVERY;
    let least = if is_slow() { 1 } else { usize::try_from(due / 2).expect("a few") };
    assert!(comparisons >= least.max(1), "{comparisons} comparisons, {due} due");
    assert!(syncs >= took.as_secs_f64() / 3.0, "{syncs} syncs in {took:?}");
    // Those of one sync may still wait for their second.
    assert!(empty <= empty_before + 8, "{empty} chains without rules, {empty_before} at the start");
    let rules = run(world.node.command("iptables-nft").args(["-t", "nat", "-S"]));
    assert!(!rules.contains("KUBE-SEP"), "{rules}");
    let log = proxy.log();
    assert!(!log.contains("Sync failed") && log.contains(FAILOVER), "{log}");
}

/// Sets the flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
