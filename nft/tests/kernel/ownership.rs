//! Tables with an owner, locks, and the notifications of transactions.
//!
//! The tests of owned tables need a kernel with persistent owned tables (6.9), and return early on older kernels; the tests of locks need a
//! kernel with owned tables (5.12).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use nft::monitor::Transaction;
use nft::{Chain, Command, CommitError, Connection, Family, Monitor, Ownership, Table, TableName};

use crate::support::{connect, in_namespace, kernel_has, nft};

/// More transactions than any test makes.
const MANY: usize = 100;

fn table() -> Table {
    Table { name: TableName::new(Family::Ip, "kube-proxy"), comment: Some("ours".into()) }
}

fn chain(name: &str) -> Command {
    Command::AddChain(table().name, Chain { name: name.into(), base: None, comment: None })
}

fn has_owned_tables() -> bool {
    let own = [Command::OwnTable(table()), chain("first")];
    kernel_has("tables that stay without their owner", (6, 9), &table().name, &own)
}

fn owned() -> Connection {
    let mut connection = connect();
    connection.commit(&[Command::OwnTable(table()), chain("first")]).expect("a kernel of 6.9 or later");
    connection
}

fn ownership() -> Option<Ownership> {
    connect().read_table(&table().name).expect("readable").map(|dump| dump.ownership)
}

fn nft_is_refused(args: &[&str]) {
    let output = process::Command::new("nft").args(args).output().expect("nft is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Operation not permitted"), "nft {args:?}: {errors}");
}

fn errno(result: Result<nft::Committed, CommitError>) -> i32 {
    match result {
        Err(CommitError::Refused(refusals)) => refusals[0].errno,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn other_programs_cannot_change_an_owned_table() {
    in_namespace(|| {
        if !has_owned_tables() {
            return;
        }
        let mut owner = owned();
        assert_eq!(ownership(), Some(Ownership::Of { port: owner.port() }));
        let seen_by_owner = owner.read_table(&table().name).expect("readable").map(|dump| dump.ownership);
        assert_eq!(seen_by_owner, Some(Ownership::Ours));
        nft(&["flush", "ruleset"], "");
        nft_is_refused(&["delete", "table", "ip", "kube-proxy"]);
        nft_is_refused(&["add", "chain", "ip", "kube-proxy", "foreign"]);
        owner.commit(&[chain("second")]).expect("the owner may change it");
        let dump = connect().read_table(&table().name).expect("readable").expect("still there");
        assert_eq!(dump.chains.keys().map(|name| &**name).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(dump.table, table());
    });
}

#[test]
fn an_owned_table_stays_without_its_owner_and_a_new_owner_takes_it_over() {
    in_namespace(|| {
        if !has_owned_tables() {
            return;
        }
        drop(owned());
        assert_eq!(ownership(), Some(Ownership::Orphaned));
        let mut successor = owned();
        assert_eq!(ownership(), Some(Ownership::Of { port: successor.port() }));
        successor.commit(&[Command::OwnTable(table())]).expect("owning again changes nothing");
        assert_eq!(errno(connect().commit(&[Command::OwnTable(table())])), libc::EPERM);
    });
}

#[test]
fn a_table_without_an_owner_gets_one_only_when_it_is_deleted_and_added_again() {
    in_namespace(|| {
        if !has_owned_tables() {
            return;
        }
        let mut connection = connect();
        connection.commit(&[Command::AddTable(table()), chain("first")]).expect("committed");
        assert_eq!(ownership(), Some(Ownership::Unowned));
        assert_eq!(errno(connection.commit(&[Command::OwnTable(table())])), libc::EOPNOTSUPP);
        let anew = [Command::DeleteTable(table().name), Command::OwnTable(table()), chain("second")];
        connection.commit(&anew).expect("in one transaction");
        assert_eq!(ownership(), Some(Ownership::Of { port: connection.port() }));
    });
}

fn lock() -> Table {
    Table { name: TableName::new(Family::Inet, "lock"), comment: Some("pid 4711".into()) }
}

/// The lock and its owner, as another socket lists them.
fn held() -> Option<(Table, Ownership)> {
    connect().table(&lock().name).expect("readable")
}

#[test]
fn a_lock_is_refused_to_a_second_socket_while_the_first_is_open() {
    in_namespace(|| {
        let (mut holder, mut second) = (connect(), connect());
        holder.commit(&[Command::LockTable(lock())]).expect("a kernel of 5.12 or later");
        let theirs = Some((lock(), Ownership::Of { port: holder.port() }));
        assert_eq!(errno(second.commit(&[Command::LockTable(lock())])), libc::EPERM);
        assert_eq!(errno(second.commit(&[Command::DeleteTable(lock().name)])), libc::EPERM);
        nft_is_refused(&["delete", "table", "inet", "lock"]);
        assert_eq!(held(), theirs, "a refused command changes nothing");
        assert_eq!(holder.table(&lock().name).expect("readable"), Some((lock(), Ownership::Ours)));
        holder.commit(&[Command::LockTable(lock())]).expect("the holder may take it again");
        drop(holder);
        assert_eq!(held(), None, "the kernel removes the table of a closed socket");
        second.commit(&[Command::LockTable(lock())]).expect("the lock is free");
        assert_eq!(held(), Some((lock(), Ownership::Of { port: second.port() })));
    });
}

#[test]
fn a_lock_stays_when_another_program_flushes_the_ruleset() {
    in_namespace(|| {
        let mut holder = connect();
        holder.commit(&[Command::LockTable(lock())]).expect("a kernel of 5.12 or later");
        nft(&["add", "table", "inet", "other"], "");
        nft(&["flush", "ruleset"], "");
        let listing = nft(&["list", "ruleset"], "");
        assert!(listing.contains("inet lock") && !listing.contains("inet other"), "{listing}");
        assert_eq!(held(), Some((lock(), Ownership::Of { port: holder.port() })));
    });
}

#[test]
fn a_lock_of_a_killed_process_is_removed() {
    in_namespace(|| {
        let mut holder = process::Command::new("nft")
            .arg("-i")
            .stdin(process::Stdio::piped())
            .stdout(process::Stdio::null())
            .spawn()
            .expect("nft is installed");
        let input = holder.stdin.as_mut().expect("a pipe");
        input.write_all(b"add table inet lock { flags owner; }\n").expect("nft reads its input");
        wait_until("nft takes the lock", || held().is_some());
        assert_eq!(errno(connect().commit(&[Command::LockTable(lock())])), libc::EPERM);
        holder.kill().expect("it runs");
        holder.wait().expect("it ends");
        wait_until("the kernel removes the lock", || held().is_none());
        connect().commit(&[Command::LockTable(lock())]).expect("the lock is free");
    });
}

/// Waits until a condition holds, for longer than a slow machine needs.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_table_without_an_owner_is_no_lock() {
    in_namespace(|| {
        nft(&["add", "table", "inet", "lock"], "");
        let mut connection = connect();
        assert_eq!(errno(connection.commit(&[Command::LockTable(lock())])), libc::EOPNOTSUPP);
        let again = [Command::DeleteTable(lock().name), Command::LockTable(lock())];
        connection.commit(&again).expect("in one transaction");
        assert_eq!(held(), Some((lock(), Ownership::Of { port: connection.port() })));
    });
}

#[test]
fn the_monitor_names_the_tables_and_the_program_of_a_transaction() {
    in_namespace(|| {
        let mut monitor = Monitor::open().expect("a socket");
        nft(&["add", "table", "ip", "one"], "");
        nft(&["-f", "-"], "add chain ip one a\nadd set ip one s { type ipv4_addr; }");
        nft(&["-f", "-"], "delete table ip one\nadd table inet two");
        let writes = monitor.writes(MANY).expect("readable");
        assert!(!writes.lost);
        let names = |tables: &[(Family, &str)]| -> BTreeSet<TableName> {
            tables.iter().map(|(family, name)| TableName::new(*family, name)).collect()
        };
        let expected = [
            names(&[(Family::Ip, "one")]),
            names(&[(Family::Ip, "one")]),
            names(&[(Family::Ip, "one"), (Family::Inet, "two")]),
        ];
        let tables: Vec<_> = writes.transactions.iter().map(|Transaction { tables, .. }| tables.clone()).collect();
        assert_eq!(tables, expected);
        for Transaction { by, .. } in &writes.transactions {
            assert_eq!(by.as_ref().map(|process| process.name.as_str()), Some("nft"));
        }
        assert_eq!(monitor.writes(MANY).expect("readable").transactions, []);
    });
}

#[test]
fn a_paused_monitor_receives_nothing() {
    in_namespace(|| {
        let mut monitor = Monitor::open().expect("a socket");
        monitor.pause().expect("possible");
        nft(&["add", "table", "ip", "one"], "");
        assert_eq!(monitor.writes(MANY).expect("readable").transactions, []);
        monitor.resume().expect("possible");
        nft(&["delete", "table", "ip", "one"], "");
        assert_eq!(monitor.writes(MANY).expect("readable").transactions.len(), 1);
    });
}

#[test]
fn the_monitor_reports_that_it_lost_notifications() {
    in_namespace(|| {
        let mut monitor = Monitor::open().expect("a socket");
        let elements = (0..60_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        let script = format!("add table ip big\nadd set ip big s {{ type mark; elements = {{ {elements} }}; }}");
        nft(&["-f", "-"], &script);
        assert!(monitor.writes(MANY).expect("readable").lost);
        for n in 0..4 {
            nft(&["add", "table", "ip", &format!("t{n}")], "");
        }
        let writes = monitor.writes(2).expect("readable");
        assert!(writes.lost);
        assert_eq!(writes.transactions.len(), 2);
    });
}
