//! Gives up what the running proxy does not need.
//!
//! Called once, after the privileged part of the start (sysctls, OOM score, configuration) and before any other thread exists: what
//! is given up here is given up by every later thread too. In order:
//!
//! 1. no new privileges: no program that is ever run can have more than this one;
//! 2. files are read only, and other processes cannot be signalled or reached over abstract Unix sockets (Landlock, where the kernel
//!    has it);
//! 3. every capability but CAP_NET_ADMIN, and CAP_NET_BIND_SERVICE for health-check node ports below 1024;
//! 4. only the system calls that the proxy uses, and sockets of the families and netlink protocols that it uses (seccomp).
//!
//! Invariants: a step that the kernel does not offer is reported and does not keep the proxy from running; one that fails although
//! the kernel offers it ends the start. Whoever may run other programs (a kubeconfig with an exec plugin) keeps 2 and 4 open,
//! because the plugin inherits both.

mod capabilities;
mod files;
mod syscalls;

use std::fmt;

/// What the process still has to be able to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Run other programs, such as the exec plugin of a kubeconfig, which inherit what is given up.
    pub programs: bool,
}

/// What became of each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The capabilities that are left, by name.
    pub capabilities: Vec<&'static str>,
    /// Writing of files.
    pub files: Step,
    /// Other system calls.
    pub syscalls: Step,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is in force.
    Done,
    /// The kernel does not have it, or not all of it.
    Unavailable,
    /// Left out: other programs may have to run.
    LeftOut,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "refused",
            Self::Unavailable => "possible: the kernel cannot refuse it",
            Self::LeftOut => "possible: the kubeconfig runs a program",
        })
    }
}

/// Too little is there to begin with. Fatal.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "not allowed to program nf_tables, because this process has not got capability CAP_NET_ADMIN: run it as root, in a container with \
     securityContext.capabilities.add: [NET_ADMIN] and hostNetwork: true"
)]
pub struct NotPermitted;

/// Checks that this thread has what a proxy cannot do without.
///
/// # Errors
/// See [`NotPermitted`].
pub fn check() -> Result<(), NotPermitted> {
    if capabilities::has_net_admin() { Ok(()) } else { Err(NotPermitted) }
}

/// Why nothing could be given up although the kernel offers it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call about privileges or capabilities failed.
    #[error("cannot give up privileges")]
    Capabilities(#[from] rustix::io::Errno),
    /// Landlock.
    #[error("cannot make files read-only")]
    Files(#[from] landlock::RulesetError),
    /// The filter cannot be built or put in force.
    #[error("cannot filter system calls")]
    Syscalls(#[from] syscalls::Error),
}

/// Gives everything up that is not needed, for this thread and all that it starts.
///
/// # Errors
/// See [`Error`]. What was given up before the error stays given up.
pub fn drop_all(needs: Needs) -> Result<Dropped, Error> {
    rustix::thread::set_no_new_privs(true)?;
    let files = if needs.programs { Step::LeftOut } else { files::make_read_only()? };
    let capabilities = capabilities::keep_network()?;
    let syscalls = if needs.programs { Step::LeftOut } else { syscalls::filter()? };
    Ok(Dropped { capabilities, files, syscalls })
}

#[cfg(test)]
mod tests;
