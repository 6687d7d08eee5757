//! The keeper against a kernel that is a list of tables.

use std::io;

use nft::{Ownership, Refusal, TableName};

use super::*;

/// Holds one table; can lack flowtables, or lose an interface at the worst moment.
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
            commands.iter().any(|command| matches!(command, Command::AddFlowtable(_, f) if f.devices.contains(device)))
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
fn a_steady_state_is_not_even_read() {
    let mut kernel = on(&["eth0"]);
    let mut keeper = Keeper::new(Wanted::Auto, &mut kernel);
    for _ in 0..5 {
        assert_eq!(keeper.look(), Look::Again);
    }
    assert_eq!((kernel.commits.len(), kernel.reads), (1, 1));
    let mut keeper = Keeper::new(Wanted::Auto, &mut kernel);
    keeper.look();
    assert_eq!((kernel.commits.len(), kernel.reads), (1, 2), "a restart finds what it wants");
}

#[test]
fn interfaces_that_come_are_added_and_those_that_are_not_wanted_make_the_table_anew() {
    let mut kernel = on(&["eth0"]);
    Keeper::new(Wanted::Auto, &mut kernel).look();
    kernel.interfaces = names(&["eth0", "veth1"]);
    Keeper::new(Wanted::Auto, &mut kernel).look();
    assert_eq!(devices(&kernel), names(&["eth0", "veth1"]));
    let added = Command::AddFlowtable(fastpath::table(), fastpath::flowtable(names(&["veth1"])));
    assert_eq!(kernel.commits[1], [added]);
    Keeper::new(Wanted::Interfaces(vec!["veth1".into(), "cni0".into()]), &mut kernel).look();
    assert_eq!(devices(&kernel), names(&["veth1"]), "a named interface that is missing is waited for");
    assert_eq!(kernel.commits[2][0], Command::DeleteTable(fastpath::table()));
}

#[test]
fn what_others_did_to_the_table_is_repaired() {
    let mut kernel = on(&["eth0"]);
    Keeper::new(Wanted::Auto, &mut kernel).look();
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
        Keeper::new(Wanted::Auto, &mut kernel).look();
        assert_eq!(kernel.table, was);
    }
}

#[test]
fn another_generation_is_a_reason_to_read() {
    let mut kernel = on(&["eth0"]);
    let mut keeper = Keeper::new(Wanted::Auto, &mut kernel);
    keeper.look();
    keeper.kernel.generation += 1;
    keeper.kernel.table = None;
    keeper.look();
    assert_eq!(devices(&kernel), names(&["eth0"]));
}

#[test]
fn a_kernel_without_flowtables_ends_it() {
    let mut kernel = Kernel { lacks_flowtables: true, ..on(&["eth0"]) };
    assert_eq!(Keeper::new(Wanted::Auto, &mut kernel).look(), Look::Unsupported);
}

#[test]
fn an_interface_that_goes_in_the_wrong_moment_does_not() {
    let mut kernel = Kernel { vanishing: Some("veth1".into()), ..on(&["eth0", "veth1"]) };
    let mut keeper = Keeper::new(Wanted::Auto, &mut kernel);
    assert_eq!(keeper.look(), Look::Again);
    assert_eq!(keeper.look(), Look::Again, "it may take a while until it is gone from the list");
    let chains = &keeper.kernel.table.as_ref().unwrap().0.chains;
    assert!(chains.values().all(|(_, rules)| rules.len() == 2), "no rule is there twice");
    keeper.kernel.interfaces = names(&["eth0"]);
    assert_eq!(keeper.look(), Look::Again);
    assert_eq!(devices(&kernel), names(&["eth0"]));
}

#[test]
fn a_tables_owner_does_not_matter() {
    let mut kernel = on(&["eth0"]);
    Keeper::new(Wanted::Auto, &mut kernel).look();
    kernel.table.as_mut().unwrap().0.ownership = Ownership::Of { port: 7 };
    Keeper::new(Wanted::Auto, &mut kernel).look();
    assert_eq!(kernel.commits.len(), 1);
}
