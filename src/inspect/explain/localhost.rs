//! Finds the program that listens on a loopback address. kube-proxy can serve node ports there from user space, which no rule shows.
//!
//! Takes an address and a port, gives a [`Listener`]; reads the kernel's lists of TCP sockets and the open files of processes.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use node::kernel::process::{listening, with_socket};

const KUBE_PROXY: &str = "kube-proxy";

/// A socket that listens, with its program if that is known: a user may not see the open files of other users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The address at which it listens, which may stand for all addresses.
    pub(super) address: SocketAddr,
    pub(super) program: Option<Program>,
}

/// A program, with the number of its process if it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    name: String,
    pid: Option<u32>,
}

impl Program {
    /// The kube-proxy of a node that manifests describe: it has no process here.
    pub(super) fn kube_proxy() -> Self {
        Self { name: KUBE_PROXY.to_owned(), pid: None }
    }

    pub(super) fn is_kube_proxy(&self) -> bool {
        self.name == KUBE_PROXY
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.pid.map_or(Ok(()), |pid| write!(f, " (process {pid})"))
    }
}

/// The listener that gets TCP connections to this address. A socket at the address itself comes before a socket at all addresses.
pub(crate) fn listener(target: SocketAddr) -> Option<Listener> {
    let (all, all_v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    let ips = if target.is_ipv4() { &[target.ip(), all, all_v6][..] } else { &[target.ip(), all_v6] };
    let sockets = listening(Path::new("/proc"));
    ips.iter().find_map(|ip| {
        let socket = sockets.iter().find(|socket| socket.address == SocketAddr::new(*ip, target.port()))?;
        Some(Listener { address: socket.address, program: program_with(&socket.inode) })
    })
}

/// The process that has the socket with this inode open; `None` if this process may not see it.
fn program_with(inode: &str) -> Option<Program> {
    let process = with_socket(Path::new("/proc"), inode, |_| true)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read_to_string(process.join("comm")).ok()?;
    Some(Program { name: name.trim_end().to_owned(), pid: Some(pid) })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_with_its_program() {
        for (bound, asked) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "127.0.0.1")]
        {
            let socket = TcpListener::bind(bound).unwrap();
            let address = socket.local_addr().unwrap();
            let asked = SocketAddr::new(asked.parse().unwrap(), address.port());
            let found = listener(asked).expect("it listens");
            let program = found.program.expect("it is this process");
            assert_eq!((found.address, program.pid), (address, Some(std::process::id())));
            assert!(!program.is_kube_proxy(), "{program:?}");
            drop(socket);
            assert_eq!(listener(asked), None);
        }
    }
}
