//! Finds the program that owns a table: the flag `owner` ties a table to a netlink socket, and the kernel tells the port of that socket.
//!
//! The socket of a port is found in `/proc/net/netlink`, and its process by its open files. A process that gave up its privileges may not
//! see the open files of others; then the port itself tells the process, because the kernel gives the first netlink socket of a process the
//! process id as its port (`netlink_autobind` in `net/netlink/af_netlink.c`). In another PID namespace that is the id of another process.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::{command_line, in_this_network, with_socket};

/// The name of the initial PID namespace in /proc (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Describes the program in the calling thread's network namespace that has the netfilter socket with this port.
#[must_use]
pub fn program(port: u32) -> String {
    describe(Path::new("/proc"), port)
}

fn describe(proc: &Path, port: u32) -> String {
    let named = |process: &Path| {
        let line = command_line(process).filter(|line| !line.is_empty())?;
        Some(format!("process {}: {line}", process.file_name()?.to_str()?))
    };
    let by_socket = || named(&with_port(proc, port)?);
    let by_number = || {
        let namespace = fs::read_link(proc.join("thread-self/ns/pid")).ok()?;
        let is_initial = namespace.as_os_str() == INITIAL_PID_NAMESPACE;
        is_initial.then(|| named(&proc.join(port.to_string()))).flatten().map(|name| format!("probably {name}"))
    };
    let unseen = || format!("netlink port {port}, which usually is the id of its process on the node");
    by_socket().or_else(by_number).unwrap_or_else(unseen)
}

/// The directory below `proc` of the process of the calling thread's network namespace that has the netfilter socket with this port.
pub(super) fn with_port(proc: &Path, port: u32) -> Option<PathBuf> {
    let sockets = fs::read_to_string(proc.join("thread-self/net/netlink")).ok()?;
    let socket = sockets.lines().find_map(|line| inode(line, port))?;
    with_socket(proc, socket, in_this_network(proc))
}

/// The inode of the socket in a line of `/proc/net/netlink`, if it is a netfilter socket with this port. The line has the address of the
/// socket, the protocol, the port, and six more numbers before the inode.
fn inode(line: &str, port: u32) -> Option<&str> {
    const NETFILTER: &str = "12";
    let mut words = line.split_whitespace().skip(1);
    let is_it = words.next() == Some(NETFILTER) && words.next()?.parse() == Ok(port);
    words.last().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn add(proc: &Path, name: &str, namespace: &str, socket: &str) {
        let directory = proc.join(name);
        fs::create_dir_all(directory.join("ns")).unwrap();
        fs::create_dir_all(directory.join("fd")).unwrap();
        symlink(namespace, directory.join("ns/net")).unwrap();
        symlink(socket, directory.join("fd/7")).unwrap();
        fs::write(directory.join("cmdline"), "nft\0-i\0").unwrap();
    }

    #[test]
    fn the_process_that_has_the_socket_is_found_and_no_other() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        add(proc, "thread-self", "net:[1]", "socket:[1]");
        add(proc, "11", "net:[1]", "socket:[40]");
        add(proc, "12", "net:[2]", "socket:[41]");
        fs::create_dir(proc.join("thread-self/net")).unwrap();
        let sockets = "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode\n\
                       0 12  4711 00000000 0 0 0 2 0 41\n0 16  815 00000000 0 0 0 2 0 40\n";
        fs::write(proc.join("thread-self/net/netlink"), sockets).unwrap();
        assert_eq!(with_port(proc, 4711), None, "a process of another network namespace");
        add(proc, "13", "net:[1]", "socket:[41]");
        assert_eq!(with_port(proc, 4711), Some(proc.join("13")));
        assert_eq!(describe(proc, 4711), "process 13: nft -i");
        assert_eq!(with_port(proc, 815), None, "a socket of another protocol");
        assert_eq!(with_port(Path::new("/nowhere"), 4711), None);
    }

    #[test]
    fn a_port_is_taken_for_a_process_id_in_the_initial_pid_namespace_only() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        add(proc, "13", "net:[2]", "socket:[41]");
        assert_eq!(describe(proc, 13), "netlink port 13, which usually is the id of its process on the node");
        fs::create_dir_all(proc.join("thread-self/ns")).unwrap();
        symlink(INITIAL_PID_NAMESPACE, proc.join("thread-self/ns/pid")).unwrap();
        assert_eq!(describe(proc, 13), "probably process 13: nft -i");
        assert!(describe(proc, 14).starts_with("netlink port 14"), "there is no such process");
    }
}
