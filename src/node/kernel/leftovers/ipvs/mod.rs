//! Removes the virtual servers of mode ipvs, and its interface `kube-ipvs0`, which has their addresses.
//!
//! Without that interface no virtual server counts as kube-proxy's. With it, a virtual server is kube-proxy's if its address is on the
//! interface, or if it is another address of the node and the port is in the default range of node ports. All others may belong to
//! keepalived or another program: they stay, and a warning names them.

mod servers;

use std::io;
use std::net::IpAddr;
use std::path::Path;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attrs, Writer};

use super::{Report, counted};
use crate::kernel::errno::ENODEV;
use crate::kernel::rtnetlink;
use servers::{Server, Servers};

/// The name of the interface.
const INTERFACE: &str = "kube-ipvs0";
/// The node ports of an API server without `--service-node-port-range`.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
/// How many virtual servers a warning names.
const NAMED: usize = 5;

/// `linux/rtnetlink.h`, `linux/if_link.h`.
mod number {
    /// `NLM_F_REQUEST | NLM_F_ACK`.
    pub(super) const REQUEST_ACK: u16 = 5;
    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_DELLINK: u16 = 17;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_LINKINFO: u16 = 18;
    pub(super) const IFLA_INFO_KIND: u16 = 1;
    /// Bytes of `nlmsghdr` and `ifinfomsg` together, and the offset of `ifi_index`.
    pub(super) const HEADERS: usize = 16 + 16;
    pub(super) const INDEX: usize = 16 + 4;
}

/// Removes what mode ipvs left. Open it before privileges are dropped, because after that the process cannot open this kind of socket.
#[derive(Default)]
pub(super) struct Ipvs(Option<Servers>);

impl Ipvs {
    /// Opens the socket if there is something to remove in the calling thread's network namespace. Ignores an error, because
    /// [`Self::remove`] tries again.
    pub(super) fn open() -> Self {
        let needed = is_loaded(Path::new("/proc")) && matches!(Interface::look(), Ok(Some(_)));
        Self(needed.then(Servers::open).and_then(Result::ok))
    }

    /// Deletes the virtual servers, and then the interface.
    ///
    /// # Errors
    /// The kernel's error; what was removed before it is in the report.
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
            let servers = match &mut self.0 {
                Some(servers) => servers,
                none => none.insert(Servers::open()?),
            };
            delete_servers(servers, &interface, report)?;
        }
        interface.delete()?;
        report.removed.push(format!("interface {INTERFACE} of mode ipvs"));
        Ok(())
    }

    /// The warning if the interface does not exist, but virtual servers do. If they cannot be listed, there is no warning: in nearly all
    /// cases this node never ran mode ipvs.
    fn without_interface(&mut self) -> Option<String> {
        if !is_loaded(Path::new("/proc")) {
            return None;
        }
        let mut servers = self.0.take().or_else(|| Servers::open().ok())?;
        let found = servers.list().ok()?;
        unclaimed(&found)
    }
}

/// The warning about virtual servers that may or may not be kube-proxy's, because the interface with kube-proxy's addresses is gone.
fn unclaimed(servers: &[Server]) -> Option<String> {
    let first = servers.first()?;
    Some(format!(
        "{} of IPVS, such as {first}, stay: without interface {INTERFACE} it cannot be told whose they are. Look with `ipvsadm -ln`; if \
         kube-proxy made one, delete it: `ipvsadm -D {first}`",
        counted(servers.len(), "virtual server")
    ))
}

/// The objects that mode ipvs left, as text; `None` if there are none.
///
/// # Errors
/// The kernel's error.
pub(super) fn left() -> io::Result<Option<String>> {
    let interface = Interface::look()?.filter(|interface| interface.is_dummy);
    Ok(interface.map(|_| format!("virtual servers and the interface {INTERFACE}")))
}

fn delete_servers(servers: &mut Servers, interface: &Interface, report: &mut Report) -> io::Result<()> {
    let of_interface = rtnetlink::addresses_of(interface.index)?;
    let (ours, others): (Vec<Server>, Vec<Server>) =
        servers.list()?.into_iter().partition(kube_proxys(of_interface, rtnetlink::addresses()?));
    let mut removed = 0;
    let outcome = ours.iter().try_for_each(|server| servers.delete(server).map(|()| removed += 1));
    report.removed.extend((removed > 0).then(|| format!("{} of mode ipvs", counted(removed, "virtual server"))));
    if !others.is_empty() {
        let named: Vec<String> = others.iter().take(NAMED).map(ToString::to_string).collect();
        report.warnings.push(format!(
            "{} of IPVS, such as {}, may be another program's and stay: the addresses are not on {INTERFACE}. Look with \
             `ipvsadm -ln`; if kube-proxy made one, delete it: `ipvsadm -D {}`",
            counted(others.len(), "virtual server"),
            named.join(", "),
            named[0]
        ));
    }
    outcome
}

/// Whether a virtual server is kube-proxy's, given the addresses of its interface and of the node.
fn kube_proxys(of_interface: Vec<IpAddr>, of_node: Vec<IpAddr>) -> impl Fn(&Server) -> bool {
    move |server| {
        let ip = server.address.ip();
        of_interface.contains(&ip) || of_node.contains(&ip) && NODE_PORTS.contains(&server.address.port())
    }
}

/// Whether the module of IPVS is loaded. A request over netlink would load it.
fn is_loaded(proc: &Path) -> bool {
    // Look at the calling thread: its network namespace may differ from the process's.
    proc.join("thread-self/net/ip_vs").exists()
}

/// The interface of mode ipvs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interface {
    index: u32,
    is_dummy: bool,
}

impl Interface {
    /// The interface of the calling thread's network namespace.
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

    // Virtual servers of other programs stay (O1).
    #[test]
    fn servers_at_addresses_of_the_interface_and_node_ports_are_kube_proxys() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let is_ours = kube_proxys(ips(&["10.96.0.1", "fd00::1"]), ips(&["10.96.0.1", "fd00::1", "192.0.2.7"]));
        let server = |address: &str| Server { protocol: 6, address: address.parse().unwrap() };
        for ours in ["10.96.0.1:443", "[fd00::1]:80", "192.0.2.7:30000", "192.0.2.7:32767"] {
            assert!(is_ours(&server(ours)), "{ours}");
        }
        for other in ["192.0.2.7:6443", "192.0.2.7:29999", "192.0.2.8:30000", "10.96.0.2:443"] {
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
