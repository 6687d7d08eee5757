//! Drops the privileges that the running proxy, or the command `stats`, does not need.
//!
//! The process calls [`drop_all`] once, after the part of the start that needs privileges (for the proxy: sysctls and OOM score) and before
//! it starts other threads, so that every later thread inherits the restrictions. The function does the following, in this order:
//!
//! 1. sets no_new_privs: a program that is run later cannot have more privileges than this process;
//! 2. makes files read-only, and refuses signals to other processes and connections to their abstract Unix sockets (Landlock, where the
//!    kernel has it); files that are open already, such as the log, stay writable;
//! 3. drops every capability except CAP_NET_ADMIN and, for health-check node ports below 1024, CAP_NET_BIND_SERVICE;
//! 4. allows only the system calls that the proxy uses, and sockets of the families and netlink protocols that it uses (seccomp).
//!
//! Invariants: a restriction that the kernel does not have is reported, and the proxy runs without it; if the kernel has a restriction
//! and it cannot be applied, the start fails. With a kubeconfig that runs a credential plugin, 2 and 4 are left out, because the plugin
//! would inherit them.

mod syscalls;

use std::fmt;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// The capabilities that a process may keep, with their names: NET_ADMIN for nf_tables and conntrack, and NET_BIND_SERVICE for ports below
/// 1024.
const KEPT: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::NET_ADMIN, "NET_ADMIN"), (CapabilitySet::NET_BIND_SERVICE, "NET_BIND_SERVICE")];
/// An upper bound for the number of capabilities: the kernel keeps a set of capabilities in 64 bits.
const CAPABILITIES: u32 = 64;
/// The newest version of Landlock's interface that this program uses. An older kernel enforces only the rights that it knows.
const RIGHTS: ABI = ABI::V6;

/// The privileges that the process still needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether the process runs other programs, such as the credential plugin of a kubeconfig.
    pub programs: bool,
    /// Whether the process will listen on ports below 1024, such as health-check node ports.
    pub low_ports: bool,
    /// Whether the process moves bytes between sockets with system call splice, for node ports on loopback addresses.
    pub splice: bool,
}

/// The result of [`drop_all`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The names of the capabilities that are left.
    pub capabilities: Vec<&'static str>,
    /// Whether files are read-only.
    pub files: Restriction,
    /// Whether system calls are filtered.
    pub syscalls: Restriction,
}

/// The state of a restriction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// The kernel enforces the restriction, or the part of it that the kernel knows.
    Enforced,
    /// The kernel does not support the restriction, or the filter's library does not support this processor.
    Unavailable,
    /// The restriction was not applied, because the process has to run other programs.
    LeftOut,
}

impl fmt::Display for Restriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforced => "refused",
            Self::Unavailable => "possible: the kernel cannot refuse it",
            Self::LeftOut => "possible: the kubeconfig runs a program",
        })
    }
}

/// The error that the process lacks capability CAP_NET_ADMIN. Ends the start of the proxy.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "not allowed to program nf_tables, because this process has not got capability CAP_NET_ADMIN: run it as root, in a container with \
     securityContext.capabilities.add: [NET_ADMIN] and hostNetwork: true"
)]
pub struct NotPermitted;

/// Checks that this thread has CAP_NET_ADMIN. Succeeds if the capabilities cannot be read, because the start later checks whether the
/// kernel accepts nf_tables commands.
///
/// # Errors
/// See [`NotPermitted`].
pub fn check() -> Result<(), NotPermitted> {
    let has_net_admin = capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    if has_net_admin { Ok(()) } else { Err(NotPermitted) }
}

/// Why a privilege could not be dropped although the kernel can drop it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call about capabilities or no_new_privs failed.
    #[error("cannot give up privileges")]
    Capabilities(#[from] Errno),
    /// Landlock refused the rules that make files read-only.
    #[error("cannot make files read-only")]
    Files(#[from] RulesetError),
    /// The filter cannot be built or enforced.
    #[error("cannot filter system calls")]
    Syscalls(#[from] syscalls::Error),
}

/// Drops every privilege that the process does not need, for this thread and all threads that it starts.
///
/// # Errors
/// See [`Error`]. Privileges that were dropped before the error stay dropped.
pub fn drop_all(needs: Needs) -> Result<Dropped, Error> {
    set_no_new_privs(true)?;
    let files = if needs.programs { Restriction::LeftOut } else { make_files_read_only()? };
    let kept = if needs.low_ports { &KEPT[..] } else { &KEPT[..1] };
    let capabilities = keep_capabilities(kept)?;
    let syscalls = if needs.programs { Restriction::LeftOut } else { syscalls::filter(needs.splice)? };
    Ok(Dropped { capabilities, files, syscalls })
}

/// Forbids this thread to write, make, move or remove files. On Linux 6.12 and later (Landlock ABI 6) also forbids signals to processes,
/// and connections to abstract Unix sockets of processes, other than this process and its children.
fn make_files_read_only() -> Result<Restriction, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    // Landlock refuses each right that a ruleset handles and that no rule grants. This ruleset has no rules, so it refuses all rights that
    // it handles.
    let ruleset = ruleset.handle_access(AccessFs::from_write(RIGHTS))?.scope(Scope::from_all(RIGHTS))?;
    let status = ruleset.create()?.restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Restriction::Enforced,
        RulesetStatus::NotEnforced => Restriction::Unavailable,
    })
}

/// Drops every capability that is not in `names` from all sets of this thread. Returns the names of the remaining capabilities.
fn keep_capabilities(names: &[(CapabilitySet, &'static str)]) -> Result<Vec<&'static str>, Errno> {
    let held = capabilities(None)?.permitted;
    let kept = names.iter().fold(CapabilitySet::empty(), |all, (capability, _)| all | *capability);
    // Limit the bounding set first, because that needs CAP_SETPCAP. Without that capability the bounding set stays, which is harmless
    // because of no_new_privs.
    if held.contains(CapabilitySet::SETPCAP) {
        limit_bounding_set(kept)?;
    }
    // Ignore EINVAL, which is the error of kernels that have no ambient capabilities.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let left = held & kept;
    set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() })?;
    Ok(names.iter().filter(|(capability, _)| left.contains(*capability)).map(|(_, name)| *name).collect())
}

fn limit_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    for capability in (0..CAPABILITIES).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if kept.contains(capability) {
            continue;
        }
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel has no capability with this number or a higher one.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
