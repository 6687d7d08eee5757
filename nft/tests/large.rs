//! A batch of 300,000 elements: split into many messages, committed as one transaction, and listed by the kernel.
//!
//! The test runs again as a child in a fresh network namespace. Needs the privilege for that; fails without it.

mod kernel;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use nft::{Batch, Command, Data, DataType, Element, Family, Set, Table, TableName, Types, Value, ValueType};

use kernel::{commit, connect, in_namespace, read_set, sorted};

const ELEMENTS: u32 = 300_000;
/// A nested attribute holds at most 64 KiB, so this many messages at least must follow from the bytes.
const LARGEST_ATTRIBUTE: usize = 65_536;

fn table() -> TableName {
    TableName::new(Family::Ip, "large")
}

fn endpoints() -> Set {
    let types = |list: &[DataType]| Types::Named(list.to_vec());
    let value = ValueType::Data(types(&[DataType::Ipv4Addr, DataType::InetService]));
    Set { size: Some(ELEMENTS), ..Set::map("endpoints", types(&[DataType::Ipv4Addr, DataType::InetService]), value) }
}

/// Element number `n`; all differ in key and in value.
fn element(n: u32) -> Element {
    let ip = |number: u32| Data::from(IpAddr::from(Ipv4Addr::from(number)));
    Element::mapping(ip(0x0a00_0000 + n).then(80_u16), Value::Data(ip(0xac10_0000 + n).then(8080_u16)))
}

fn fill() -> Vec<Command> {
    vec![
        Command::AddTable(Table { name: table(), comment: None }),
        Command::AddSet(table(), Arc::new(endpoints())),
        Command::AddElements(table(), Arc::new(endpoints()), (0..ELEMENTS).map(element).collect()),
    ]
}

#[test]
fn three_hundred_thousand_elements_are_one_transaction() {
    in_namespace("three_hundred_thousand_elements_are_one_transaction", || {
        let commands = fill();
        let batch = Batch::encode(&commands).expect("elements can be encoded");
        assert!(batch.messages() > batch.bytes() / LARGEST_ATTRIBUTE, "{} messages", batch.messages());
        let before = connect().generation().expect("the kernel answers");
        commit(&commands);
        let after = connect().generation().expect("the kernel answers");
        assert_eq!(after, before + 1, "transactions");
        let sent = sorted((0..ELEMENTS).map(element).collect());
        // Not `assert_eq!`: what it would print is the whole map, twice.
        assert!(read_set(&table(), &endpoints()) == sent, "what is listed is not what was sent");
    });
}

#[test]
fn one_wrong_element_undoes_the_whole_transaction() {
    in_namespace("one_wrong_element_undoes_the_whole_transaction", || {
        let mut commands = fill();
        let missing = vec![element(ELEMENTS + 1)];
        commands.push(Command::DeleteElements(table(), Arc::new(endpoints()), missing));
        let refusals = kernel::refused(&commands);
        assert_eq!(refusals[0].command, Some(commands.len() - 1), "{refusals:?}");
        assert_eq!(connect().read_table(&table()).expect("readable"), None, "nothing of it stays");
    });
}
