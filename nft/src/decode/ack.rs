//! The kernel's answers to requests: success, failure with its reason, and the end of a dump.

use super::messages::{HEADER, Header};
use crate::wire::{Attr, Attrs};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_CAPPED`: only the header of the request is quoted.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow the quoted request.
const ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`.
const ATTR_MESSAGE: u16 = 1;
/// `NLMSGERR_ATTR_OFFS`.
const ATTR_OFFSET: u16 = 2;

/// An answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The request's sequence number.
    pub seq: u32,
    /// The error number, positive; 0 means success.
    pub errno: i32,
    /// What the kernel says about the error.
    pub message: Option<String>,
    /// Where in the request the offending attribute stands, in bytes from the request's `nlmsghdr` on.
    pub offset: Option<u32>,
    /// The request's message type.
    pub request_type: u16,
}

/// The answer that a message is; `None` when it is another kind of message, or malformed.
#[must_use]
pub fn ack(bytes: &[u8]) -> Option<Ack> {
    let header = Header::read(bytes).filter(|header| header.kind == NLMSG_ERROR)?;
    let (errno, quoted) = header.payload.split_first_chunk::<4>()?;
    let request = Header::read_quoted(quoted)?;
    let attrs = Attrs::new(if header.flags & ACK_TLVS == 0 {
        &[]
    } else {
        let request_len = if header.flags & CAPPED == 0 { request.len.checked_next_multiple_of(4)? } else { HEADER };
        quoted.get(request_len..).unwrap_or_default()
    });
    Some(Ack {
        seq: request.sequence,
        errno: i32::from_ne_bytes(*errno).saturating_neg(),
        message: attrs.find(ATTR_MESSAGE).and_then(|attr| attr.str()).map(str::to_owned),
        offset: attrs.find(ATTR_OFFSET).and_then(host_order),
        request_type: request.kind,
    })
}

/// The error number (positive; 0 means success) with which a dump ended; `None` when the message is not a dump's end.
#[must_use]
pub fn done(bytes: &[u8]) -> Option<i32> {
    let header = Header::read(bytes).filter(|header| header.kind == NLMSG_DONE)?;
    Some(header.payload.first_chunk::<4>().map_or(0, |errno| i32::from_ne_bytes(*errno).saturating_neg()))
}

/// The numbers of netlink itself are in host order, unlike those of nf_tables.
fn host_order(attr: Attr<'_>) -> Option<u32> {
    Some(u32::from_ne_bytes(*attr.payload.first_chunk::<4>()?))
}
