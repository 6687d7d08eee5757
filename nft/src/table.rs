//! Families, names, and properties of tables.
//!
//! This module uses no other module of the crate.

use std::fmt;
use std::sync::Arc;

/// The family of a table: which packets its rules see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `ip`: IPv4 packets.
    Ip,
    /// `ip6`: IPv6 packets.
    Ip6,
    /// `inet`: IPv4 and IPv6 packets.
    Inet,
}

impl Family {
    /// The family's number on the wire (`NFPROTO_*` in `linux/netfilter.h`).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }

    /// The family with a number; `None` for a family that this crate does not know, such as `arp`.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Ip6].into_iter().find(|family| family.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        })
    }
}

/// Family and name of a table; every other object belongs to a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// The packets that its chains see: IPv4, IPv6 or both.
    pub family: Family,
    /// The name, unique in its family.
    pub name: Arc<str>,
}

impl TableName {
    /// A table's name.
    #[must_use]
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A table without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The family and the name.
    pub name: TableName,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<Arc<str>>,
}

/// Which netlink sockets may change a table. Kernels before 5.12 have no owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Any socket of a process with `CAP_NET_ADMIN`: the table has no owner.
    #[default]
    Unowned,
    /// Any socket of a process with `CAP_NET_ADMIN`, because the owner of a persistent table closed its socket (kernel 6.9 and later). A
    /// new owner can take the table over.
    Orphaned,
    /// This connection only; the kernel refuses changes by others and leaves the table out when they flush the ruleset.
    Ours,
    /// Another netlink socket only.
    Of {
        /// The socket's port.
        port: u32,
    },
}

impl Ownership {
    /// The port of the socket of another program that owns the table; `None` if no other program owns it.
    #[must_use]
    pub const fn other(self) -> Option<u32> {
        match self {
            Self::Of { port } => Some(port),
            Self::Unowned | Self::Orphaned | Self::Ours => None,
        }
    }
}

/// What the kernel lists about a table besides its name, its comment and its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    /// Which sockets may change it.
    pub ownership: Ownership,
    /// Whether it has the flag `dormant`: its base chains are not registered at their hooks, so no packet passes them.
    pub dormant: bool,
    /// Flags that this crate does not know.
    pub unknown_flags: u32,
    /// The number of chains, sets that are not anonymous, flowtables and objects in it (`NFTA_TABLE_USE`).
    pub objects: u32,
}
