//! Dumps over rtnetlink: one request, and all that the kernel answers to it.

use std::io;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};

/// `linux/netlink.h`: `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;

/// What `each` makes of the messages of a dump in the calling thread's network namespace, sorted and without duplicates. `kind` is the
/// request's type, `headers` the length in bytes of `nlmsghdr` and the header that follows it.
///
/// # Errors
/// What the kernel answers.
pub(super) fn dump<T: Ord>(kind: u16, headers: usize, each: fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
    let mut socket = Socket::open(Bus::Route)?;
    socket.send(&request(kind, headers))?;
    let mut found = Vec::new();
    loop {
        for message in Messages::new(socket.receive()?) {
            if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                if errno != 0 {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                found.sort_unstable();
                found.dedup();
                return Ok(found);
            }
            found.extend(each(message));
        }
    }
}

/// A request with headers that ask for everything: zeros behind its length, type and flags.
pub(super) fn request(kind: u16, headers: usize) -> Vec<u8> {
    let len = u32::try_from(headers).unwrap_or_default();
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(REQUEST_DUMP.to_ne_bytes());
    bytes.resize(headers, 0);
    bytes
}
