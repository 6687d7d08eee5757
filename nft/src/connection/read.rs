//! Reading a table while other programs change theirs.
//!
//! The kernel lists a table piece by piece and holds no lock from one piece to the next, so a reader must find out whether the pieces are
//! consistent. The kernel's own sign is too strict: the flag `NLM_F_DUMP_INTR` on a dump only means that the generation grew, which counts
//! the transactions of all programs. While another program commits often, nearly every long dump has the flag. Fewer transactions disturb a
//! list, as `net/netfilter/nf_tables_api.c` and `nft_set_hash.c` of Linux 5.18 show, and as the tests in `nft/tests/readback.rs` confirm:
//!
//! - The table itself: it is requested by name, and the kernel answers in one piece.
//! - Rules and sets: the kernel counts its position within the table that was asked for. Elements: it walks over the set that was asked
//!   for, by hash buckets (`nft_hash_walk`), keys, or the lookup array, and counts the elements of this set only. A transaction on another
//!   table changes neither these lists nor their order. It only changes the bit of the visible generation, which hides or shows only
//!   objects of that transaction. (While an `rhashtable` is resized, the walk may visit elements twice. Maps with a size are no
//!   `rhashtable`, unless they have time-outs or the flag `dynamic`. An element of another map may be listed twice, so callers have to
//!   compare elements by their keys.)
//! - Chains, objects and flowtables: the kernel counts its position over the tables of the whole family. So when another program deletes a
//!   chain that comes before the wanted table's chains in this list, the next piece leaves out some of the wanted chains; when it adds a
//!   chain, the next piece repeats some. Every listed object exists. Therefore these lists are read again, and their objects added to those
//!   found before, until there are, with the sets, as many as the kernel counts in the table (`NFTA_TABLE_USE`: chains, sets that are not
//!   anonymous, objects and flowtables), or until two readings were without a transaction.
//!
//! A transaction on the table itself is the remaining case. The kernel sends a transaction's notifications at the end of the transaction,
//! before the next one can begin (`nf_tables_commit` holds the commit mutex). An empty batch takes the same mutex, so when it returns, all
//! transactions that began before it have ended and were notified. The order is therefore: subscribe, empty batch, read, empty batch, check
//! the notifications. If one names the table, or if they overflowed the socket's buffer, the table is read again.
//!
//! A transaction that the kernel refuses sends no notification and changes nothing. But if it adds objects to this table while a list is
//! read, it can shift the position in the list, and the read misses an object. The commands that follow from such a read add the object
//! once more; if the kernel refuses them, the caller has to read again.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::errors::{DUMP_TRIES, FEW_TRIES, ReadError};
use super::{Connection, unless_absent};
use crate::batch;
use crate::decode::{self, DecodeError, Decoded, Notice};
use crate::monitor::TableWatch;
use crate::object::{Chain, NamedObject, RuleDump, Set};
use crate::packed::{ElementRef, Elements};
use crate::table::{Ownership, Table, TableName};
use crate::text;
use crate::wire::kind;

/// After this many readings of the names without a transaction meanwhile, the names are used even if the number of objects differs from the
/// kernel's count. Otherwise a table would never be readable on a kernel that counts in another way.
const QUIET_LISTS: usize = 2;

/// A table with its content, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDump {
    /// The table itself.
    pub table: Table,
    /// Which sockets may change it.
    pub ownership: Ownership,
    /// Whether it has the flag `dormant`: no packet passes its chains.
    pub dormant: bool,
    /// Flags that this crate does not know.
    pub unknown_flags: u32,
    /// Its chains with their rules, by name.
    pub chains: BTreeMap<Arc<str>, (Chain, Vec<RuleDump>)>,
    /// Its sets and maps with their elements, by name, including elements that rules added.
    pub sets: BTreeMap<Arc<str>, (Set, Elements)>,
    /// Its named objects and flowtables, without properties. [`Connection::read_flowtables`] gives the properties of flowtables.
    pub objects: Vec<NamedObject>,
    /// The errors for the objects and messages that this crate cannot express.
    pub unreadable: Vec<DecodeError>,
}

/// A table that was read before it is needed, with a watch on the transactions since.
pub struct TableAhead {
    dump: Option<TableDump>,
    watch: TableWatch,
}

impl Connection {
    /// A table with its content; `None` when there is no such table.
    ///
    /// Transactions on other tables do not disturb the read. After a transaction on this table it starts again.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_table(&mut self, name: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.undisturbed(name, |connection| connection.read_once(name))
    }

    /// As [`Self::read_table`], for a caller that needs the table later: [`Self::unchanged`] gives it. Until then a socket receives the
    /// notifications of all transactions, which makes the transactions slower ([`crate::monitor`]).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_table_ahead(&mut self, name: &TableName) -> Result<TableAhead, ReadError> {
        let (dump, watch) = self.undisturbed_in(DUMP_TRIES, name, &|connection| connection.read_once(name))?;
        Ok(TableAhead { dump, watch })
    }

    /// A table as [`Self::read_table`] would give it now, `Some(None)` when there is no such table; `None` if a transaction changed it, or
    /// may have, since it was read.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn unchanged(&self, ahead: TableAhead) -> Result<Option<Option<TableDump>>, ReadError> {
        let TableAhead { dump, mut watch } = ahead;
        self.barrier()?;
        watch.update();
        Ok((!watch.changed()).then_some(dump))
    }

    /// As [`Self::read_table`], for a caller that accepts an inconsistent result. If the table changed during two attempts, this gives what
    /// a third attempt reads, in which an element may be missing or outdated.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_changing_table(&mut self, name: &TableName) -> Result<Option<TableDump>, ReadError> {
        Ok(self.even_disturbed(name, |connection| connection.read_once(name))?.0)
    }

    /// Repeats a read until no transaction changes the table meanwhile.
    pub(super) fn undisturbed<T>(
        &mut self,
        table: &TableName,
        read: impl Fn(&mut Self) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        Ok(self.undisturbed_in(DUMP_TRIES, table, &read)?.0)
    }

    /// Repeats a read a few times, until no transaction changes the table meanwhile. If that fails, reads once more and ignores changes.
    /// The `bool` is `true` if no transaction changed the table during the read.
    pub(super) fn even_disturbed<T>(
        &mut self,
        table: &TableName,
        read: impl Fn(&mut Self) -> Result<T, ReadError>,
    ) -> Result<(T, bool), ReadError> {
        match self.undisturbed_in(FEW_TRIES, table, &read) {
            Err(ReadError::Unstable) => Ok((read(self)?, false)),
            outcome => Ok((outcome?.0, true)),
        }
    }

    /// Returns the result of `read`, and the watch that saw no change of the table during the read.
    fn undisturbed_in<T>(
        &mut self,
        tries: usize,
        table: &TableName,
        read: &impl Fn(&mut Self) -> Result<T, ReadError>,
    ) -> Result<(T, TableWatch), ReadError> {
        for _ in 0..tries {
            let watch = TableWatch::open(table)?;
            self.barrier()?;
            self.watch = Some(watch);
            let outcome = read(self);
            let watch = self.watch.take();
            self.barrier()?;
            let Some(mut watch) = watch else { continue };
            watch.update();
            if !watch.changed() {
                return Ok((outcome?, watch));
            }
        }
        Err(ReadError::Unstable)
    }

    /// Waits until every transaction that has begun, of any program, has ended and sent its notifications.
    fn barrier(&self) -> io::Result<()> {
        self.socket.send(&batch::empty())
    }

    fn read_once(&mut self, name: &TableName) -> Result<Option<TableDump>, ReadError> {
        let Some((table, state)) = self.read_table_object(name)? else { return Ok(None) };
        let mut dump = TableDump {
            ownership: state.ownership,
            dormant: state.dormant,
            unknown_flags: state.unknown_flags,
            ..TableDump::empty(table)
        };
        self.dump(kind::GET_SET, name, &[&name.name], |item| match item {
            Ok(Decoded::Set { set, .. }) => {
                dump.sets.insert(Arc::clone(&set.name), (set, Elements::default()));
            }
            Ok(_) => {}
            Err(error) => note(&mut dump.unreadable, error),
        })?;
        self.read_names(name, &mut dump, usize::try_from(state.objects).unwrap_or(usize::MAX))?;
        self.dump(kind::GET_RULE, name, &[&name.name], |item| match item {
            Ok(Decoded::Rule { chain, rule, .. }) => {
                if let Some((_, rules)) = dump.chains.get_mut(&chain) {
                    rules.push(rule);
                }
            }
            Ok(_) => {}
            Err(error) => note(&mut dump.unreadable, error),
        })?;
        for (set_name, (set, elements)) in &mut dump.sets {
            *elements = if set.flags.interval {
                decode::pair(set, self.read_elements(name, set_name, &mut dump.unreadable)?).into()
            } else {
                self.read_packed(name, set_name, &mut dump.unreadable)?
            };
        }
        Ok(Some(dump))
    }

    /// The elements of a set that is no interval set; none when there is no such set. Adds decoding errors to `unreadable`.
    fn read_packed(
        &mut self,
        table: &TableName,
        set: &str,
        unreadable: &mut Vec<DecodeError>,
    ) -> Result<Elements, ReadError> {
        let mut elements = Elements::default();
        let dumped = self.dump_messages(kind::GET_ELEMENTS, table, &[&table.name, set], |message| {
            if let Err(error) = decode::pack_elements(message, &mut elements) {
                note(unreadable, error);
            }
        });
        unless_absent(dumped)?;
        elements.shrink();
        Ok(elements)
    }

    /// Adds the chains, objects and flowtables of a table to `dump`. `count` is the kernel's count of these objects and of the table's
    /// sets.
    fn read_names(&mut self, name: &TableName, dump: &mut TableDump, count: usize) -> Result<(), ReadError> {
        let mut quiet = 0;
        for _ in 0..DUMP_TRIES {
            let before = self.generation()?;
            self.barrier()?;
            self.read_chains(name, dump)?;
            self.read_objects(name, dump)?;
            quiet += usize::from(self.generation()? == before);
            if dump.names() == count || quiet == QUIET_LISTS {
                return Ok(());
            }
        }
        Err(ReadError::Unstable)
    }

    /// Repeats a dump of all tables of a family until no transaction happens meanwhile.
    pub(super) fn until_quiet(
        &mut self,
        mut list: impl FnMut(&mut Self) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        for _ in 0..DUMP_TRIES {
            let before = self.generation()?;
            self.barrier()?;
            list(self)?;
            if self.generation()? == before {
                return Ok(());
            }
        }
        Err(ReadError::Unstable)
    }

    /// Adds the chains of a table to `dump`. The kernel lists the chains of all tables of the family.
    fn read_chains(&mut self, name: &TableName, dump: &mut TableDump) -> Result<(), ReadError> {
        self.dump_messages(kind::GET_CHAIN, name, &[], |message| match decode::message(message) {
            Ok(Decoded::Chain { table, chain, .. }) if table == *name => {
                dump.chains.insert(Arc::clone(&chain.name), (chain, Vec::new()));
            }
            Err(error) if decode::notice(message) == Some(Notice::About(name.clone())) => {
                note(&mut dump.unreadable, error);
            }
            Ok(_) | Err(_) => {}
        })
    }

    /// Adds the named objects and the flowtables of a table to `dump`.
    fn read_objects(&mut self, name: &TableName, dump: &mut TableDump) -> Result<(), ReadError> {
        for kind in [kind::GET_OBJECT, kind::GET_FLOWTABLE] {
            self.dump_messages(kind, name, &[&name.name], |message| match decode::named_object(message) {
                Some((table, object)) => {
                    let known = |known: &NamedObject| (known.kind, &known.name) == (object.kind, &object.name);
                    if table == *name && !dump.objects.iter().any(known) {
                        dump.objects.push(object);
                    }
                }
                None => note(&mut dump.unreadable, DecodeError { object: "object", name: None, attribute: "name" }),
            })?;
        }
        Ok(())
    }
}

impl TableDump {
    /// A table without an owner and without content.
    #[must_use]
    pub fn empty(table: Table) -> Self {
        Self {
            table,
            ownership: Ownership::Unowned,
            dormant: false,
            unknown_flags: 0,
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// The number of chains, sets, objects and flowtables that the kernel listed, also of chains and sets that could not be decoded, to
    /// compare with the kernel's count (`NFTA_TABLE_USE`). Anonymous sets are left out, as in that count.
    fn names(&self) -> usize {
        let unreadable = self.unreadable.iter().filter(|error| ["chain", "set"].contains(&error.object)).count();
        let sets = self.sets.values().filter(|(set, _)| !set.flags.anonymous).count();
        self.chains.len() + sets + self.objects.len() + unreadable
    }
}

/// Adds an error unless the list has it already.
fn note(unreadable: &mut Vec<DecodeError>, error: DecodeError) {
    if !unreadable.contains(&error) {
        unreadable.push(error);
    }
}

/// As `nft --stateless list table`, without named objects and flowtables. A comment names each object that this crate cannot express.
impl fmt::Display for TableDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::begin(f, &self.table, self.dormant)?;
        for (set, elements) in self.sets.values() {
            text::set::write(f, set, elements.iter().map(ElementRef::element))?;
        }
        for (chain, rules) in self.chains.values() {
            text::write_chain(f, chain, rules.iter().map(|rule| rule.to_nft(self.table.name.family)))?;
        }
        self.unreadable.iter().try_for_each(|error| writeln!(f, "\t# cannot be read: {error}"))?;
        f.write_str("}\n")
    }
}
