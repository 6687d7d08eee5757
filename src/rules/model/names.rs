//! Names of Kubernetes objects, and of the frontends, protocols and IP families that Services use.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

pub use foldhash::quality::RandomState;
use smol_str::SmolStr;

/// Namespace and name of a namespaced object; printed as `namespace/name`. Clones share the text.
///
/// Names are ordered by namespace, then by name, bytewise. This order decides between two Services of the same age that claim one frontend
/// as the same kind.
///
/// The hash is computed once, because each change of an object looks its name up in many maps, and in a large cluster the text is rarely
/// in a CPU cache. It is seeded at random for each process, so that a tenant cannot easily choose names with equal hashes.
#[derive(Clone)]
pub struct ObjectName {
    hash: u64,
    parts: Arc<NameParts>,
}

/// The parts of an [`ObjectName`], which dereferences to them.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameParts {
    /// The namespace of the object.
    pub namespace: Arc<str>,
    /// The name of the object in its namespace. Most names are short, and are kept here and not in an allocation of their own.
    pub name: SmolStr,
}

impl ObjectName {
    /// A name from its two parts.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<SmolStr>) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let parts = NameParts { namespace: namespace.into(), name: name.into() };
        Self { hash: SEED.hash_one(&parts), parts: Arc::new(parts) }
    }
}

impl Deref for ObjectName {
    type Target = NameParts;

    fn deref(&self) -> &NameParts {
        &self.parts
    }
}

impl PartialEq for ObjectName {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.parts, &other.parts) || self.parts == other.parts)
    }
}

impl Eq for ObjectName {}

impl Hash for ObjectName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.parts, &other.parts) { Ordering::Equal } else { self.parts.cmp(&other.parts) }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An IP family. IPv4 and IPv6 never mix (D24): each has its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    /// `IPv4` or `IPv6`, as metric labels and health responses have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol that Services may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP; handled like TCP and UDP (D23).
    Sctp,
}

impl Protocol {
    /// All protocols, in the order of the variants.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IANA protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this name, in upper or lower case; `None` for any other name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.api_name().eq_ignore_ascii_case(name))
    }

    /// The protocol's name in the Kubernetes API: `TCP`, `UDP`, `SCTP`.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// Where traffic to a Service arrives: an address, or any node-port address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// A cluster IP, external IP or load balancer IP.
    Address(IpAddr),
    /// All addresses of this node that accept node ports, in one family.
    NodePort(Family),
}

/// A frontend of a Service: the address or node port, protocol and port that a client connects to. At most one service port owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// Address or node port.
    pub destination: Destination,
    /// Transport protocol of the client's packets.
    pub protocol: Protocol,
    /// Destination port of the client's packets.
    pub port: u16,
}

impl Frontend {
    /// The family of the frontend.
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.destination {
            Destination::Address(ip) => Family::of(ip),
            Destination::NodePort(family) => family,
        }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destination {
            Destination::Address(ip) => write!(f, "{} port {}/{}", ip, self.port, self.protocol),
            Destination::NodePort(family) => write!(f, "{family} node port {}/{}", self.port, self.protocol),
        }
    }
}
