//! The tables of iptables-legacy: reads a whole table, and replaces a whole table.
//!
//! They are no part of nf_tables and not reached over netlink: a table is one block of bytes, which `getsockopt` copies out and
//! `setsockopt` replaces (`linux/netfilter/x_tables.h`, `linux/netfilter_ipv4/ip_tables.h`, `linux/netfilter_ipv6/ip6_tables.h`). This
//! module does not look into the bytes of the rules. The kernel checks them when they are written.
//!
//! Reading a table that does not exist creates it: callers look into `/proc/net/ip_tables_names` first.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::table::Family;

// The offsets below are those of machines on which pointers and 64-bit numbers have 8 bytes and are aligned to 8.
const _: () = assert!(size_of::<usize>() == 8 && align_of::<u64>() == 8);

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; the numbers for IPv6 are the same.
const GET_INFO: c_int = 64;
const GET_ENTRIES: c_int = 65;
/// `IPT_SO_SET_REPLACE` and `IPT_SO_SET_ADD_COUNTERS`.
const SET_REPLACE: c_int = 64;
const SET_ADD_COUNTERS: c_int = 65;

/// Bytes of a table's name with its terminating zero.
const NAME: usize = 32;
/// Bytes of `ipt_getinfo`.
const INFO: usize = NAME + 4 + 2 * 4 * HOOKS + 2 * 4;
/// Bytes of `ipt_get_entries` and `xt_counters_info` before their last member, an array of any length.
const HEAD: usize = NAME + 8;
/// The number of hooks (`NF_INET_NUMHOOKS`).
const HOOKS: usize = 5;

/// Describes the rules of a table, as in `struct ipt_getinfo`. Offsets are in bytes from the first rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The hooks at which the table has a built-in chain, a bit each.
    pub valid_hooks: u32,
    /// The offset of each built-in chain, by hook.
    pub hook_entry: [u32; HOOKS],
    /// The offset of the policy of each built-in chain, by hook. The policy is a rule.
    pub underflow: [u32; HOOKS],
    /// The number of rules. The heads and ends of chains count as rules.
    pub entries: u32,
}

/// A table as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The description of its rules.
    pub layout: Layout,
    /// Its rules, as `struct ipt_entry` or `struct ip6t_entry`, one after the other.
    pub bytes: Vec<u8>,
}

/// The counters of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of packets that matched the rule.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Access to the tables of one family in one network namespace.
#[derive(Debug)]
pub struct Xtables {
    socket: OwnedFd,
    level: c_int,
}

impl Xtables {
    /// Opens a socket in the calling thread's network namespace. It sends nothing and is bound to no port.
    ///
    /// # Errors
    /// The kernel's error; `EAFNOSUPPORT` for a family other than IPv4 and IPv6.
    pub fn open(family: Family) -> io::Result<Self> {
        let (domain, level) = match family {
            Family::Ip => (libc::AF_INET, libc::IPPROTO_IP),
            Family::Ip6 => (libc::AF_INET6, libc::IPPROTO_IPV6),
            _ => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        };
        // SAFETY: `socket` takes three integers and accesses no memory of this process.
        let descriptor = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(descriptor) }, level })
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The kernel's error: `EAGAIN` when another program changed the table at that moment, `EPERM` without `CAP_NET_ADMIN`.
    pub fn read(&self, table: &str) -> io::Result<Contents> {
        let mut info = vec![0; INFO];
        info[..NAME].copy_from_slice(&name(table)?);
        self.get(GET_INFO, &mut info)?;
        let number = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let numbers = |at: usize| std::array::from_fn(|hook| number(at + 4 * hook));
        let layout = Layout {
            valid_hooks: number(NAME),
            hook_entry: numbers(NAME + 4),
            underflow: numbers(NAME + 4 + 4 * HOOKS),
            entries: number(INFO - 8),
        };
        let size = number(INFO - 4);
        let mut bytes = vec![0; HEAD + size as usize];
        bytes[..NAME].copy_from_slice(&name(table)?);
        bytes[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        self.get(GET_ENTRIES, &mut bytes)?;
        bytes.drain(..HEAD);
        Ok(Contents { layout, bytes })
    }

    /// Replaces a table, which must have `former` rules, and gives the counters of these rules. The counters of the new rules are zero;
    /// [`Self::add_counters`] adds to them.
    ///
    /// # Errors
    /// The kernel's error, and then the table is unchanged: `EAGAIN` when it has another number of rules than `former`.
    pub fn replace(&self, table: &str, former: u32, new: &Contents) -> io::Result<Vec<Counters>> {
        let mut counted = vec![0_u64; 2 * former as usize];
        let Contents { layout, bytes } = new;
        let size = u32::try_from(bytes.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let mut message = name(table)?.to_vec();
        for number in
            [&[layout.valid_hooks, layout.entries, size], &layout.hook_entry[..], &layout.underflow, &[former]]
        {
            message.extend(number.iter().flat_map(|number| number.to_ne_bytes()));
        }
        message.extend(counted.as_mut_ptr().expose_provenance().to_ne_bytes());
        message.extend(bytes);
        // SAFETY: beside the message the kernel accesses the memory that its pointer names, for 16 bytes per former rule: `counted` has
        // this length, lives until after the call, and is read only then. The kernel refuses the message when the table has another number
        // of rules.
        unsafe { self.set(SET_REPLACE, &message) }?;
        Ok(counted.chunks_exact(2).map(|pair| Counters { packets: pair[0], bytes: pair[1] }).collect())
    }

    /// Adds to the counters of each rule of a table.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` when the table has another number of rules.
    pub fn add_counters(&self, table: &str, counters: &[Counters]) -> io::Result<()> {
        let mut message = name(table)?.to_vec();
        let count = u32::try_from(counters.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        message.extend(count.to_ne_bytes());
        message.resize(HEAD, 0);
        message.extend(counters.iter().flat_map(|counted| [counted.packets, counted.bytes]).flat_map(u64::to_ne_bytes));
        // SAFETY: this message holds no pointer.
        unsafe { self.set(SET_ADD_COUNTERS, &message) }
    }

    /// Calls `getsockopt`. The start of `buffer` is the request; the kernel's answer fills the whole buffer.
    fn get(&self, option: c_int, buffer: &mut [u8]) -> io::Result<()> {
        let wanted = buffer.len();
        let mut len = libc::socklen_t::try_from(wanted).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        // SAFETY: the descriptor is open while `self` lives. `len` is the length of `buffer`, which is borrowed mutably, and the kernel
        // writes at most `len` bytes and keeps no pointer.
        let result = unsafe {
            let start = buffer.as_mut_ptr().cast::<c_void>();
            libc::getsockopt(self.socket.as_raw_fd(), self.level, option, start, &raw mut len)
        };
        match result {
            0 if len as usize == wanted => Ok(()),
            0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Calls `setsockopt` with a message.
    ///
    /// # Safety
    /// Each pointer within `message` must be valid for what the kernel does with it for this option.
    unsafe fn set(&self, option: c_int, message: &[u8]) -> io::Result<()> {
        let len = libc::socklen_t::try_from(message.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        // SAFETY: the descriptor is open while `self` lives. Pointer and length are those of `message`, which the kernel only reads. The
        // caller vouches for pointers within it.
        let result =
            unsafe { libc::setsockopt(self.socket.as_raw_fd(), self.level, option, message.as_ptr().cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A table's name, padded with zeros, as the kernel expects it.
fn name(table: &str) -> io::Result<[u8; NAME]> {
    let mut name = [0; NAME];
    let room = name.get_mut(..table.len()).filter(|room| room.len() < NAME);
    room.ok_or_else(|| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?.copy_from_slice(table.as_bytes());
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_room_for_its_zero() {
        assert_eq!(&name("nat").unwrap()[..4], b"nat\0");
        assert!(name(&"x".repeat(31)).is_ok());
        assert_eq!(name(&"x".repeat(32)).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    }

    #[test]
    fn other_families_have_no_such_tables() {
        assert_eq!(Xtables::open(Family::Inet).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
    }
}
