//! Reading a table while another program changes tables. Changes of its own tables must not slow the reader down or confuse it; changes
//! of the table that is read must make it start again.
//!
//! These tests are a program of their own, because they compare the times of readings, which change with the number of tests that run at
//! the same time. Each test runs again as a child process in a network namespace, like the tests of `kernel`.

#[path = "kernel/support.rs"]
#[allow(dead_code, reason = "this program uses only a part of the module")]
mod support;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nft::{
    Chain, Command, Data, DataType, Element, Family, Item, ReadError, Rule, Set, Statement, Table, TableDump,
    TableName, Types, Value, ValueType, Verdict,
};

use support::{commit, connect, in_namespace, nft};

/// The number of elements of the large table: the endpoints of 10,000 Services with 10 endpoints each.
const MANY: u32 = 100_000;
/// Chains, or elements, of a smaller table: the kernel's time for listing chains grows faster than their number.
const SMALLER: u32 = 20_000;
/// Time between two transactions of the other program.
const PERIOD: Duration = Duration::from_millis(20);
/// The number of readings of which the fastest counts, because other tests may use the processor.
const TRIES: usize = 3;

fn table(name: &str) -> TableName {
    TableName::new(Family::Ip, name)
}

fn add_table(name: &str) -> Command {
    Command::AddTable(Table { name: table(name), comment: None })
}

fn chain(of: &str, name: &str) -> Command {
    Command::AddChain(table(of), Chain { name: name.into(), base: None, comment: None })
}

fn endpoints() -> Arc<Set> {
    let types = |list: &[DataType]| Types::Named(list.to_vec());
    let value = ValueType::Data(types(&[DataType::Ipv4Addr, DataType::InetService]));
    let map = Set::map("endpoints", types(&[DataType::Ipv4Addr, DataType::InetService]), value);
    Arc::new(Set { size: Some(MANY), ..map })
}

/// Element number `n`, with this port in its value.
fn element(n: u32, port: u16) -> Element {
    let ip = |number: u32| Data::from(IpAddr::from(Ipv4Addr::from(number)));
    Element::mapping(ip(0x0a00_0000 + n).then(80_u16), Value::Data(ip(0xac10_0000 + n).then(port)))
}

/// A table like the one that the proxy makes in its layout `maps`: few chains and many elements.
fn maps() -> Vec<Command> {
    filled(MANY)
}

/// A table with a map of `count` elements.
fn filled(count: u32) -> Vec<Command> {
    let elements = (0..count).map(|n| element(n, 0)).collect();
    vec![
        add_table("ours"),
        Command::AddSet(table("ours"), endpoints()),
        Command::AddElements(table("ours"), endpoints(), elements),
    ]
}

/// A table like the one that the proxy makes in its layout `chains`: a chain with a rule for each endpoint.
fn chains() -> Vec<Command> {
    let mut commands = vec![add_table("ours")];
    for n in 0..SMALLER {
        let name = format!("KUBE-SEP-{n:016}");
        commands.push(chain("ours", &name));
        let rule = Rule::new([Statement::Verdict(Verdict::Accept)]);
        commands.push(Command::AddRule(table("ours"), name.into(), rule));
    }
    commands
}

/// Runs `work` while another program commits a transaction each [`PERIOD`]. Gives the number of these transactions, too.
fn beside<T>(mut transaction: impl FnMut(u32) -> Vec<Command> + Send, work: impl FnOnce() -> T) -> (T, u32) {
    let (stop, count) = (AtomicBool::new(false), AtomicU32::new(0));
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = connect();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let number = count.fetch_add(1, Ordering::Relaxed);
                connection.commit(&transaction(number)).expect("the other program's transaction");
                thread::sleep(PERIOD.saturating_sub(start.elapsed()));
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    (outcome, count.into_inner())
}

/// Reads the table. On a busy machine every attempt of one reading may be disturbed. A reading then ends with `Unstable`, and this function
/// reads again.
fn read() -> TableDump {
    /// The number of readings in a row that may end with `Unstable`.
    const DISTURBED: usize = 10;
    let mut readings = (0..DISTURBED).map(|_| connect().read_table(&table("ours")));
    let steady = readings.find(|outcome| !matches!(outcome, Err(ReadError::Unstable))).expect("one is not disturbed");
    steady.expect("readable").expect("there is the table")
}

/// The times that a reading took.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// Processor time, including the kernel's for listing, without the time of waiting.
    busy: Duration,
    all: Duration,
}

/// The shortest times of several readings, and the table of the last.
fn best() -> (Took, TableDump) {
    let mut best = Took { busy: Duration::MAX, all: Duration::MAX };
    let mut last = None;
    for _ in 0..TRIES {
        let (start, busy) = (Instant::now(), busy());
        last = Some(read());
        best = Took { busy: best.busy.min(self::busy() - busy), all: best.all.min(start.elapsed()) };
    }
    (best, last.expect("at least one try"))
}

/// The processor time that this thread has used.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts processor time");
    Duration::from_nanos(text.split(' ').next().and_then(|number| number.parse().ok()).expect("nanoseconds"))
}

/// The transactions of another program on its own table, which the kernel lists before the table `ours`: the program adds and deletes
/// chains, which shifts the list of all chains.
fn neighbour(number: u32) -> Vec<Command> {
    let chains = |make: fn(&str) -> Command| (0..40).map(move |n| make(&format!("c{n}"))).collect::<Vec<_>>();
    if number.is_multiple_of(2) {
        chains(|name| chain("neighbour", name))
    } else {
        chains(|name| Command::DeleteChain(table("neighbour"), name.into()))
    }
}

/// Reads a table that `commands` make, first alone and then beside the other program. The second reading may take `factor` times as much
/// processor time as the first.
fn reads_alike(name: &str, commands: fn() -> Vec<Command>, factor: u32) {
    in_namespace(|| {
        commit(&[add_table("neighbour")]);
        commit(&commands());
        let (alone, expected) = best();
        let ((beside, dump), transactions) = beside(neighbour, best);
        println!("{name}: {alone:?} alone, {beside:?} beside {transactions} transactions of another program");
        // Not `assert_eq!`, which would print the whole table twice.
        assert!(dump == expected, "another table is read beside the other program than alone");
        assert!(transactions > 1);
        assert!(beside.busy <= factor * alone.busy + PERIOD, "{beside:?} beside the other program, {alone:?} alone");
        // The elapsed time includes the time in which other tests have the processor, so its limit is wide.
        assert!(beside.all <= 4 * alone.all + 50 * PERIOD, "{beside:?} beside the other program, {alone:?} alone");
    });
}

#[test]
fn many_elements_are_read_as_fast_beside_a_program_that_commits_fifty_times_a_second() {
    reads_alike("elements", maps, 2);
}

#[test]
fn many_chains_are_read_whole_beside_a_program_whose_chains_come_and_go() {
    // The reader reads the list of all chains again when the list shifted meanwhile.
    reads_alike("chains", chains, 4);
}

#[test]
fn a_table_that_is_changed_while_it_is_read_is_read_again() {
    in_namespace(|| {
        /// The number of elements that each transaction changes together; they are far apart in the list of elements.
        const STAMPS: u32 = 100;
        commit(&filled(SMALLER));
        let (alone, _) = best();
        let stamps = |port: u16| (0..STAMPS).map(|n| element(n * (SMALLER / STAMPS), port)).collect::<Vec<_>>();
        let mut now = 0;
        let mut change = |_| {
            let before = now;
            now += 1;
            vec![
                Command::DeleteElements(table("ours"), endpoints(), stamps(before).into()),
                Command::AddElements(table("ours"), endpoints(), stamps(now).into()),
            ]
        };
        // The pause between two changes is long enough for one reading, and short enough to disturb many readings.
        let paced = |number| {
            thread::sleep(3 * alone.all);
            change(number)
        };
        let (read, changes) = beside(paced, || {
            let numbers: Vec<u16> = (0..10).map(|_| stamp_of(&read(), STAMPS)).collect();
            numbers
        });
        println!("read {read:?} during {changes} changes");
        assert!(read.is_sorted() && read.first() != read.last(), "{read:?}");
    });
}

#[test]
fn a_table_that_was_read_ahead_is_given_unless_it_has_changed_since() {
    in_namespace(|| {
        commit(&filled(10));
        commit(&[add_table("neighbour")]);
        let ahead = || connect().read_table_ahead(&table("ours")).expect("nobody writes");
        let (untouched, beside, changed, gone) = (ahead(), ahead(), ahead(), ahead());
        assert_eq!(connect().unchanged(untouched).expect("readable"), Some(Some(read())));
        commit(&neighbour(0));
        assert_eq!(connect().unchanged(beside).expect("readable"), Some(Some(read())), "another table has changed");
        commit(&[Command::AddElements(table("ours"), endpoints(), vec![element(10, 0)].into())]);
        assert_eq!(connect().unchanged(changed).expect("readable"), None);
        commit(&[Command::DeleteTable(table("ours"))]);
        assert_eq!(connect().unchanged(gone).expect("readable"), None);
        let missing = ahead();
        assert_eq!(connect().unchanged(missing).expect("readable"), Some(None), "there is no such table");
    });
}

#[test]
fn a_walk_over_a_table_that_changes_all_the_time_shows_what_does_not_change() {
    in_namespace(|| {
        commit(&filled(SMALLER));
        let change = |number: u32| -> Vec<Command> {
            let port = |number: u32| vec![element(SMALLER, u16::try_from(number % 1_000).expect("it fits"))].into();
            let before = (number > 0).then(|| Command::DeleteElements(table("ours"), endpoints(), port(number - 1)));
            before.into_iter().chain([Command::AddElements(table("ours"), endpoints(), port(number))]).collect()
        };
        // The other program commits without a pause, so nearly every reading is disturbed by a change.
        let stop = AtomicBool::new(false);
        let walked = thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = connect();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    connection.commit(&change(number)).expect("the kernel takes it");
                }
            });
            thread::sleep(PERIOD);
            let walk = || {
                connect().walk_table(&table("ours"), |keys: &mut HashSet<Data>, item| {
                    if let Item::Element { element, .. } = item {
                        keys.insert(element.element.key);
                    }
                })
            };
            // On a busy machine the other program may not get a processor during a walk. Such a walk shows nothing, and is repeated.
            let mut walks = (0..100).map(|_| walk());
            let is_of_one_moment =
                |walk: &Result<Option<nft::Walked<_>>, _>| matches!(walk, Ok(Some(walk)) if walk.is_of_one_moment);
            let walked = walks.find(|walk| !is_of_one_moment(walk)).expect("a change during a walk");
            let dump = connect().read_changing_table(&table("ours"));
            stop.store(true, Ordering::Relaxed);
            (walked, dump)
        });
        let walked = (walked.0.expect("a walk"), walked.1.expect("a reading"));
        let (walk, dump) = (walked.0.expect("the table is there"), walked.1.expect("the table is there"));
        assert!(!walk.is_of_one_moment);
        let count = usize::try_from(SMALLER).expect("it fits");
        assert!((count..=count + 1).contains(&walk.summary.len()), "{}", walk.summary.len());
        assert!(dump.sets["endpoints"].1.len() >= count);
    });
}

/// The port that all changed elements of a reading have.
fn stamp_of(dump: &TableDump, stamps: u32) -> u16 {
    let (_, elements) = &dump.sets["endpoints"];
    assert_eq!(elements.len(), usize::try_from(SMALLER).expect("it fits"));
    let stamped = |n: u32| {
        let key = element(n * (SMALLER / stamps), 0).key;
        let found = elements.iter().find(|element| element.key() == key.as_slice());
        let value = found.expect("no reading lacks an element").element().value;
        (0..u16::MAX).find(|port| element(n * (SMALLER / stamps), *port).value == value).expect("a stamp")
    };
    let first = stamped(0);
    assert!((1..stamps).all(|n| stamped(n) == first), "a reading mixes two states");
    first
}

#[test]
fn a_table_is_read_with_its_flags_and_named_objects() {
    in_namespace(|| {
        assert_eq!(connect().read_table(&table("ours")).expect("readable"), None);
        let script = "table ip ours {\n flags dormant;\n counter a { packets 1 bytes 2\n }\n quota a { over 10 mbytes\n }\n \
                      chain c { counter name \"a\"; }\n set s { type ipv4_addr; }\n}";
        nft(&["-f", "-"], script);
        let dump = read();
        assert!(dump.dormant);
        let objects: Vec<_> = dump.objects.iter().map(|object| (object.to_string(), object.in_use)).collect();
        assert_eq!(objects, [("counter a".to_owned(), true), ("quota a".to_owned(), false)]);
        let quota = dump.objects[1].clone();
        commit(&[add_table("ours"), Command::DeleteObject(table("ours"), quota)]);
        let dump = read();
        assert_eq!((dump.dormant, dump.objects.len()), (false, 1));
    });
}
