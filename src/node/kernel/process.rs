//! Kernel settings of the process itself: the check of the kernel's version (O4), the score for the out-of-memory killer (O6), and the
//! limit of file descriptors. Also finds sockets that listen, the process that has a socket open, and running kube-proxies.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use tracing::warn;

use component::redact::redact;

/// The environment variable that, when not empty, makes [`check_kernel`] accept every kernel (O4).
pub const SKIP_VERSION_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";
/// The oldest kernel on which mode nftables is known to work, as in upstream's `pkg/proxy/nftables`.
const OLDEST: (u32, u32) = (5, 13);
const ATTEMPTS: u32 = 2;
/// The limit of file descriptors: enough for the connections of health probes, and listeners on some thousand health-check node ports. It
/// is not larger, because a credential plugin inherits the limit, and old programs close each possible descriptor when they start.
const OPEN_FILES: u64 = 65_536;
/// Flags with which kube-proxy does one job and exits.
const ENDS: [&str; 6] = ["--cleanup", "--init-only", "--write-config-to", "--version", "--help", "-h"];
/// At most this many characters of a command line are shown.
const SHOWN: usize = 100;

/// The error that the kernel is too old, or that its version is unknown. Ends the start of the proxy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "mode nftables needs Linux 5.13 or newer, and this node runs {release:?}; to start on it anyway, set {SKIP_VERSION_CHECK}=1"
)]
pub struct KernelTooOld {
    /// The kernel's release, such as `5.10.0`.
    pub(crate) release: String,
}

/// Checks the kernel's version, unless `skip`, the value of [`SKIP_VERSION_CHECK`], is set and not empty.
///
/// # Errors
/// See [`KernelTooOld`].
pub fn check_kernel(skip: Option<&OsStr>) -> Result<(), KernelTooOld> {
    check_release(&release(), skip)
}

/// Returns the kernel's release, such as `5.15.0-91-generic`; empty if it is unknown.
pub fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn check_release(release: &str, skip: Option<&OsStr>) -> Result<(), KernelTooOld> {
    if skip.is_some_and(|value| !value.is_empty()) || version(release).is_some_and(|version| version >= OLDEST) {
        return Ok(());
    }
    Err(KernelTooOld { release: release.to_owned() })
}

/// Returns major and minor version: 5 and 15 for `5.15.0-91-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A TCP socket that listens in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its inode number, by which the process that has it open is found.
    pub inode: String,
}

/// Returns the TCP sockets that listen in the network namespace of this thread; none if `proc` does not show them.
pub fn listening(proc: &Path) -> Vec<Listening> {
    let text = |name| fs::read_to_string(proc.join("thread-self/net").join(name)).unwrap_or_default();
    ["tcp", "tcp6"].map(text).iter().flat_map(|text| text.lines()).filter_map(listening_socket).collect()
}

/// Reads a line such as `0: 0100007F:2809 00000000:0000 0A ...`: number, local address and port, remote address and port, state. The tenth
/// word is the inode.
fn listening_socket(line: &str) -> Option<Listening> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (ip, port) = fields.get(1)?.split_once(':').filter(|_| fields.get(3) == Some(&LISTEN))?;
    // Words of four bytes in the byte order of this machine.
    let words = ip.as_bytes().chunks(8).map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok());
    let bytes = words.map(|word| word.map(u32::to_ne_bytes)).collect::<Option<Vec<_>>>()?.concat();
    let ip = <[u8; 4]>::try_from(&*bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    let address = SocketAddr::new(ip.ok()?, u16::from_str_radix(port, 16).ok()?);
    Some(Listening { address, inode: (*fields.get(9)?).to_owned() })
}

/// Looks among the processes that `counts` admits for the first one that has the socket with this inode open, and returns its directory
/// below `proc`. Does not find a process whose open files the calling process may not see.
pub fn with_socket(proc: &Path, inode: &str, counts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let link = format!("socket:[{inode}]");
    let has_it = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &*link))
    };
    processes(proc).filter(|process| counts(process)).find(has_it)
}

/// The directories below `proc` of all processes that the calling process sees.
fn processes(proc: &Path) -> impl Iterator<Item = PathBuf> {
    let is_process = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter(move |entry| is_process(&entry.file_name())).map(|entry| entry.path())
}

/// Returns whether processes, given by their directories below `proc`, are in the network namespace of the calling thread.
pub fn in_this_network(proc: &Path) -> impl Fn(&Path) -> bool {
    let namespace = fs::read_link(proc.join("thread-self/ns/net")).ok();
    move |process| namespace.is_some() && fs::read_link(process.join("ns/net")).ok() == namespace
}

/// Describes the kube-proxies, of this program or upstream's, that run in the network namespace of the calling thread. Leaves out the
/// calling process, the process whose directory is `known`, the commands of this program, and processes that do one job and exit.
pub fn proxies(proc: &Path, known: Option<&Path>) -> Vec<String> {
    let own = fs::read_link(proc.join("self")).unwrap_or_default();
    let namespace = fs::read_link(proc.join("thread-self/ns/net")).ok();
    // A network namespace that may not be read counts as this one, unless this process may read those of all processes in its user
    // namespace: then the process is outside.
    let sees_all = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    let is_elsewhere = |process: &Path| match fs::read_link(process.join("ns/net")) {
        Ok(other) => Some(other) != namespace,
        Err(error) => sees_all && error.kind() == ErrorKind::PermissionDenied,
    };
    let others =
        processes(proc).filter(|process| process.file_name() != Some(own.as_os_str()) && Some(&**process) != known);
    let proxies = others.filter(|process| goes_on(process) && !is_elsewhere(process));
    let describe =
        |process: PathBuf| Some(format!("process {}: {}", process.file_name()?.to_str()?, command_line(&process)?));
    let mut found: Vec<String> = proxies.filter_map(describe).collect();
    found.sort();
    found
}

/// Whether a process is a kube-proxy that runs until it is ended.
fn goes_on(process: &Path) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split_terminator('\0');
    words.next().is_some_and(is_kube_proxy)
        // Upstream's kube-proxy takes flags only: a first argument without a dash is a command of this program.
        && words.clone().next().is_none_or(|first| first.starts_with('-'))
        && !words.any(|word| ENDS.contains(&word.split('=').next().unwrap_or(word)))
}

fn is_kube_proxy(program: &str) -> bool {
    Path::new(program).file_name() == Some(OsStr::new("kube-proxy"))
}

/// The command line of a process for people: without secrets, and cut when it is long.
pub(crate) fn command_line(process: &Path) -> Option<String> {
    let line = fs::read(process.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    Some(redact(&line).chars().take(SHOWN).collect())
}

/// The name of the sync loop's thread. It distinguishes a running kube-proxy of this program from upstream's.
pub const SYNC_THREAD: &str = "sync";

/// Returns the directory below `proc` of a process that is a running kube-proxy of this program in the network namespace of the calling
/// thread, whether or not it holds the writer lock.
///
/// Such a process has the name `kube-proxy`, a thread that it gave the name [`SYNC_THREAD`], and CAP_NET_ADMIN in the user namespace of
/// this process. So a process that could not hold the lock never counts. An unprivileged user can do three things to look like the proxy:
/// choose the name of a process and, by a symbolic link to the program, the name that all its threads have at first; get every capability
/// in a user namespace of his own; and start a set-user-ID program. The real user id of such a program shows who started it.
pub fn running_proxy(proc: &Path) -> Option<PathBuf> {
    let is_here = in_this_network(proc);
    let user_namespace = fs::read_link(proc.join("thread-self/ns/user")).ok()?;
    let is_proxy = |process: &PathBuf| {
        goes_on(process)
            && is_here(process)
            && fs::read_link(process.join("ns/user")).is_ok_and(|other| other == user_namespace)
            && may_write_rules(&fs::read_to_string(process.join("status")).unwrap_or_default())
            && has_sync_thread(process)
    };
    processes(proc).find(is_proxy)
}

/// Whether a process with this `/proc/PID/status` has CAP_NET_ADMIN (a bit of the hexadecimal number `CapEff`) and is no set-user-ID
/// program, whose real user id differs from its effective one.
fn may_write_rules(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    let bits = field("CapEff:").and_then(|mut words| u64::from_str_radix(words.next()?, 16).ok()).unwrap_or(0);
    let mut users = field("Uid:").into_iter().flatten();
    let (real, effective) = (users.next(), users.next());
    real.is_some() && real == effective && CapabilitySet::from_bits_retain(bits).contains(CapabilitySet::NET_ADMIN)
}

/// Whether a thread has the name of the sync loop's thread. The first thread must not have this name: new threads inherit its name, which
/// anybody can choose with the name of the program.
fn has_sync_thread(process: &Path) -> bool {
    let has_name =
        |thread: &Path| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == SYNC_THREAD);
    let mut threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    !has_name(process) && threads.any(|thread| has_name(&thread.path()))
}

/// Sets this process's `oom_score_adj`, -1000 to 1000. When memory runs out, the kernel kills processes with a higher score first. A
/// failure is only logged (O6).
pub fn set_oom_score(score: i32) {
    set_oom_score_below(Path::new("/proc"), score);
}

fn set_oom_score_below(proc: &Path, score: i32) {
    let path = proc.join("self/oom_score_adj");
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        outcome = fs::write(&path, score.to_string());
        if outcome.is_ok() {
            return;
        }
    }
    if let Err(error) = outcome {
        warn!(
            err = %error, score,
            "Cannot set oom_score_adj; when memory is short, the kernel may end this process early"
        );
    }
}

/// Raises the soft limit of open files (RLIMIT_NOFILE), which is 1,024 on many systems, to `OPEN_FILES`, or to the hard limit if that is
/// lower. Returns the new soft limit. A failure is only logged.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (now, most) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let wanted = most.min(OPEN_FILES);
    if now >= wanted {
        return now;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            warn!(err = %error, limit = now, "Cannot raise the limit of open files");
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_read_in_both_families() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(listening(proc.path()), []);
        let net = proc.path().join("thread-self/net");
        fs::create_dir_all(&net).unwrap();
        let line =
            |address: &str, state: &str, inode: u32| format!(" 0: {address} 0:0 {state} 0:0 00:0 0 0 0 {inode} 1\n");
        let words = |ip: &[u32]| ip.iter().map(|word| format!("{:08X}", word.to_be())).collect::<String>();
        let v4 = words(&[u32::from(std::net::Ipv4Addr::LOCALHOST)]);
        let text =
            format!("  sl  local_address\n{}{}", line(&format!("{v4}:2809"), "0A", 7), line("0100007F:1F90", "01", 8));
        fs::write(net.join("tcp"), text).unwrap();
        let v6 = words(&[0xfd00_0000, 0, 0, 1]);
        fs::write(net.join("tcp6"), line(&format!("{v6}:2810"), "0A", 9)).unwrap();
        let socket =
            |address: &str, inode: &str| Listening { address: address.parse().unwrap(), inode: inode.to_owned() };
        assert_eq!(listening(proc.path()), [socket("127.0.0.1:10249", "7"), socket("[fd00::1]:10256", "9")]);
    }

    // Kernels before 5.13 are refused (O4).
    #[test]
    fn kernels_before_5_13_are_refused() {
        for release in ["5.13.0", "5.15.0-91-generic", "6.1.0", "10.0", "5.13-rc1"] {
            assert_eq!(check_release(release, None), Ok(()), "{release}");
        }
        for release in ["5.12.99", "4.19.0-26-amd64", "5", "", "six.1"] {
            assert_eq!(check_release(release, None), Err(KernelTooOld { release: release.to_owned() }), "{release}");
            assert!(check_release(release, Some("".as_ref())).is_err(), "empty does not skip");
            assert_eq!(check_release(release, Some("0".as_ref())), Ok(()), "any other value skips");
        }
        assert_eq!(check_kernel(None), Ok(()), "the kernel of the tests is new enough");
    }

    #[test]
    fn a_proxy_in_this_network_namespace_is_found_and_what_only_looks_is_not() {
        use std::os::unix::fs::symlink;
        let proc = tempfile::tempdir().unwrap();
        let add = |pid: &str, namespace: &str, line: &str| {
            let directory = proc.path().join(pid);
            fs::create_dir_all(directory.join("ns")).unwrap();
            fs::write(directory.join("cmdline"), line.replace(' ', "\0") + "\0").unwrap();
            symlink(namespace, directory.join("ns/net")).unwrap();
        };
        let here = "net:[1]";
        add("thread-self", here, "kube-proxy --cleanup");
        add("7", here, "/usr/local/bin/kube-proxy");
        symlink("7", proc.path().join("self")).unwrap();
        assert_eq!(proxies(proc.path(), None), [""; 0], "this process");
        for (pid, line) in [
            ("11", "kube-proxy top"),
            ("12", "kube-proxy --init-only --v=2"),
            ("13", "kube-proxy --write-config-to=f"),
            ("14", "grep kube-proxy"),
            ("15", ""),
        ] {
            add(pid, here, line);
        }
        add("16", "net:[2]", "kube-proxy --v=2");
        assert_eq!(proxies(proc.path(), None), [""; 0], "none of these goes on here");
        add("17", here, "/usr/local/bin/kube-proxy --config=/c --cleanup-timeout=1");
        fs::create_dir_all(proc.path().join("18")).unwrap();
        fs::write(proc.path().join("18/cmdline"), "kube-proxy\0").unwrap();
        let found = proxies(proc.path(), None);
        assert_eq!(
            found,
            ["process 17: /usr/local/bin/kube-proxy --config=/c --cleanup-timeout=1", "process 18: kube-proxy"]
        );
        let holder = proc.path().join("17");
        assert_eq!(
            proxies(proc.path(), Some(&holder)),
            ["process 18: kube-proxy"],
            "the one that is known is left out"
        );
        assert_eq!(proxies(Path::new("/nowhere"), None), [""; 0]);
    }

    // A process that could not write rules never counts as the running kube-proxy (Q11).
    #[test]
    fn only_a_process_that_may_write_rules_counts_as_the_running_proxy() {
        use std::os::unix::fs::symlink;
        let proc = tempfile::tempdir().unwrap();
        let add = |name: &str, (net, user): (&str, &str), (line, thread, capabilities): (&str, &str, &str)| {
            let directory = proc.path().join(name);
            fs::create_dir_all(directory.join("ns")).unwrap();
            fs::create_dir_all(directory.join("task/9")).unwrap();
            symlink(net, directory.join("ns/net")).unwrap();
            symlink(user, directory.join("ns/user")).unwrap();
            fs::write(directory.join("cmdline"), line).unwrap();
            fs::write(directory.join("task/9/comm"), thread).unwrap();
            fs::write(directory.join("comm"), "kube-proxy\n").unwrap();
            let status = format!("Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n");
            fs::write(directory.join("status"), status).unwrap();
        };
        let (here, proxy, net_admin) =
            (("net:[1]", "user:[1]"), "/usr/local/bin/kube-proxy\0--v=2\0", "0000000000001000");
        add("thread-self", here, ("kube-proxy\0check\0", "kube-proxy\n", net_admin));
        add("11", here, (proxy, "kube-proxy\n", net_admin));
        add("12", here, (proxy, "sync\n", "0000000000000400"));
        add("13", here, ("/usr/bin/other\0kube-proxy\0", "sync\n", net_admin));
        add("14", ("net:[2]", "user:[1]"), (proxy, "sync\n", net_admin));
        add("15", ("net:[1]", "user:[2]"), (proxy, "sync\n", "000001ffffffffff"));
        for pid in ["17", "18"] {
            add(pid, here, (proxy, "sync\n", net_admin));
        }
        fs::write(proc.path().join("17/comm"), "sync\n").unwrap();
        fs::write(proc.path().join("18/status"), "Uid:\t1000\t0\t0\t0\nCapEff:\t000001ffffffffff\n").unwrap();
        assert_eq!(
            running_proxy(proc.path()),
            None,
            "no sync thread, no capability, another name, elsewhere, a link, set-user-ID"
        );
        add("16", here, (proxy, "sync\n", "0000000000003000"));
        assert_eq!(running_proxy(proc.path()), Some(proc.path().join("16")));
        assert_eq!(running_proxy(Path::new("/nowhere")), None);
    }

    // The OOM score is written, and a failure is not fatal (O6).
    #[test]
    fn the_oom_score_is_written_and_a_failure_is_not_fatal() {
        let proc = tempfile::tempdir().unwrap();
        set_oom_score_below(proc.path(), -999);
        fs::create_dir(proc.path().join("self")).unwrap();
        set_oom_score_below(proc.path(), -999);
        assert_eq!(fs::read_to_string(proc.path().join("self/oom_score_adj")).unwrap(), "-999");
    }
}
