use std::net::UdpSocket;
use std::process::Command;
use std::{fs, io, thread};

use super::*;

/// Runs `work` on a thread that gave everything up, and that nothing else runs on.
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
    confined(Needs::default(), |dropped| {
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
fn other_programs_cannot_be_run() {
    confined(Needs::default(), |dropped| {
        assert_eq!(dropped.syscalls, Step::Done);
        assert_eq!(status("Seccomp"), "2");
        assert_eq!(error_of(Command::new("/bin/true").status()), io::ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_kubeconfig_that_runs_a_program_keeps_that_possible() {
    confined(Needs { programs: true }, |dropped| {
        assert_eq!((dropped.files, dropped.syscalls), (Step::LeftOut, Step::LeftOut));
        assert!(Command::new("/bin/true").status().unwrap().success());
        assert_eq!(dropped.capabilities, ["NET_ADMIN", "NET_BIND_SERVICE"]);
    });
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
            Step::Done => assert_eq!(error_of(made), io::ErrorKind::PermissionDenied),
            // Whether the kernel has Landlock is asked again in another way.
            Step::Unavailable => assert!(!has_landlock(), "Landlock is there and was not used"),
            Step::LeftOut => panic!("nothing was left out"),
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
        let made = rustix::net::socket(rustix::net::AddressFamily::PACKET, rustix::net::SocketType::RAW, None);
        assert_eq!(made.err(), Some(rustix::io::Errno::PERM));
    });
}
