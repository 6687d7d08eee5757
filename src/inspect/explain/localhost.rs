//! Finds the program that listens on a loopback address. kube-proxy serves node ports there from user space, which no rule shows.
//!
//! Takes an address and a port, reads the kernel's lists of TCP sockets and the open files of processes.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use node::kernel::process::with_socket;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";
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
    let file = if address.is_ipv4() { "tcp" } else { "tcp6" };
    let sockets = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    inode(&sockets, address).map(program_with)
}

/// The inode of the socket that listens on an address, from the text of `/proc/net/tcp`.
fn inode(sockets: &str, address: SocketAddr) -> Option<&str> {
    let wanted = format!("{}:{:04X}", hexadecimal(address.ip()), address.port());
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&wanted.as_str()) && fields.get(3) == Some(&LISTEN)).then(|| fields.get(9).copied())?
    })
}

/// An address in the format of `/proc/net/tcp`: words of four bytes in the byte order of this machine.
fn hexadecimal(address: IpAddr) -> String {
    let bytes = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect()
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

    #[test]
    fn only_the_address_itself_and_listening_sockets_count() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                    0: 0100007F:7580 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n   \
                    1: 0100007F:7581 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n";
        let found = |text: &str| inode(list, text.parse().unwrap());
        assert_eq!(found("127.0.0.1:30080"), cfg!(target_endian = "little").then_some("4711"));
        assert_eq!((found("127.0.0.2:30080"), found("127.0.0.1:30081")), (None, None));
    }
}
