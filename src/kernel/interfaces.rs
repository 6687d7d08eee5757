//! The names of this node's interfaces, over rtnetlink.

use std::io;
use std::sync::Arc;

use nft::wire::Attrs;

use super::rtnetlink;

/// `linux/rtnetlink.h`, `linux/if_link.h`, `linux/if.h`.
mod number {
    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const IFLA_IFNAME: u16 = 3;
    /// Bytes of `nlmsghdr` and `ifinfomsg` together.
    pub(super) const HEADERS: usize = 16 + 16;
    /// Where `ifi_flags` begins.
    pub(super) const FLAGS: usize = 16 + 8;
    pub(super) const IFF_LOOPBACK: u32 = 8;
}

/// The names of all interfaces in the calling thread's network namespace but loopback, sorted.
///
/// # Errors
/// What the kernel answers.
pub fn list() -> io::Result<Vec<Arc<str>>> {
    rtnetlink::dump(number::RTM_GETLINK, number::HEADERS, interface)
}

/// The name in a message; `None` when it is about loopback, or about something else.
fn interface(message: &[u8]) -> Option<Arc<str>> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let flags = u32::from_ne_bytes(message.get(number::FLAGS..number::FLAGS + 4)?.try_into().ok()?);
    if kind != number::RTM_NEWLINK || flags & number::IFF_LOOPBACK != 0 {
        return None;
    }
    let name = Attrs::new(message.get(number::HEADERS..)?).find(number::IFLA_IFNAME)?;
    name.str().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_but_loopback_is_listed() {
        let proc = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names = proc.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
        let mut expected: Vec<&str> = names.filter(|name| *name != "lo").collect();
        expected.sort_unstable();
        let found = list().unwrap();
        assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_messages_name_no_interface() {
        assert_eq!(interface(&[0; 8]), None);
        assert_eq!(interface(&rtnetlink::request(number::RTM_GETLINK, number::HEADERS)), None);
    }
}
