//! Reads the tables of iptables-legacy in the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::Path;

use nft::iptables::{Chain, Table, table_name};
use nft::xtables::{Contents, Xtables};
use nft::{Family, HookedChain};

use super::errno::EAGAIN;

/// How often a table is read when other programs write to it at the same time.
const TRIES: usize = 5;

/// The chains of all tables of a family, and for each table that cannot be read a text with the reason.
#[must_use]
pub fn chains(family: Family) -> (Vec<Chain>, Vec<String>) {
    of_tables(family, |table, name| table.chains(name))
}

/// The built-in chains of all tables of a family with what their rules may do, and for each table that cannot be read a text with the
/// reason.
#[must_use]
pub fn hooked_chains(family: Family) -> (Vec<HookedChain>, Vec<String>) {
    of_tables(family, |table, name| table.hooked_chains(name))
}

fn of_tables<T>(family: Family, take: impl Fn(&Table<'_>, &str) -> Vec<T>) -> (Vec<T>, Vec<String>) {
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for name in names(family).lines() {
        let contents = Xtables::open(family).and_then(|tables| read(&tables, name)).map_err(|error| error.to_string());
        let taken = contents.and_then(|contents| {
            let table = Table::read(family, &contents).map_err(|error| error.to_string())?;
            Ok(take(&table, name))
        });
        match taken {
            Ok(taken) => found.extend(taken),
            Err(error) => unread.push(format!("table {} cannot be read: {error}", table_name(family, name))),
        }
    }
    (found, unread)
}

/// Reads a table; again if another program changes it at the same moment (EAGAIN).
pub(super) fn read(tables: &Xtables, table: &str) -> io::Result<Contents> {
    for _ in 1..TRIES {
        match tables.read(table) {
            Err(error) if error.raw_os_error() == Some(EAGAIN) => {}
            outcome => return outcome,
        }
    }
    tables.read(table)
}

/// The names of the tables of a family that exist, a line each. Looks into `/proc`, because the kernel would create a missing table to read
/// it.
pub(super) fn names(family: Family) -> String {
    let file = if family == Family::Ip { "ip_tables_names" } else { "ip6_tables_names" };
    // Read the file of the calling thread, because its network namespace may differ from that of the main thread. Without the module of
    // iptables there is no such file.
    fs::read_to_string(Path::new("/proc/thread-self/net").join(file)).unwrap_or_default()
}
