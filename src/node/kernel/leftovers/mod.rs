//! Removes what a kube-proxy left in the kernel: tables of mode nftables; the chains of modes iptables and ipvs, whether iptables-nft or
//! iptables-legacy made them; and the virtual servers, the interface and the ipsets of mode ipvs (O1, O2).
//!
//! The clean-up returns a [`Report`]. It talks to the kernel directly and runs no program. Objects of other programs stay unchanged; a
//! chain of kube-proxy that another program uses is emptied and stays. The clean-up continues after an error. A running proxy cleans up
//! only after its first sync, because until then the rules of the other mode serve the node; it cleans up in steps ([`CleanUp`]), between
//! which syncs can run.

mod ipset;
mod ipvs;
mod legacy;
mod nftables;
mod plan;

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use ipnet::IpNet;
use nft::{Connection, Family, TableName};
use tracing::{error, info, warn};

use component::logging::duration;
use ipvs::Ipvs;
use nftables::CleanUpError;

/// The table of mode nftables, which has the same name in this program and in upstream's kube-proxy.
const TABLE: &str = "kube-proxy";
/// The table of this program's fast path (`--flowtable`), in family `inet`.
pub const FAST_PATH: &str = "kube-proxy-flowtable";
const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// How often the clean-up of a table is tried when other programs write to it at the same time.
const TRIES: usize = 5;
/// How long `--cleanup` waits for another program to release the lock of iptables. A running proxy does not wait but tries again later.
const PATIENCE: Duration = Duration::from_secs(5);

/// The result of a clean-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Texts that name the removed objects.
    pub removed: Vec<String>,
    /// Texts about objects that stay, with the reason, and about other effects of the clean-up that an operator may have to know.
    pub warnings: Vec<String>,
    /// The failures. If there is one, `--cleanup` ends with exit code 1.
    pub errors: Vec<String>,
}

impl Report {
    /// Logs the report. Logs failures as errors, or as warnings if the clean-up is tried again after the time `again`.
    pub fn log(&self, again: Option<Duration>) {
        self.removed.iter().for_each(|what| info!(what, "Removed what another mode or a former run left"));
        self.warnings.iter().for_each(|reason| warn!(reason, "Cannot remove rules of another proxy mode"));
        self.errors.iter().for_each(|text| match again {
            None => error!(err = text, "Clean-up failed"),
            Some(again) => warn!(err = text, retryAfter = %duration(again), "Clean-up failed; trying again"),
        });
    }
}

/// A part of the clean-up: what one call of [`CleanUp::step`] removes. The parts are removed in the order of the variants.
#[derive(Clone, Debug)]
enum Part {
    /// A table of mode nftables, or of the fast path.
    Table(TableName),
    /// The virtual servers and the interface of mode ipvs.
    Ipvs,
    /// Kube-proxy's chains in a table of iptables-nft.
    Chains(TableName),
    /// Kube-proxy's chains in a table of iptables-legacy.
    Legacy(TableName),
    /// The ipsets of mode ipvs. The kernel deletes them only after the rules that use them.
    Ipsets,
}

/// A clean-up in steps, so that the sync loop can run between two steps.
pub struct CleanUp {
    left: VecDeque<Part>,
    failed: VecDeque<Part>,
    ipvs: Ipvs,
    /// How long to wait for another program to release the lock of iptables.
    patience: Duration,
}

impl CleanUp {
    /// Returns a clean-up of what modes iptables and ipvs left, for a normal start (O2). If `fast_path` is true, the clean-up also deletes
    /// the table of the fast path. Call this before the process drops its privileges, because it opens a socket for mode ipvs.
    #[must_use]
    pub fn of_other_modes(fast_path: bool) -> Self {
        let table = fast_path.then(|| Part::Table(TableName::new(Family::Inet, FAST_PATH)));
        Self::of(table.into_iter(), Duration::ZERO)
    }

    /// Keeps the virtual servers of IPVS with addresses in these CIDRs.
    #[must_use]
    pub fn keeping(mut self, excluded: Vec<IpNet>) -> Self {
        self.ipvs.excluded = excluded;
        self
    }

    /// Returns a clean-up of what all modes left, including the tables of this program.
    fn of_everything() -> Self {
        let ours = FAMILIES.map(|family| TableName::new(family, TABLE));
        Self::of(ours.into_iter().chain([TableName::new(Family::Inet, FAST_PATH)]).map(Part::Table), PATIENCE)
    }

    fn of(tables: impl Iterator<Item = Part>, patience: Duration) -> Self {
        let of_iptables =
            || FAMILIES.into_iter().flat_map(|family| plan::TABLES.map(|name| TableName::new(family, name)));
        Self {
            left: tables
                .chain([Part::Ipvs])
                .chain(of_iptables().map(Part::Chains))
                .chain(of_iptables().map(Part::Legacy))
                .chain([Part::Ipsets])
                .collect(),
            failed: VecDeque::new(),
            ipvs: Ipvs::open(),
            patience,
        }
    }

    /// Removes the next part, in the calling thread's network namespace. `None` when no part is left.
    pub fn step(&mut self) -> Option<Report> {
        let part = self.left.pop_front()?;
        let mut report = Report::default();
        self.remove(&part, &mut report);
        if !report.errors.is_empty() {
            self.failed.push_back(part);
        }
        Some(report)
    }

    /// Queues the parts that failed for the next steps. Returns whether any part is queued.
    pub fn retry(&mut self) -> bool {
        self.left.append(&mut self.failed);
        !self.left.is_empty()
    }

    fn remove(&mut self, part: &Part, report: &mut Report) {
        let (what, outcome) = match part {
            Part::Table(table) => (format!("table {table}"), remove_table(table, report).map_err(text)),
            Part::Ipvs => ("what mode ipvs left".to_owned(), self.ipvs.remove(report).map_err(text)),
            Part::Chains(table) => {
                let outcome = connection().and_then(|mut open| nftables::clean_table(&mut open, table, report));
                (format!("kube-proxy's chains from table {table}"), outcome.map_err(text))
            }
            Part::Legacy(TableName { family, name }) => (
                format!("kube-proxy's chains from table {}", legacy::label(*family, name)),
                legacy::clean(*family, name, self.patience, report).map_err(text),
            ),
            Part::Ipsets => ("the ipsets of mode ipvs".to_owned(), ipset::destroy(report).map_err(text)),
        };
        report
            .errors
            .extend(outcome.err().map(|error| format!("cannot remove {what}: {error}; by hand: {}", by_hand(part))));
    }
}

/// Returns the shell commands that remove a part, for an operator to run where the kernel does not let this process remove it. The commands
/// for chains of iptables also remove kubelet's chains, which kubelet makes again within a minute.
fn by_hand(part: &Part) -> String {
    let restored = |family: Family, table: &str, kind: &str| {
        let tools = if family == Family::Ip6 { "ip6tables" } else { "iptables" };
        format!("`{tools}-{kind}-save -t {table} | grep -v KUBE- | {tools}-{kind}-restore -T {table}`")
    };
    match part {
        Part::Table(table) => format!("`nft delete table {table}`"),
        Part::Chains(TableName { family, name }) => restored(*family, name, "nft"),
        Part::Legacy(TableName { family, name }) => restored(*family, name, "legacy"),
        Part::Ipvs => {
            "`ipvsadm -ln`, `ipvsadm -D` for each virtual server of kube-proxy, `ip link delete kube-ipvs0`".to_owned()
        }
        Part::Ipsets => "`ipset list -n`, `ipset destroy` for each KUBE- set".to_owned(),
    }
}

fn remove_table(table: &TableName, report: &mut Report) -> Result<(), CleanUpError> {
    if nftables::delete_table(&mut connection()?, table)? {
        report.removed.push(format!("table {table}"));
    }
    Ok(())
}

fn connection() -> Result<Connection, CleanUpError> {
    Connection::open().map_err(|error| nft::ReadError::Socket(error).into())
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Returns text such as `1 chain` or `2 chains`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Returns the warning about a chain of kube-proxy that stays because other programs use it.
fn still_used(chain: &str, table: &str) -> String {
    format!(
        "chain {chain} of table {table} is empty now, but stays: rules or maps of other programs refer to it; delete them first"
    )
}

/// What modes iptables and ipvs left in the calling thread's network namespace, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The objects that a start of this program removes.
    pub removable: Vec<String>,
    /// The tables and other places that could not be examined, each with the reason.
    pub unknown: Vec<String>,
}

/// Looks for objects that modes iptables and ipvs left. Changes nothing.
///
/// # Errors
/// Fails when a table of nf_tables cannot be read.
pub fn look() -> Result<Left, nft::ReadError> {
    let mut connection = Connection::open()?;
    let mut left = Left::default();
    for part in CleanUp::of_other_modes(false).left {
        let (chains, table) = match &part {
            Part::Chains(table) => (nftables::left(&mut connection, table)?, table.to_string()),
            Part::Legacy(TableName { family, name }) => {
                let label = legacy::label(*family, name);
                let chains = legacy::left(*family, name);
                (chains.unwrap_or_else(|error| left.not_known(&format!("table {label}"), &error)), label)
            }
            Part::Ipvs => {
                let found = ipvs::left().unwrap_or_else(|error| left.not_known("interfaces", &error));
                left.removable.extend(found);
                continue;
            }
            Part::Ipsets => {
                let found = ipset::left().unwrap_or_else(|error| left.not_known("ipsets", &error));
                left.removable.extend((!found.is_empty()).then(|| counted(found.len(), "ipset")));
                continue;
            }
            Part::Table(_) => continue,
        };
        left.removable.extend((chains > 0).then(|| format!("{} of table {table}", counted(chains, "chain"))));
    }
    Ok(left)
}

impl Left {
    fn not_known<T: Default>(&mut self, what: &str, why: &dyn Display) -> T {
        self.unknown.push(format!("cannot look at {what}: {why}"));
        T::default()
    }
}

/// Removes what all modes left in the calling thread's network namespace, for `--cleanup` (O1).
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

#[cfg(test)]
mod tests {
    use super::*;

    // If the kernel does not let this process remove a part, the error names the commands to do it (O1).
    #[test]
    fn each_part_has_the_commands_that_remove_it() {
        let table = |family, name| TableName::new(family, name);
        assert_eq!(by_hand(&Part::Table(table(Family::Ip, "kube-proxy"))), "`nft delete table ip kube-proxy`");
        assert_eq!(
            by_hand(&Part::Chains(table(Family::Ip6, "nat"))),
            "`ip6tables-nft-save -t nat | grep -v KUBE- | ip6tables-nft-restore -T nat`"
        );
        assert_eq!(
            by_hand(&Part::Legacy(table(Family::Ip, "filter"))),
            "`iptables-legacy-save -t filter | grep -v KUBE- | iptables-legacy-restore -T filter`"
        );
        for part in [Part::Ipvs, Part::Ipsets] {
            assert!(by_hand(&part).contains("`ip"), "{part:?}");
        }
    }
}
