//! Removes what a kube-proxy left in the kernel: tables of mode nftables, and the chains of modes iptables and ipvs where
//! iptables-nft made them (O1, O2).
//!
//! Takes nothing, gives a [`Report`]. Everything goes over netlink. Each table is first unlinked and emptied in one
//! transaction, and its chains are deleted by another: kernels before 6.2 keep references for a moment. What others own stays as it
//! is; a chain of ours that somebody else uses stays, empty. Goes on after an error. A proxy that runs does it after its first sync and
//! one table at a time ([`CleanUp`]): until then the rules of the other mode are all that serves the node.
//!
//! What cannot be removed this way, legacy iptables and IPVS, is looked for and told.

mod plan;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nft::{Command, CommitError, Connection, Family, ReadError, TableName};
use tracing::{error, info, warn};

/// The table of mode nftables, ours and upstream's.
const TABLE: &str = "kube-proxy";
/// The table of our fast path, in family `inet`.
pub const FAST_PATH: &str = "kube-proxy-flowtable";
const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// How often a table is looked at anew when others write to it in between.
const TRIES: usize = 5;
/// The interface of mode ipvs.
const IPVS_INTERFACE: &str = "kube-ipvs0";

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;

/// What a clean-up did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was removed.
    pub removed: Vec<String>,
    /// What stays, why, and what to do about it.
    pub warnings: Vec<String>,
    /// What went wrong; with any the process ends with exit code 1 after `--cleanup`.
    pub errors: Vec<String>,
}

impl Report {
    /// Writes it to the log. What failed is an error, or, if it is tried again after some time, a warning that says so.
    pub fn log(&self, again: Option<Duration>) {
        self.removed.iter().for_each(|what| info!("removed {what}"));
        self.warnings.iter().for_each(|text| warn!("{text}"));
        self.errors.iter().for_each(|text| match again {
            None => error!("clean-up: {text}"),
            Some(again) => warn!("clean-up: {text}; trying again in {} min", again.as_secs().div_ceil(60)),
        });
    }
}

/// Something that may be left, in the order in which it is removed.
#[derive(Clone, Debug)]
enum Part {
    /// A table of mode nftables, or of the fast path.
    Table(TableName),
    /// kube-proxy's chains in a table of iptables.
    Chains(TableName),
    /// What can only be told of.
    OutOfReach,
}

/// A clean-up that goes on in steps, so that whoever does it can do other things in between.
#[derive(Debug)]
pub struct CleanUp {
    left: VecDeque<Part>,
    failed: VecDeque<Part>,
}

impl CleanUp {
    /// What modes iptables and ipvs left: after a normal start (O2). With `fast_path` also the table of the fast path.
    #[must_use]
    pub fn of_other_modes(fast_path: bool) -> Self {
        let table = fast_path.then(|| Part::Table(TableName::new(Family::Inet, FAST_PATH)));
        Self::of(table.into_iter())
    }

    /// Everything that any kube-proxy left.
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

    /// Removes the next part, in the calling thread's network namespace. `None` when all parts had their turn.
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

    /// Takes what failed on again, for the next steps. Says whether there is any.
    pub fn again(&mut self) -> bool {
        self.left.append(&mut self.failed);
        !self.left.is_empty()
    }
}

/// Removes everything that any kube-proxy left, in the calling thread's network namespace: `--cleanup` (O1).
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
enum Failure {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("others kept changing it")]
    Unstable,
}

/// Says whether there was one.
fn delete_table(connection: &mut Connection, table: &TableName) -> Result<bool, Failure> {
    if connection.outline(table)?.is_none() {
        return Ok(false);
    }
    match connection.commit(&[Command::DeleteTable(table.clone())]) {
        Ok(_) => Ok(true),
        Err(error) if refused_with(&error, ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn clean_table(connection: &mut Connection, table: &TableName, report: &mut Report) -> Result<(), Failure> {
    for _ in 0..TRIES {
        let Some(outline) = connection.outline(table)? else { return Ok(()) };
        let plan = plan::plan(table, &outline);
        if !plan.chains.is_empty() {
            match connection.commit(&plan.unlink) {
                Ok(_) => {}
                // Somebody else deleted a rule or a chain in the meantime.
                Err(error) if refused_with(&error, ENOENT) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        report.warnings.extend(plan.warnings);
        return delete_chains(connection, table, plan.chains, report);
    }
    Err(Failure::Unstable)
}

/// Deletes empty chains, except those that something still leads to.
fn delete_chains(
    connection: &mut Connection,
    table: &TableName,
    mut chains: Vec<Arc<str>>,
    report: &mut Report,
) -> Result<(), Failure> {
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
                "chain {name} of table {table} is empty now, but stays: rules or maps of others lead to it; delete them first"
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

/// What netlink's nf_tables cannot reach, and what to do about it.
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

    // O1
    #[test]
    fn what_cannot_be_removed_is_told() {
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
