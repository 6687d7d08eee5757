//! Decoding does not panic, whatever the bytes: here every recorded message cut at each length, and with random bits changed.
//!
//! `malformed_recorded.bin` holds the answers of Linux 6.18 to dumps of a table: the table, a chain, rules, sets, elements, the generation,
//! an error and the end of a dump.

use nft::Elements;
use nft::decode::{self, Decoded, Messages};

const RECORDED: &[u8] = include_bytes!("malformed_recorded.bin");

/// Passes the bytes to the functions of `nft::decode` for answers and for objects of this crate's own tables.
fn decode_all(bytes: &[u8]) {
    let _ = (decode::ack(bytes), decode::done(bytes), decode::sequence(bytes), decode::dump_interrupted(bytes));
    let set = nft::Set {
        flags: nft::SetFlags { interval: true, ..nft::SetFlags::default() },
        ..nft::Set::new("s", nft::Types::Named(vec![nft::DataType::Ipv4Addr]))
    };
    let mut packed = Elements::default();
    let outcome = decode::pack_elements(bytes, &mut packed);
    match decode::message(bytes) {
        Ok(Decoded::Elements { elements, .. }) => {
            let expected: Elements = elements.iter().map(|raw| raw.element.clone()).collect();
            assert_eq!((outcome, packed), (Ok(()), expected), "packed as they are decoded one by one");
            drop(decode::pair(&set, elements));
        }
        decoded => {
            let other = decoded.map(|decoded| {
                if let Decoded::Rule { rule, .. } = decoded {
                    drop(rule.to_string())
                }
            });
            assert!(packed.is_empty() && (outcome.is_ok() || outcome == other), "{outcome:?} and {other:?}");
            assert!(other.map_or_else(|error| !error.to_string().is_empty(), |()| true));
        }
    }
}

/// Knuth's generator: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

#[test]
fn recorded_answers_of_the_kernel_are_decoded() {
    let messages: Vec<&[u8]> = Messages::new(RECORDED).collect();
    assert_eq!(messages.iter().map(|message| message.len().next_multiple_of(4)).sum::<usize>(), RECORDED.len());
    let kinds: Vec<Decoded> = messages.iter().map(|message| decode::message(message).expect("as recorded")).collect();
    let count = |is: fn(&Decoded) -> bool| kinds.iter().filter(|decoded| is(decoded)).count();
    assert_eq!(count(|decoded| matches!(decoded, Decoded::Table { .. })), 1);
    assert_eq!(count(|decoded| matches!(decoded, Decoded::Chain { .. })), 1);
    assert!(count(|decoded| matches!(decoded, Decoded::Rule { .. })) > 5);
    assert_eq!(count(|decoded| matches!(decoded, Decoded::Set { .. })), 4);
    assert!(count(|decoded| matches!(decoded, Decoded::Elements { .. })) >= 5, "one for each of five sets");
    assert_eq!(count(|decoded| matches!(decoded, Decoded::Generation(_))), 1);
    assert_eq!(messages.iter().filter(|message| decode::ack(message).is_some()).count(), 1);
    assert_eq!(messages.iter().filter(|message| decode::done(message) == Some(0)).count(), 1);
}

#[test]
fn every_cut_of_a_message_is_an_error_or_a_value() {
    for message in Messages::new(RECORDED) {
        for len in 0..message.len() {
            // First with the header's old length, then with the new one.
            decode_all(&message[..len]);
            assert!(decode::message(&message[..len]).is_err(), "the header promises more than {len} bytes");
            let mut cut = message[..len].to_vec();
            if let Some(claim) = cut.first_chunk_mut::<4>() {
                *claim = u32::try_from(len).expect("short").to_ne_bytes();
            }
            decode_all(&cut);
        }
    }
}

#[test]
fn mutated_messages_do_not_panic() {
    let messages: Vec<&[u8]> = Messages::new(RECORDED).collect();
    let mut random = Random(2026);
    for _ in 0..10_000 {
        let mut bytes = messages[random.below(messages.len())].to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        // Half of the messages get their true length again, so that decoding reaches their attributes.
        if random.below(2) == 0 {
            let len = u32::try_from(bytes.len()).expect("short");
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        decode_all(&bytes);
        Messages::new(&bytes).for_each(decode_all);
    }
}

#[test]
fn splitting_stops_at_a_length_that_does_not_fit() {
    assert_eq!(Messages::new(&[]).count(), 0);
    assert_eq!(Messages::new(&RECORDED[..15]).count(), 0, "less than a header");
    let first = Messages::new(RECORDED).next().expect("a message").to_vec();
    let with_length = |len: u32| [&len.to_ne_bytes()[..], &first[4..]].concat();
    assert_eq!(Messages::new(&with_length(0)).count(), 0, "a length of nothing must not loop");
    assert_eq!(Messages::new(&with_length(15)).count(), 0, "shorter than its header");
    assert_eq!(Messages::new(&with_length(u32::MAX)).count(), 0);
    assert_eq!(Messages::new(&[first.clone(), vec![1, 0, 0, 0, 9]].concat()).count(), 1);
}
