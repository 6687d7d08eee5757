//! Checks whether this kernel lets this process program nf_tables, without a change to the kernel (O3). The check runs at every start, also
//! with `--init-only`, before anything is changed.
//!
//! The check sends one batch, which makes a table for each family, with a nat chain, a map, and rules with the statements of the proxy that
//! need a kernel module of their own. The batch ends with a command that cannot succeed ("the impossible command"), so that the kernel
//! checks all commands and keeps none of them. The check succeeds if the kernel refuses only that command. The kernel waits before it frees
//! a refused batch (`synchronize_rcu`), some 15 ms in our measurements, so all families share one batch.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, Command, CommitError, Connection, Field, Hashed, Hook, Refusal, Rule, Set, Statement,
    Table, TableName, Types, ValueType,
};

use crate::kernel::errno::{ENOENT, EPERM};
use component::privileges;
use rules::model::Family;

/// Why this process cannot program nf_tables on this kernel. Ends the start of the proxy.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The process lacks the capability.
    #[error(transparent)]
    NotPermitted(#[from] privileges::NotPermitted),
    /// The process has the capability in its user namespace, which the network namespace does not belong to.
    #[error(
        "not allowed to program nf_tables, because this network namespace belongs to another user namespace, in which CAP_NET_ADMIN of \
         this process does not count: run kube-proxy as root of the node (for pods: hostUsers not false), or let its user namespace have a \
         network namespace of its own"
    )]
    OtherUserNamespace,
    /// The process has the capability in the initial user namespace, whose processes may program each network namespace.
    #[error(
        "not allowed to program nf_tables, although this process has capability CAP_NET_ADMIN: a security module (SELinux, AppArmor) or \
         the seccomp profile of the container refuses it; allow netlink sockets of family netfilter there"
    )]
    Policy,
    /// A part of nf_tables is missing.
    #[error(
        "the kernel cannot do what mode nftables needs for {family}: it refused {refusal}; load kernel module {module} on the node, \
         or run a kernel that has it"
    )]
    Unsupported {
        /// The family that was tried.
        family: Family,
        /// The kernel module that the refused command needs.
        module: &'static str,
        /// The refused command, with the kernel's error.
        refusal: String,
    },
    /// The kernel gave an unexpected answer.
    #[error("cannot ask the kernel for nf_tables")]
    Failed(#[from] CommitError),
    /// The socket cannot be opened.
    #[error(
        "cannot open a netfilter netlink socket; load kernel module nfnetlink on the node, or run a kernel that has it"
    )]
    Socket(#[from] io::Error),
}

/// The family and the kernel module whose support a command of the batch tests.
#[derive(Clone, Copy)]
struct Trial {
    family: Family,
    /// The kernel module that the command needs.
    module: &'static str,
}

/// Checks the kernel for these families in the calling thread's network namespace. If `hashes` is true, checks also for the hash expression
/// that some schedulers need.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe(families: &[Family], hashes: bool) -> Result<(), ProbeError> {
    let (commands, trials): (Vec<_>, Vec<_>) = commands(families, hashes).into_iter().unzip();
    match Connection::open()?.commit(&commands) {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(refusals)) => check_refusals(&refusals, &trials),
        Err(CommitError::Socket(error)) if error.kind() == io::ErrorKind::PermissionDenied => Err(not_permitted()),
        Err(error) => Err(error.into()),
    }
}

/// The kernel module of nf_tables itself.
const CORE: &str = "nf_tables";

/// Returns the commands of the batch, each with what it tests. The last one is the impossible command.
fn commands(families: &[Family], hashes: bool) -> Vec<(Command, Trial)> {
    let of_family = |family: &Family| {
        let with_family = |(command, module)| (command, Trial { family: *family, module });
        commands_of(*family, hashes).into_iter().map(with_family).collect::<Vec<_>>()
    };
    let mut commands: Vec<(Command, Trial)> = families.iter().flat_map(of_family).collect();
    let impossible = TableName::new(Family::V4.into(), "kube-proxy-probe-that-does-not-exist");
    commands.push((Command::DeleteTable(impossible), Trial { family: Family::V4, module: CORE }));
    commands
}

/// Returns the commands that test a family, each with the kernel module that it needs.
fn commands_of(family: Family, hashes: bool) -> Vec<(Command, &'static str)> {
    let table = TableName::new(family.into(), "kube-proxy-probe");
    let base = BaseChain { kind: ChainType::Nat, hook: Hook::Prerouting, priority: -100 };
    let nat = Chain { name: "nat".into(), base: Some(base), comment: None };
    // This chain has no hook, so that the kernel does not check whether each statement is allowed at a hook.
    let chain = Chain { name: "statements".into(), base: None, comment: None };
    let random = Field::NumgenRandom(2);
    let map = Set::map("slots", Types::Of(vec![random]), ValueType::Verdict);
    let address = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let statements = [
        (Statement::FibLocal(FibAddress::Destination), "nft_fib"),
        (Statement::CtBit(CtBit::StateNew), "nft_ct"),
        (Statement::Vmap(vec![random], "slots".into()), "nft_numgen"),
        (Statement::Dnat((address, 80).into()), "nft_nat"),
        (Statement::MasqueradeFullyRandom, "nft_masq"),
        (Statement::Reject, "nft_reject"),
    ];
    let mut commands = vec![
        (Command::AddTable(Table { name: table.clone(), comment: None }), CORE),
        (Command::AddChain(table.clone(), nat), "nft_chain_nat"),
        (Command::AddChain(table.clone(), chain.clone()), CORE),
        (Command::AddSet(table.clone(), map.into()), CORE),
    ];
    let hashed = if family == Family::V4 { Hashed::IpSource } else { Hashed::Ip6Source };
    let hash = Field::Jhash { hashed, modulus: 2, seed: 1, offset: 0 };
    let hash = hashes.then(|| (Statement::Vmap(vec![hash], "slots".into()), "nft_hash"));
    commands.extend(statements.into_iter().chain(hash).map(|(statement, module)| {
        (Command::AddRule(table.clone(), chain.name.clone(), Rule::new([statement])), module)
    }));
    commands
}

/// The name of the initial user namespace in /proc (`PROC_USER_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// Why the kernel lets this process program nothing.
fn not_permitted() -> ProbeError {
    let is_initial =
        || fs::read_link("/proc/thread-self/ns/user").is_ok_and(|name| name.as_os_str() == INITIAL_USER_NAMESPACE);
    match privileges::check() {
        Err(error) => error.into(),
        Ok(()) if is_initial() => ProbeError::Policy,
        Ok(()) => ProbeError::OtherUserNamespace,
    }
}

/// Fails if the kernel refused any command other than the impossible one, which is the last of `trials`.
fn check_refusals(refusals: &[Refusal], trials: &[Trial]) -> Result<(), ProbeError> {
    let last = trials.len() - 1;
    match refusals.iter().find(|refusal| refusal.command != Some(last) || refusal.errno != ENOENT) {
        None => Ok(()),
        Some(refusal) if refusal.errno == EPERM => Err(not_permitted()),
        Some(refusal) => {
            let trial = refusal.command.and_then(|command| trials.get(command)).unwrap_or(&trials[last]);
            let Trial { family, module } = *trial;
            Err(ProbeError::Unsupported { family, module, refusal: refusal.to_string() })
        }
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
        let trials: Vec<_> = commands(&Family::BOTH, true).into_iter().map(|(_, trial)| trial).collect();
        let last = trials.len() - 1;
        let of = |refusals: &[Refusal]| check_refusals(refusals, &trials);
        assert!(of(&[refusal(Some(last), 2)]).is_ok());
        for refusal in [refusal(None, 1), refusal(Some(last), 1)] {
            let error = of(&[refusal]).unwrap_err().to_string();
            assert!(error.starts_with("not allowed to program nf_tables"), "{error}");
        }
        for (number, Trial { family, module }) in trials.iter().enumerate().take(last) {
            let error = of(&[refusal(Some(number), 2), refusal(Some(last), 2)]).unwrap_err().to_string();
            assert!(error.contains(&format!("for {family}: it refused `add chain`")), "{error}");
            assert!(error.contains(&format!("load kernel module {module} on the node")), "{error}");
        }
        let of_family = |family| trials.iter().take(last).filter(|trial| trial.family == family).count();
        assert!(of_family(Family::V4) > 8 && of_family(Family::V4) == of_family(Family::V6));
    }
}
