//! The addresses of the test cluster, the same in every world.
//!
//! | who                    | IPv4                       | IPv6                            | namespace      |
//! |------------------------|----------------------------|---------------------------------|----------------|
//! | node, primary / second | 192.0.2.2 / 198.18.0.2     | 2001:db8::2 / 2001:db8:18::2    | `node`, on lo  |
//! | endpoints 0 and 1      | 10.244.1.10 and .11        | fd00:10:244:1::10 and ::11      | `pod0`, `pod1` |
//! | endpoints 2 and 3      | 10.244.2.10 and .11        | fd00:10:244:2::10 and ::11      | `remote`       |
//! | shell pod (client only)| 10.244.1.99                | fd00:10:244:1::99               | `shell`        |
//! | client outside         | 203.0.113.7                | 2001:db8:113::7                 | `client`       |
//! | service CIDR           | 10.96.0.0/16               | fd00:10:96::/112                | nowhere        |
//! | external IPs           | 198.51.100.n               | 2001:db8:51::n                  | nowhere        |
//! | load balancer IPs      | 192.0.2.128 + n            | 2001:db8:2::n                   | nowhere        |

use std::net::IpAddr;

/// The name of the node under test.
pub(crate) const NODE: &str = "test-node";
/// The name of the node that holds endpoints 2 and 3.
pub(crate) const OTHER_NODE: &str = "other-node";
/// `clusterCIDR` of the proxy's configuration.
pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";
/// The ServiceCIDR object's ranges.
pub(crate) const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// The ports every endpoint serves, over TCP, UDP and SCTP.
pub(crate) const SERVED_PORTS: [u16; 2] = [8080, 9090];
/// How many endpoints there are in each family; the first two are local.
pub(crate) const ENDPOINTS: u8 = 4;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn address(self, v4: &str, v6: &str) -> IpAddr {
        let text = if self == Self::V4 { v4 } else { v6 };
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The node's first address, the one `primary` stands for.
    pub(crate) fn node(self) -> IpAddr {
        self.address("192.0.2.2", "2001:db8::2")
    }

    /// The node's second address.
    pub(crate) fn node_second(self) -> IpAddr {
        self.address("198.18.0.2", "2001:db8:18::2")
    }

    /// Endpoint `n`, 0 to 3.
    pub(crate) fn endpoint(self, n: u8) -> IpAddr {
        let (side, host) = (1 + n / 2, 10 + n % 2);
        self.address(&format!("10.244.{side}.{host}"), &format!("fd00:10:244:{side}::{host}"))
    }

    /// The addresses of all endpoints.
    pub(crate) fn endpoints(self) -> Vec<IpAddr> {
        (0..ENDPOINTS).map(|n| self.endpoint(n)).collect()
    }

    /// A pod on this node that is no endpoint.
    pub(crate) fn shell(self) -> IpAddr {
        self.address("10.244.1.99", "fd00:10:244:1::99")
    }

    /// The client outside the cluster.
    pub(crate) fn client(self) -> IpAddr {
        self.address("203.0.113.7", "2001:db8:113::7")
    }

    /// Address number `n` of the service CIDR.
    pub(crate) fn cluster_ip(self, n: u8) -> IpAddr {
        self.address(&format!("10.96.0.{n}"), &format!("fd00:10:96::{n}"))
    }

    /// External IP number `n`.
    pub(crate) fn external_ip(self, n: u8) -> IpAddr {
        self.address(&format!("198.51.100.{n}"), &format!("2001:db8:51::{n}"))
    }

    /// Load balancer IP number `n`.
    pub(crate) fn load_balancer_ip(self, n: u8) -> IpAddr {
        self.address(&format!("192.0.2.{}", 128 + n), &format!("2001:db8:2::{n}"))
    }

    /// The loopback address.
    pub(crate) fn loopback(self) -> IpAddr {
        self.address("127.0.0.1", "::1")
    }
}

/// The address as a prefix of full length.
pub(crate) fn host_prefix(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
