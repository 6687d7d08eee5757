//! Measures what the kernel alone takes to list the elements of this program's table. No command and no start that
//! reads them can be faster.

use std::time::{Duration, Instant};

use nft::decode::{Messages, ack, done, set_head};
use nft::socket::{Bus, Socket};
use nft::wire::Writer;

/// The types of the requests (`NFT_MSG_GETSET`, `NFT_MSG_GETSETELEM`, after `NFNL_SUBSYS_NFTABLES`).
const GET_SET: u16 = 10 << 8 | 10;
const GET_ELEMENTS: u16 = 10 << 8 | 13;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 1 | 0x300;
/// `NFPROTO_IPV4`.
const IPV4: u8 = 2;

/// Lists all elements of the table `ip kube-proxy` in the calling thread's namespace, and decodes nothing. Returns the time and the bytes.
pub(crate) fn alone() -> (Duration, usize) {
    let mut socket = Socket::open(Bus::Netfilter).expect("a netlink socket");
    let mut sets = Vec::new();
    list(&mut socket, GET_SET, &["kube-proxy"], |piece| {
        sets.extend(Messages::new(piece).filter_map(set_head).map(|set| set.name));
    });
    let (start, mut bytes) = (Instant::now(), 0);
    for set in &sets {
        list(&mut socket, GET_ELEMENTS, &["kube-proxy", set], |piece| bytes += piece.len());
    }
    (start.elapsed(), bytes)
}

/// Calls `each` with the pieces of a dump.
fn list(socket: &mut Socket, kind: u16, names: &[&str], mut each: impl FnMut(&[u8])) {
    let mut writer = Writer::default();
    // The length of the message comes last; sequence number and port are 0.
    for field in [&[0; 4][..], &kind.to_ne_bytes(), &DUMP.to_ne_bytes(), &[0; 8], &[IPV4, 0, 0, 0]] {
        writer.raw(field);
    }
    (1..).zip(names).for_each(|(attribute, name)| writer.str(attribute, name));
    let mut request = writer.into_bytes();
    let len = u32::try_from(request.len()).expect("a short request");
    request[..4].copy_from_slice(&len.to_ne_bytes());
    socket.send(&request).expect("the kernel takes a request");
    loop {
        let piece = socket.receive().expect("the kernel answers");
        each(piece);
        // Only the last message of a piece can end the dump. The messages before it are read for their lengths, which lead to the last one.
        let last = Messages::new(piece).last().expect("a piece has messages");
        assert!(ack(last).is_none_or(|ack| ack.errno == 0), "the kernel refuses the request");
        if done(last).is_some() {
            return;
        }
    }
}
