//! Reports which families are not programmed, because another program owns the table, and looks whether it still does (G16).
//!
//! Which tables these are is read with each table. The kernel reports no end of an owner, so it is asked once a second.

use std::collections::BTreeMap;
use std::time::Instant;

use tracing::{error, info};

use super::{MOMENT, Sync};
use inspect::running::Problem;
use node::kernel::Kernel;
use rules::model::Family;

/// What was last reported.
#[derive(Debug, Default)]
pub(super) struct ForeignOwners {
    /// The families that are not programmed, each with the program that owns the table.
    programs: BTreeMap<Family, String>,
    /// When the kernel was last asked.
    last_check: Option<Instant>,
}

impl ForeignOwners {
    /// Whether all families are programmed.
    pub(super) fn are_none(&self) -> bool {
        self.programs.is_empty()
    }

    /// Whether the family is not programmed.
    pub(super) fn has(&self, family: Family) -> bool {
        self.programs.contains_key(&family)
    }

    /// Why families are not programmed; `None` when all are.
    pub(super) fn reason(&self) -> Option<String> {
        let reasons = self.programs.iter().map(|(family, program)| Problem::owned(*family, program).text);
        Some(reasons.collect::<Vec<_>>().join("; ")).filter(|reason| !reason.is_empty())
    }
}

impl<K: Kernel> Sync<K> {
    /// Reports which families are not programmed after a sync.
    pub(super) fn report_foreign_owners(&mut self) {
        let mut programs = BTreeMap::new();
        for (family, table, owner) in self.engine.tables.foreign() {
            if self.foreign_owners.programs.get(&family).is_none_or(|known| known != owner) {
                error!(
                    ipFamily = %family, %table, owner,
                    "Another program owns the table of an IP family, and the kernel lets no other one change it: the family is not \
                     programmed until that program ends"
                );
            }
            programs.insert(family, owner.to_owned());
        }
        for family in self.engine.tables.families() {
            self.metrics.foreign_owner(family, programs.contains_key(&family));
            if self.foreign_owners.has(family) && !programs.contains_key(&family) {
                info!(ipFamily = %family, "No other program owns the table of the IP family any more");
            }
        }
        self.health.blocked(programs.keys().copied().collect());
        self.foreign_owners.programs = programs;
    }

    /// Asks the kernel once a second whether another program still owns a table. When it has ended, the family is programmed at once.
    pub(super) fn check_foreign_owners(&mut self, now: Instant) {
        let is_checked = self.foreign_owners.last_check.is_some_and(|last| now.duration_since(last) < MOMENT);
        if self.foreign_owners.are_none() || is_checked {
            return;
        }
        self.foreign_owners.last_check = Some(now);
        if self.engine.foreign_owner_changed() {
            self.schedule.request_at(now);
            self.report_queued();
        }
    }
}
