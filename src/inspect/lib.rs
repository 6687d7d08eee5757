//! The commands that inspect a node. They read the kernel's tables and the API server, and print text, JSON or YAML. They write to
//! neither; the one exception is the temporary nftables table of `trace`.
//!
//! ```text
//! arguments ── clap ──► Command ──► NAME::run ──► Output ──► words, JSON, YAML
//!                                      ▲
//!                      tables: what the kernel lists -> frontends and endpoints
//! ```
//!
//! Each command is a module with `Args` and `run`; the binary has the list of commands. The exit code is that of the returned
//! [`CommandOutcome`], or [`COULD_NOT_LOOK`] when `run` returns an error, which the binary prints.
//!
//! Invariants: no command takes the proxy's lock, starts its logging or its threads, or needs more than CAP_NET_ADMIN. Each works beside
//! a running proxy and, where that is possible, without one. Commands run with a lower CPU priority (`nice`) than the proxy and the pods.

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

/// The exit code of a command that fails: it could not read what it needs, so it says nothing about the state of the node.
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

/// Adds the missing privilege to an error, when the kernel does not let this process read nf_tables.
pub fn explain_rights(error: anyhow::Error) -> anyhow::Error {
    if error.chain().any(is_about_rights) {
        return error.context(
            "the kernel refuses to list its tables: this needs CAP_NET_ADMIN in the node's network namespace; run it as root on the \
             node, or in the proxy's container with kubectl exec",
        );
    }
    error
}

/// Whether an error means that this process lacks a privilege.
pub(crate) fn is_about_rights(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    match error.downcast_ref::<nft::ReadError>() {
        Some(nft::ReadError::Socket(error)) => is_denied(error),
        Some(_) => false,
        None => error.downcast_ref::<std::io::Error>().is_some_and(is_denied),
    }
}
