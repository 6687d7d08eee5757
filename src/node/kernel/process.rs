//! Kernel settings of the process itself: the check of the kernel's version (O4), the score for the out-of-memory killer (O6), and the
//! limit of file descriptors. Also lists the sockets that listen, and finds the process that has a socket open.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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

/// A TCP socket that listens in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its inode.
    pub inode: String,
}

/// Returns the TCP sockets that listen in the network namespace of this thread; none if `proc` does not show them.
pub fn listening(proc: &Path) -> Vec<Listening> {
    let text = |name| fs::read_to_string(proc.join("thread-self/net").join(name)).unwrap_or_default();
    ["tcp", "tcp6"].map(text).iter().flat_map(|text| text.lines()).filter_map(listening_socket).collect()
}

/// Reads a line such as `0: 0100007F:2809 00000000:0000 0A ...`: number, local address and port, remote ones, state; the inode comes tenth.
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

/// Returns the directory below `proc` of the first process that has the socket with this inode open, of those that `counts` admits. A process
/// whose open files this one may not see is not found.
pub fn with_socket(proc: &Path, inode: &str, counts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let link = format!("socket:[{inode}]");
    let has_it = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &*link))
    };
    let is_process = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = fs::read_dir(proc).ok()?.flatten().filter(|entry| is_process(&entry.file_name()));
    processes.map(|entry| entry.path()).filter(|process| counts(process)).find(has_it)
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
