//! Reads the kernel's rules, routes and interfaces, when the evaluation of a packet needs them.
//!
//! Takes a netlink connection to nf_tables and one to rtnetlink; implements [`Ruleset`] and [`Routes`]. Reads only the chains and
//! elements that the packet meets, so that the size of the tables hardly matters. All elements of a set are read only for a set of
//! ranges, or when a part of the key is not known.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nft::decode::{self, ChainHead, RuleHead, SetHead, TableHead};
use nft::{Connection, Data, Element, Family, ReadError, TableName};

use super::machine::{Host, Lookup, Ruleset};
use super::packet::{Link, Packet};
use super::path::{Next, Routes};
use node::kernel::routes::{self, RouteQuery};
use rules::ruleset::reading;

/// The kernel's rules for packets of one family, with a cache of what was read.
pub(crate) struct Live<'a> {
    connection: &'a mut Connection,
    family: Family,
    rules: BTreeMap<(TableName, Arc<str>), Arc<[RuleHead]>>,
    sets: BTreeMap<(TableName, Arc<str>), Option<SetHead>>,
    /// The elements of sets that were read as a whole, or why they cannot be read.
    elements: BTreeMap<(TableName, Arc<str>), Result<Vec<Element>, String>>,
}

impl<'a> Live<'a> {
    /// The rules for packets of a family, `ip` or `ip6`.
    pub(crate) fn new(connection: &'a mut Connection, family: Family) -> Self {
        Self { connection, family, rules: BTreeMap::new(), sets: BTreeMap::new(), elements: BTreeMap::new() }
    }

    pub(crate) fn tables(&mut self) -> Result<Vec<TableHead>> {
        self.connection.tables().context("cannot list the tables of nf_tables")
    }

    /// The generation number of the ruleset, which each commit changes.
    pub(crate) fn generation(&mut self) -> Result<u32> {
        Ok(self.connection.generation()?)
    }

    fn head(&mut self, table: &TableName, set: &str) -> Result<Option<SetHead>> {
        let name = (table.clone(), Arc::from(set));
        if let Some(head) = self.sets.get(&name) {
            return Ok(head.clone());
        }
        let head = self.connection.set(table, set)?;
        self.sets.insert(name, head.clone());
        Ok(head)
    }

    /// Finds the element that holds a key by reading all elements of the set.
    fn search(&mut self, table: &TableName, head: &SetHead, key: &Data, unknown: u64) -> Lookup {
        let connection = &mut self.connection;
        let name = (table.clone(), Arc::clone(&head.name));
        let all = self.elements.entry(name).or_insert_with(|| {
            let raw = connection.elements(table, &head.name).map_err(|error| error.to_string())?;
            Ok(decode::pair_of(head, raw))
        });
        match all {
            Err(why) => Lookup::Unreadable(why.clone()),
            Ok(all) => among(head, all.iter().cloned(), key, unknown),
        }
    }
}

/// Finds the element that holds a key. `Unreadable` if some bytes of the key are unknown and an element may hold it.
pub(crate) fn among(head: &SetHead, mut all: impl Iterator<Item = Element>, key: &Data, unknown: u64) -> Lookup {
    match all.find(|element| holds(head, element, key, unknown)) {
        None => Lookup::Missing,
        Some(_) if unknown != 0 => Lookup::Unreadable(String::new()),
        Some(element) => Lookup::Found(element),
    }
}

/// Whether an element holds a key, compared only by the known bytes. Each field of a concatenation of ranges is compared by itself.
fn holds(head: &SetHead, element: &Element, key: &Data, unknown: u64) -> bool {
    let (first, key) = (element.key.as_slice(), key.as_slice());
    let last = element.key_end.as_ref().map_or(first, |end| end.as_slice());
    let is_known = |range: &Range<usize>| range.clone().all(|index| unknown >> index & 1 == 0);
    let fields: Vec<Range<usize>> = match (head.is_interval, &head.fields[..]) {
        (true, [_, _, ..]) => {
            let starts = head.fields.iter().scan(0, |next, len| {
                let start = *next;
                *next += len.next_multiple_of(4);
                Some(start..start + len)
            });
            starts.collect()
        }
        (true, _) => std::iter::once(0..key.len()).collect(),
        (false, _) => (0..key.len()).map(|index| index..index + 1).collect(),
    };
    fields.into_iter().filter(is_known).all(|field| {
        match (first.get(field.clone()), key.get(field.clone()), last.get(field)) {
            (Some(first), Some(key), Some(last)) => (first..=last).contains(&key),
            _ => false,
        }
    })
}

impl Ruleset for Live<'_> {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>> {
        let tables = self.tables()?;
        let is_awake = |chain: &ChainHead| {
            let family = chain.table.family.number();
            tables.iter().any(|table| (table.family, &table.name, table.dormant) == (family, &chain.table.name, false))
        };
        let mut chains = self.connection.base_chains(self.family)?;
        chains.extend(self.connection.base_chains(Family::Inet)?);
        chains.retain(is_awake);
        // Sort the chains by the age of their tables, which the kernel lists oldest first.
        let age = |chain: &ChainHead| {
            tables.iter().position(|t| (t.family, &t.name) == (chain.table.family.number(), &chain.table.name))
        };
        chains.sort_by_key(age);
        Ok(chains)
    }

    fn rules(&mut self, table: &TableName, chain: &str) -> Result<Arc<[RuleHead]>> {
        let name = (table.clone(), Arc::from(chain));
        if let Some(rules) = self.rules.get(&name) {
            return Ok(Arc::clone(rules));
        }
        let rules: Arc<[RuleHead]> = self.connection.rules(table, chain)?.into();
        self.rules.insert(name, Arc::clone(&rules));
        Ok(rules)
    }

    fn find(&mut self, table: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup> {
        let Some(head) = self.head(table, set)? else {
            return Ok(Lookup::Unreadable("it cannot be read".to_owned()));
        };
        let Some(key) = key.get(..head.key_len).and_then(Data::from_bytes) else {
            return Ok(Lookup::Unreadable("its keys are too long".to_owned()));
        };
        let unknown = unknown & ((1 << key.len()) - 1);
        if head.is_interval || unknown != 0 {
            return Ok(self.search(table, &head, &key, unknown));
        }
        match self.connection.element(table, set, &key) {
            Ok(None) => Ok(Lookup::Missing),
            Ok(Some(raw)) => Ok(Lookup::Found(raw.element)),
            Err(ReadError::Decode(error)) => Ok(Lookup::Unreadable(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn addresses(&mut self, table: &TableName, set: &str) -> Result<Vec<IpAddr>> {
        let Some(head) = self.head(table, set)? else { return Ok(Vec::new()) };
        let elements = self.connection.elements(table, set)?;
        let elements = decode::pair_of(&head, elements);
        Ok(elements.iter().filter_map(|element| reading::address(element.key.as_slice())).collect())
    }
}

/// The routes, addresses and interfaces of this host.
pub(crate) struct ThisHost {
    routes: routes::Routes,
    interfaces: Vec<(u32, Arc<str>)>,
}

impl ThisHost {
    /// Opens a socket and lists the interfaces.
    pub(crate) fn open() -> Result<Self> {
        let mut routes = routes::Routes::open()?;
        let interfaces = routes.interfaces().context("cannot list the interfaces")?;
        Ok(Self { routes, interfaces })
    }

    /// Finds an interface by its name.
    pub(crate) fn interface(&self, name: &str) -> Option<Link> {
        let (index, name) = self.interfaces.iter().find(|(_, known)| &**known == name)?;
        Some(Link::Known(*index, Arc::clone(name)))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.interfaces.iter().map(|(_, name)| name)
    }

    /// The interface through which packets to an address leave. Packets from that address most likely arrive at it.
    pub(crate) fn towards(&mut self, address: IpAddr) -> Link {
        let query = RouteQuery { destination: address, source: None, input: None, mark: 0 };
        self.routes.route(&query).map_or(Link::Unknown, |route| self.link(route.output))
    }

    /// Finds an interface by its index; [`Link::Unknown`] when there is none.
    pub(crate) fn link(&self, index: Option<u32>) -> Link {
        let known = index.and_then(|index| self.interfaces.iter().find(|(known, _)| *known == index));
        known.map_or(Link::Unknown, |(index, name)| Link::Known(*index, Arc::clone(name)))
    }
}

impl Host for ThisHost {
    fn address_type(&mut self, address: IpAddr) -> Result<u8> {
        let query = RouteQuery { destination: address, source: None, input: None, mark: 0 };
        // An address without a route counts as unicast, as it does for the kernel's `fib` expression.
        Ok(self.routes.route(&query).map_or(routes::UNICAST, |route| route.kind))
    }
}

impl Routes for ThisHost {
    fn next(&mut self, packet: &Packet) -> Result<Next> {
        let input = match &packet.input {
            Link::Known(index, _) => Some(*index),
            Link::None | Link::Unknown => None,
        };
        // If the input interface is unknown, leave the source out: the kernel would take the packet for one that this host sends.
        let source = (packet.input != Link::Unknown).then_some(packet.source);
        let query = RouteQuery { destination: packet.destination, source, input, mark: packet.mark };
        Ok(match self.routes.route(&query) {
            Ok(route) if route.kind == routes::UNICAST => Next::Elsewhere(self.link(route.output)),
            Ok(_) => Next::Here,
            Err(error) if is_discarded(&error) => Next::Discarded(reason(&error)),
            Err(error) => Next::Nowhere(reason(&error)),
        })
    }

    fn loopback(&mut self) -> Result<Link> {
        Ok(self.interface("lo").unwrap_or(Link::Unknown))
    }
}

/// Whether the error of a route look-up means that packets are discarded, and not just that no route is known.
fn is_discarded(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied | ErrorKind::CrossesDevices)
}

/// The error of a route look-up, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NetworkUnreachable => "no route".to_owned(),
        ErrorKind::HostUnreachable => "no route, or this host does not forward packets".to_owned(),
        ErrorKind::CrossesDevices => {
            "the reverse-path filter drops packets from this source at this interface".to_owned()
        }
        ErrorKind::PermissionDenied => "a route prohibits it".to_owned(),
        ErrorKind::InvalidInput => {
            "its route is a blackhole, or the kernel takes no packet with these addresses at this interface".to_owned()
        }
        _ => error.to_string(),
    }
}
