//! Kernel settings of the process itself: the check of the kernel's version (O4), the score for the out-of-memory killer (O6), and the
//! limit of file descriptors. Also finds processes: the one that has a socket open, and a kube-proxy of this program that has not written yet.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use tracing::warn;

/// The environment variable that, when not empty, makes [`check_kernel`] accept every kernel (O4).
pub const SKIP_VERSION_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";
/// The oldest kernel on which mode nftables is known to work, as in upstream's `pkg/proxy/nftables`.
const OLDEST: (u32, u32) = (5, 13);
const ATTEMPTS: u32 = 2;
/// The limit of file descriptors: enough for the connections of health probes, and listeners on some thousand health-check node ports. It
/// is not larger, because a credential plugin inherits the limit, and old programs close each possible descriptor when they start.
const OPEN_FILES: u64 = 65_536;

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

/// Returns the directory below `proc` of the first process that has the socket with this inode open, of those that `counts` admits. A process
/// whose open files this one may not see is not found.
pub fn with_socket(proc: &Path, inode: &str, counts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let link = format!("socket:[{inode}]");
    let has_it = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &*link))
    };
    processes(proc).filter(|process| counts(process)).find(has_it)
}

/// The directories below `proc` of all processes that this one sees.
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

/// The name of the sync loop's thread, by which a running kube-proxy of this program is told from upstream's.
pub const SYNC_THREAD: &str = "sync";

/// Returns the directory below `proc` of a process that is a running kube-proxy of this program in the network namespace of the calling
/// thread, whether or not it holds the writer lock.
///
/// Such a process has the name `kube-proxy`, a thread of the name [`SYNC_THREAD`], and CAP_NET_ADMIN in the user namespace of this
/// process. So no process counts that could not hold the lock: an unprivileged user can choose both names, and can get every capability in
/// a user namespace of its own.
pub fn running_proxy(proc: &Path) -> Option<PathBuf> {
    let is_here = in_this_network(proc);
    let user_namespace = fs::read_link(proc.join("thread-self/ns/user")).ok()?;
    let is_proxy = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let program = line.split(|byte| *byte == 0).next().map(OsStr::from_bytes);
        program.and_then(|program| Path::new(program).file_name()) == Some(OsStr::new("kube-proxy"))
            && is_here(process)
            && fs::read_link(process.join("ns/user")).is_ok_and(|other| other == user_namespace)
            && may_write_rules(process)
            && has_sync_thread(process)
    };
    processes(proc).find(is_proxy)
}

/// Whether a process has CAP_NET_ADMIN, which `status` shows as a bit of a number in hexadecimal.
fn may_write_rules(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    CapabilitySet::from_bits_retain(bits).contains(CapabilitySet::NET_ADMIN)
}

fn has_sync_thread(process: &Path) -> bool {
    let mut threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    threads.any(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim_end() == SYNC_THREAD))
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

    // Nobody is taken for the running kube-proxy who could not be it (Q11).
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
            fs::write(directory.join("status"), format!("Name:\tx\nCapEff:\t{capabilities}\n")).unwrap();
        };
        let (here, proxy) = (("net:[1]", "user:[1]"), "/usr/local/bin/kube-proxy\0--v=2\0");
        add("thread-self", here, ("kube-proxy\0check\0", "kube-proxy\n", "0000000000001000"));
        add("11", here, (proxy, "kube-proxy\n", "0000000000001000"));
        add("12", here, (proxy, "sync\n", "0000000000000400"));
        add("13", here, ("/usr/bin/other\0kube-proxy\0", "sync\n", "0000000000001000"));
        add("14", ("net:[2]", "user:[1]"), (proxy, "sync\n", "0000000000001000"));
        add("15", ("net:[1]", "user:[2]"), (proxy, "sync\n", "000001ffffffffff"));
        assert_eq!(running_proxy(proc.path()), None, "upstream's, no capability, a name, elsewhere, another user");
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
