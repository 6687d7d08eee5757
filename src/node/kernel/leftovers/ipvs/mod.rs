//! Removes what kube-proxy's mode ipvs left: its virtual servers, and its interface `kube-ipvs0`, which holds the addresses of the virtual
//! servers.
//!
//! If the interface does not exist, no virtual server counts as kube-proxy's. If it exists, a virtual server counts as kube-proxy's when
//! its address is on the interface, or when its address is another address of the node and its port is in the default range of node ports.
//! Virtual servers in a CIDR that the configuration excludes, and all others, may belong to keepalived or another program: they stay, and a warning names some of them.

mod servers;

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attrs, Writer};

use super::{Report, counted};
use crate::kernel::errno::ENODEV;
use crate::kernel::rtnetlink;
use servers::{Server, Servers};

/// The interface that mode ipvs creates.
const INTERFACE: &str = "kube-ipvs0";
/// The range of node ports of an API server that runs without flag `--service-node-port-range`.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
/// How many virtual servers a warning names at most, to keep it short.
const NAMED: usize = 5;

/// Constants of `linux/netlink.h`, `linux/rtnetlink.h` and `linux/if_link.h`.
mod number {
    /// `NLM_F_REQUEST | NLM_F_ACK`.
    pub(super) const REQUEST_ACK: u16 = 5;
    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_DELLINK: u16 = 17;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_LINKINFO: u16 = 18;
    pub(super) const IFLA_INFO_KIND: u16 = 1;
    /// The length of `nlmsghdr` and `ifinfomsg` together in bytes, and the offset of `ifi_index`.
    pub(super) const HEADERS: usize = 16 + 16;
    pub(super) const INDEX: usize = 16 + 4;
}

/// Removes what mode ipvs left. Call [`Self::open`] before the process drops its privileges, because after that it cannot open a generic
/// netlink socket.
#[derive(Default)]
pub(super) struct Ipvs {
    servers: Option<Servers>,
    /// The virtual servers with addresses in these CIDRs are not kube-proxy's.
    pub(super) excluded: Vec<IpNet>,
}

impl Ipvs {
    /// Opens the socket if there is something to remove in the calling thread's network namespace. Ignores an error, because
    /// [`Self::remove`] tries again.
    pub(super) fn open() -> Self {
        let needed = is_loaded(Path::new("/proc")) && matches!(Interface::look(), Ok(Some(_)));
        Self { servers: needed.then(Servers::open).and_then(Result::ok), excluded: Vec::new() }
    }

    /// Deletes the virtual servers, and then the interface.
    ///
    /// # Errors
    /// Returns the error that the kernel reports; the report still names what was removed before the error.
    pub(super) fn remove(&mut self, report: &mut Report) -> io::Result<()> {
        let Some(interface) = Interface::look()? else {
            report.warnings.extend(self.without_interface());
            return Ok(());
        };
        if !interface.is_dummy {
            report
                .warnings
                .push(format!("interface {INTERFACE} stays: it is no dummy device, so kube-proxy has not made it"));
            return Ok(());
        }
        if is_loaded(Path::new("/proc")) {
            let servers = match &mut self.servers {
                Some(servers) => servers,
                none => none.insert(Servers::open()?),
            };
            delete_servers(servers, &interface, &self.excluded, report)?;
        }
        interface.delete()?;
        report.removed.push(format!("interface {INTERFACE} of mode ipvs"));
        Ok(())
    }

    /// Returns the warning for a node that has virtual servers but not the interface. If the virtual servers cannot be listed, there is no
    /// warning, because nearly all such nodes never ran mode ipvs.
    fn without_interface(&mut self) -> Option<String> {
        if !is_loaded(Path::new("/proc")) {
            return None;
        }
        let mut servers = self.servers.take().or_else(|| Servers::open().ok())?;
        let found = servers.list().ok()?;
        unclaimed(&found)
    }
}

/// Returns the warning about virtual servers that may or may not be kube-proxy's, because the interface with kube-proxy's addresses is
/// gone.
fn unclaimed(servers: &[Server]) -> Option<String> {
    let first = servers.first()?;
    Some(format!(
        "{} of IPVS, such as {first}, stay: without interface {INTERFACE} it cannot be told whose they are. Look with `ipvsadm -ln`; if \
         kube-proxy made one, delete it: `ipvsadm -D {first}`",
        counted(servers.len(), "virtual server")
    ))
}

/// Returns a text that names what mode ipvs left; `None` if it left nothing.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn left() -> io::Result<Option<String>> {
    let interface = Interface::look()?.filter(|interface| interface.is_dummy);
    Ok(interface.map(|_| format!("virtual servers and the interface {INTERFACE}")))
}

fn delete_servers(
    servers: &mut Servers,
    interface: &Interface,
    excluded: &[IpNet],
    report: &mut Report,
) -> io::Result<()> {
    let of_interface = rtnetlink::addresses_of(interface.index)?;
    let (ours, others): (Vec<Server>, Vec<Server>) =
        servers.list()?.into_iter().partition(kube_proxys(of_interface, rtnetlink::addresses()?, excluded));
    let mut removed = 0;
    let outcome = ours.iter().try_for_each(|server| servers.delete(server).map(|()| removed += 1));
    report.removed.extend((removed > 0).then(|| format!("{} of mode ipvs", counted(removed, "virtual server"))));
    if !others.is_empty() {
        let named: Vec<String> = others.iter().take(NAMED).map(ToString::to_string).collect();
        report.warnings.push(format!(
            "{} of IPVS, such as {}, may be another program's and stay: the addresses are not on {INTERFACE}, or excluded. Look with \
             `ipvsadm -ln`; if kube-proxy made one, delete it: `ipvsadm -D {}`",
            counted(others.len(), "virtual server"),
            named.join(", "),
            named[0]
        ));
    }
    outcome
}

/// Returns a function that tells whether a virtual server is kube-proxy's, given the addresses of kube-proxy's interface and of the node,
/// and the CIDRs that the configuration excludes.
fn kube_proxys(of_interface: Vec<IpAddr>, of_node: Vec<IpAddr>, excluded: &[IpNet]) -> impl Fn(&Server) -> bool {
    move |server| {
        let ip = server.address.ip();
        let is_ours =
            of_interface.contains(&ip) || of_node.contains(&ip) && NODE_PORTS.contains(&server.address.port());
        is_ours && !excluded.iter().any(|cidr| cidr.contains(&ip))
    }
}

/// Returns whether kernel module ip_vs is loaded. A netlink request would load the module, so this function looks into `/proc`.
fn is_loaded(proc: &Path) -> bool {
    // Read the files of the calling thread, because its network namespace may differ from that of the main thread.
    proc.join("thread-self/net/ip_vs").exists()
}

/// The interface of mode ipvs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interface {
    index: u32,
    is_dummy: bool,
}

impl Interface {
    /// Returns interface `kube-ipvs0` of the calling thread's network namespace.
    fn look() -> io::Result<Option<Self>> {
        let mut name = Writer::default();
        name.str(number::IFLA_IFNAME, INTERFACE);
        let mut found = None;
        match ask(number::RTM_GETLINK, 0, name.bytes(), |message| found = Self::of(message).or(found)) {
            Err(error) if error.raw_os_error() == Some(ENODEV) => Ok(None),
            outcome => outcome.map(|()| found),
        }
    }

    fn of(message: &[u8]) -> Option<Self> {
        let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
        let index = u32::from_ne_bytes(*message.get(number::INDEX..)?.first_chunk()?);
        let attrs = Attrs::new(message.get(number::HEADERS..)?);
        let info = attrs.find(number::IFLA_LINKINFO).and_then(|info| info.nested().find(number::IFLA_INFO_KIND));
        let is_dummy = info.and_then(|kind| kind.str()) == Some("dummy");
        (kind == number::RTM_NEWLINK).then_some(Self { index, is_dummy })
    }

    fn delete(&self) -> io::Result<()> {
        ask(number::RTM_DELLINK, self.index, &[], |_| {})
    }
}

/// Sends a request about an interface, and calls `take` with each message of the answer.
fn ask(kind: u16, index: u32, attrs: &[u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let len = u32::try_from(number::HEADERS + attrs.len()).unwrap_or_default();
    let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &number::REQUEST_ACK.to_ne_bytes(), &[0; 12]].concat();
    let mut socket = Socket::open(Bus::Route)?;
    socket.send(&[&head[..], &index.to_ne_bytes(), &[0; 8], attrs].concat())?;
    loop {
        for message in Messages::new(socket.receive()?) {
            match decode::ack(message).map(|ack| ack.errno) {
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None => take(message),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A virtual server is kube-proxy's only if it has an address of the interface, or a node port at an address of the node (O1).
    #[test]
    fn servers_at_addresses_of_the_interface_and_node_ports_are_kube_proxys() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let excluded = ["192.0.2.8/32", "fd00::2/127"].map(|cidr| cidr.parse().unwrap());
        let of_node = ips(&["10.96.0.1", "fd00::1", "fd00::2", "192.0.2.7", "192.0.2.8"]);
        let is_ours = kube_proxys(ips(&["10.96.0.1", "fd00::1", "fd00::3"]), of_node, &excluded);
        let server = |address: &str| Server { protocol: 6, address: address.parse().unwrap() };
        for ours in ["10.96.0.1:443", "[fd00::1]:80", "192.0.2.7:30000", "192.0.2.7:32767"] {
            assert!(is_ours(&server(ours)), "{ours}");
        }
        for other in
            ["192.0.2.7:6443", "192.0.2.7:29999", "192.0.2.8:30000", "[fd00::2]:30000", "[fd00::3]:80", "10.96.0.2:443"]
        {
            assert!(!is_ours(&server(other)), "{other}");
        }
    }

    #[test]
    fn virtual_servers_without_the_interface_are_mentioned_with_the_command_that_deletes_one() {
        let server = |address: &str| Server { protocol: 6, address: address.parse().unwrap() };
        assert_eq!(unclaimed(&[]), None);
        let text = unclaimed(&[server("10.96.0.1:443"), server("10.96.0.2:443")]).unwrap();
        assert!(text.starts_with("2 virtual servers of IPVS, such as "), "{text}");
        assert!(text.ends_with("`ipvsadm -D -t 10.96.0.1:443`"), "{text}");
    }

    #[test]
    fn an_interface_that_is_not_there_is_none() {
        assert_eq!(Interface::look().unwrap(), None, "this machine has no {INTERFACE}");
    }
}
