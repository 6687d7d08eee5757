//! Removes tables of mode nftables as a whole, and kube-proxy's chains from the tables of iptables-nft.
//!
//! One transaction deletes the jumps to the chains and the rules in them, and a second transaction deletes the chains, because kernels
//! before 6.2 keep references to a chain for a moment.

use std::sync::Arc;

use nft::{Command, CommitError, Connection, ReadError, TableName};

use super::{Report, TRIES, counted, plan};
use crate::kernel::errno::{EBUSY, ENOENT};

/// Why a table or a chain could not be removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CleanUpError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("other programs kept changing it")]
    Unstable,
}

/// Returns the number of kube-proxy's chains in a table of iptables-nft.
pub(super) fn left(connection: &mut Connection, table: &TableName) -> Result<usize, ReadError> {
    let outline = connection.outline(table)?;
    Ok(outline.map_or(0, |outline| plan::plan(&table.name, "", &outline).chains.len()))
}

/// Deletes a table. Returns false if it does not exist.
pub(super) fn delete_table(connection: &mut Connection, table: &TableName) -> Result<bool, CleanUpError> {
    if connection.outline(table)?.is_none() {
        return Ok(false);
    }
    match connection.commit(&[Command::DeleteTable(table.clone())]) {
        Ok(_) => Ok(true),
        Err(error) if refused_with(&error, ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes kube-proxy's chains from a table of iptables-nft.
pub(super) fn clean_table(
    connection: &mut Connection,
    table: &TableName,
    report: &mut Report,
) -> Result<(), CleanUpError> {
    for _ in 0..TRIES {
        let Some(outline) = connection.outline(table)? else { return Ok(()) };
        let plan = plan::plan(&table.name, &table.to_string(), &outline);
        if !plan.chains.is_empty() {
            let jumps = plan.jumps.into_iter().map(|(chain, handle)| Command::DeleteRule(table.clone(), chain, handle));
            let flushes = plan.chains.iter().map(|name| Command::FlushChain(table.clone(), Arc::clone(name)));
            match connection.commit(&jumps.chain(flushes).collect::<Vec<_>>()) {
                Ok(_) => {}
                // Another program deleted a rule or a chain in the meantime: make a new plan.
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
                report.removed.push(format!("{} of table {table}", counted(chains.len(), "chain")));
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
            report.warnings.push(super::still_used(name, &table.to_string()));
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
