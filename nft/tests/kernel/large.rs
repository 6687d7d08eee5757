//! Large batches: 300,000 elements in many messages and one transaction; and a batch that does not fit into 1,024 pages of libnftnl's size
//! (128 KiB). The kernel accepts at most 1,024 pages in one datagram, so this crate has to make larger pages.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nft::{Batch, Command, Data, DataType, Element, Family, Item, Set, Table, TableName, Types, Value, ValueType};

use crate::support::{commit, connect, in_namespace, read_set, refused, sorted};

const ELEMENTS: u32 = 300_000;
/// The greatest length of a nested attribute in bytes, and so about the greatest length of a message.
const LARGEST_ATTRIBUTE: usize = 65_536;

fn table() -> TableName {
    TableName::new(Family::Ip, "large")
}

fn endpoints() -> Set {
    let types = |list: &[DataType]| Types::Named(list.to_vec());
    let value = ValueType::Data(types(&[DataType::Ipv4Addr, DataType::InetService]));
    Set { size: Some(ELEMENTS), ..Set::map("endpoints", types(&[DataType::Ipv4Addr, DataType::InetService]), value) }
}

/// Element number `n`; no two have the same key or value.
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
    in_namespace(|| {
        let commands = fill();
        let batch = Batch::encode(&commands).expect("elements can be encoded");
        assert!(batch.messages() > batch.bytes() / LARGEST_ATTRIBUTE, "{} messages", batch.messages());
        let before = connect().generation().expect("the kernel answers");
        commit(&commands);
        let after = connect().generation().expect("the kernel answers");
        assert_eq!(after, before + 1, "transactions");
        let sent = sorted((0..ELEMENTS).map(element).collect());
        // Not `assert_eq!`, which would print the whole map twice.
        assert!(read_set(&table(), &endpoints()) == sent, "the kernel does not list the elements that were sent");
    });
}

#[test]
fn one_wrong_element_undoes_the_whole_transaction() {
    in_namespace(|| {
        let mut commands = fill();
        let missing = vec![element(ELEMENTS + 1)];
        commands.push(Command::DeleteElements(table(), Arc::new(endpoints()), missing.into()));
        let refusals = refused(&commands);
        assert_eq!(refusals[0].command, Some(commands.len() - 1), "{refusals:?}");
        assert_eq!(connect().read_table(&table()).expect("readable"), None, "nothing of it stays");
    });
}

#[test]
fn a_panic_while_a_long_list_is_read_ends_the_thread_that_receives_it_too() {
    in_namespace(|| {
        commit(&fill());
        let (ended, end) = channel();
        thread::spawn(move || {
            let count = |elements: &mut u32, item: Item<'_>| {
                *elements += u32::from(matches!(item, Item::Element { .. }));
                assert!(*elements < ELEMENTS / 3, "this element cannot be taken");
            };
            ended.send(catch_unwind(|| connect().walk_table(&table(), count).map(drop)).is_err())
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
    });
}

/// The size of the batch of [`a_batch_may_be_larger_than_1024_pages`], in MB; `make soak` sets it to 400.
const MEGABYTES_VARIABLE: &str = "NFT_TEST_BATCH_MEGABYTES";
/// A little more than 1,024 pages of 128 KiB.
const MEGABYTES: usize = 140;

/// The same elements many times, which the kernel accepts without keeping them twice: many bytes to send, little memory to keep.
fn repeated(megabytes: usize) -> Vec<Command> {
    const DISTINCT: u32 = 20_000;
    let comment: Arc<str> = "c".repeat(Element::MAX_COMMENT).into();
    let commented = |n| Element { comment: Some(Arc::clone(&comment)), ..element(n) };
    let elements: Vec<Element> = (0..DISTINCT).map(commented).collect();
    let add = Command::AddElements(table(), Arc::new(endpoints()), elements.into());
    let mut commands = vec![
        Command::AddTable(Table { name: table(), comment: None }),
        Command::AddSet(table(), Arc::new(endpoints())),
    ];
    let bytes = Batch::encode(std::slice::from_ref(&add)).expect("elements can be encoded").bytes();
    commands.extend(std::iter::repeat_n(add, (megabytes * 1_000_000).div_ceil(bytes)));
    let last = Command::AddElements(table(), Arc::new(endpoints()), vec![element(DISTINCT)].into());
    commands.push(last);
    commands
}

#[test]
fn a_batch_may_be_larger_than_1024_pages() {
    in_namespace(|| {
        let megabytes = std::env::var(MEGABYTES_VARIABLE).map_or(MEGABYTES, |text| text.parse().expect("a number"));
        let commands = repeated(megabytes);
        let before = connect().generation().expect("the kernel answers");
        let start = std::time::Instant::now();
        let committed = connect().commit(&commands).unwrap_or_else(|error| panic!("{error}"));
        println!("{} bytes in {} messages: {:?}", committed.bytes, committed.messages, start.elapsed());
        assert!(committed.bytes >= megabytes * 1_000_000, "{} bytes", committed.bytes);
        assert_eq!(connect().generation().expect("the kernel answers"), before + 1, "transactions");
        let listed = read_set(&table(), &endpoints());
        assert_eq!((listed.len(), listed.last().map(|element| &element.comment)), (20_001, Some(&None)));
    });
}
