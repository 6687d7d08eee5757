//! Finds the program that listens on a loopback address. kube-proxy serves node ports there from user space, which no rule shows.
//!
//! Takes an address and a port, reads the kernel's lists of TCP sockets and the open files of processes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use node::kernel::process::{listening, with_socket};

const KUBE_PROXY: &str = "kube-proxy";

/// A program that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) pid: u32,
}

impl Program {
    pub(super) fn is_kube_proxy(&self) -> bool {
        self.name == KUBE_PROXY
    }
}

/// The program that listens for TCP on exactly this address: `None` when there is none, `Some(None)` when it is unknown which one,
/// because this user may not see the open files of other users.
#[expect(clippy::option_option, reason = "no program, and an unknown one")]
pub(super) fn listener(address: SocketAddr) -> Option<Option<Program>> {
    let sockets = listening(Path::new("/proc"));
    sockets.iter().find(|socket| socket.address == address).map(|socket| program_with(&socket.inode))
}

/// The process that has the socket with this inode open.
fn program_with(inode: &str) -> Option<Program> {
    let process = with_socket(Path::new("/proc"), inode, |_| true)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read_to_string(process.join("comm")).ok()?;
    Some(Program { name: name.trim_end().to_owned(), pid })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_with_its_program() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = TcpListener::bind(address).unwrap();
            let address = socket.local_addr().unwrap();
            let program = listener(address).expect("it listens").expect("it is this process");
            assert_eq!(program.pid, std::process::id());
            assert!(!program.is_kube_proxy(), "{program:?}");
            drop(socket);
            assert_eq!(listener(address), None);
        }
    }
}
