//! A network namespace that lives as long as its value.
//!
//! Takes a short name, and makes a namespace called `kpn-<pid>-<n>-<name>` with `lo` up. Dropping it kills the processes inside and deletes
//! it. The first namespace of a test run removes the namespaces that a killed test run left behind.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nft::decode;
use nft::socket::{Bus, Socket};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PREFIX: &str = "kpn-";
const DIRECTORY: &str = "/run/netns";

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A named network namespace; removed, with the processes in it, when dropped.
pub(crate) struct Namespace {
    name: String,
    /// A process in the user namespace that the network namespace belongs to; `None` for the initial one. Commands run as its root.
    user: Option<Child>,
}

impl Namespace {
    /// Makes a namespace, with `lo` up, no reverse-path filter and no limit on ICMP errors.
    pub(crate) fn new(short: &str) -> Self {
        Self::several(&[short]).swap_remove(0)
    }

    /// Makes namespaces like [`Namespace::new`], with one run of `ip`.
    pub(crate) fn several(shorts: &[&str]) -> Vec<Self> {
        SWEEP.call_once(sweep);
        let name = |short| format!("{PREFIX}{}-{}-{short}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let spaces: Vec<Self> = shorts.iter().map(|short| Self { name: name(short), user: None }).collect();
        let lines: String = spaces.iter().map(|space| format!("netns add {}\n", space.name)).collect();
        run_with_input(Command::new("ip").args(["-batch", "-"]), &lines);
        spaces.iter().for_each(|space| space.enter(|| (set_test_sysctls(), set_lo_up())).0);
        spaces
    }

    /// Makes a namespace like [`Namespace::new`] that belongs to a user namespace of its own, as a rootless node has it. Its root is this
    /// process's user.
    pub(crate) fn in_user_namespace(short: &str) -> Self {
        SWEEP.call_once(sweep);
        let name = format!("{PREFIX}{}-{}-{short}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = unshare.spawn().expect("unshare of util-linux can be run");
        // `cat` runs once the namespaces are there, and until its input ends.
        let echoed = holder.stdin.as_mut().expect("standard input was piped").write_all(b"!");
        let echoed =
            echoed.and_then(|()| holder.stdout.as_mut().expect("standard output was piped").read_exact(&mut [0]));
        assert!(
            echoed.is_ok(),
            "no user namespace can be made (sysctl user.max_user_namespaces, or a security module)"
        );
        run(Command::new("ip").args(["netns", "attach", &name, &holder.id().to_string()]));
        let space = Self { name, user: Some(holder) };
        space.enter(|| (set_test_sysctls(), set_lo_up()));
        space
    }

    /// The name under `ip netns`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a fresh thread inside the namespace and returns its result; a panic of `work` is passed on.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = thread::scope(|scope| scope.spawn(|| (self.join(), work()).1).join());
        inside.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into the namespace, for good.
    pub(crate) fn join(&self) {
        let link = Path::new(DIRECTORY).join(&self.name);
        let file = File::open(&link).unwrap_or_else(|error| panic!("cannot open {}: {error}", link.display()));
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|error| panic!("cannot enter {}: {error} (packet tests need root)", self.name));
    }

    /// A command that will run inside the namespace; its process id is the program's own.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match &self.user {
            None => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &self.name]);
                command
            }
            Some(holder) => {
                let mut command = Command::new("nsenter");
                command.args(["--preserve-credentials", "--user", "--net", "--target", &holder.id().to_string()]);
                command
            }
        };
        command.arg(program);
        command
    }

    /// Runs lines of `ip -batch` inside the namespace.
    pub(crate) fn ip(&self, lines: &[impl AsRef<str>]) {
        let text: String = lines.iter().map(|line| format!("{}\n", line.as_ref())).collect();
        run_with_input(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), &text);
    }

    /// Writes a value under `/proc/sys/net`, for example `ipv4/ip_forward`.
    pub(crate) fn set_sysctl(&self, key: &str, value: &str) {
        self.enter(|| write_sysctl(key, value));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
        // Already killed with the other processes of the namespace.
        let _ended = self.user.take().map(|mut holder| holder.wait());
    }
}

/// Runs a command to its end and returns its standard output; anything but success fails the test.
pub(crate) fn run(command: &mut Command) -> String {
    run_with_input(command, "")
}

/// Like [`run`], with text on standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> String {
    try_run(command, input).unwrap_or_else(|why| panic!("{why}"))
}

/// Like [`run_with_input`], giving the reason of a failure back.
pub(crate) fn try_run(command: &mut Command, input: &str) -> Result<String, String> {
    let what = format!("{command:?}");
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("cannot run {what}: {error}; try `make deps`"))?;
    let mut stdin = child.stdin.take().expect("standard input was piped");
    let output = thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output()
    });
    let output = output.map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!("{what}: {}: {} (packet tests need root)", output.status, stderr.trim()))
    }
}

fn set_test_sysctls() {
    for (key, value) in [
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv6/icmp/ratelimit", "0"),
        ("ipv6/conf/all/disable_ipv6", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
    ] {
        write_sysctl(key, value);
    }
    // Before kernel 6.14, these two belong to the machine, and cannot be written in a namespace.
    for (key, value) in [("ipv4/icmp_msgs_per_sec", "1000000"), ("ipv4/icmp_msgs_burst", "100000")] {
        if sysctl_path(key).exists() {
            write_sysctl(key, value);
        }
    }
}

/// Sets `lo`, the first interface, up with `RTM_NEWLINK`, and waits for the kernel's answer.
fn set_lo_up() {
    const RTM_NEWLINK: u32 = 16;
    const REQUEST_AND_ACK: u32 = 5;
    const UP: u32 = 1;
    // nlmsghdr: length, type and flags, sequence, port. ifinfomsg: family and type, index, flags, mask of the flags.
    let words = [32, RTM_NEWLINK | REQUEST_AND_ACK << 16, 0, 0, 0, 1, UP, UP];
    let mut socket = Socket::open(Bus::Route).expect("a netlink socket can be opened");
    socket.send(&words.map(u32::to_ne_bytes).concat()).expect("the kernel takes messages");
    let answer = socket.receive().expect("the kernel answers");
    assert_eq!(decode::ack(answer).map(|ack| ack.errno), Some(0), "lo cannot be set up (packet tests need root)");
}

fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(key)
}

fn write_sysctl(key: &str, value: &str) {
    let path = sysctl_path(key);
    fs::write(&path, value).unwrap_or_else(|error| panic!("cannot write {value} to {}: {error}", path.display()));
}

/// Removes the namespaces of test processes that have ended.
fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A zombie still has a directory in `/proc`, but no executable.
        if owner(&name).is_some_and(|pid| fs::read_link(Path::new("/proc").join(pid).join("exe")).is_err()) {
            remove(&name);
        }
    }
}

fn owner(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.split('-').next()
}

fn remove(name: &str) {
    // No assertions: this also runs while a failed test unwinds.
    let path = Path::new(DIRECTORY).join(name);
    let Ok(namespace) = fs::metadata(&path) else { return };
    for pid in processes_in(&namespace) {
        let _gone_already = kill_process(pid, Signal::KILL);
    }
    // The same steps as those of `ip netns del`.
    if let Err(error) = unmount(&path, UnmountFlags::DETACH) {
        eprintln!("cannot unmount {}: {error}", path.display());
    }
    if let Err(error) = fs::remove_file(&path) {
        eprintln!("cannot remove {}: {error}", path.display());
    }
}

fn processes_in(namespace: &fs::Metadata) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let is_inside = |process: &fs::DirEntry| {
        // A process that ends meanwhile has no such file, and neither has an entry that is no process.
        let theirs = fs::metadata(process.path().join("ns/net"));
        theirs.is_ok_and(|theirs| (theirs.dev(), theirs.ino()) == (namespace.dev(), namespace.ino()))
    };
    let inside = processes.flatten().filter(is_inside);
    inside.filter_map(|process| process.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw).collect()
}
