//! The commands that inspect a node. They read the kernel's tables, the running proxy's pages and the API server. They change none of
//! these; the one exception is the temporary nftables table of `trace`.
//!
//! ```text
//! arguments ── clap ──► Command ──► NAME::run ──► Output ──► words, JSON, YAML
//!                                      ▲
//!                      tables: what the kernel lists -> frontends and endpoints
//! ```
//!
//! Each command is a module with `Args` and `run`; the binary has the list of commands. The exit code is that of the returned
//! [`CommandOutcome`]. If `run` returns an error, it is [`COULD_NOT_LOOK`], but for [`output::ReaderGone`], which has an exit code of its own.
//!
//! Invariants: no command takes the proxy's lock or needs more than CAP_NET_ADMIN. Each works beside a running proxy and, where that is
//! possible, without one. The binary raises the nice value of the process before a command runs, so that the proxy and the pods go first.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod changes;
pub mod check;
pub mod client;
pub mod explain;
pub mod history;
mod markup;
mod names;
pub mod other_proxy;
pub mod output;
pub mod probe;
pub mod running;
pub mod screen;
pub mod services;
pub mod stats;
mod tables;
pub mod top;
pub mod trace;
mod traffic;

/// The exit code of a command whose `run` returns an error, most often because the command could not read what it needs.
pub const COULD_NOT_LOOK: u8 = 2;

/// The result of a command, from which its exit code follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The command found no problem.
    Fine,
    /// The command found a problem or a difference.
    Found,
}

impl CommandOutcome {
    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Found => 1,
        }
    }
}

/// Adds to an error which privilege is missing and how to get it, if the error or one of its causes is a refused permission. Returns other
/// errors as they are.
pub fn explain_rights(error: anyhow::Error) -> anyhow::Error {
    if error.chain().any(is_about_rights) {
        return error.context(
            "the kernel refuses to list its tables: this needs CAP_NET_ADMIN in the node's network namespace; run it as root on the \
             node, or in the proxy's container with kubectl exec",
        );
    }
    error
}

/// Whether an error means that this process lacks a privilege. The causes of the error are not examined.
pub(crate) fn is_about_rights(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    match error.downcast_ref::<nft::ReadError>() {
        Some(nft::ReadError::Socket(error)) => is_denied(error),
        Some(_) => false,
        None => error.downcast_ref::<std::io::Error>().is_some_and(is_denied),
    }
}
