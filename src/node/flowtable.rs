//! Maintains the nf_tables table of the fast path (`--flowtable`): a flowtable on the node's interfaces, which forwards packets of
//! established connections past the rules.
//!
//! Compares the kernel's table with the configuration and the node's interfaces, and changes it where it differs. On a kernel without
//! flowtables the proxy works without the fast path: all packets then pass through the rules.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nft::{Command, CommitError, Flowtable, ObjectKind, ReadError, TableContent, TableDump};
use tracing::{info, warn};

use crate::kernel::FlowtableKernel;
use crate::kernel::errno::ENOENT;
use component::config::file::Flowtable as Wanted;
use component::logging::once::Once;
use rules::ruleset::flowtable;

/// The time between two reconciliations.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the table of the fast path as the configuration and the node's interfaces require.
pub struct Reconciler<K> {
    wanted: Wanted,
    kernel: K,
    /// The kernel's ruleset generation and the interfaces at the end of the last successful reconciliation.
    reconciled: Option<(u32, Vec<Arc<str>>)>,
    logged: Once<String>,
}

/// The outcome of a reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciliation {
    /// The table is up to date, or a failure was logged; reconcile again after [`INTERVAL`].
    Done,
    /// This kernel has no flowtables; there is nothing to reconcile.
    Unsupported,
}

/// Why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(std::io::Error),
    /// The table cannot be read.
    #[error("cannot read the table: {0}")]
    Read(ReadError),
    /// The kernel refused a change.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl<K: FlowtableKernel> Reconciler<K> {
    /// Makes a reconciler, which reads nothing yet.
    pub fn new(wanted: Wanted, kernel: K) -> Self {
        Self { wanted, kernel, reconciled: None, logged: Once::default() }
    }

    /// Compares the table and changes it where it differs. A failure is logged once while it lasts; the next call tries again.
    pub fn reconcile(&mut self) -> Reconciliation {
        let Err(error) = self.try_reconcile() else {
            self.logged.reset();
            return Reconciliation::Done;
        };
        if self.is_unsupported(&error) {
            info!(
                flowtable = %self.wanted, err = %error,
                "This kernel has no flowtables, so established connections go through all rules as without one; load or build \
                 nf_flow_table, nf_flow_table_inet and nft_flow_offload"
            );
            return Reconciliation::Unsupported;
        }
        if self.logged.is_new(error.to_string()) {
            warn!(err = %error, "The fast path failed; the rules of the Services work without it");
        }
        Reconciliation::Done
    }

    fn try_reconcile(&mut self) -> Result<(), Error> {
        let devices = self.devices().map_err(Error::Interfaces)?;
        let generation = self.kernel.generation().map_err(Error::Read)?;
        if self.reconciled.as_ref().is_some_and(|(then, had)| *then == generation && *had == devices) {
            return Ok(());
        }
        let present = match self.kernel.read(&flowtable::table()) {
            Ok(present) => present,
            // Only another program can have written a table that does not decode, such as a flowtable with unknown attributes.
            Err(ReadError::Decode(_)) => Some(unreadable()),
            Err(error) => return Err(Error::Read(error)),
        };
        let commands = changes(present.as_ref(), &flowtable::content(devices.clone()));
        if !commands.is_empty() {
            self.kernel.commit(&commands)?;
            info!(numInterfaces = devices.len(), "Established connections between the interfaces go past the rules");
        }
        self.reconciled = Some((self.kernel.generation().map_err(Error::Read)?, devices));
        Ok(())
    }

    /// Returns the interfaces that should be in the flowtable, sorted.
    fn devices(&mut self) -> std::io::Result<Vec<Arc<str>>> {
        Ok(chosen(&self.wanted, self.kernel.interfaces()?))
    }

    /// Returns whether the kernel refused the table because it has no flowtables. The kernel reports the same error for an interface that
    /// was just deleted, so this function commits the table again without interfaces.
    fn is_unsupported(&mut self, error: &Error) -> bool {
        let Error::Commit(CommitError::Refused(refusals)) = error else { return false };
        let lacking = refusals.iter().all(|refusal| refusal.is_unsupported() || refusal.errno == ENOENT);
        if self.reconciled.is_some() || !lacking {
            return false;
        }
        let empty = flowtable::content(Vec::new());
        // Delete any table of that name first, so that a second attempt does not add the rules twice.
        let mut commands = vec![Command::AddTable(empty.table.clone()), Command::DeleteTable(empty.table.name.clone())];
        commands.extend(changes(None, &empty));
        match self.kernel.commit(&commands) {
            Err(CommitError::Refused(_)) => true,
            // After `Ok` the kernel has flowtables, and the table without interfaces: the next reconciliation adds them. Other errors do not
            // say whether the kernel has flowtables.
            Ok(()) | Err(_) => false,
        }
    }
}

/// Returns the table that the configuration requires if all interfaces that it names exist; with `auto` its flowtable has no interfaces.
/// `None` without a fast path.
#[must_use]
pub fn table(wanted: &Wanted) -> Option<TableContent> {
    let named: BTreeSet<Arc<str>> = match wanted {
        Wanted::Off => return None,
        Wanted::Auto => BTreeSet::new(),
        Wanted::Interfaces(names) => names.iter().map(|name| name.as_str().into()).collect(),
    };
    Some(flowtable::content(named.into_iter().collect()))
}

/// Returns those of the node's interfaces that the configuration puts into the flowtable.
fn chosen(wanted: &Wanted, mut present: Vec<Arc<str>>) -> Vec<Arc<str>> {
    match wanted {
        Wanted::Off => present.clear(),
        Wanted::Auto => {}
        Wanted::Interfaces(names) => present.retain(|device| names.iter().any(|name| **name == **device)),
    }
    present
}

/// Returns a placeholder for a table that cannot be decoded. It differs from every wanted table, so the table is replaced.
fn unreadable() -> (TableDump, Vec<Flowtable>) {
    let table = flowtable::content(Vec::new()).table;
    (TableDump::empty(table), Vec::new())
}

/// Returns the commands that change the present table into the wanted one. Interfaces are added to an existing flowtable. For every other
/// change the table is deleted and created again; packets of a flow then pass through the rules until they have put it into the flowtable
/// again.
fn changes(present: Option<&(TableDump, Vec<Flowtable>)>, wanted: &TableContent) -> Vec<Command> {
    let name = &wanted.table.name;
    let [flowtable] = &wanted.flowtables[..] else { return Vec::new() };
    if let Some((dump, flowtables)) = present
        && has_wanted_rules(dump, wanted)
        && let [there] = &flowtables[..]
        && (&there.name, there.priority) == (&flowtable.name, flowtable.priority)
    {
        let there: BTreeSet<_> = there.devices.iter().cloned().collect();
        let should: BTreeSet<_> = flowtable.devices.iter().cloned().collect();
        if there.is_subset(&should) {
            let missing: Vec<_> = should.difference(&there).cloned().collect();
            let add = |devices| Command::AddFlowtable(name.clone(), flowtable::flowtable(devices));
            return if missing.is_empty() { Vec::new() } else { vec![add(missing)] };
        }
    }
    let mut commands = Vec::new();
    commands.extend(present.map(|_| Command::DeleteTable(name.clone())));
    commands.push(Command::AddTable(wanted.table.clone()));
    commands.push(Command::AddFlowtable(name.clone(), flowtable.clone()));
    for (chain, rules) in &wanted.chains {
        commands.push(Command::AddChain(name.clone(), chain.clone()));
        let rules = rules.iter().cloned();
        commands.extend(rules.map(|rule| Command::AddRule(name.clone(), Arc::clone(&chain.name), rule)));
    }
    commands
}

/// Returns whether the table is the wanted one, apart from its flowtables.
fn has_wanted_rules(dump: &TableDump, wanted: &TableContent) -> bool {
    let same = |(chain, rules): &(nft::Chain, Vec<nft::Rule>)| {
        let rules: Vec<_> = rules.iter().map(|rule| rule.to_dump(wanted.table.name.family)).collect();
        dump.chains.get(&chain.name) == Some(&(chain.clone(), rules))
    };
    dump.unreadable.is_empty()
        && !dump.dormant
        && dump.unknown_flags == 0
        && dump.objects.iter().all(|object| object.kind == ObjectKind::Flowtable)
        && dump.sets.is_empty()
        && dump.table == wanted.table
        && dump.chains.len() == wanted.chains.len()
        && wanted.chains.iter().all(same)
}

#[cfg(test)]
mod tests {
    use std::io;

    use nft::{Ownership, Refusal, TableName};

    use super::*;

    /// A simulated kernel with one table. It can lack flowtables, or refuse an interface with the error for an interface that was just
    /// deleted.
    #[derive(Default)]
    struct Kernel {
        interfaces: Vec<Arc<str>>,
        table: Option<(TableDump, Vec<Flowtable>)>,
        generation: u32,
        commits: Vec<Vec<Command>>,
        reads: usize,
        lacks_flowtables: bool,
        vanishing: Option<Arc<str>>,
    }

    impl Kernel {
        fn apply(&mut self, command: &Command) {
            match command {
                Command::DeleteTable(_) => self.table = None,
                Command::AddTable(table) => {
                    let (mut dump, _) = unreadable();
                    dump.table = table.clone();
                    self.table.get_or_insert((dump, Vec::new()));
                }
                Command::AddFlowtable(_, flowtable) => match &mut self.table.as_mut().unwrap().1[..] {
                    [there] => there.devices.extend(flowtable.devices.iter().cloned()),
                    _ => self.table.as_mut().unwrap().1.push(flowtable.clone()),
                },
                Command::AddChain(_, chain) => {
                    let chains = &mut self.table.as_mut().unwrap().0.chains;
                    chains.insert(chain.name.clone(), (chain.clone(), Vec::new()));
                }
                Command::AddRule(table, chain, rule) => {
                    let chains = &mut self.table.as_mut().unwrap().0.chains;
                    chains.get_mut(chain).unwrap().1.push(rule.to_dump(table.family));
                }
                other => panic!("{other}"),
            }
        }
    }

    fn refusal(command: usize, errno: i32) -> CommitError {
        let object = "add flowtable".to_owned();
        CommitError::Refused(vec![Refusal { command: Some(command), element: None, object, errno, message: None }])
    }

    impl FlowtableKernel for &mut Kernel {
        fn interfaces(&mut self) -> io::Result<Vec<Arc<str>>> {
            Ok(self.interfaces.clone())
        }

        fn generation(&mut self) -> Result<u32, ReadError> {
            Ok(self.generation)
        }

        fn read(&mut self, _: &TableName) -> Result<Option<(TableDump, Vec<Flowtable>)>, ReadError> {
            self.reads += 1;
            Ok(self.table.clone())
        }

        fn commit(&mut self, commands: &[Command]) -> Result<(), CommitError> {
            let has = |device: &Arc<str>| {
                commands
                    .iter()
                    .any(|command| matches!(command, Command::AddFlowtable(_, f) if f.devices.contains(device)))
            };
            if self.lacks_flowtables {
                return Err(refusal(1, ENOENT));
            }
            if self.vanishing.as_ref().is_some_and(has) {
                return Err(refusal(1, ENOENT));
            }
            commands.iter().for_each(|command| self.apply(command));
            self.commits.push(commands.to_vec());
            self.generation += 1;
            Ok(())
        }
    }

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn on(interfaces: &[&str]) -> Kernel {
        Kernel { interfaces: names(interfaces), ..Kernel::default() }
    }

    fn devices(kernel: &Kernel) -> Vec<Arc<str>> {
        kernel.table.as_ref().unwrap().1[0].devices.clone()
    }

    #[test]
    fn an_unchanged_table_is_not_read_again() {
        let mut kernel = on(&["eth0"]);
        let mut reconciler = Reconciler::new(Wanted::Auto, &mut kernel);
        for _ in 0..5 {
            assert_eq!(reconciler.reconcile(), Reconciliation::Done);
        }
        assert_eq!((kernel.commits.len(), kernel.reads), (1, 1));
        let mut reconciler = Reconciler::new(Wanted::Auto, &mut kernel);
        reconciler.reconcile();
        assert_eq!((kernel.commits.len(), kernel.reads), (1, 2), "a restart finds what it wants");
    }

    #[test]
    fn new_interfaces_are_added_and_unwanted_ones_replace_the_table() {
        let mut kernel = on(&["eth0"]);
        Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
        kernel.interfaces = names(&["eth0", "veth1"]);
        Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
        assert_eq!(devices(&kernel), names(&["eth0", "veth1"]));
        let added = Command::AddFlowtable(flowtable::table(), flowtable::flowtable(names(&["veth1"])));
        assert_eq!(kernel.commits[1], [added]);
        Reconciler::new(Wanted::Interfaces(vec!["veth1".into(), "cni0".into()]), &mut kernel).reconcile();
        assert_eq!(devices(&kernel), names(&["veth1"]), "a named interface that is missing is waited for");
        assert_eq!(kernel.commits[2][0], Command::DeleteTable(flowtable::table()));
    }

    #[test]
    fn changes_of_the_table_by_other_programs_are_repaired() {
        let mut kernel = on(&["eth0"]);
        Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
        let was = kernel.table.clone();
        for spoil in [
            (|kernel: &mut Kernel| kernel.table = None) as fn(&mut Kernel),
            |kernel| kernel.table.as_mut().unwrap().1.clear(),
            |kernel| kernel.table.as_mut().unwrap().1[0].priority = 7,
            |kernel| kernel.table.as_mut().unwrap().0.chains.clear(),
            |kernel| kernel.table.as_mut().unwrap().0.chains.values_mut().for_each(|(_, rules)| rules.truncate(1)),
        ] {
            spoil(&mut kernel);
            assert_ne!(kernel.table, was);
            Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
            assert_eq!(kernel.table, was);
        }
    }

    #[test]
    fn a_new_generation_makes_it_read_the_table() {
        let mut kernel = on(&["eth0"]);
        let mut reconciler = Reconciler::new(Wanted::Auto, &mut kernel);
        reconciler.reconcile();
        reconciler.kernel.generation += 1;
        reconciler.kernel.table = None;
        reconciler.reconcile();
        assert_eq!(devices(&kernel), names(&["eth0"]));
    }

    #[test]
    fn a_kernel_without_flowtables_is_reported_as_unsupported() {
        let mut kernel = Kernel { lacks_flowtables: true, ..on(&["eth0"]) };
        assert_eq!(Reconciler::new(Wanted::Auto, &mut kernel).reconcile(), Reconciliation::Unsupported);
    }

    #[test]
    fn an_interface_that_is_deleted_meanwhile_is_not_taken_for_a_kernel_without_flowtables() {
        let mut kernel = Kernel { vanishing: Some("veth1".into()), ..on(&["eth0", "veth1"]) };
        let mut reconciler = Reconciler::new(Wanted::Auto, &mut kernel);
        assert_eq!(reconciler.reconcile(), Reconciliation::Done);
        assert_eq!(reconciler.reconcile(), Reconciliation::Done, "the list may have it for some time");
        let chains = &reconciler.kernel.table.as_ref().unwrap().0.chains;
        assert!(chains.values().all(|(_, rules)| rules.len() == 2), "no rule is there twice");
        reconciler.kernel.interfaces = names(&["eth0"]);
        assert_eq!(reconciler.reconcile(), Reconciliation::Done);
        assert_eq!(devices(&kernel), names(&["eth0"]));
    }

    #[test]
    fn a_tables_owner_does_not_matter() {
        let mut kernel = on(&["eth0"]);
        Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
        kernel.table.as_mut().unwrap().0.ownership = Ownership::Of { port: 7 };
        Reconciler::new(Wanted::Auto, &mut kernel).reconcile();
        assert_eq!(kernel.commits.len(), 1);
    }
}
