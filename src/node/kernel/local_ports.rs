//! The ports that the kernel gives to programs that ask for any free port, and the reserved ports, which it never gives (N5, N6).
//!
//! The kernel takes an ephemeral port from `net.ipv4.ip_local_port_range`, for IPv4 and IPv6, unless the port is in
//! `net.ipv4.ip_local_reserved_ports`. It does not know that kube-proxy serves a node port, because no socket listens on it: a program that
//! gets this port never sees the connections to it. [`LocalPorts`] reads both sysctls of this network namespace, judges ports, and reserves
//! them. Invariant: what is reserved already stays reserved.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use component::config::PortRanges;

/// The sysctl with the reserved ports, as an operator writes it.
const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";
/// No list of reserved ports is longer, in bytes: the longest one has every second port, each with up to five digits and a comma.
const LONGEST: usize = 6 << 15;

/// Why ports could not be reserved, or the reserved ports could not be read. Ends the start of a proxy that has to reserve ports (N5).
#[derive(Debug, thiserror::Error)]
pub enum LocalPortsError {
    /// A sysctl cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The ports cannot be reserved.
    #[error(
        "cannot write {ports} to {}: {error}; let a privileged init container run `kube-proxy --init-only` with the same configuration, \
         set the sysctl on the node, or leave nftables.reserveNodePorts empty",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The list that was to be written.
        ports: PortRanges,
        /// The error.
        error: io::Error,
    },
}

/// The ephemeral ports of this network namespace, and the reserved ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPorts {
    /// `ip_local_port_range`.
    pub ephemeral: PortRanges,
    /// `ip_local_reserved_ports`.
    pub reserved: PortRanges,
}

impl LocalPorts {
    /// Reads both sysctls.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub fn read() -> Result<Self, LocalPortsError> {
        Self::read_below(Path::new("/proc/sys"))
    }

    fn read_below(proc_sys: &Path) -> Result<Self, LocalPortsError> {
        let directory = proc_sys.join("net/ipv4");
        let range = text(&directory.join("ip_local_port_range"))?;
        let numbers: Vec<u16> = range.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let ephemeral = PortRanges::of(numbers.first().copied().zip(numbers.get(1).copied()));
        let path = directory.join("ip_local_reserved_ports");
        let reserved = text(&path)?.parse().map_err(|error: String| LocalPortsError::Read {
            path,
            error: io::Error::new(io::ErrorKind::InvalidData, error),
        })?;
        Ok(Self { ephemeral, reserved })
    }

    /// Returns whether the kernel may give this port to a program that asks for any free port.
    #[must_use]
    pub fn gives(&self, port: u16) -> bool {
        self.ephemeral.contains(port) && !self.reserved.contains(port)
    }

    /// Returns the ports among these that the kernel may give to a program that asks for any free port.
    #[must_use]
    pub fn given_of(&self, ports: &PortRanges) -> PortRanges {
        ports.common(&self.ephemeral).without(&self.reserved)
    }

    /// Returns the line for a file in `/etc/sysctl.d` that reserves these ports and the ports that are reserved already.
    #[must_use]
    pub fn line(&self, ports: &PortRanges) -> String {
        format!("{RESERVED} = {}", self.reserved.with(ports))
    }
}

/// Adds ports to the reserved ports. Returns the new list; `None` if all of them were reserved already: then nothing is written, so that a
/// process without permission to write can start (N5).
///
/// # Errors
/// When a sysctl cannot be read or written.
pub fn reserve(ports: &PortRanges) -> Result<Option<PortRanges>, LocalPortsError> {
    reserve_below(ports, Path::new("/proc/sys"))
}

fn reserve_below(ports: &PortRanges, proc_sys: &Path) -> Result<Option<PortRanges>, LocalPortsError> {
    if ports.is_empty() {
        return Ok(None);
    }
    let present = LocalPorts::read_below(proc_sys)?.reserved;
    let wanted = present.with(ports);
    if wanted == present {
        return Ok(None);
    }
    let path = proc_sys.join("net/ipv4/ip_local_reserved_ports");
    match fs::write(&path, wanted.to_string()) {
        Ok(()) => Ok(Some(wanted)),
        Err(error) => Err(LocalPortsError::Write { path, ports: wanted, error }),
    }
}

/// Reads a sysctl with one system call: the kernel cuts a list of ports at the end of the buffer, and gives nothing in the next read.
///
/// # Errors
/// The error of the kernel, or that the value is no text.
pub fn whole(path: &Path) -> io::Result<String> {
    let mut bytes = vec![0; LONGEST];
    let length = File::open(path)?.read(&mut bytes)?;
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn text(path: &Path) -> Result<String, LocalPortsError> {
    whole(path).map_err(|error| LocalPortsError::Read { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in place of `/proc/sys` with these values.
    fn sysctls(range: &str, reserved: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("net/ipv4")).unwrap();
        fs::write(directory.path().join("net/ipv4/ip_local_port_range"), format!("{range}\n")).unwrap();
        fs::write(directory.path().join("net/ipv4/ip_local_reserved_ports"), format!("{reserved}\n")).unwrap();
        directory
    }

    fn ports(text: &str) -> PortRanges {
        text.parse().unwrap()
    }

    // Node ports in the ephemeral range that are not reserved are found, and the line for `/etc/sysctl.d` keeps the ports that are reserved
    // already (N6).
    #[test]
    fn ports_that_programs_may_get_are_those_of_the_range_that_are_not_reserved() {
        let directory = sysctls("1024\t65535", "8080,30000-30100");
        let local = LocalPorts::read_below(directory.path()).unwrap();
        assert_eq!([30_000, 30_101, 80, 8080].map(|port| local.gives(port)), [false, true, false, false]);
        assert_eq!(local.given_of(&ports("80,30000-32767")), ports("30101-32767"));
        assert_eq!(local.line(&ports("30000-32767")), "net.ipv4.ip_local_reserved_ports = 8080,30000-32767");
        let default = LocalPorts::read_below(sysctls("32768\t60999", "").path()).unwrap();
        assert!(default.given_of(&ports("30000-32767")).is_empty());
    }

    // Ports are added to the reserved ports. A list that has them already is not written (N5).
    #[test]
    fn ports_are_added_to_what_is_reserved_and_nothing_is_removed() {
        let directory = sysctls("32768\t60999", "8080,31000-33000");
        let path = directory.path().join("net/ipv4/ip_local_reserved_ports");
        let reserve = |text: &str| reserve_below(&ports(text), directory.path());
        assert_eq!(reserve("").unwrap(), None);
        assert_eq!(reserve("30000-32767").unwrap(), Some(ports("8080,30000-33000")));
        assert_eq!(fs::read_to_string(&path).unwrap(), "8080,30000-33000");
        assert_eq!(reserve("30000-32767").unwrap(), None, "a second time nothing differs");
    }

    #[test]
    fn a_list_that_is_long_is_read_whole() {
        let every_second = (1..=u16::MAX).step_by(2).map(|port| (port, port));
        let all = PortRanges::of(every_second);
        let directory = sysctls("32768\t60999", &all.to_string());
        assert!(all.to_string().len() < LONGEST);
        assert_eq!(LocalPorts::read_below(directory.path()).unwrap().reserved, all);
    }

    #[test]
    fn what_cannot_be_read_or_written_is_named_with_the_remedy() {
        let directory = sysctls("32768\t60999", "8080");
        let path = directory.path().join("net/ipv4/ip_local_reserved_ports");
        fs::remove_file(&path).unwrap();
        let error = reserve_below(&ports("30000"), directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read") && error.contains("ip_local_reserved_ports"), "{error}");
        // A file of `/proc` with a number, which even root cannot write.
        std::os::unix::fs::symlink("/proc/sys/kernel/cap_last_cap", &path).unwrap();
        let present = fs::read_to_string(&path).unwrap();
        assert_eq!(reserve_below(&ports(present.trim()), directory.path()).unwrap(), None, "it is right already");
        let error = reserve_below(&ports("30000"), directory.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {},30000 to ", present.trim())), "{error}");
        assert!(error.contains("--init-only") && error.contains("nftables.reserveNodePorts"), "{error}");
    }
}
