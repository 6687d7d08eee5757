//! One netlink message after the other, as dumps, notifications and acknowledgements bring them.
//!
//! What decodes is written down again and decoded: the kernel's own words must mean the same as ours.

use nft::decode::{self, Decoded, Messages};
use nft::{Batch, Command, DataType, Set, SetFlags, Types};

pub(super) fn run(bytes: &[u8]) {
    message(bytes);
    Messages::new(bytes).for_each(message);
    if let Some(whole) = with_own_length(bytes) {
        message(&whole);
    }
}

/// The bytes as one message whose header tells its true length, so that what lies deeper is reached sooner.
fn with_own_length(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut whole = bytes.to_vec();
    *whole.first_chunk_mut::<4>()? = u32::try_from(bytes.len()).ok()?.to_ne_bytes();
    Some(whole)
}

fn message(bytes: &[u8]) {
    let _ = (decode::notice(bytes), decode::chain_outline(bytes), decode::rule_outline(bytes));
    let _ = (decode::traced(bytes), decode::sequence(bytes), decode::dump_interrupted(bytes));
    assert!(decode::ack(bytes).is_none() || decode::done(bytes).is_none(), "a message is one or the other");
    match decode::message(bytes) {
        Ok(decoded) => object(&decoded),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn object(decoded: &Decoded) {
    match decoded {
        Decoded::Table { table, .. } => {
            let again = written(Command::AddTable(table.clone()));
            assert!(matches!(again, Some(Decoded::Table { table: again, .. }) if again == *table), "{table:?}");
        }
        Decoded::Chain { table, chain, .. } => {
            let again = written(Command::AddChain(table.clone(), chain.clone()));
            assert!(matches!(again, Some(Decoded::Chain { chain: again, .. }) if again == *chain), "{chain:?}");
        }
        Decoded::Rule { rule, .. } => drop(rule.to_string()),
        // The name of an anonymous set is another one each time.
        Decoded::Set { table, set, .. } if !set.flags.anonymous => {
            let again = written(Command::AddSet(table.clone(), set.clone().into()));
            assert!(matches!(again, Some(Decoded::Set { set: again, .. }) if again == *set), "{set:?}");
        }
        Decoded::Flowtable { table, flowtable, .. } => {
            let again = written(Command::AddFlowtable(table.clone(), flowtable.clone()));
            let same = matches!(&again, Some(Decoded::Flowtable { flowtable: again, .. }) if again == flowtable);
            assert!(same, "{flowtable:?}");
        }
        Decoded::Elements { elements, .. } => {
            for set in sets() {
                for element in decode::pair(&set, elements.clone()) {
                    assert!(!set.flags.interval || element.key_end.is_some(), "a range has an end");
                }
            }
        }
        Decoded::Set { .. } | Decoded::Generation(_) | Decoded::Other(_) => {}
    }
}

/// A set, a set of ranges, a set of ranges of several fields.
fn sets() -> [Set; 3] {
    let address = vec![DataType::Ipv4Addr];
    let set = Set::new("s", Types::Named(address.clone()));
    let flags = SetFlags { interval: true, ..SetFlags::default() };
    let several = Types::Named([address, vec![DataType::InetProto]].concat());
    [set.clone(), Set { flags, ..set }, Set { flags, ..Set::new("s", several) }]
}

/// What a command's message says when it is decoded.
fn written(command: Command) -> Option<Decoded> {
    const NEW: std::ops::RangeInclusive<u16> = 0xa00..=0xa0c;
    let batch = Batch::encode(&[command]).expect("a name that was read has no zero byte");
    let pages: Vec<u8> = batch.pages().flatten().copied().collect();
    let kind = |message: &&[u8]| NEW.contains(&u16::from_ne_bytes([message[4], message[5]]));
    let message = Messages::new(&pages).find(kind)?.to_vec();
    Some(decode::message(&message).expect("what was written can be read"))
}
