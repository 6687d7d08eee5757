//! Reads the tables back from the kernel, and describes what this program never makes in them.

use std::sync::Arc;
use std::time::Instant;

use nft::TableDump;
use nft::decode::DecodeError;

use super::Tables;
use super::family::ForeignOwner;
use node::kernel::Kernel;

/// The most items that a finding lists.
const NAMED: usize = 16;

impl Tables {
    /// Reads what the kernel holds, and which tables belong to other programs. The next transaction then compares everything. A table that changes during every attempt to read it
    /// counts as read, with unknown content.
    ///
    /// # Errors
    /// See [`nft::ReadError`]; never [`nft::ReadError::Unstable`].
    pub(in crate::sync) fn read_back(&mut self, kernel: &mut impl Kernel) -> Result<(), nft::ReadError> {
        let (now, mut found) = (Instant::now(), false);
        for table in &mut self.tables {
            let static_table = &table.records.static_rules().table;
            let mut dump = match kernel.read(&static_table.name) {
                // If another program writes to the table all the time, this process must still be able to write: it then deletes the table
                // and makes it again without having read it.
                Err(nft::ReadError::Unstable) => {
                    let name = &static_table.name;
                    self.findings
                        .push(format!("transactions disturbed each attempt to read table {name}, which is made anew"));
                    Some(unread(static_table.clone()))
                }
                other => other?,
            };
            let owner = dump.as_ref().and_then(|dump| dump.ownership.other());
            if table.foreign_owner.as_ref().map(|owner| owner.port) != owner {
                let owner = owner.map(|port| ForeignOwner { port, program: kernel.program(port) });
                table.set_foreign_owner(owner);
            }
            if let Some(dump) = dump.as_mut().filter(|_| owner.is_none()) {
                found |= self.other_proxy.set_aside(dump, now);
                self.findings.extend(finding(dump));
            }
            table.read = Some(dump);
        }
        self.other_proxy.tables_read(found, now);
        self.known = true;
        Ok(())
    }

    /// Describes what read-backs found in the tables since the last call that this program never makes: for example stateful objects, and
    /// objects that cannot be decoded. Foreign chains, sets, rules and elements that can be decoded are left out.
    pub(in crate::sync) fn take_findings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings)
    }
}

/// Returns a dump that stands for a table whose content is unknown.
fn unread(table: nft::Table) -> TableDump {
    let error = DecodeError { object: "table", name: Some(Arc::clone(&table.name.name)), attribute: "content" };
    TableDump { unreadable: vec![error], ..TableDump::empty(table) }
}

/// Describes the objects, flags and states of a table that this proxy never makes; `None` when there are none.
fn finding(dump: &TableDump) -> Option<String> {
    let mut all = Vec::new();
    if dump.dormant {
        all.push("is dormant".to_owned());
    }
    if dump.unknown_flags != 0 {
        all.push(format!("has the unknown flags {:#x}", dump.unknown_flags));
    }
    all.extend(dump.objects.iter().take(NAMED).map(|object| format!("holds {object}")));
    all.extend(dump.unreadable.iter().take(NAMED).map(|error| format!("holds what we never make ({error})")));
    all.truncate(NAMED);
    (!all.is_empty()).then(|| format!("table {} {}", dump.table.name, all.join(", ")))
}
