//! Tables that others cannot touch, and word of those who touch the others.
//!
//! Each test runs again as a child in a fresh network namespace. Needs nft, a kernel with owned tables that persist (6.9) for those
//! about them, and the privilege; fails without.

mod kernel;

use std::collections::BTreeSet;
use std::process;

use nft::monitor::Transaction;
use nft::{Chain, Command, CommitError, Connection, Family, Monitor, Ownership, Table, TableName};

use kernel::{connect, in_namespace, nft};

/// More transactions than a test makes.
const MANY: usize = 100;

fn table() -> Table {
    Table { name: TableName::new(Family::Ip, "kube-proxy"), comment: Some("ours".into()) }
}

fn chain(name: &str) -> Command {
    Command::AddChain(table().name, Chain { name: name.into(), base: None, comment: None })
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
fn nobody_else_can_touch_an_owned_table() {
    in_namespace("nobody_else_can_touch_an_owned_table", || {
        let mut owner = owned();
        assert_eq!(ownership(), Some(Ownership::Of { port: owner.port() }));
        let seen_by_owner = owner.read_table(&table().name).expect("readable").map(|dump| dump.ownership);
        assert_eq!(seen_by_owner, Some(Ownership::Ours));
        nft(&["flush", "ruleset"], "");
        nft_is_refused(&["delete", "table", "ip", "kube-proxy"]);
        nft_is_refused(&["add", "chain", "ip", "kube-proxy", "foreign"]);
        owner.commit(&[chain("second")]).expect("the owner may");
        let dump = connect().read_table(&table().name).expect("readable").expect("still there");
        assert_eq!(dump.chains.keys().map(|name| &**name).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(dump.table, table());
    });
}

#[test]
fn an_owned_table_outlives_its_owner_and_is_adopted() {
    in_namespace("an_owned_table_outlives_its_owner_and_is_adopted", || {
        drop(owned());
        assert_eq!(ownership(), Some(Ownership::Orphaned));
        let mut heir = owned();
        assert_eq!(ownership(), Some(Ownership::Of { port: heir.port() }));
        heir.commit(&[Command::OwnTable(table())]).expect("owning again changes nothing");
        assert_eq!(errno(connect().commit(&[Command::OwnTable(table())])), libc::EPERM);
    });
}

#[test]
fn a_table_of_everybody_becomes_owned_only_by_being_made_anew() {
    in_namespace("a_table_of_everybody_becomes_owned_only_by_being_made_anew", || {
        let mut connection = connect();
        connection.commit(&[Command::AddTable(table()), chain("first")]).expect("committed");
        assert_eq!(ownership(), Some(Ownership::Anybody));
        assert_eq!(errno(connection.commit(&[Command::OwnTable(table())])), libc::EOPNOTSUPP);
        let anew = [Command::DeleteTable(table().name), Command::OwnTable(table()), chain("second")];
        connection.commit(&anew).expect("in one transaction");
        assert_eq!(ownership(), Some(Ownership::Of { port: connection.port() }));
    });
}

#[test]
fn the_monitor_names_the_tables_and_the_program() {
    in_namespace("the_monitor_names_the_tables_and_the_program", || {
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
fn a_paused_monitor_hears_nothing() {
    in_namespace("a_paused_monitor_hears_nothing", || {
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
fn more_than_the_monitor_can_hold_is_said_to_be_lost() {
    in_namespace("more_than_the_monitor_can_hold_is_said_to_be_lost", || {
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
