//! Makes a node, and namespaces that reach everything through the node, each over a separate veth pair.
//!
//! Takes names and addresses, and returns namespaces; packets to an address of a namespace are routed to that namespace. Uses few runs of
//! `ip`, because in a virtual machine these take most of the time of a packet test.

use std::net::IpAddr;

use super::netns::Namespace;
use super::plan::host_prefix;

/// A namespace to make: its name and the addresses in it.
pub(crate) type Place = (String, Vec<IpAddr>);

/// The link between a namespace and its node.
struct Spoke<'a> {
    number: u8,
    name: &'a str,
    addresses: &'a [IpAddr],
}

/// The sysctls with which a node forwards.
const FORWARDING: [(&str, &str); 4] = [
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    // Without these, the kernel would send ICMP redirects for hairpin packets, which leave through the interface that they came from.
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
];

/// Makes a namespace forward as a node does.
pub(crate) fn forward(node: &Namespace) {
    FORWARDING.iter().for_each(|(key, value)| node.set_sysctl(key, value));
}

/// Makes a node that owns `addresses`, except for loopback addresses.
pub(crate) fn new_node(addresses: impl IntoIterator<Item = IpAddr>) -> Namespace {
    make_node(Namespace::new("node"), addresses)
}

/// Makes a namespace a node that owns `addresses`, except for loopback addresses.
pub(crate) fn make_node(node: Namespace, addresses: impl IntoIterator<Item = IpAddr>) -> Namespace {
    forward(&node);
    let own = addresses.into_iter().filter(|address| !address.is_loopback());
    node.ip(&own.map(|address| add_address(address, "lo")).collect::<Vec<_>>());
    node
}

/// Makes a namespace for each place, in their order. The links have the numbers from `first` on. A node must use each number only once,
/// because the addresses of a link contain its number.
pub(crate) fn attach(node: &Namespace, first: u8, places: &[Place]) -> Vec<Namespace> {
    let spaces = Namespace::several(&places.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    let spokes: Vec<Spoke> =
        (first..).zip(places).map(|(number, (name, addresses))| Spoke { number, name, addresses }).collect();
    let links = spokes.iter().zip(&spaces).flat_map(|(spoke, space)| spoke.link(space.name()));
    node.ip(&links.collect::<Vec<_>>());
    spokes.iter().zip(&spaces).for_each(|(spoke, space)| space.ip(&spoke.inside()));
    node.ip(&spokes.iter().flat_map(Spoke::routes).collect::<Vec<_>>());
    spaces
}

/// Routes all other addresses to the namespace whose link has this number, with these addresses of the node as sources.
pub(crate) fn route_the_rest(node: &Namespace, number: u8, name: &str, sources: [Option<IpAddr>; 2]) {
    let [v4, v6] = sources.map(|source| source.map_or_else(String::new, |source| format!("src {source}")));
    node.ip(&[
        format!("route add 0.0.0.0/0 via 169.254.{number}.2 dev to-{name} {v4}"),
        format!("route add ::/0 via fe80::2 dev to-{name} {v6}"),
    ]);
}

impl Spoke<'_> {
    /// Returns the commands for the node's end of the link. The addresses of the link have link scope, so that masquerading never picks
    /// them.
    fn link(&self, space: &str) -> [String; 4] {
        let Self { number, name, .. } = self;
        [
            format!("link add to-{name} type veth peer name eth0 netns {space}"),
            format!("addr add 169.254.{number}.1/30 dev to-{name} scope link"),
            format!("addr add fe80::1/64 dev to-{name} nodad"),
            format!("link set to-{name} up"),
        ]
    }

    fn inside(&self) -> Vec<String> {
        let number = self.number;
        let mut lines = vec![
            format!("addr add 169.254.{number}.2/30 dev eth0 scope link"),
            "addr add fe80::2/64 dev eth0 nodad".to_owned(),
            "link set eth0 up".to_owned(),
        ];
        lines.extend(self.addresses.iter().map(|address| add_address(*address, "eth0")));
        lines.push(format!("route add 0.0.0.0/0 via 169.254.{number}.1 dev eth0"));
        lines.push("route add ::/0 via fe80::1 dev eth0".to_owned());
        lines
    }

    fn routes(&self) -> impl Iterator<Item = String> {
        self.addresses.iter().map(|address| {
            let gateway = if address.is_ipv4() { format!("169.254.{}.2", self.number) } else { "fe80::2".to_owned() };
            format!("route add {} via {gateway} dev to-{}", host_prefix(*address), self.name)
        })
    }
}

fn add_address(address: IpAddr, device: &str) -> String {
    let flags = if address.is_ipv6() { "nodad" } else { "" };
    format!("addr add {} dev {device} {flags}", host_prefix(address))
}
