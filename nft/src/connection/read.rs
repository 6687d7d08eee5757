//! Reading a table while other programs write to theirs.
//!
//! The kernel lists a table piece by piece and takes no lock from one piece to the next, so whoever reads must find out whether the
//! pieces belong together. The generation counts the transactions of everybody, and the mark of an interrupted dump means no more
//! than that it grew: where another program commits fifty times a second, neither ever says that all is well. What the lists really
//! depend on (`net/netfilter/nf_tables_api.c` and `nft_set_hash.c` as of 5.18, whose dumps have had this shape since before 5.13;
//! tried on 6.18):
//!
//! - One table is asked for by name, and answered in one piece.
//! - Rules and sets: the position in the list is counted within the table that was asked for. Elements: the walk is one over the set
//!   that was asked for, by buckets (`nft_hash_walk`), in the order of keys or of the lookup array; its position counts this set's
//!   elements. Another table's transaction changes neither list nor order; it only turns the bit that says which generation is
//!   visible, and that hides or shows nothing but objects of that transaction. (An `rhashtable` that is being resized is walked
//!   twice in part, whoever writes; maps of a fixed size are none, and in the others an element that comes twice counts once.)
//! - Chains, objects and flowtables: the position is counted over *all* tables of the family, so what another program takes away
//!   before ours makes the next piece leave some of ours out, and what it adds repeats some. Nothing that is not there is listed.
//!   So these lists are taken again, each time adding to what was seen, until they are as many as the kernel counts in the table
//!   (`NFTA_TABLE_USE`: chains, sets other than those of a rule, objects and flowtables), or nobody wrote meanwhile.
//!
//! What is left is a transaction on the table itself. It is announced to listeners at its end, before the kernel lets the next one
//! begin (`nf_tables_commit` holds the commit mutex). An empty batch takes the same mutex: once it is through, every transaction
//! that began before is over and announced. So: listen, empty batch, read, empty batch, look what was announced. If that names the
//! table, or the announcements were more than the socket holds, all is read again.
//!
//! A transaction that the kernel refuses is not announced and leaves nothing behind; one that adds to this table in the very moment
//! in which its list is read can shift a piece. The comparison then asks for something that the kernel refuses, and the next try
//! reads again.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::{Connection, DUMP_TRIES, ReadError, TableDump, request};
use crate::decode::{self, DecodeError, Decoded, Messages, Notice};
use crate::monitor::Monitor;
use crate::object::{NamedObject, Ownership, Table, TableName, TableState};

/// Lists of names that nobody wrote during and that still differ from the kernel's count, after which they are taken as they are.
const QUIET_LISTS: usize = 2;

/// Who listens while a table is read.
pub(super) struct Listener {
    monitor: Monitor,
    table: TableName,
    /// The table was changed, or may have been.
    changed: bool,
}

impl Listener {
    /// Whether the table was changed, or may have been, as far as was announced.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }

    /// Takes what was announced so far. The socket must not fill up during a long dump.
    pub(super) fn listen(&mut self) {
        self.changed |= self.monitor.touched(&self.table).unwrap_or(true);
    }
}

impl Connection {
    /// Everything in a table; `None` when there is no such table.
    ///
    /// What other programs write to other tables meanwhile does not matter; what they write to this one makes it read again.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read_table(&mut self, name: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.undisturbed(name, |connection| connection.read_once(name))
    }

    /// What a read gives while nobody writes to the table.
    pub(super) fn undisturbed<T>(
        &mut self,
        table: &TableName,
        read: impl Fn(&mut Self) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        for _ in 0..DUMP_TRIES {
            let monitor = Monitor::open()?;
            self.barrier()?;
            self.listener = Some(Listener { monitor, table: table.clone(), changed: false });
            let outcome = read(self);
            let listener = self.listener.take();
            self.barrier()?;
            let changed = listener.is_none_or(|mut listener| {
                listener.listen();
                listener.changed()
            });
            if !changed {
                return outcome;
            }
        }
        Err(ReadError::Unstable)
    }

    /// Waits until the transactions of everybody that have begun are over and announced.
    fn barrier(&self) -> io::Result<()> {
        self.socket.send(&request::empty_batch())
    }

    fn read_once(&mut self, name: &TableName) -> Result<Option<TableDump>, ReadError> {
        let Some((table, state)) = self.read_table_object(name)? else { return Ok(None) };
        let mut dump = TableDump {
            ownership: state.ownership,
            dormant: state.dormant,
            unknown_flags: state.unknown_flags,
            ..TableDump::empty(table)
        };
        self.dump(request::SETS, name, &[(request::SET_TABLE, &name.name)], |item| match item {
            Ok(Decoded::Set { set, .. }) => {
                dump.sets.insert(Arc::clone(&set.name), (set, Vec::new()));
            }
            Ok(_) => {}
            Err(error) => note(&mut dump.unreadable, error),
        })?;
        self.read_names(name, &mut dump, usize::try_from(state.objects).unwrap_or(usize::MAX))?;
        self.dump(request::RULES, name, &[(request::RULE_TABLE, &name.name)], |item| match item {
            Ok(Decoded::Rule { chain, rule, .. }) => {
                if let Some((_, rules)) = dump.chains.get_mut(&chain) {
                    rules.push(rule);
                }
            }
            Ok(_) => {}
            Err(error) => note(&mut dump.unreadable, error),
        })?;
        for (set_name, (set, elements)) in &mut dump.sets {
            *elements = decode::pair(set, self.read_elements(name, set_name, &mut dump.unreadable)?);
        }
        Ok(Some(dump))
    }

    /// The chains, objects and flowtables of a table in which there are so many of them and of sets.
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

    /// Lists what the kernel lists over all tables, until nobody wrote meanwhile.
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

    /// The chains of a table. The kernel lists those of all tables.
    fn read_chains(&mut self, name: &TableName, dump: &mut TableDump) -> Result<(), ReadError> {
        self.dump_messages(request::CHAINS, name, &[], |message| match decode::message(message) {
            Ok(Decoded::Chain { table, chain, .. }) if table == *name => {
                dump.chains.insert(Arc::clone(&chain.name), (chain, Vec::new()));
            }
            Err(error) if decode::notice(message) == Some(Notice::About(name.clone())) => {
                note(&mut dump.unreadable, error);
            }
            Ok(_) | Err(_) => {}
        })
    }

    /// What this crate makes none of: objects that have a name, and flowtables.
    fn read_objects(&mut self, name: &TableName, dump: &mut TableDump) -> Result<(), ReadError> {
        for (kind, table) in
            [(request::OBJECTS, request::OBJECT_TABLE), (request::FLOWTABLES, request::FLOWTABLE_TABLE)]
        {
            self.dump_messages(kind, name, &[(table, &name.name)], |message| match decode::named_object(message) {
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

    /// The table itself; `None` only when the kernel says that there is none.
    pub(super) fn read_table_object(&mut self, name: &TableName) -> Result<Option<(Table, TableState)>, ReadError> {
        let filter = [(request::TABLE_NAME, &*name.name)];
        self.socket.send(&request::message(request::TABLES, 0, Some(name.family), &filter))?;
        loop {
            let bytes = self.socket.receive()?;
            for message in Messages::new(bytes) {
                match decode::ack(message).map(|ack| ack.errno) {
                    Some(libc::ENOENT) => return Ok(None),
                    Some(errno) if errno != 0 => return Err(io::Error::from_raw_os_error(errno).into()),
                    _ => {}
                }
                if let Decoded::Table { table, state, .. } = decode::message(message)? {
                    let ours = Ownership::Of { port: self.socket.port() };
                    let ownership = if state.ownership == ours { Ownership::Ours } else { state.ownership };
                    return Ok(Some((table, TableState { ownership, ..state })));
                }
            }
        }
    }
}

impl TableDump {
    /// A table that anybody may change and with nothing in it.
    #[must_use]
    pub fn empty(table: Table) -> Self {
        Self {
            table,
            ownership: Ownership::Anybody,
            dormant: false,
            unknown_flags: 0,
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// The number of chains, sets, objects and flowtables as the kernel counts them: sets that belong to a rule are not counted.
    fn names(&self) -> usize {
        let unreadable = self.unreadable.iter().filter(|error| ["chain", "set"].contains(&error.object)).count();
        let sets = self.sets.values().filter(|(set, _)| !set.flags.anonymous).count();
        self.chains.len() + sets + self.objects.len() + unreadable
    }
}

/// Notes what cannot be read, once.
fn note(unreadable: &mut Vec<DecodeError>, error: DecodeError) {
    if !unreadable.contains(&error) {
        unreadable.push(error);
    }
}
