//! The kernel's answers to requests: success, failure with its reason, and the end of a dump.

use super::messages::{HEADER, Header};
use crate::wire::{Attr, Attrs};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_CAPPED`: the answer quotes only the header of the request.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow the quotation of the request.
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
    /// The kernel's description of the error, if it gives one.
    pub message: Option<String>,
    /// The offset of the attribute that the error is about, in bytes from the request's `nlmsghdr` on.
    pub offset: Option<u32>,
}

/// The answer in a message; `None` when the message is of another kind, or malformed.
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
    })
}

/// The error number (positive; 0 means success) with which a dump ended; `None` when the message is not a dump's end.
#[must_use]
pub fn done(bytes: &[u8]) -> Option<i32> {
    let header = Header::read(bytes).filter(|header| header.kind == NLMSG_DONE)?;
    Some(header.payload.first_chunk::<4>().map_or(0, |errno| i32::from_ne_bytes(*errno).saturating_neg()))
}

/// A number in host order: netlink's own attributes have numbers in this order, those of nf_tables in network order.
fn host_order(attr: Attr<'_>) -> Option<u32> {
    Some(u32::from_ne_bytes(*attr.payload.first_chunk::<4>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    /// A netlink message with this header and payload.
    fn framed(kind: u16, flags: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER + payload.len()).unwrap();
        let header = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &seq.to_ne_bytes(), &[0; 4]];
        [header.concat().as_slice(), payload].concat()
    }

    /// An answer that quotes the first `quoted` bytes of a request of type 0xa0c.
    fn answer(flags: u16, errno: i32, quoted: usize, attrs: &[u8]) -> Vec<u8> {
        let request = framed(0xa0c, 0, 9, &[1; 24]);
        let payload = [&errno.wrapping_neg().to_ne_bytes(), &request[..quoted], attrs].concat();
        framed(NLMSG_ERROR, flags, 9, &payload)
    }

    fn reason() -> Vec<u8> {
        let mut attrs = Writer::default();
        attrs.str(ATTR_MESSAGE, "chain is in use");
        attrs.attr(ATTR_OFFSET, &36_u32.to_ne_bytes());
        attrs.bytes().to_vec()
    }

    #[test]
    fn an_answer_without_an_error_is_a_success() {
        let expected = Ack { seq: 9, errno: 0, message: None, offset: None };
        assert_eq!(ack(&answer(CAPPED, 0, 16, &[])), Some(expected));
    }

    #[test]
    fn the_reason_is_read_from_behind_the_quoted_request() {
        let expected =
            Ack { seq: 9, errno: libc::EBUSY, message: Some("chain is in use".to_owned()), offset: Some(36) };
        assert_eq!(ack(&answer(ACK_TLVS, libc::EBUSY, 40, &reason())), Some(expected.clone()));
        assert_eq!(ack(&answer(ACK_TLVS | CAPPED, libc::EBUSY, 16, &reason())), Some(expected));
    }

    #[test]
    fn without_its_flag_a_reason_is_not_read() {
        let ack = ack(&answer(0, libc::EBUSY, 40, &reason())).unwrap();
        assert_eq!((ack.message, ack.offset), (None, None));
    }

    #[test]
    fn malformed_answers_are_none_and_extreme_numbers_do_not_overflow() {
        assert_eq!(ack(&answer(0, 1, 8, &[])), None, "less than the request's header");
        assert_eq!(ack(&framed(NLMSG_DONE, 0, 9, &[0; 20])), None);
        assert_eq!(ack(&answer(0, i32::MIN, 40, &[])).map(|ack| ack.errno), Some(i32::MAX));
        assert_eq!(done(&framed(NLMSG_DONE, 0, 9, &(-libc::EINTR).to_ne_bytes())), Some(libc::EINTR));
        assert_eq!(done(&framed(NLMSG_DONE, 0, 9, &[])), Some(0));
        assert_eq!(done(&answer(0, 1, 40, &[])), None);
    }
}
