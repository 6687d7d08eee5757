//! Checks whether this kernel lets this process program nf_tables, without a change (O3). At every start, and with `--init-only`, before
//! anything is changed.
//!
//! Sends one batch that makes a table with a nat chain and then has an impossible command, so that the kernel checks all commands and
//! keeps none. The impossible command must be the only one that it refuses.

use std::io;

use nft::{BaseChain, Chain, ChainType, Command, CommitError, Connection, Hook, Refusal, Table, TableName};

use crate::model::Family;

/// The kernel does not accept our rules. Fatal.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The capability is missing, or is that of another user namespace.
    #[error(
        "not allowed to program nf_tables, because capability CAP_NET_ADMIN is missing, or does not count in this network namespace, \
         which belongs to another user namespace: run kube-proxy as root of the node (for pods: hostUsers not false), with hostNetwork: true"
    )]
    NotPermitted,
    /// A part of nf_tables is missing.
    #[error(
        "the kernel cannot do what mode nftables needs for {family}: it refused {refusal}; load kernel modules nf_tables, nft_chain_nat \
         and nft_nat on the node, or run a kernel that has them"
    )]
    Unsupported {
        /// The family that was tried.
        family: Family,
        /// What was refused.
        refusal: String,
    },
    /// The kernel gave an unexpected answer.
    #[error("cannot ask the kernel for nf_tables")]
    Failed(#[from] CommitError),
    /// The socket failed.
    #[error(
        "cannot open a netfilter netlink socket; load kernel module nfnetlink on the node, or run a kernel that has it"
    )]
    Socket(#[from] io::Error),
}

/// Tries a family in the calling thread's network namespace.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe(family: Family) -> Result<(), ProbeError> {
    let commands = commands(family);
    let last = commands.len() - 1;
    match Connection::open()?.commit(&commands) {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(refusals)) => check_refusals(family, &refusals, last),
        Err(CommitError::Socket(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(ProbeError::NotPermitted)
        }
        Err(error) => Err(error.into()),
    }
}

fn commands(family: Family) -> [Command; 3] {
    let table = TableName::new(family.into(), "kube-proxy-probe");
    let base = BaseChain { kind: ChainType::Nat, hook: Hook::Prerouting, priority: -100 };
    let chain = Chain { name: "probe".into(), base: Some(base), comment: None };
    let impossible = TableName::new(family.into(), "kube-proxy-probe-that-does-not-exist");
    [
        Command::AddTable(Table { name: table.clone(), comment: None }),
        Command::AddChain(table, chain),
        Command::DeleteTable(impossible),
    ]
}

fn check_refusals(family: Family, refusals: &[Refusal], last: usize) -> Result<(), ProbeError> {
    const EPERM: i32 = 1;
    const ENOENT: i32 = 2;
    match refusals.iter().find(|refusal| refusal.command != Some(last) || refusal.errno != ENOENT) {
        None => Ok(()),
        Some(refusal) if refusal.errno == EPERM => Err(ProbeError::NotPermitted),
        Some(refusal) => Err(ProbeError::Unsupported { family, refusal: refusal.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(command: Option<usize>, errno: i32) -> Refusal {
        Refusal { command, element: None, object: "add chain".into(), errno, message: None }
    }

    // Only the impossible command may be refused (O3).
    #[test]
    fn only_the_impossible_command_may_be_refused() {
        assert!(check_refusals(Family::V4, &[refusal(Some(2), 2)], 2).is_ok());
        assert!(matches!(check_refusals(Family::V4, &[refusal(None, 1)], 2), Err(ProbeError::NotPermitted)));
        assert!(matches!(check_refusals(Family::V4, &[refusal(Some(2), 1)], 2), Err(ProbeError::NotPermitted)));
        let error = check_refusals(Family::V6, &[refusal(Some(1), 2), refusal(Some(2), 2)], 2).unwrap_err().to_string();
        assert!(error.contains("for IPv6: it refused `add chain`"), "{error}");
    }
}
