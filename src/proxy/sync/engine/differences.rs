//! Finds how tables differ from what they should hold, and the service port that each difference belongs to.
//!
//! Used by commands that change nothing, such as `kube-proxy verify`. Takes tables as they were read, returns [`TableDifference`]s. The
//! result is empty if a sync that reads these tables back would have nothing to correct. That a sync would split the maps of endpoints
//! further, because a table has grown, is no difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use nft::{TableDump, TableName};

use super::Engine;
use super::NoKernel;
use crate::sync::tables::{Owner, Tables};
use node::kernel::Kernel;
use rules::diff::differences::{Difference, DifferenceKind};
use rules::endpoints::select;
use rules::model::{ObjectName, State};
use rules::table::ServiceObjects;

/// How the tables differ from what they should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDifferences {
    /// The first differences of each table; the same ones each time.
    pub listed: Vec<TableDifference>,
    /// For each table the number of its other differences, in the order of [`Engine::table_names`].
    pub unlisted: Vec<usize>,
}

/// Something in a table that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDifference {
    /// The table that differs.
    pub table: TableName,
    /// What the difference belongs to.
    pub subject: Subject,
    /// What should be in the table, and what is there.
    pub what: DifferenceKind,
}

/// What a difference belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The fixed rules, which do not depend on Services, or an object that belongs neither to the node nor to a known Service.
    Table,
    /// A fact of the node, such as an address that accepts node ports.
    Node,
    /// A service port as `namespace/name:port`, or a Service as `namespace/name` when the difference concerns several of its ports, or
    /// none.
    Service(Arc<str>),
}

impl Subject {
    /// Returns the Service or service port; `None` if the difference belongs to none.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Service(label) => Some(label),
            Self::Table | Self::Node => None,
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// Returns the names of the tables, one for each family, always in the same order.
    pub fn table_names(&self) -> Vec<TableName> {
        self.tables.names()
    }

    /// Returns the number of Services in the state of the cluster.
    pub fn service_count(&self) -> usize {
        self.state.service_count()
    }

    /// Returns how `dumps`, tables in the order of [`Engine::table_names`], differ from what they should hold. A difference that belongs to
    /// no Service of this engine, such as one of a deleted Service, gets its subject from `before`, an engine with an earlier state of the
    /// cluster. The number of maps into which the endpoints are split counts as a difference only if the configuration sets it.
    pub fn differences(&mut self, dumps: Vec<Option<TableDump>>, before: Option<&Self>) -> TableDifferences {
        self.adopt_maps(&dumps);
        self.recompute();
        let names = self.tables.names();
        let (mut found, unlisted) = self.tables.differences(dumps);
        let mut subjects = subjects(&self.state, &self.tables, &found);
        if let Some(before) = before {
            before.own(&mut found);
            let of_before = self::subjects(&before.state, &before.tables, &found);
            for (subject, of_before) in subjects.iter_mut().zip(of_before) {
                if *subject == Subject::Table {
                    *subject = of_before;
                }
            }
        }
        let listed = found.into_iter().zip(subjects).map(|((table, difference), subject)| TableDifference {
            table: names[table].clone(),
            subject,
            what: difference.what,
        });
        TableDifferences { listed: listed.collect(), unlisted }
    }
}

impl<K: Kernel> Engine<K> {
    /// Gives each difference without an owner the owner that this engine knows for it, if any.
    fn own(&self, found: &mut [(usize, Difference<Owner>)]) {
        for table in 0..self.tables.names().len() {
            let is_open =
                |(of, difference): &&mut (usize, Difference<Owner>)| *of == table && difference.owner.is_none();
            let mut open: Vec<_> = found.iter_mut().filter(is_open).map(|(_, difference)| difference).collect();
            let owners = self.tables.owners_of(table, open.iter().map(|difference| &difference.what));
            open.iter_mut().zip(owners).for_each(|(difference, owner)| difference.owner = owner);
        }
    }
}

impl Engine<NoKernel> {
    /// Sets the addresses of the node's interfaces.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<std::net::IpAddr>) {
        self.kernel.addresses = addresses;
        self.refresh_node();
    }
}

/// Finds the subject of each difference.
fn subjects(state: &State, tables: &Tables, found: &[(usize, Difference<Owner>)]) -> Vec<Subject> {
    let mut by_service: BTreeMap<(usize, &ObjectName), Vec<usize>> = BTreeMap::new();
    let mut subjects = Vec::new();
    for (number, (table, difference)) in found.iter().enumerate() {
        subjects.push(match &difference.owner {
            Some(Owner::Node) => Subject::Node,
            Some(Owner::Service(name)) => {
                by_service.entry((*table, name)).or_default().push(number);
                Subject::Table
            }
            None => by_comment(state, &difference.what).map_or(Subject::Table, Subject::Service),
        });
    }
    for ((table, name), numbers) in by_service {
        let selection = select(state, name);
        let ports = selection.as_ref().map(|selection| tables.objects_of_ports(table, selection)).unwrap_or_default();
        for number in numbers {
            let mut labels = ports.iter().filter(|(_, fragment)| has(fragment, &found[number].1.what));
            let label = match (labels.next(), labels.next()) {
                (Some((label, _)), None) => Arc::clone(label),
                _ => name.to_string().into(),
            };
            subjects[number] = Subject::Service(label);
        }
    }
    subjects
}

/// Returns whether the objects of one service port include the object of a difference, or include a list of numbered map elements to which
/// its key belongs.
fn has(fragment: &ServiceObjects, what: &DifferenceKind) -> bool {
    if let Some((set, key)) = what.element() {
        let is_it = |(name, element): &(_, nft::Element)| *name == set && element.key.as_slice() == key;
        let in_slots = |slots: &rules::table::Slots| slots.set == set && key.starts_with(slots.prefix.as_slice());
        if fragment.elements.iter().any(is_it) || fragment.slots.iter().any(in_slots) {
            return true;
        }
    }
    let Some(name) = what.name() else { return false };
    fragment.chains.iter().any(|content| *content.chain.name == *name)
        || fragment.dynamic_sets.iter().any(|map| *map.set.name == *name)
        || fragment.verdict_maps.iter().any(|map| *map.set.name == *name)
}

/// Returns the service port, or the Service, that a comment of the differing object names; `None` if no comment names a known Service.
fn by_comment(state: &State, what: &DifferenceKind) -> Option<Arc<str>> {
    let words = what.comments().into_iter().flat_map(|comment| comment.split([' ', ',']));
    words.filter_map(|word| service_port(state, word)).next()
}

fn service_port(state: &State, label: &str) -> Option<Arc<str>> {
    let (service, port) = label.split_once(':').map_or((label, None), |(service, port)| (service, Some(port)));
    let (namespace, name) = service.split_once('/')?;
    let known = state.service(&ObjectName::new(namespace, name))?;
    let has_port = |port: &str| known.ports.iter().any(|known| *known.name == *port);
    Some(if port.is_none_or(has_port) { label.into() } else { service.into() })
}
