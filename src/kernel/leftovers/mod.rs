//! Removes the rules that a kube-proxy left in the kernel: tables of mode nftables, and the chains of modes iptables and ipvs where
//! iptables-nft made them (O1, O2).
//!
//! Takes nothing, gives a [`Report`]. Everything goes over netlink. Each table is first unlinked and emptied in one
//! transaction, and its chains are deleted by another: kernels before 6.2 keep references for a moment. Rules of other
//! programs stay as they are; a chain of kube-proxy that another program uses stays, empty. Goes on after an error. A running proxy cleans
//! up after its first sync, one table at a time ([`CleanUp`]): until then only the rules of the other mode serve the node.
//!
//! Legacy iptables and IPVS cannot be removed this way: the report names them.

mod plan;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nft::{Command, CommitError, Connection, Family, ReadError, TableName};
use tracing::{error, info, warn};

use crate::logging::duration;

/// The table of mode nftables, ours and upstream's.
const TABLE: &str = "kube-proxy";
/// The table of our fast path, in family `inet`.
pub(crate) const FAST_PATH: &str = "kube-proxy-flowtable";
const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// How often the clean-up of a table is tried when other programs write to it at the same time.
const TRIES: usize = 5;
/// The interface of mode ipvs.
const IPVS_INTERFACE: &str = "kube-ipvs0";

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;

/// The result of a clean-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The removed objects.
    pub removed: Vec<String>,
    /// The objects that stay, why, and what to do about them.
    pub warnings: Vec<String>,
    /// Failures; with any the process ends with exit code 1 after `--cleanup`.
    pub errors: Vec<String>,
}

impl Report {
    /// Writes it to the log. A failure is an error, or, if the clean-up is tried again after some time, a warning.
    pub(crate) fn log(&self, again: Option<Duration>) {
        self.removed.iter().for_each(|what| info!(what, "Removed what another mode or a former run left"));
        self.warnings.iter().for_each(|reason| warn!(reason, "Something of another mode stays"));
        self.errors.iter().for_each(|text| match again {
            None => error!(err = text, "Clean-up failed"),
            Some(again) => warn!(err = text, retryAfter = %duration(again), "Clean-up failed; trying again"),
        });
    }
}

/// A part of the clean-up. The parts are removed in the order of the variants.
#[derive(Clone, Debug)]
enum Part {
    /// A table of mode nftables, or of the fast path.
    Table(TableName),
    /// kube-proxy's chains in a table of iptables.
    Chains(TableName),
    /// Rules that are not in nf_tables, which can only be reported.
    OutOfReach,
}

/// A clean-up in steps, between which the sync loop can do other things.
#[derive(Debug)]
pub struct CleanUp {
    left: VecDeque<Part>,
    failed: VecDeque<Part>,
}

impl CleanUp {
    /// The rules of modes iptables and ipvs, for a normal start (O2). With `fast_path` also the table of the fast path.
    #[must_use]
    pub fn of_other_modes(fast_path: bool) -> Self {
        let table = fast_path.then(|| Part::Table(TableName::new(Family::Inet, FAST_PATH)));
        Self::of(table.into_iter())
    }

    /// The rules of all modes.
    fn of_everything() -> Self {
        let ours = FAMILIES.map(|family| TableName::new(family, TABLE));
        Self::of(ours.into_iter().chain([TableName::new(Family::Inet, FAST_PATH)]).map(Part::Table))
    }

    fn of(tables: impl Iterator<Item = Part>) -> Self {
        let chains = FAMILIES.into_iter().flat_map(|family| plan::TABLES.map(|name| TableName::new(family, name)));
        Self {
            left: tables.chain(chains.map(Part::Chains)).chain([Part::OutOfReach]).collect(),
            failed: VecDeque::new(),
        }
    }

    /// Removes the next part, in the calling thread's network namespace. `None` when no part is left.
    pub fn step(&mut self) -> Option<Report> {
        let part = self.left.pop_front()?;
        let mut report = Report::default();
        match Connection::open() {
            Ok(mut connection) => remove(&mut connection, &part, &mut report),
            Err(error) => report.errors.push(format!("cannot open a netfilter netlink socket: {error}")),
        }
        if !report.errors.is_empty() {
            self.failed.push_back(part);
        }
        Some(report)
    }

    /// Has the next steps try the parts that failed. Gives whether there are any.
    pub fn retry(&mut self) -> bool {
        self.left.append(&mut self.failed);
        !self.left.is_empty()
    }
}

/// What modes iptables and ipvs left in the calling thread's network namespace; changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Chains that a start of this program removes, in words.
    pub(crate) removable: Vec<String>,
    /// Rules that it cannot remove, and what to do about them.
    pub(crate) out_of_reach: Vec<String>,
}

/// Looks for the rules of other modes.
///
/// # Errors
/// When a table cannot be read.
pub(crate) fn look() -> Result<Left, ReadError> {
    let mut connection = Connection::open()?;
    let mut left = Left { out_of_reach: out_of_reach(Path::new("/proc")), ..Left::default() };
    for part in CleanUp::of_other_modes(false).left {
        let Part::Chains(table) = part else { continue };
        let chains = connection.outline(&table)?.map_or(0, |outline| plan::plan(&table, &outline).chains.len());
        if chains > 0 {
            left.removable.push(format!("{chains} {} of table {table}", if chains == 1 { "chain" } else { "chains" }));
        }
    }
    Ok(left)
}

/// Removes the rules of all modes, in the calling thread's network namespace: `--cleanup` (O1).
#[must_use]
pub fn remove_all() -> Report {
    let mut clean_up = CleanUp::of_everything();
    let mut all = Report::default();
    while let Some(Report { removed, warnings, errors }) = clean_up.step() {
        all.removed.extend(removed);
        all.warnings.extend(warnings);
        all.errors.extend(errors);
    }
    all
}

fn remove(connection: &mut Connection, part: &Part, report: &mut Report) {
    match part {
        Part::Table(table) => match delete_table(connection, table) {
            Ok(true) => report.removed.push(format!("table {table}")),
            Ok(false) => {}
            Err(error) => report.errors.push(format!("cannot remove table {table}: {error}")),
        },
        Part::Chains(table) => {
            if let Err(error) = clean_table(connection, table, report) {
                report.errors.push(format!("cannot remove kube-proxy's chains from table {table}: {error}"));
            }
        }
        Part::OutOfReach => report.warnings.extend(out_of_reach(Path::new("/proc"))),
    }
}

/// Why something could not be removed.
#[derive(Debug, thiserror::Error)]
enum CleanUpError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("other programs kept changing it")]
    Unstable,
}

/// Deletes a table. Gives whether there was one.
fn delete_table(connection: &mut Connection, table: &TableName) -> Result<bool, CleanUpError> {
    if connection.outline(table)?.is_none() {
        return Ok(false);
    }
    match connection.commit(&[Command::DeleteTable(table.clone())]) {
        Ok(_) => Ok(true),
        Err(error) if refused_with(&error, ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn clean_table(connection: &mut Connection, table: &TableName, report: &mut Report) -> Result<(), CleanUpError> {
    for _ in 0..TRIES {
        let Some(outline) = connection.outline(table)? else { return Ok(()) };
        let plan = plan::plan(table, &outline);
        if !plan.chains.is_empty() {
            match connection.commit(&plan.unlink) {
                Ok(_) => {}
                // Another program deleted a rule or a chain in the meantime.
                Err(error) if refused_with(&error, ENOENT) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        report.warnings.extend(plan.warnings);
        return delete_chains(connection, table, plan.chains, report);
    }
    Err(CleanUpError::Unstable)
}

/// Deletes empty chains, except those that rules or maps still refer to.
fn delete_chains(
    connection: &mut Connection,
    table: &TableName,
    mut chains: Vec<Arc<str>>,
    report: &mut Report,
) -> Result<(), CleanUpError> {
    while !chains.is_empty() {
        let commands: Vec<_> =
            chains.iter().map(|name| Command::DeleteChain(table.clone(), Arc::clone(name))).collect();
        let refusals = match connection.commit(&commands) {
            Ok(_) => {
                report.removed.push(format!("{} chains of table {table}", chains.len()));
                return Ok(());
            }
            Err(CommitError::Refused(refusals)) => refusals,
            Err(error) => return Err(error.into()),
        };
        let expected = refusals.iter().all(|refusal| [EBUSY, ENOENT].contains(&refusal.errno));
        let Some(mut indices) = refusals.iter().map(|refusal| refusal.command).collect::<Option<Vec<_>>>() else {
            return Err(CommitError::Refused(refusals).into());
        };
        if !expected {
            return Err(CommitError::Refused(refusals).into());
        }
        for refusal in refusals.iter().filter(|refusal| refusal.errno == EBUSY) {
            let name = refusal.command.map_or("?", |index| &chains[index]);
            report.warnings.push(format!(
                "chain {name} of table {table} is empty now, but stays: rules or maps of other programs refer to it; delete them first"
            ));
        }
        indices.sort_unstable();
        indices.dedup();
        for index in indices.into_iter().rev() {
            chains.remove(index);
        }
    }
    Ok(())
}

fn refused_with(error: &CommitError, errno: i32) -> bool {
    matches!(error, CommitError::Refused(refusals) if refusals.iter().all(|refusal| refusal.errno == errno))
}

/// The rules that nf_tables cannot reach, and what to do about them.
fn out_of_reach(proc: &Path) -> Vec<String> {
    // Of the calling thread: its network namespace may differ from the process's.
    let net = proc.join("thread-self/net");
    let read = |name: &str| fs::read_to_string(net.join(name)).unwrap_or_default();
    let mut warnings = Vec::new();
    if read("dev").lines().any(|line| line.trim_start().starts_with(&format!("{IPVS_INTERFACE}:"))) {
        warnings.push(format!(
            "interface {IPVS_INTERFACE} exists: kube-proxy in mode ipvs left it, with IPVS virtual servers and ipsets, which keep \
             serving old addresses. To remove them: `ipvsadm --clear`, `ip link delete {IPVS_INTERFACE}`, and `ipset destroy` for \
             each KUBE- set; or restart the node"
        ));
    }
    for (file, program) in [("ip_tables_names", "iptables-legacy"), ("ip6_tables_names", "ip6tables-legacy")] {
        let names = read(file);
        let tables: Vec<&str> = names.lines().filter(|name| plan::TABLES.contains(name)).collect();
        if !tables.is_empty() {
            warnings.push(format!(
                "legacy iptables tables exist ({}); rules that kube-proxy left in them stay in force. Look with \
                 `{program}-save | grep KUBE-`; if there are any, run upstream's `kube-proxy --cleanup` or restart the node",
                tables.join(", ")
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    // Rules out of reach are reported (O1).
    #[test]
    fn rules_out_of_reach_are_reported() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(out_of_reach(proc.path()), [""; 0]);
        let net = proc.path().join("thread-self/net");
        fs::create_dir_all(&net).unwrap();
        fs::write(net.join("dev"), "Inter-|\n    lo: 0 0\n  kube-ipvs0x: 0\n").unwrap();
        fs::write(net.join("ip_tables_names"), "raw\n").unwrap();
        assert_eq!(out_of_reach(proc.path()), [""; 0], "not kube-proxy's");
        fs::write(net.join("dev"), "Inter-|\n    lo: 0 0\n kube-ipvs0: 0\n").unwrap();
        fs::write(net.join("ip_tables_names"), "raw\nnat\nfilter\n").unwrap();
        let warnings = out_of_reach(proc.path());
        assert!(warnings[0].contains("ip link delete kube-ipvs0"), "{warnings:?}");
        assert!(warnings[1].contains("(nat, filter)"), "{warnings:?}");
        assert_eq!(warnings.len(), 2);
    }
}
