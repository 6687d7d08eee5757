//! Other programs on the node that write to nf_tables: their changes of our tables are repaired at once, also when they go on,
//! and changes of their own tables delay nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft::{list_ruleset, normalised};
use crate::support::objects::{node, service, slice};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::turns;
use nft::{Chain, Command, Connection, Family, Rule, Statement, Table, TableDump, TableName, Verdict};
use serde_json::{Value, json};

const ENDPOINTS: u32 = 10;
/// Repairs of which the median counts: other tests may use the processor.
const TRIES: usize = 5;

/// How long a repair may take in the minute after another program has changed the tables; more where neither the program is optimised nor the
/// machine idle.
const REPAIRED_WITHIN: Duration = Duration::from_millis(if cfg!(debug_assertions) { 600 } else { 100 });
/// How long the first change waits for a look, at most.
const UNNOTICED: Duration = Duration::from_millis(580);

fn ours() -> TableName {
    TableName::new(Family::Ip, "kube-proxy")
}

fn theirs() -> TableName {
    TableName::new(Family::Ip, "neighbour")
}

/// A configuration with the default time between two syncs.
fn paced(layout: Layout) -> Value {
    let mut config = config_in(layout);
    config["nftables"]["minSyncPeriod"] = json!("1s");
    config
}

/// Few enough that a repair takes less than [`REPAIRED_WITHIN`] on a slow machine too. Layout `chains` has eleven chains for each Service
/// here, all of which a read-back lists and a flush of all rules empties.
fn services(layout: Layout) -> u32 {
    if layout == Layout::Chains { 100 } else { 300 }
}

/// The objects of this many Services, each with one port and [`ENDPOINTS`].
fn cluster(services: u32) -> Vec<Value> {
    let mut objects = vec![node()];
    for n in 0..services {
        let name = format!("web-{n}");
        let address = |base: u32, n: u32| IpAddr::V4(Ipv4Addr::from(base + n));
        let endpoints: Vec<IpAddr> = (0..ENDPOINTS).map(|m| address(0x0af4_0000, n * ENDPOINTS + m)).collect();
        objects.push(service("shop", &name).cluster_ip(address(0x0a60_0001, n)).port("http", Proto::Tcp, 80).json());
        objects.push(slice("shop", &name, &name, &endpoints, &[("http", Proto::Tcp, 8080)]));
    }
    objects
}

fn rules(node: &Namespace) -> BTreeMap<String, Vec<String>> {
    normalised(&list_ruleset(node))
}

fn connect() -> Connection {
    Connection::open().expect("a netlink socket")
}

fn generation(connection: &mut Connection) -> u32 {
    connection.generation().expect("the kernel says its generation")
}

/// Makes a change, and waits for the transaction that follows it; gives the time between the two.
fn time_to_repair(connection: &mut Connection, change: &[Command]) -> Duration {
    connection.commit(change).expect("the change is possible");
    let (start, before) = (Instant::now(), generation(connection));
    while generation(connection) == before {
        assert!(start.elapsed() < Duration::from_secs(20), "no repair");
        thread::sleep(Duration::from_micros(200));
    }
    start.elapsed()
}

/// The commands of another program, made from the present table.
type Tampering = fn(&TableDump) -> Vec<Command>;

fn flush_of_all_rules(dump: &TableDump) -> Vec<Command> {
    dump.chains.keys().map(|name| Command::FlushChain(ours(), name.clone())).collect()
}

fn deleted_element(dump: &TableDump) -> Vec<Command> {
    let (set, elements) = dump.sets.values().max_by_key(|(_, elements)| elements.len()).expect("there are sets");
    let element = elements.get(elements.len() / 2).expect("it has elements").element();
    vec![Command::DeleteElements(ours(), set.clone().into(), vec![element].into())]
}

fn edited_rule(_: &TableDump) -> Vec<Command> {
    let drop = Rule::new([Statement::Verdict(Verdict::Drop)]);
    let chain = "KUBE-SERVICES";
    vec![Command::FlushChain(ours(), chain.into()), Command::AddRule(ours(), chain.into(), drop)]
}

const TAMPERINGS: [(&str, Tampering); 3] = [
    ("a flush of all rules", flush_of_all_rules),
    ("a deleted element", deleted_element),
    ("an edited rule", edited_rule),
];

test_in_each_layout!(what_others_change_is_put_right_at_once_whatever_the_time_between_syncs);
fn what_others_change_is_put_right_at_once_whatever_the_time_between_syncs(layout: Layout) {
    let _turn = turns::beside_others();
    // A change by another program is repaired without waiting for `minSyncPeriod` (G10).
    let node = Namespace::new("node");
    let mut proxy = Proxy::start(&node, &paced(layout), &cluster(services(layout)));
    proxy.wait_until_quiet();
    let expected = rules(&node);
    for (what, tampering) in TAMPERINGS {
        let mut times = node.enter(|| {
            let mut connection = connect();
            let mut once = || {
                let dump = connection.read_table(&ours()).expect("readable").expect("our table");
                let took = time_to_repair(&mut connection, &tampering(&dump));
                // Changes that come at most ten times a second are repaired at once.
                thread::sleep(Duration::from_millis(100));
                took
            };
            (0..TRIES).map(|_| once()).collect::<Vec<_>>()
        });
        times.sort_unstable();
        println!("{what}: repaired in {times:?}");
        assert_eq!(rules(&node), expected, "{what}");
        assert!(is_slow() || times[TRIES / 2] <= REPAIRED_WITHIN, "{what}: {times:?}");
    }
}

test_in_each_layout!(the_first_change_after_a_quiet_time_is_put_right_after_half_a_second_and_the_next_at_once);
fn the_first_change_after_a_quiet_time_is_put_right_after_half_a_second_and_the_next_at_once(layout: Layout) {
    let _turn = turns::beside_others();
    // Without a subscription to notifications, the generation shows it (G10).
    let node = Namespace::new("node");
    let mut proxy = Proxy::start(&node, &paced(layout), &cluster(services(layout)));
    let mut once = || {
        // A new process has no subscription.
        proxy.kill();
        proxy.launch();
        proxy.wait_until_quiet();
        node.enter(|| {
            let mut connection = connect();
            let dump = connection.read_table(&ours()).expect("readable").expect("our table");
            let first = time_to_repair(&mut connection, &edited_rule(&dump));
            thread::sleep(Duration::from_millis(200));
            (first, time_to_repair(&mut connection, &edited_rule(&dump)))
        })
    };
    let (mut first, mut second): (Vec<Duration>, Vec<Duration>) = (0..TRIES).map(|_| once()).unzip();
    for (times, most) in [(&mut first, UNNOTICED + REPAIRED_WITHIN), (&mut second, REPAIRED_WITHIN)] {
        times.sort_unstable();
        println!("repaired in {times:?}");
        assert!(is_slow() || times[TRIES / 2] <= most, "{times:?}");
    }
}

test_in_each_layout!(a_program_that_goes_on_changing_our_tables_is_answered_ten_times_a_second_and_named_now_and_then);
fn a_program_that_goes_on_changing_our_tables_is_answered_ten_times_a_second_and_named_now_and_then(layout: Layout) {
    let _turn = turns::beside_others();
    // A program that goes on is answered in turn and logged with its name (G10).
    const SECONDS: u32 = 5;
    let node = Namespace::new("node");
    let mut proxy = Proxy::start(&node, &paced(layout), &cluster(10));
    proxy.wait_until_quiet();
    let expected = rules(&node);
    let transactions = node.enter(|| {
        let mut connection = connect();
        let (before, start, mut own) = (generation(&mut connection), Instant::now(), 0);
        while start.elapsed() < SECONDS * Duration::from_secs(1) {
            let rule = Rule::new([Statement::Verdict(Verdict::Drop)]);
            let change = Command::AddRule(ours(), "KUBE-SERVICES".into(), rule);
            connection.commit(&[change]).expect("the chain is there");
            own += 1;
            thread::sleep(Duration::from_millis(5));
        }
        generation(&mut connection) - before - own
    });
    println!("{transactions} repairs in {SECONDS} s");
    assert!(transactions <= 5 + 10 * SECONDS + 5, "{transactions}");
    // How many a repair's own time allows depends on the machine; without an answer to each change there would be none but the first.
    assert!(transactions >= SECONDS, "{transactions}");
    let end = Instant::now() + Duration::from_secs(10);
    while rules(&node) != expected {
        assert!(Instant::now() < end, "not repaired: {}", list_ruleset(&node));
        thread::sleep(Duration::from_millis(50));
    }
    let log = proxy.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("Another program changed our rules")).collect();
    println!("{}", warnings.join("\n"));
    assert!((1..=12).contains(&warnings.len()), "{log}");
    assert!(warnings[0].contains("(pid "), "{log}");
    assert!(!log.contains("Sync failed"), "{log}");
}

test_in_each_layout!(a_program_that_commits_to_its_own_tables_all_the_time_causes_no_sync_and_delays_no_repair);
fn a_program_that_commits_to_its_own_tables_all_the_time_causes_no_sync_and_delays_no_repair(layout: Layout) {
    let _turn = turns::beside_others();
    // What another program changes elsewhere asks for no sync (G10).
    let node = Namespace::new("node");
    let mut proxy = Proxy::start(&node, &paced(layout), &cluster(100));
    proxy.wait_until_quiet();
    thread::sleep(Duration::from_secs(2));
    // The first two transactions cause a comparison each, and have the proxy receive those that follow. On a busy machine the proxy may notice
    // them so far apart that it takes some more.
    let received = (0..20).any(|_| {
        let before = proxy.sync_times();
        for command in [Command::AddTable(Table { name: theirs(), comment: None }), Command::DeleteTable(theirs())] {
            node.enter(|| connect().commit(&[command])).expect("its own table");
            thread::sleep(Duration::from_secs(1));
        }
        proxy.sync_times() == before
    });
    assert!(received, "each transaction causes a sync: {}", proxy.log());
    let (before, cpu) = (proxy.sync_times(), cpu_seconds(proxy.pid()));
    let table = || Command::AddTable(Table { name: theirs(), comment: None });
    let chain = |name: &str| Command::AddChain(theirs(), Chain { name: name.into(), base: None, comment: None });
    let start = Instant::now();
    let count = node.enter(|| {
        let mut connection = connect();
        let mut count = 0;
        while start.elapsed() < Duration::from_secs(4) {
            connection.commit(&[table(), chain("c")]).expect("its own table");
            connection.commit(&[Command::DeleteTable(theirs())]).expect("its own table");
            count += 2;
            thread::sleep(Duration::from_millis(1));
        }
        count
    });
    let used = cpu_seconds(proxy.pid()) - cpu;
    println!("{count} transactions of another program in {:?} cost {used:.2} s of CPU", start.elapsed());
    assert_eq!(proxy.sync_times(), before, "{}", proxy.log());
    assert!(!proxy.log().contains("changed our rules"), "{}", proxy.log());
    let took = node.enter(|| time_to_repair(&mut connect(), &[Command::FlushChain(ours(), "KUBE-SERVICES".into())]));
    assert!(is_slow() || took <= UNNOTICED + REPAIRED_WITHIN, "{took:?}");
}

/// Commits to a table of its own fifty times a second until it is stopped.
fn be_busy(stop: &AtomicBool) {
    let mut connection = connect();
    let table = Table { name: theirs(), comment: None };
    while !stop.load(Ordering::Relaxed) {
        connection.commit(&[Command::AddTable(table.clone())]).expect("its own table");
        thread::sleep(Duration::from_millis(10));
        connection.commit(&[Command::DeleteTable(theirs())]).expect("its own table");
        thread::sleep(Duration::from_millis(10));
    }
}

test_in_each_layout!(
    a_start_over_a_table_that_is_there_takes_at_most_twice_as_long_beside_a_program_that_commits_all_the_time
);
fn a_start_over_a_table_that_is_there_takes_at_most_twice_as_long_beside_a_program_that_commits_all_the_time(
    layout: Layout,
) {
    // Times are compared, so no other test may load the machine.
    let _turn = turns::alone();
    // Foreign transactions to other tables do not disturb a read-back (G10).
    const STARTS: usize = 3;
    let node = Namespace::new("node");
    // A binary with optimisation gets ten times as many Services, because it reads them faster.
    let services = if cfg!(debug_assertions) { services(layout) } else { services(layout) * 10 };
    let mut proxy = Proxy::start(&node, &paced(layout), &cluster(services));
    proxy.wait_until_quiet();
    let expected = rules(&node);
    let mut starts = || {
        let once = |_| {
            proxy.kill();
            let start = Instant::now();
            proxy.launch();
            start.elapsed()
        };
        (0..STARTS).map(once).min().expect("several starts")
    };
    let alone = starts();
    let stop = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        scope.spawn(|| node.enter(|| be_busy(&stop)));
        let beside = starts();
        stop.store(true, Ordering::Relaxed);
        beside
    });
    println!("a start over {services} Services takes {alone:?}, and {beside:?} beside the other program");
    assert!(!proxy.log().contains("made anew"), "{}", proxy.log());
    assert_eq!(rules(&node), expected);
    assert!(is_slow() || beside <= alone * 2, "{alone:?}, and {beside:?}");
}

/// The processor time that a process has used.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    // utime and stime, in hundredths of a second (`USER_HZ`).
    let ticks: u32 = fields[11..13].iter().map(|field| field.parse::<u32>().expect("a number")).sum();
    f64::from(ticks) / 100.0
}

test_in_each_layout!(a_clean_up_delays_no_change_that_comes_after_it);
fn a_clean_up_delays_no_change_that_comes_after_it(layout: Layout) {
    let _turn = turns::beside_others();
    // Empty chains are deleted by a later transaction, and changes keep their distance from the last change only (F8, G3).
    let node = Namespace::new("node");
    let proxy = Proxy::start(&node, &paced(layout), &cluster(100));
    let change = |name: &str, endpoints: u32| {
        let addresses: Vec<IpAddr> = (0..endpoints).map(|n| Ipv4Addr::from(0x0af5_0000 + n).into()).collect();
        proxy.manifests().apply(&slice("shop", name, name, &addresses, &[("http", Proto::Tcp, 8080)]));
    };
    let wait_for_transaction = |connection: &mut Connection, before: u32| {
        let start = Instant::now();
        while generation(connection) == before {
            assert!(start.elapsed() < Duration::from_secs(20), "no transaction");
            thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    };
    let times: Vec<Duration> = node.enter(|| {
        let mut connection = connect();
        let mut once = |n: u32| {
            let before = generation(&mut connection);
            // Other endpoints: in layout `chains`, those of the former ones are emptied, and deleted a second later.
            change(&format!("web-{n}"), 1 + n % 2);
            let took = wait_for_transaction(&mut connection, before);
            thread::sleep(Duration::from_millis(1_350));
            took
        };
        (0..5).map(&mut once).collect()
    });
    println!("a change after the clean-up took {times:?}");
    let best = times[1..].iter().min().expect("several tries");
    assert!(is_slow() || *best <= Duration::from_millis(300), "{times:?}");
}
