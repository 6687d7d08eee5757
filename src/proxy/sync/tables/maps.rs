//! The number of maps into which each map of endpoints is split: what the tables have, and the change to another number.
//!
//! The names of these maps are part of the static rules, so a change of the number changes the static rules and the records of all
//! Services.

use super::Tables;
use super::family::FamilyTable;
use super::owner::Owner;
use rules::diff::Records;
use rules::ruleset::{Settings, map_steps};

/// The tables with the previous number of maps, kept until the kernel has committed the new number.
pub(in crate::sync) struct Before {
    maps: u8,
    tables: Vec<FamilyTable>,
}

impl Tables {
    /// Returns the number of maps into which each map of endpoints is split.
    pub(in crate::sync) const fn maps(&self) -> u8 {
        self.maps
    }

    /// Returns the number of elements that all maps of endpoints of one kind had together at the last commit: the largest such number of
    /// all kinds and tables.
    pub(in crate::sync) fn largest_map(&self) -> usize {
        self.tables.iter().map(|table| map_steps::largest(table.records.lens())).max().unwrap_or(0)
    }

    /// Returns the number of maps, and the number of elements that all maps of one kind have together, each the largest in the tables that
    /// were read and not compared yet; `None` when none of these tables has maps of endpoints.
    pub(in crate::sync) fn found_maps(&self) -> Option<(u8, usize)> {
        let read = self.own().filter_map(|table| table.read.as_ref()?.as_ref());
        let of_each = read.filter_map(|dump| Some((map_steps::found_in(dump)?, map_steps::largest_in(dump))));
        of_each.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
    }

    /// Sets the number of maps into which each map of endpoints is split. The records of all Services have to be made again, and the next
    /// transaction compares everything. Returns the previous tables.
    pub(in crate::sync) fn set_maps(&mut self, maps: u8) -> Before {
        let layout = self.layout;
        let with_maps = |before: &FamilyTable| {
            let settings = Settings { endpoint_maps: maps, ..before.settings.clone() };
            let mut records = Records::new(layout.static_rules(&settings));
            records.put(Owner::Node, layout.node(&settings, &self.facts));
            FamilyTable { foreign_owner: before.foreign_owner.clone(), ..FamilyTable::new(settings, records) }
        };
        let tables: Vec<FamilyTable> = self.tables.iter().map(with_maps).collect();
        let mut before = Before { maps: self.maps, tables: std::mem::replace(&mut self.tables, tables) };
        for (table, before) in self.tables.iter_mut().zip(&mut before.tables) {
            table.read = before.read.take();
            self.known &= table.read.is_some();
        }
        self.maps = maps;
        self.outdated = true;
        before
    }

    /// Restores the previous tables, because the kernel did not commit the tables with another number of maps.
    pub(in crate::sync) fn restore(&mut self, before: Before) {
        self.maps = before.maps;
        self.tables = before.tables;
        self.outdated = false;
        self.forget();
    }
}
