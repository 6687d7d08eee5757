//! The kernel's connection-tracking settings (N1-N4), written once at start and with `--init-only`.
//!
//! Takes [`ConntrackSettings`], compares each value with the kernel's and writes what differs. What is right already is not
//! written, so a process that may not write (an unprivileged container after `--init-only`) starts all the same. The limit of
//! connections is the machine's: in a network namespace of a container that plays a node it cannot be set, and is left with a warning.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tracing::warn;

/// What the configuration says about connection tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Tracked connections a CPU; 0 leaves the limit alone.
    pub max_per_core: u32,
    /// The limit is at least this, however few CPUs there are.
    pub min: u32,
    /// How long an idle established TCP connection is remembered. `None` and zero leave it alone, as for the others.
    pub tcp_established: Option<Duration>,
    /// The same for TCP connections that the server has not closed yet.
    pub tcp_close_wait: Option<Duration>,
    /// The same for UDP flows without an answer.
    pub udp: Option<Duration>,
    /// The same for UDP flows with traffic both ways.
    pub udp_stream: Option<Duration>,
    /// Takes TCP packets outside the window for valid.
    pub tcp_be_liberal: bool,
}

/// The largest limit that is set (N1).
const MAX: u64 = 1 << 20;
const LIMIT: &str = "nf_conntrack_max";

/// Why a value could not be set. Fatal (N).
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The kernel has no such value.
    #[error("{} does not exist, so it cannot be set to {value}: load kernel module nf_conntrack on the node", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The wanted value.
        value: u64,
    },
    /// The value cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The value cannot be written.
    #[error(
        "cannot write {value} to {} (it is {present}): {error}; let a privileged init container run \
         `kube-proxy --init-only` with the same configuration, or set the conntrack value in the configuration to 0 to leave \
         the kernel's as it is",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The wanted value.
        value: u64,
        /// What it is now.
        present: String,
        /// Why.
        error: io::Error,
    },
}

/// Sets what differs, below `/proc/sys` and `/sys`. Gives the files that were written, with their values.
///
/// # Errors
/// See [`SysctlError`]. A value that does not exist or may not be written is found before any is set; what the kernel refuses is found
/// when it is its turn.
pub fn apply(settings: &ConntrackSettings) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
    apply_below(settings, Path::new("/proc/sys"), Path::new("/sys"))
}

fn apply_below(settings: &ConntrackSettings, proc_sys: &Path, sys: &Path) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
    let due = differing(settings, proc_sys, sys)?;
    for Due { path, value, present } in &due {
        // Opening changes nothing.
        let opened = fs::OpenOptions::new().write(true).open(path);
        opened.map_err(|error| SysctlError::Write {
            path: path.clone(),
            value: *value,
            present: present.clone(),
            error,
        })?;
    }
    let set = |Due { path, value, present }: Due| match fs::write(&path, value.to_string()) {
        Ok(()) => Ok((path, value)),
        Err(error) => Err(SysctlError::Write { path, value, present, error }),
    };
    due.into_iter().map(set).collect()
}

/// A value to be set.
struct Due {
    path: PathBuf,
    value: u64,
    /// What the kernel has now.
    present: String,
}

/// The values that the kernel does not have yet, in order (N4).
fn differing(settings: &ConntrackSettings, proc_sys: &Path, sys: &Path) -> Result<Vec<Due>, SysctlError> {
    let directory = proc_sys.join("net/netfilter");
    let mut due = Vec::new();
    for (name, value) in wanted(settings, cpus(sys)) {
        let path = directory.join(name);
        if name == LIMIT && is_fixed(&path) {
            let present = read(&path, value)?;
            if present.parse() != Ok(value) {
                warn!(
                    present,
                    wanted = value,
                    "{name} belongs to the machine and cannot be set in this network namespace"
                );
            }
            continue;
        }
        let present = read(&path, value)?;
        if present.parse() != Ok(value) {
            due.push(Due { path, value, present });
        }
        if name == LIMIT {
            let path = sys.join("module/nf_conntrack/parameters/hashsize");
            let present = number(&path, value / 4)?;
            // N2: larger is fine.
            if present < value / 4 {
                due.push(Due { path, value: value / 4, present: present.to_string() });
            }
        }
    }
    Ok(due)
}

/// The values to have, in order (N1, N3).
fn wanted(settings: &ConntrackSettings, cpus: u64) -> Vec<(&'static str, u64)> {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs()).filter(|seconds| *seconds > 0);
    let values = [
        (LIMIT, limit(settings, cpus)),
        ("nf_conntrack_tcp_be_liberal", settings.tcp_be_liberal.then_some(1)),
        ("nf_conntrack_tcp_timeout_established", seconds(settings.tcp_established)),
        ("nf_conntrack_tcp_timeout_close_wait", seconds(settings.tcp_close_wait)),
        ("nf_conntrack_udp_timeout", seconds(settings.udp)),
        ("nf_conntrack_udp_timeout_stream", seconds(settings.udp_stream)),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// N1: the cap comes before the minimum, which is only looked at below it.
fn limit(settings: &ConntrackSettings, cpus: u64) -> Option<u64> {
    let scaled = u64::from(settings.max_per_core) * cpus;
    match scaled {
        0 => None,
        scaled if scaled > MAX => Some(MAX),
        scaled => Some(scaled.max(settings.min.into())),
    }
}

/// The CPUs of the machine: those online with a place in the topology, else those that this process may use.
fn cpus(sys: &Path) -> u64 {
    let entries = fs::read_dir(sys.join("devices/system/cpu")).into_iter().flatten().flatten();
    let online = entries.filter(|entry| is_cpu(&entry.file_name().to_string_lossy()) && is_online(&entry.path()));
    match u64::try_from(online.count()).unwrap_or_default() {
        0 => thread::available_parallelism().ok().and_then(|count| u64::try_from(count.get()).ok()).unwrap_or(1),
        count => count,
    }
}

fn is_cpu(name: &str) -> bool {
    name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn is_online(cpu: &Path) -> bool {
    let offline = fs::read_to_string(cpu.join("online")).is_ok_and(|text| text.trim() == "0");
    cpu.join("topology").is_dir() && !offline
}

/// Whether nobody may write here, which is how the kernel shows a value of the machine in other network namespaces than its first.
fn is_fixed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly())
}

fn number(path: &Path, value: u64) -> Result<u64, SysctlError> {
    let odd =
        |error| SysctlError::Read { path: path.to_owned(), error: io::Error::new(io::ErrorKind::InvalidData, error) };
    read(path, value)?.parse().map_err(|error: std::num::ParseIntError| odd(error.to_string()))
}

fn read(path: &Path, value: u64) -> Result<String, SysctlError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(SysctlError::Missing { path: path.to_owned(), value })
        }
        Err(error) => Err(SysctlError::Read { path: path.to_owned(), error }),
    }
}

#[cfg(test)]
mod tests;
