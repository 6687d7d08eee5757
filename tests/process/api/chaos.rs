//! Watches end, break off, are delayed and go back in time at random while objects change: a second after the last fault the rules are
//! those of the objects.
//!
//! `KUBE_PROXY_SEED` repeats a run; each run prints its seed.

use std::collections::BTreeSet;
use std::env;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::cluster::{Cluster, PORTS};
use crate::support::apiserver::fault::{Command, Ending, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::store::Store;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::nft;
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, is_slow};

/// Services that come and go.
const SERVICES: usize = 12;
/// Rounds of faults, each with a comparison at its end.
const ROUNDS: usize = 6;
/// Changes in a round, each after a pause of up to twice [`PAUSE`].
const STEPS: usize = 40;
const PAUSE: Duration = Duration::from_millis(30);
/// How long a server is away that starts again: longer than a node waits after a watch that ended.
const RESTART: Duration = Duration::from_millis(700);
/// Between two rounds: watches that lasted end all long waits.
const CALM: Duration = Duration::from_millis(1200);
/// From the last fault to the state of the objects.
const LONGEST: Duration = Duration::from_secs(1);
/// The same after a restart of the server, for which nodes wait longer.
const LONGEST_AFTER_RESTART: Duration = Duration::from_secs(3);
/// The same while the machine does something else too.
const LONGEST_AT_ALL: Duration = Duration::from_secs(5);
/// How often a fault is repeated that a busy machine may have made slow.
const TRIES: usize = 3;

/// Numbers at random, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u16) -> u16 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u16::try_from((mixed ^ (mixed >> 31)) % u64::from(limit)).expect("it is below the limit")
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())].clone()
    }

    fn index(&mut self, length: usize) -> usize {
        usize::from(self.below(u16::try_from(length).expect("a short list")))
    }

    fn pause(&mut self) -> Duration {
        PAUSE.mul_f64(f64::from(self.below(200)) / 100.0)
    }
}

/// What happens to watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Finished,
    AllFinished,
    Broken,
    BrokenWithinEvent,
    Late,
    Slow,
    Expired,
    Restored,
}

use Trouble::{AllFinished, Broken, BrokenWithinEvent, Expired, Finished, Late, Restored, Slow};

impl Trouble {
    const ALL: [Self; 8] = [Finished, AllFinished, Broken, BrokenWithinEvent, Late, Slow, Expired, Restored];
}

/// What the server has: names of Services, and the endpoint of each.
type Wanted = [Option<u8>; SERVICES];

/// A run against one server.
struct Chaos<'a> {
    cluster: &'a Cluster,
    random: Random,
    wanted: Wanted,
    backup: Option<(Store, Wanted)>,
    faults_of_round: BTreeSet<Trouble>,
}

impl Chaos<'_> {
    /// Creates, changes or deletes a Service.
    fn change(&mut self) {
        let at = self.random.index(SERVICES);
        let (name, ip) = (name(at), ip(at));
        let server = &self.cluster.server;
        if self.wanted[at].is_some() && self.random.below(3) == 0 {
            server.delete(Resource::Service, "shop", &name);
            ["v4", "v6"].iter().for_each(|family| {
                server.delete(Resource::EndpointSlice, "shop", &format!("{name}-{family}"));
            });
            self.wanted[at] = None;
            return;
        }
        let endpoint = self.random.pick(&[0, 1, 2, 3]);
        server.apply(&[service("shop", &name).cluster_ips(ip).port("http", Proto::Tcp, 80).json()]);
        server.apply(&slices("shop", &name, &[endpoint], &PORTS));
        self.wanted[at] = Some(endpoint);
    }

    /// Does something to the watches of a kind or of all, or takes a backup, or nothing.
    fn fault(&mut self) {
        let kind = self.random.pick(&Resource::ALL);
        match usize::from(self.random.below(32)) {
            // After a restore the versions that were lost must not be reached before this node is back.
            31 if !self.faults_of_round.contains(&Restored) => self.take_backup(),
            n if n < Trouble::ALL.len() => self.cause(Trouble::ALL[n], kind),
            _ => {}
        }
    }

    fn take_backup(&mut self) {
        self.backup = Some((self.cluster.server.backup(), self.wanted));
        // A cluster writes more in the minutes since a backup than in the moment until this node is back.
        self.cluster.server.pass_versions(10_000);
    }

    fn cause(&mut self, trouble: Trouble, kind: Resource) {
        let server = &self.cluster.server;
        let ending = self.random.pick(&[Ending::Reset, Ending::Close]);
        match trouble {
            Finished => server.order(kind, Command::Finish),
            AllFinished => server.order(None, Command::Finish),
            Broken => server.order(kind, Command::End(ending)),
            BrokenWithinEvent => {
                let bytes = usize::from(self.random.below(400));
                server.fault(On::Watch(kind), 1, Fault::After(bytes, ending));
                server.order(kind, Command::End(ending));
            }
            Late => {
                server.fault(On::Watch(kind), 1, Fault::Delay(self.random.pause() * 5));
                server.order(kind, Command::Finish);
            }
            Slow => {
                server.fault(On::Watch(kind), 1, Fault::Drip(500, Duration::from_millis(2)));
                server.order(kind, Command::End(ending));
            }
            Expired => {
                server.compact();
                server.order(kind, Command::Expire);
            }
            Restored => {
                let Some((store, wanted)) = self.backup.take() else { return };
                server.close();
                server.restore(store);
                thread::sleep(RESTART);
                server.open();
                self.wanted = wanted;
            }
        }
        self.faults_of_round.insert(trouble);
    }

    /// The time until the rules are those of the objects.
    fn lag(&self, what: &str, proxy: &Proxy<'_>) -> Duration {
        let start = Instant::now();
        loop {
            // The rules that are read are not older than this.
            let lag = start.elapsed();
            let Some(difference) = self.difference() else { return lag };
            assert!(lag < LONGEST_AT_ALL, "{what}: {difference}\n{}", proxy.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes and faults at random. Gives the time from the last of them to the rules.
    fn round(&mut self, what: &str, proxy: &Proxy<'_>) -> Duration {
        for _ in 0..STEPS {
            self.change();
            self.fault();
            let pause = self.random.pause();
            thread::sleep(pause);
        }
        // The last fault ends those that have begun: what was ordered and has not happened yet is taken back.
        self.cluster.server.clear_faults();
        self.cluster.server.order(None, Command::End(Ending::Reset));
        self.lag(what, proxy)
    }

    /// Changes around a fault. Gives the time from the fault to the rules.
    fn last(&mut self, trouble: Trouble, what: &str, proxy: &Proxy<'_>) -> Duration {
        if trouble == Restored {
            self.take_backup();
        }
        (0..3).for_each(|_| self.change());
        if trouble == Restored {
            // What is lost has to be in force.
            self.lag(what, proxy);
        }
        let kind = self.random.pick(&[Resource::Service, Resource::EndpointSlice]);
        self.cause(trouble, kind);
        self.change();
        // A fault of the next watch has happened when that watch has begun.
        wait_for("the fault", || self.cluster.server.settings().plans.is_empty().then_some(()));
        self.lag(what, proxy)
    }

    /// What the rules lack or have too much, in words.
    fn difference(&self) -> Option<String> {
        let rules = nft::normalised(&nft::list_ruleset(&self.cluster.node));
        let lines: Vec<&String> = rules.values().flatten().collect();
        for (n, endpoint) in self.wanted.into_iter().enumerate() {
            let ip = ip(n);
            // The elements of the Service's addresses; those behind a colon lead to an endpoint.
            let of_ip = |family: Family| {
                let key = format!("{} . tcp . 80", family.cluster_ip(ip));
                lines.iter().filter(move |line| line.starts_with(&key))
            };
            let is_there = Family::ALL.iter().all(|family| of_ip(*family).next().is_some());
            let leads_to = |other: &u8| {
                Family::ALL.iter().any(|family| {
                    let end = format!(": {} . 8080", family.endpoint(*other));
                    of_ip(*family).any(|line| line.contains(&end))
                })
            };
            let found: Vec<u8> = (0..4).filter(leads_to).collect();
            let wanted: Vec<u8> = endpoint.into_iter().collect();
            if is_there != endpoint.is_some() || found != wanted {
                let own: Vec<_> = Family::ALL.into_iter().flat_map(of_ip).collect();
                return Some(format!(
                    "{}: {own:?} frontend {is_there}, endpoints {found:?} instead of {wanted:?}",
                    name(n)
                ));
            }
        }
        None
    }
}

fn name(n: usize) -> String {
    format!("s{n}")
}

/// The number of a Service's cluster IPs.
fn ip(n: usize) -> u8 {
    10 + u8::try_from(n).expect("a small number")
}

fn seed() -> u64 {
    let given = env::var("KUBE_PROXY_SEED").map(|text| text.parse().expect("the seed is a number"));
    given.unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        u64::from(now.subsec_nanos()) << 32 | u64::from(std::process::id())
    })
}

/// A cluster, and the random numbers of this run.
fn chaos(cluster: &Cluster, seed: u64) -> Chaos<'_> {
    println!("KUBE_PROXY_SEED={seed}");
    cluster.server.wait_for_watches();
    let (random, wanted) = (Random(seed), Wanted::default());
    Chaos { cluster, random, wanted, backup: None, faults_of_round: BTreeSet::new() }
}

/// Whether it took no longer than it may.
fn is_soon(lag: Duration, has_restarted: bool) -> bool {
    match has_restarted {
        _ if is_slow() => lag < LONGEST_AT_ALL,
        true => lag < LONGEST_AFTER_RESTART,
        false => lag < LONGEST,
    }
}

/// The server does streaming lists in each other round.
fn streaming(round: usize) -> Streaming {
    if round.is_multiple_of(2) { Streaming::On } else { Streaming::Refused }
}

test_in_each_format!(after_faults_at_random_the_rules_are_those_of_the_objects_within_a_second);
fn after_faults_at_random_the_rules_are_those_of_the_objects_within_a_second(format: Format) {
    // Whatever becomes of watches, the state is right soon after (O16, O17).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    let seed = seed();
    let mut chaos = chaos(&cluster, seed);
    let (mut late, before) = (Vec::new(), cluster.server.requests().len());
    let mut faults = BTreeSet::new();
    for round in 0..ROUNDS {
        cluster.server.settings().streaming = streaming(round);
        let lag = chaos.round(&format!("seed {seed}, round {round}"), &proxy);
        let of_round = std::mem::take(&mut chaos.faults_of_round);
        println!("round {round}: {lag:?} after {of_round:?}");
        if !is_soon(lag, of_round.contains(&Restored)) {
            late.push((round, lag));
        }
        faults.extend(of_round);
        thread::sleep(CALM);
    }
    println!("{} requests", cluster.server.requests().len() - before);
    assert!(faults.len() >= 4, "{faults:?}");
    // Some may be those of a machine that did something else.
    assert!(late.len() <= ROUNDS / 3, "seed {seed}: {late:?}\n{}", proxy.log());
    assert_eq!(proxy.stop().code(), Some(0));
}

test_in_each_format!(after_each_fault_the_rules_are_those_of_the_objects_within_a_second);
fn after_each_fault_the_rules_are_those_of_the_objects_within_a_second(format: Format) {
    // Each fault is the last one, of a server with streaming lists and of one without (O16, O17).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    let mut chaos = chaos(&cluster, seed());
    for (mode, trouble) in (0..2).flat_map(|mode| Trouble::ALL.map(|trouble| (mode, trouble))) {
        cluster.server.settings().streaming = streaming(mode);
        let mut lags = Vec::new();
        while !lags.last().is_some_and(|lag| is_soon(*lag, trouble == Restored)) {
            assert!(lags.len() < TRIES, "{trouble:?}: {lags:?}\n{}", proxy.log());
            lags.push(chaos.last(trouble, &format!("{trouble:?}"), &proxy));
            thread::sleep(CALM);
        }
        println!("{:?}, {trouble:?}: {lags:?}", streaming(mode));
    }
    assert_eq!(chaos.faults_of_round.len(), Trouble::ALL.len());
    assert_eq!(proxy.stop().code(), Some(0));
}
