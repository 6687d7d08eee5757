use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::{fs, io, thread};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, netlink, socket, socketpair};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// `AF_ALG`.
const ALG: u16 = 38;
/// `AF_TIPC`, which is the only domain besides `AF_UNIX` that supports `socketpair`.
const TIPC: u16 = 30;

/// Runs `work` on a new thread that has dropped its privileges, and returns the result of `work`.
fn confined<T: Send + 'static>(needs: Needs, work: impl FnOnce(Dropped) -> T + Send + 'static) -> T {
    thread::spawn(move || work(drop_all(needs).expect("privileges can be given up"))).join().unwrap()
}

fn status(key: &str) -> String {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).to_owned()
}

fn error_of<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("must be refused").kind()
}

#[test]
fn only_network_capabilities_are_left() {
    confined(Needs { low_ports: true, ..Needs::default() }, |dropped| {
        assert_eq!(dropped.capabilities, ["NET_ADMIN", "NET_BIND_SERVICE"], "the test needs root");
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(status(set), format!("{:016x}", 1 << 12 | 1 << 10), "{set}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(status(set), "0000000000000000", "{set}");
        }
        assert_eq!(status("NoNewPrivs"), "1");
    });
}

#[test]
fn a_process_that_needs_no_low_ports_has_one_capability() {
    confined(Needs::default(), |dropped| {
        assert_eq!(dropped.capabilities, ["NET_ADMIN"], "the test needs root");
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(status(set), format!("{:016x}", 1 << 12), "{set}");
        }
    });
}

#[test]
fn other_programs_cannot_be_run() {
    confined(Needs::default(), |dropped| {
        assert_eq!(dropped.syscalls, Restriction::Enforced);
        assert_eq!(status("Seccomp"), "2");
        assert_eq!(error_of(Command::new("/bin/true").status()), io::ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_kubeconfig_that_runs_a_program_keeps_that_possible() {
    confined(Needs { programs: true, low_ports: true, ..Needs::default() }, |dropped| {
        assert_eq!((dropped.files, dropped.syscalls), (Restriction::LeftOut, Restriction::LeftOut));
        assert!(Command::new("/bin/true").status().unwrap().success());
        assert_eq!(dropped.capabilities, ["NET_ADMIN", "NET_BIND_SERVICE"]);
    });
}

#[test]
fn bytes_are_spliced_only_by_a_proxy_that_serves_localhost() {
    for allowed in [false, true] {
        confined(Needs { splice: allowed, ..Needs::default() }, move |_| {
            let (from, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let (out, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            rustix::io::write(&into, b"text").unwrap();
            let moved = splice(&from, None, &to, None, 4, SpliceFlags::empty());
            assert_eq!(moved, if allowed { Ok(4) } else { Err(Errno::PERM) });
            drop(out);
        });
    }
}

#[test]
fn files_are_read_only_where_the_kernel_can_do_that() {
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (directory.path().join("file"), directory.path().join("other"));
    fs::write(&file, "text").unwrap();
    confined(Needs::default(), move |dropped| {
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        let made = fs::write(&other, "text");
        match dropped.files {
            Restriction::Enforced => assert_eq!(error_of(made), io::ErrorKind::PermissionDenied),
            // Check that the kernel's list of security modules does not contain Landlock either.
            Restriction::Unavailable => assert!(!has_landlock(), "the kernel has Landlock and it was not used"),
            Restriction::LeftOut => panic!("nothing was left out"),
        }
    });
}

fn has_landlock() -> bool {
    fs::read_to_string("/sys/kernel/security/lsm").is_ok_and(|list| list.contains("landlock"))
}

#[test]
fn sockets_and_threads_still_work() {
    confined(Needs::default(), |_| {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sent = thread::spawn(move || a.send_to(b"x", a.local_addr().unwrap()).unwrap());
        assert_eq!(sent.join().unwrap(), 1);
        let resolved: Vec<_> = std::net::ToSocketAddrs::to_socket_addrs("localhost:80").unwrap().collect();
        assert!(!resolved.is_empty());
    });
}

#[test]
fn sockets_of_other_domains_cannot_be_made() {
    confined(Needs::default(), |_| {
        for domain in [AddressFamily::PACKET, AddressFamily::UNIX, AddressFamily::VSOCK, AddressFamily::from_raw(ALG)] {
            assert_eq!(socket(domain, SocketType::RAW, None).err(), Some(Errno::PERM), "{domain:?}");
        }
        for domain in [AddressFamily::INET, AddressFamily::INET6] {
            socket(domain, SocketType::DGRAM, None).unwrap();
        }
        // The signal handling of tokio needs a pair of Unix sockets.
        UnixStream::pair().unwrap();
        let pair = socketpair(AddressFamily::from_raw(TIPC), SocketType::STREAM, SocketFlags::empty(), None);
        assert_eq!(pair.err(), Some(Errno::PERM));
    });
}

#[test]
fn netlink_sockets_are_only_for_netfilter_and_routes() {
    const OTHERS: [Protocol; 8] = [
        netlink::SOCK_DIAG,
        netlink::XFRM,
        netlink::AUDIT,
        netlink::CONNECTOR,
        netlink::KOBJECT_UEVENT,
        netlink::GENERIC,
        netlink::CRYPTO,
        netlink::USERSOCK,
    ];
    confined(Needs::default(), |_| {
        let open = |protocol| socket(AddressFamily::NETLINK, SocketType::RAW, Some(protocol));
        for protocol in OTHERS {
            assert_eq!(open(protocol).err(), Some(Errno::PERM), "{protocol:?}");
        }
        open(netlink::NETFILTER).unwrap();
        // `None` means protocol 0, which is `NETLINK_ROUTE`.
        socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
    });
}

/// Returns whether Landlock has scopes in this kernel: they came with Linux 6.12, as version 6 of its interface.
fn knows_scopes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn other_processes_cannot_be_reached_where_the_kernel_can_do_that() {
    let name = SocketAddr::from_abstract_name(format!("kube-proxy-test-{}", std::process::id())).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::from_child(&child);
    // Apply only Landlock, because the filter of system calls would refuse the connection and the signal before Landlock could.
    let tried = thread::spawn(move || {
        let restriction = make_files_read_only().unwrap();
        let own = UnixListener::bind_addr(&SocketAddr::from_abstract_name(b"kube-proxy-test-own").unwrap()).unwrap();
        let within = UnixStream::connect_addr(&own.local_addr().unwrap());
        (restriction, UnixStream::connect_addr(&name), kill_process(pid, Signal::USR1), within)
    });
    let (restriction, connected, signalled, within) = tried.join().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    within.unwrap();
    if restriction == Restriction::Enforced && knows_scopes() {
        assert_eq!(error_of(connected), io::ErrorKind::PermissionDenied);
        assert_eq!(signalled, Err(Errno::PERM));
    } else {
        connected.unwrap();
        signalled.unwrap();
    }
}
