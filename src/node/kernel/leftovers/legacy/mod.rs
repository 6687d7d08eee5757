//! Removes kube-proxy's chains from the tables of iptables-legacy.
//!
//! The kernel lets a program read and replace only a whole table, so this module does so under the lock of iptables ([`lock`]). If the lock
//! file cannot be opened or created, such as in a container with a read-only file system, the table is read again right before it is
//! replaced, and the kernel refuses the replacement if the number of rules has changed. The remaining rules keep their counters.

mod lock;
#[cfg(test)]
mod tests;

use crate::kernel::errno::EAGAIN;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nft::iptables::{Malformed, Table, table_name};
use nft::xtables::Xtables;
use nft::{Family, TableOutline};

use super::plan::{self, Plan};
use super::{Report, TRIES, counted, still_used};
use crate::kernel::iptables::{names, read};

/// Why a table could not be read or cleaned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Kernel(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("other programs kept changing it")]
    Unstable,
}

/// Returns the name of a table in reports.
pub(super) fn label(family: Family, table: &str) -> String {
    table_name(family, table).to_string()
}

/// Returns the number of kube-proxy's chains in a table.
///
/// # Errors
/// See [`Error`].
pub(super) fn left(family: Family, table: &str) -> Result<usize, Error> {
    if !names(family).lines().any(|name| name == table) {
        return Ok(0);
    }
    let contents = read(&Xtables::open(family)?, table)?;
    let outline = Table::read(family, &contents)?.outline();
    Ok(plan::plan(table, "", &outline).chains.len())
}

/// Removes kube-proxy's chains from a table. Waits at most `patience` for another program to release the lock.
///
/// # Errors
/// See [`Error`]; after an error the table is unchanged.
pub(super) fn clean(family: Family, table: &str, patience: Duration, report: &mut Report) -> Result<(), Error> {
    // Do not take the lock if the table has no chains of kube-proxy, as on most nodes.
    if left(family, table)? == 0 {
        return Ok(());
    }
    let lock = lock::take(Path::new(lock::PATH), patience)?;
    let tables = Xtables::open(family)?;
    for _ in 0..TRIES {
        let old = read(&tables, table)?;
        let parsed = Table::read(family, &old)?;
        let outline = parsed.outline();
        let plan = plan::plan(table, &label(family, table), &outline);
        if plan.chains.is_empty() {
            report.warnings.extend(plan.warnings);
            return Ok(());
        }
        let removal = Removal::of(&plan, &outline);
        let (new, kept) = parsed.without(&removal.rules, &removal.chains)?;
        if lock.is_none() {
            let now = read(&tables, table)?;
            if !Table::read(family, &now)?.has_same_rules(&parsed) {
                continue;
            }
        }
        let counted_before = match tables.replace(table, old.layout.entries, &new) {
            Err(error) if error.raw_os_error() == Some(EAGAIN) => continue,
            outcome => outcome?,
        };
        let kept: Vec<_> = kept.iter().map(|index| counted_before.get(*index).copied().unwrap_or_default()).collect();
        // An error here is only a warning: the remaining rules then count from zero, but work as before.
        if let Err(error) = tables.add_counters(table, &kept) {
            report.warnings.push(format!("the counters of table {} begin anew: {error}", label(family, table)));
        }
        let (label, removed) = (label(family, table), plan.chains.len() - removal.used.len());
        report.removed.extend((removed > 0).then(|| format!("{} of table {label}", counted(removed, "chain"))));
        report.warnings.extend(plan.warnings);
        report.warnings.extend(removal.used.iter().map(|chain| still_used(chain, &label)));
        return Ok(());
    }
    Err(Error::Unstable)
}

/// The rules and chains to remove from a table.
struct Removal {
    /// The rules to remove, as indices into the table's entries: all rules in kube-proxy's chains, and the jumps to these chains.
    rules: BTreeSet<usize>,
    /// The chains to remove with all their rules.
    chains: BTreeSet<Arc<str>>,
    /// The chains of kube-proxy to empty but keep, because rules of other programs jump to them.
    used: BTreeSet<Arc<str>>,
}

impl Removal {
    fn of(plan: &Plan, outline: &TableOutline) -> Self {
        let chains: BTreeSet<Arc<str>> = plan.chains.iter().cloned().collect();
        let jumps: BTreeSet<u64> = plan.jumps.iter().map(|(_, handle)| *handle).collect();
        let (gone, stay): (Vec<_>, Vec<_>) =
            outline.rules.iter().partition(|rule| chains.contains(&rule.chain) || jumps.contains(&rule.handle));
        let used = stay.iter().filter_map(|rule| rule.target.clone()).filter(|to| chains.contains(to)).collect();
        Self {
            rules: gone.iter().filter_map(|rule| usize::try_from(rule.handle).ok()).collect(),
            chains: chains.difference(&used).cloned().collect(),
            used,
        }
    }
}
