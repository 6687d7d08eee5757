//! What happens to the cluster and to the proxy while the load goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, rolling};
use super::load::Load;
use crate::support::figures::Figures;
use crate::support::layout::Layout;
use crate::support::netns::run;
use crate::support::nft::{list_ruleset, normalised, without_unused_chains};
use crate::support::objects::{service, slices};
use crate::support::plan::{ENDPOINTS, Family};
use crate::support::probe::Proto;
use crate::support::proxy::{binary, config_in};

/// A repair that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// How long chains of another layout may stay, in which no packet arrives any more.
const CHAINS_DELETED: Duration = Duration::from_secs(10);
/// More than a second: after that, the clients that were remembered last have been checked again.
const AFFINITY_CHECKED: Duration = Duration::from_millis(2_500);

/// The layouts in the order of the switches, which begin and end with `maps`: from each to each other one.
const SWITCHES: [Layout; 6] =
    [Layout::Chains, Layout::Maps, Layout::ServiceChains, Layout::Chains, Layout::ServiceChains, Layout::Maps];

/// The lines of each object.
type Rules = BTreeMap<String, Vec<String>>;

/// A kind of change. Each name is a row of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// A pod is replaced by another.
    Roll,
    /// The Service gets other settings, a pod is replaced under them, and all is as before again.
    Rewrite,
    /// SIGTERM, and the same program again.
    Restart,
    /// SIGKILL, at the moment when an endpoint begins to terminate.
    Kill,
    /// SIGTERM, and another program.
    Upgrade,
    /// SIGTERM, and the same program with another layout.
    SwitchLayout,
    /// Another program changes our rules.
    Tamper,
    /// Another program changes our rules while no proxy runs.
    TamperWithTheDead,
}

impl Change {
    /// All of them, those with variants several times.
    pub(crate) const ROUND: [Self; 17] = [
        Self::Roll,
        Self::Tamper,
        Self::Rewrite,
        Self::Kill,
        Self::Rewrite,
        Self::Upgrade,
        Self::Tamper,
        Self::Tamper,
        Self::SwitchLayout,
        Self::Roll,
        Self::Rewrite,
        Self::Kill,
        Self::Tamper,
        Self::TamperWithTheDead,
        Self::SwitchLayout,
        Self::Restart,
        Self::Rewrite,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Roll => "endpoints replaced",
            Self::Rewrite => "Services rewritten, an endpoint replaced meanwhile",
            Self::Restart => "restarts",
            Self::Kill => "kills while an endpoint is replaced",
            Self::Upgrade => "upgrades",
            Self::SwitchLayout => "layouts switched",
            Self::Tamper => "rules tampered with",
            Self::TamperWithTheDead => "rules tampered with while no proxy runs",
        }
    }
}

/// Makes changes, and counts.
pub(crate) struct Changes<'world> {
    cluster: Cluster<'world>,
    load: &'world Load,
    /// The program under test, and another version of it.
    binaries: [PathBuf; 2],
    layout: Layout,
    made: BTreeMap<Change, u32>,
    rolled: u8,
    repairs: Vec<Duration>,
}

impl<'world> Changes<'world> {
    /// A counter of changes, of which none was made yet.
    pub(crate) fn new(cluster: Cluster<'world>, load: &'world Load) -> Self {
        let other = cluster.proxy.directory().join("kube-proxy-of-the-next-version");
        std::fs::copy(binary(), &other).expect("a program can be copied");
        Self {
            cluster,
            load,
            binaries: [binary(), other],
            layout: Layout::Maps,
            made: BTreeMap::new(),
            rolled: 0,
            repairs: Vec::new(),
        }
    }

    /// Makes a change.
    pub(crate) fn make(&mut self, change: Change) {
        let count = self.made.entry(change).or_default();
        let number = *count as usize;
        *count += 1;
        match change {
            Change::Roll => self.roll(|_| {}, Duration::ZERO),
            Change::Rewrite => self.rewrite(number),
            Change::Restart => self.restart(|_| {}),
            Change::Kill => self.roll(kill, Duration::ZERO),
            Change::Upgrade => {
                self.binaries.swap(0, 1);
                let next = self.binaries[0].clone();
                self.restart(|cluster| cluster.proxy.set_binary(&next));
            }
            Change::SwitchLayout => self.switch_layout(SWITCHES[number % SWITCHES.len()]),
            Change::Tamper => self.tamper(number),
            Change::TamperWithTheDead => self.tamper_with_the_dead(number),
        }
    }

    /// The longest time to a repair.
    pub(crate) fn worst_repair(&self) -> Duration {
        self.repairs.iter().max().copied().unwrap_or_default()
    }

    /// Adds the rows about changes.
    pub(crate) fn describe(&self, figures: &mut Figures) {
        self.made.iter().for_each(|(change, count)| figures.row(change.name(), count));
        figures.row("repairs", self.repairs.len());
        figures.row("worst time to a repair", format!("{:.2?}", self.worst_repair()));
    }

    /// Replaces a pod. After `pause` no packet brings a connection to the one that ends.
    fn roll(&mut self, meanwhile: impl FnOnce(&mut Cluster<'world>), pause: Duration) {
        let drain = || {
            thread::sleep(pause);
            self.load.finish_what_has_begun();
        };
        self.cluster.roll(self.rolled, meanwhile, drain);
        self.rolled = (self.rolled + 1) % ENDPOINTS;
    }

    fn rewrite(&mut self, number: usize) {
        let rewrites: [fn() -> Vec<Value>; 5] = [sticky, local, local_inside, guarded, wider];
        let number = number % rewrites.len();
        self.cluster.apply(&rewrites[number]());
        // With affinity a packet on its way may have had its client remembered once more, for a second.
        self.roll(|_| {}, if number == 0 { AFFINITY_CHECKED } else { Duration::ZERO });
        let neighbour = neighbour();
        if number == 4 {
            self.cluster.proxy.delete(&neighbour);
        }
        self.cluster.apply(&[rolling().json()]);
    }

    fn restart(&mut self, meanwhile: impl FnOnce(&mut Cluster<'world>)) {
        let status = self.cluster.proxy.stop();
        assert_eq!(status.code(), Some(0));
        meanwhile(&mut self.cluster);
        self.cluster.proxy.launch();
        self.cluster.proxy.wait_until_quiet();
    }

    fn switch_layout(&mut self, next: Layout) {
        self.layout = next;
        let config = config_in(self.layout);
        self.restart(|cluster| cluster.proxy.configure(&config));
        // Chains that nothing leads to any more are empty for a second before they are deleted (F8).
        let is_chains = || list_ruleset(self.cluster.node()).contains("chain KUBE-SVC-");
        let end = Instant::now() + CHAINS_DELETED;
        while is_chains() != (self.layout != Layout::Maps) {
            assert!(Instant::now() < end, "the chains are those of another layout than {:?}", self.layout);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The rules, without what may differ between equal ones.
    fn rules(&self) -> Rules {
        without_unused_chains(normalised(&list_ruleset(self.cluster.node())))
    }

    fn nft(&self, command: &str) {
        run(self.cluster.node().command("nft").arg(command));
    }

    fn tamper(&mut self, number: usize) {
        let (ours, command) = (self.rules(), tampering(self.layout, number));
        // A change that the proxy did not notice had no effect, or is still there.
        let noticed = || self.cluster.proxy.series("kubeproxy_nft_foreign_changes_total");
        let before = noticed();
        assert_eq!(before.len(), 1, "the proxy counts what it noticed");
        let took = self.load.disturbed(|| {
            self.nft(&command);
            let start = Instant::now();
            while let rules = self.rules()
                && (rules != ours || noticed() <= before)
            {
                let difference = || difference(&ours, &rules);
                assert!(start.elapsed() < PATIENCE, "not repaired: {command}: {:#?}", difference());
                thread::sleep(POLL);
            }
            start.elapsed()
        });
        self.repairs.push(took);
    }

    fn tamper_with_the_dead(&mut self, number: usize) {
        let (ours, command) = (self.rules(), tampering(self.layout, number));
        self.cluster.proxy.kill();
        self.load.disturbed(|| {
            self.nft(&command);
            assert_ne!(self.rules(), ours, "{command} did nothing");
            self.cluster.proxy.launch();
        });
        let left = difference(&ours, &self.rules());
        assert!(left.is_empty(), "not repaired by the next process: {command}: {left:#?}");
    }
}

/// The objects that differ, each with its lines before and now.
fn difference(before: &Rules, now: &Rules) -> Vec<(String, [Vec<String>; 2])> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let both = |name: &String| [before, now].map(|rules| rules.get(name).cloned().unwrap_or_default());
    names.into_iter().map(|name| (name.clone(), both(name))).filter(|(_, [before, now])| before != now).collect()
}

/// Kills the proxy while an event is on its way to it, and starts another one.
fn kill(cluster: &mut Cluster<'_>) {
    thread::sleep(Duration::from_micros(rand::random::<u64>() % 60_000));
    cluster.proxy.kill();
    cluster.proxy.launch();
}

/// What another program does to our tables. The chains with hooks stay, because without these the kernel translates nothing any more,
/// not even what it tracks.
fn tampering(layout: Layout, number: usize) -> String {
    let family = Family::ALL[number / 2 % 2];
    let (kind, frontend) = (if family == Family::V4 { "ip" } else { "ip6" }, family.cluster_ip(1));
    let table = format!("{kind} kube-proxy");
    let services = if layout == Layout::Maps { "services" } else { "KUBE-SERVICES" };
    let commands = [
        format!("delete element {table} {services} {{ {frontend} . tcp . 80 }}"),
        format!("flush map {table} {services}"),
        format!("flush table {table}"),
        format!("insert rule {table} KUBE-SERVICES drop"),
        format!("flush chain {table} KUBE-SERVICES"),
    ];
    commands[number % commands.len()].clone()
}

/// The Service with session affinity.
fn sticky() -> Vec<Value> {
    vec![rolling().client_ip_affinity(600).json()]
}

/// The Service with external policy Local; this node has two of its endpoints.
fn local() -> Vec<Value> {
    vec![rolling().spec("externalTrafficPolicy", json!("Local")).json()]
}

/// The Service with internal policy Local.
fn local_inside() -> Vec<Value> {
    vec![rolling().spec("internalTrafficPolicy", json!("Local")).json()]
}

/// The Service with source ranges, which include the clients of this test.
fn guarded() -> Vec<Value> {
    vec![rolling().spec("loadBalancerSourceRanges", json!(["203.0.113.0/24", "2001:db8:113::/48"])).json()]
}

/// The Service with a further port and external IPs, and another Service with endpoints of its own.
fn wider() -> Vec<Value> {
    let wider = rolling().port("metrics", Proto::Tcp, 9100);
    let wider = Family::ALL.iter().fold(wider, |wider, family| wider.external_ip(family.external_ip(1)));
    [vec![wider.json()], neighbour()].concat()
}

fn neighbour() -> Vec<Value> {
    let service = service("load", "neighbour").cluster_ips(3).port("http", Proto::Tcp, 80).node_port(30084);
    [vec![service.json()], slices("load", "neighbour", &[0, 1, 2], &[("http", Proto::Tcp, 9090)])].concat()
}
