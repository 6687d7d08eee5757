//! Sets the kernel's sysctls of connection tracking, once at start and with `--init-only` (N1 to N4).
//!
//! The module compares each value of [`Conntrack`] with the kernel's value, and writes the values that differ. It does not write a value
//! that is right already, so that a process without permission to write (an unprivileged container after `--init-only`) can start. The
//! limit of connections (`nf_conntrack_max`) is one value for the whole machine. In the network namespace of a container that acts as a
//! node, as in kind, it cannot be set: the module leaves it, and logs a warning if it is smaller than configured. The module never lowers
//! the limit, because the machine's operator or another program may need the larger value.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tracing::{info, warn};

use component::config::Conntrack;

/// The largest value of `nf_conntrack_max` that the product of `maxPerCore` and the number of CPUs may set (N1).
const MAX: u64 = 1 << 20;
const LIMIT: &str = "nf_conntrack_max";

/// Why a sysctl could not be set. Ends the start of the proxy, unless it reads manifests (N4).
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The kernel has no such sysctl.
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
        /// The error.
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
        /// The present value.
        present: String,
        /// The error.
        error: io::Error,
    },
}

/// A sysctl with the value that the configuration requires and the present one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The file, below `/proc/sys` or `/sys`.
    pub path: PathBuf,
    /// The wanted value.
    pub wanted: u64,
    /// Whether a larger value than the wanted one is right, too.
    pub at_least: bool,
    /// The present value, or why it cannot be read.
    pub present: Result<u64, NoValue>,
    /// Whether the value can be written.
    pub writable: Writable,
}

/// Why a value cannot be read, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoValue {
    /// This process may not read the value.
    Forbidden(String),
    /// The kernel does not have the sysctl, or it cannot be read for another reason.
    Missing(String),
}

impl From<SysctlError> for NoValue {
    fn from(error: SysctlError) -> Self {
        match &error {
            SysctlError::Read { error: io, .. } if io.kind() == io::ErrorKind::PermissionDenied => {
                Self::Forbidden(error.to_string())
            }
            _ => Self::Missing(error.to_string()),
        }
    }
}

/// Whether a value can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// This process can write the value.
    Yes,
    /// This process cannot write the value.
    No,
    /// No process in this network namespace can write the value, because it is one value for the whole machine.
    Never,
}

impl Setting {
    /// Returns whether the present value meets the configuration.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let wanted = self.wanted;
        self.present.as_ref().is_ok_and(|now| *now == wanted || self.at_least && *now > wanted)
    }
}

/// Returns the sysctls that a proxy with these settings sets at its start, with their present values. Writes nothing.
#[must_use]
pub fn look(settings: &Conntrack) -> Vec<Setting> {
    look_below(settings, Path::new("/proc/sys"), Path::new("/sys"))
}

fn look_below(settings: &Conntrack, proc_sys: &Path, sys: &Path) -> Vec<Setting> {
    let directory = proc_sys.join("net/netfilter");
    let setting = |path: PathBuf, wanted: u64, at_least: bool| Setting {
        wanted,
        at_least,
        present: number(&path, wanted).map_err(NoValue::from),
        writable: match rustix::fs::access(&path, rustix::fs::Access::WRITE_OK) {
            Ok(()) => Writable::Yes,
            Err(_) if path.starts_with(&directory) && is_fixed(&path) => Writable::Never,
            Err(_) => Writable::No,
        },
        path,
    };
    let mut found = Vec::new();
    for (name, value) in wanted(settings, cpus(sys)) {
        let path = directory.join(name);
        let is_of_machine = name == LIMIT && is_fixed(&path);
        found.push(setting(path, value, name == LIMIT));
        if name == LIMIT && !is_of_machine {
            found.push(setting(sys.join("module/nf_conntrack/parameters/hashsize"), value / 4, true));
        }
    }
    found
}

/// Sets the sysctls below `/proc/sys` and `/sys` whose values differ from `settings`. Returns the written files with their new values.
///
/// # Errors
/// See [`SysctlError`]. Writes nothing if a file does not exist or this process may not write it. If the kernel refuses a value, the
/// earlier values have been written already.
pub fn apply(settings: &Conntrack) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
    apply_below(settings, Path::new("/proc/sys"), Path::new("/sys"))
}

fn apply_below(settings: &Conntrack, proc_sys: &Path, sys: &Path) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
    let changes = differing(settings, proc_sys, sys)?;
    for Change { path, value, present } in &changes {
        // Open each file only to check the permission, which does not change its value.
        let opened = fs::OpenOptions::new().write(true).open(path);
        opened.map_err(|error| SysctlError::Write {
            path: path.clone(),
            value: *value,
            present: present.clone(),
            error,
        })?;
    }
    let set = |Change { path, value, present }: Change| match fs::write(&path, value.to_string()) {
        Ok(()) => Ok((path, value)),
        Err(error) => Err(SysctlError::Write { path, value, present, error }),
    };
    changes.into_iter().map(set).collect()
}

/// A value to be set.
struct Change {
    path: PathBuf,
    value: u64,
    /// The kernel's present value.
    present: String,
}

/// Returns the changes for the values that differ from the kernel's, in the order in which they are written (N4).
fn differing(settings: &Conntrack, proc_sys: &Path, sys: &Path) -> Result<Vec<Change>, SysctlError> {
    let directory = proc_sys.join("net/netfilter");
    let mut changes = Vec::new();
    for (name, value) in wanted(settings, cpus(sys)) {
        let path = directory.join(name);
        let present = read(&path, value)?;
        if name == LIMIT {
            differing_limit(path, value, present, sys, &mut changes)?;
        } else if present.parse() != Ok(value) {
            changes.push(Change { path, value, present });
        }
    }
    Ok(changes)
}

/// Adds the changes of `nf_conntrack_max` and of the hash table's size, which are only raised (N2). If this network namespace cannot set
/// the limit, the function leaves the size alone too, because the kernel refuses both changes outside of the first network namespace.
fn differing_limit(
    path: PathBuf,
    value: u64,
    present: String,
    sys: &Path,
    changes: &mut Vec<Change>,
) -> Result<(), SysctlError> {
    let is_larger = present.parse().is_ok_and(|present: u64| present > value);
    let is_right = present.parse() == Ok(value);
    let is_fixed = is_fixed(&path);
    if is_larger {
        info!(entry = LIMIT, present, wanted = value, "The sysctl is larger than configured, and stays");
    } else if is_fixed && !is_right {
        warn!(
            entry = LIMIT,
            present,
            wanted = value,
            "The sysctl belongs to the machine and cannot be set in this network namespace"
        );
    } else if !is_right {
        changes.push(Change { path, value, present });
    }
    if is_fixed {
        return Ok(());
    }
    let path = sys.join("module/nf_conntrack/parameters/hashsize");
    let present = number(&path, value / 4)?;
    if present < value / 4 {
        changes.push(Change { path, value: value / 4, present: present.to_string() });
    }
    Ok(())
}

/// Returns the sysctls to set, as (file name, value), in the order in which they are written (N1, N3).
fn wanted(settings: &Conntrack, cpus: u64) -> Vec<(&'static str, u64)> {
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

/// Returns the value for `nf_conntrack_max`: `max_per_core` times the number of CPUs, or [`MAX`] if the product is larger. If the product
/// is at most [`MAX`], the value is at least `min`. Returns `None` if `max_per_core` is 0, which leaves the kernel's value (N1).
fn limit(settings: &Conntrack, cpus: u64) -> Option<u64> {
    let scaled = u64::from(settings.max_per_core) * cpus;
    match scaled {
        0 => None,
        scaled if scaled > MAX => Some(MAX),
        scaled => Some(scaled.max(settings.min.into())),
    }
}

/// Returns the number of CPUs that are online and have a directory `topology` in `/sys`. If `/sys` shows none, returns the number of CPUs
/// that this process may use.
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

/// Returns whether the file's mode allows no process to write it. The kernel makes machine-wide values read-only in all network namespaces
/// except the first.
fn is_fixed(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly())
}

fn number(path: &Path, value: u64) -> Result<u64, SysctlError> {
    let unreadable =
        |error| SysctlError::Read { path: path.to_owned(), error: io::Error::new(io::ErrorKind::InvalidData, error) };
    read(path, value)?.parse().map_err(|error: std::num::ParseIntError| unreadable(error.to_string()))
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
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SETTINGS: Conntrack = Conntrack {
        max_per_core: 32_768,
        min: 131_072,
        tcp_established: Some(Duration::from_secs(86_400)),
        tcp_close_wait: Some(Duration::from_millis(3_600_999)),
        udp: None,
        udp_stream: Some(Duration::ZERO),
        tcp_be_liberal: false,
    };

    /// A temporary directory that replaces `/proc/sys` and `/sys` in these tests.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(cpus: usize, values: &[(&str, &str)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for cpu in 0..cpus {
                machine.dir(&format!("sys/devices/system/cpu/cpu{cpu}/topology"));
            }
            for other in ["cpufreq", "cpuidle", "cpu9999"] {
                machine.dir(&format!("sys/devices/system/cpu/{other}"));
            }
            machine.dir("proc/net/netfilter");
            machine.dir("sys/module/nf_conntrack/parameters");
            values.iter().for_each(|(name, value)| fs::write(machine.path(name), format!("{value}\n")).unwrap());
            machine
        }

        fn dir(&self, path: &str) {
            fs::create_dir_all(self.0.path().join(path)).unwrap();
        }

        fn path(&self, name: &str) -> PathBuf {
            match name {
                "hashsize" => self.0.path().join("sys/module/nf_conntrack/parameters/hashsize"),
                name => self.0.path().join("proc/net/netfilter").join(name),
            }
        }

        fn apply(&self, settings: &Conntrack) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
            apply_below(settings, &self.0.path().join("proc"), &self.0.path().join("sys"))
        }
    }

    fn limit_of(max_per_core: u32, min: u32, cpus: u64) -> Option<u64> {
        limit(&Conntrack { max_per_core, min, ..SETTINGS }, cpus)
    }

    // The limit of connections is proportional to the number of CPUs. If that is above the cap of 1,048,576, the limit is the cap, and else
    // at least the configured minimum (N1).
    #[test]
    fn the_limit_follows_the_cpus_between_minimum_and_cap() {
        assert_eq!(limit_of(32_768, 131_072, 2), Some(131_072));
        assert_eq!(limit_of(32_768, 131_072, 8), Some(262_144));
        assert_eq!(limit_of(32_768, 131_072, 64), Some(1_048_576));
        assert_eq!(limit_of(32_768, 2_000_000, 64), Some(1_048_576), "the cap wins over the minimum");
        assert_eq!(limit_of(32_768, 2_000_000, 2), Some(2_000_000), "but only below the cap");
        assert_eq!(limit_of(0, 131_072, 8), None);
        assert_eq!(limit_of(u32::MAX, 0, 8), Some(1_048_576));
    }

    // Only CPUs that are online and have a directory `topology` count (N1).
    #[test]
    fn cpus_are_those_online_in_the_topology() {
        let machine = Machine::new(3, &[]);
        let sys = machine.0.path().join("sys");
        assert_eq!(cpus(&sys), 3);
        fs::write(sys.join("devices/system/cpu/cpu2/online"), "0\n").unwrap();
        fs::write(sys.join("devices/system/cpu/cpu1/online"), "1\n").unwrap();
        assert_eq!(cpus(&sys), 2);
        assert!(cpus(Path::new("/nowhere")) > 0);
    }

    // Only values that differ from the kernel's are written (N2, N3).
    #[test]
    fn values_that_differ_are_written() {
        let machine = Machine::new(
            8,
            &[
                ("nf_conntrack_max", "200000"),
                ("hashsize", "65000"),
                ("nf_conntrack_tcp_timeout_established", "432000"),
                ("nf_conntrack_tcp_timeout_close_wait", "60"),
            ],
        );
        let written = machine.apply(&SETTINGS).unwrap();
        let expected = [
            ("nf_conntrack_max", 262_144),
            ("hashsize", 65_536),
            ("nf_conntrack_tcp_timeout_established", 86_400),
            ("nf_conntrack_tcp_timeout_close_wait", 3_600),
        ];
        assert_eq!(written, expected.map(|(name, value)| (machine.path(name), value)));
        for (name, value) in expected {
            assert_eq!(fs::read_to_string(machine.path(name)).unwrap(), value.to_string());
        }
        assert_eq!(machine.apply(&SETTINGS).unwrap(), [], "a second time nothing differs");
    }

    // A limit of connections that is larger than configured stays; the other values are set (N2).
    #[test]
    fn a_larger_limit_of_connections_is_never_set_down() {
        let machine = Machine::new(
            8,
            &[
                ("nf_conntrack_max", "4194304"),
                ("hashsize", "1000"),
                ("nf_conntrack_tcp_timeout_established", "432000"),
                ("nf_conntrack_tcp_timeout_close_wait", "3600"),
            ],
        );
        let expected = [("hashsize", 65_536), ("nf_conntrack_tcp_timeout_established", 86_400)];
        assert_eq!(machine.apply(&SETTINGS).unwrap(), expected.map(|(name, value)| (machine.path(name), value)));
        assert_eq!(fs::read_to_string(machine.path("nf_conntrack_max")).unwrap(), "4194304\n");
        // Neither a smaller minimum nor the cap lowers the limit; a larger minimum raises it.
        let with = |max_per_core, min| machine.apply(&Conntrack { max_per_core, min, ..SETTINGS }).unwrap();
        assert!(with(1, 4_000_000).iter().all(|(path, _)| !path.ends_with("nf_conntrack_max")));
        assert_eq!(with(u32::MAX, 0), []);
        assert_eq!(with(1, 5_000_000)[0], (machine.path("nf_conntrack_max"), 5_000_000));
        assert_eq!(with(0, 6_000_000), [], "0 per CPU leaves it alone, whatever the minimum is");
    }

    // In the network namespace of a container that acts as a node, as in kind, the kernel refuses to change the limit and the size of the
    // hash table, so both stay unchanged, whatever the machine's limit is (N2).
    #[test]
    fn a_limit_of_the_machine_leaves_the_hash_table_alone() {
        for limit in ["4194304", "262144", "65536"] {
            let machine = Machine::new(8, &[("nf_conntrack_max", limit), ("hashsize", "1000")]);
            let limit_only = Conntrack { tcp_established: None, tcp_close_wait: None, ..SETTINGS };
            fs::set_permissions(machine.path("nf_conntrack_max"), Permissions::from_mode(0o444)).unwrap();
            assert_eq!(machine.apply(&limit_only).unwrap(), [], "{limit}");
            let found = look_below(&limit_only, &machine.0.path().join("proc"), &machine.0.path().join("sys"));
            let looked_at: Vec<&PathBuf> = found.iter().map(|setting| &setting.path).collect();
            assert_eq!(looked_at, [&machine.path("nf_conntrack_max")], "{limit}");
            assert_eq!(found[0].is_right(), limit != "65536", "{limit}");
        }
    }

    // A hash table that is larger than wanted keeps its size (N2).
    #[test]
    fn a_larger_hash_table_stays() {
        let machine = Machine::new(8, &[("nf_conntrack_max", "262144"), ("hashsize", "65537")]);
        let limit_only = Conntrack { tcp_established: None, tcp_close_wait: None, ..SETTINGS };
        assert_eq!(machine.apply(&limit_only).unwrap(), []);
    }

    // `nf_conntrack_tcp_be_liberal` is switched on and never off (N3).
    #[test]
    fn being_liberal_is_switched_on_and_never_off() {
        let machine = Machine::new(1, &[("nf_conntrack_tcp_be_liberal", "1")]);
        assert_eq!(machine.apply(&Conntrack::default()).unwrap(), []);
        let liberal = Conntrack { tcp_be_liberal: true, ..Conntrack::default() };
        assert_eq!(machine.apply(&liberal).unwrap(), []);
        fs::write(machine.path("nf_conntrack_tcp_be_liberal"), "0\n").unwrap();
        assert_eq!(machine.apply(&liberal).unwrap().len(), 1);
    }

    // A value that is right already needs no permission to write. The error about a wrong value says what the operator can do (N4).
    #[test]
    fn a_value_that_is_right_needs_no_permission_and_the_error_of_another_says_what_to_do() {
        // Link the sysctl to files of `/proc` that even root cannot write.
        let machine = Machine::new(1, &[]);
        let path = machine.path("nf_conntrack_udp_timeout");
        std::os::unix::fs::symlink("/proc/sys/kernel/ostype", &path).unwrap();
        let udp = Conntrack { udp: Some(Duration::from_secs(30)), ..Conntrack::default() };
        let error = machine.apply(&udp).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write 30 to {} (it is Linux)", path.display())), "{error}");
        assert!(error.contains("--init-only"), "{error}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", &path).unwrap();
        let right: u64 = fs::read_to_string(&path).unwrap().trim().parse().unwrap();
        let udp = Conntrack { udp: Some(Duration::from_secs(right)), ..udp };
        assert_eq!(machine.apply(&udp).unwrap(), []);
    }

    #[test]
    fn a_look_gives_each_value_and_writes_none() {
        let machine = Machine::new(
            8,
            &[
                ("nf_conntrack_max", "300000"),
                ("hashsize", "70000"),
                ("nf_conntrack_tcp_timeout_established", "86400"),
                ("nf_conntrack_tcp_timeout_close_wait", "often"),
            ],
        );
        let found = look_below(&SETTINGS, &machine.0.path().join("proc"), &machine.0.path().join("sys"));
        let right: Vec<(PathBuf, bool)> =
            found.iter().map(|setting| (setting.path.clone(), setting.is_right())).collect();
        let expected = [
            ("nf_conntrack_max", true),
            ("hashsize", true),
            ("nf_conntrack_tcp_timeout_established", true),
            ("nf_conntrack_tcp_timeout_close_wait", false),
        ];
        assert_eq!(right, expected.map(|(name, is_right)| (machine.path(name), is_right)));
        let why = |found: &Setting| match &found.present {
            Err(NoValue::Missing(why)) => why.clone(),
            other => panic!("{other:?}"),
        };
        assert!(why(&found[3]).contains("cannot read"), "{:?}", found[3]);
        assert_eq!(fs::read_to_string(machine.path("nf_conntrack_max")).unwrap(), "300000\n");
        let missing = Machine::new(1, &[]);
        let found = look_below(&SETTINGS, &missing.0.path().join("proc"), &missing.0.path().join("sys"));
        assert!(why(&found[0]).contains("load kernel module"), "{:?}", found[0]);
    }

    // Without connection tracking in the kernel, the error names the missing file and the module to load (N1).
    #[test]
    fn a_kernel_without_connection_tracking_is_named() {
        let error = Machine::new(1, &[]).apply(&SETTINGS).unwrap_err().to_string();
        assert!(error.contains("nf_conntrack_max does not exist") && error.contains("load kernel module"), "{error}");
    }
}
