//! The addresses of this node's interfaces, over rtnetlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nft::wire::Attrs;

use super::rtnetlink;

/// `linux/rtnetlink.h`, `linux/if_addr.h`.
mod number {
    pub(super) const RTM_NEWADDR: u16 = 20;
    pub(super) const RTM_GETADDR: u16 = 22;
    pub(super) const IFA_ADDRESS: u16 = 1;
    /// The interface's own address; differs from `IFA_ADDRESS` on point-to-point links.
    pub(super) const IFA_LOCAL: u16 = 2;
    /// Bytes of `nlmsghdr` and `ifaddrmsg` together.
    pub(super) const HEADERS: usize = 16 + 8;
}

/// The addresses of all interfaces in the calling thread's network namespace, without duplicates, sorted.
///
/// # Errors
/// What the kernel answers.
pub fn list() -> io::Result<Vec<IpAddr>> {
    rtnetlink::dump(number::RTM_GETADDR, number::HEADERS, address)
}

/// The address in a message; `None` when it is about something else.
#[doc(hidden)]
#[must_use]
pub fn address(message: &[u8]) -> Option<IpAddr> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != number::RTM_NEWADDR {
        return None;
    }
    let attrs = Attrs::new(message.get(number::HEADERS..)?);
    let attr = attrs.find(number::IFA_LOCAL).or_else(|| attrs.find(number::IFA_ADDRESS))?;
    if let Ok(v4) = <[u8; 4]>::try_from(attr.payload) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(attr.payload).ok().map(|v6| Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_addresses() {
        assert!(list().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn other_messages_have_no_address() {
        assert_eq!(address(&[0; 8]), None);
        assert_eq!(address(&rtnetlink::request(number::RTM_GETADDR, number::HEADERS)), None);
    }
}
