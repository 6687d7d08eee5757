//! The commands that look at a node: the kernel's tables and the API in, words and JSON out; they never write to either, but for the table of `trace`.
//!
//! ```text
//! arguments ── clap ──► Command ──► NAME::run ──► Output ──► words, JSON, YAML
//!                                      ▲
//!                      tables: what the kernel lists -> frontends and endpoints
//! ```
//!
//! A command is a module with `Args` and `run`; the process has the list of them. Its exit code is that of its [`CommandOutcome`], or
//! [`COULD_NOT_LOOK`] when it gives an error, which the process shows.
//!
//! Invariants: no command takes the proxy's lock, starts its log or its threads, or needs more than CAP_NET_ADMIN; each works beside a
//! running proxy and, as far as its subject allows, without one; it leaves the processors to that proxy and to the pods when they want
//! them.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod changes;
pub mod check;
mod client;
pub mod explain;
pub mod history;
mod names;
pub mod other_proxy;
pub mod output;
pub mod running;
pub mod screen;
pub mod services;
mod tables;
pub mod top;
pub mod trace;
mod traffic;

/// The exit code of a command that gives an error: it could not look, so it says nothing about the node.
pub const COULD_NOT_LOOK: u8 = 2;

/// What a command found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// What was asked for, and nothing that is wrong.
    Fine,
    /// Something that is wrong, or a difference.
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

/// Says what is missing when the kernel does not let this process read nf_tables.
pub fn explain_rights(error: anyhow::Error) -> anyhow::Error {
    if error.chain().any(is_about_rights) {
        return error.context(
            "the kernel refuses to list its tables: this needs CAP_NET_ADMIN in the node's network namespace; run it as root on the \
             node, or in the proxy's container with kubectl exec",
        );
    }
    error
}

/// Whether an error is that a privilege is missing.
pub(crate) fn is_about_rights(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    match error.downcast_ref::<nft::ReadError>() {
        Some(nft::ReadError::Socket(error)) => is_denied(error),
        Some(_) => false,
        None => error.downcast_ref::<std::io::Error>().is_some_and(is_denied),
    }
}
