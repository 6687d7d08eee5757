//! Reads the kernel's rules, routes and interfaces, when the evaluation of a packet needs them.
//!
//! Takes a netlink connection to nf_tables and opens one to rtnetlink; implements [`Ruleset`], [`Host`] and [`Routes`]. Reads only the chains
//! and elements that the packet meets, so that the size of the tables hardly matters. For a key, all elements of a set are read only if it is
//! a set of ranges, or a part of the key is not known.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nft::decode::{self, ChainHead, RuleHead, SetHead, TableHead};
use nft::iptables::Chain;
use nft::machine::{self, Host, Link, Lookup, Next, Packet, Routes, Ruleset};
use nft::{Connection, Element, Family, ReadError, TableName};

use node::kernel::routes::{self, Choice, Masquerade, RouteQuery};

/// The kernel's rules for packets of one family, with a cache of the rules and sets that were read.
pub(crate) struct Live<'a> {
    connection: &'a mut Connection,
    family: Family,
    rules: BTreeMap<(TableName, Arc<str>), Arc<[RuleHead]>>,
    sets: BTreeMap<(TableName, Arc<str>), Option<SetHead>>,
    /// The elements of sets that were read as a whole, or why they cannot be read.
    elements: BTreeMap<(TableName, Arc<str>), Result<Vec<Element>, String>>,
    /// The chains of iptables-legacy, and whether they count as registered before all others. Of chains with the same priority the kernel
    /// calls the one first that was registered last.
    legacy: (Vec<Chain>, bool),
}

impl<'a> Live<'a> {
    /// The rules for packets of a family, `ip` or `ip6`.
    pub(crate) fn new(connection: &'a mut Connection, family: Family) -> Self {
        let (rules, sets, elements) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { connection, family, rules, sets, elements, legacy: (Vec::new(), true) }
    }

    /// Adds the chains of iptables-legacy. Returns whether a packet may meet one of them.
    pub(crate) fn add_legacy(&mut self, chains: Vec<Chain>) -> bool {
        self.legacy.0 = chains;
        self.legacy.0.iter().any(Chain::is_met)
    }

    /// Sets whether the chains of iptables-legacy count as registered before all others, or after them.
    pub(crate) fn set_legacy_is_older(&mut self, is_older: bool) {
        self.legacy.1 = is_older;
    }

    pub(crate) fn tables(&mut self) -> Result<Vec<TableHead>> {
        self.connection.tables().context("cannot list the tables of nf_tables")
    }

    /// The generation number of the ruleset, which each commit changes.
    pub(crate) fn generation(&mut self) -> Result<u32> {
        Ok(self.connection.generation()?)
    }

    fn head(&mut self, table: &TableName, set: &str) -> Result<Option<SetHead>, ReadError> {
        let name = (table.clone(), Arc::from(set));
        if let Some(head) = self.sets.get(&name) {
            return Ok(head.clone());
        }
        let head = self.connection.set(table, set)?;
        self.sets.insert(name, head.clone());
        Ok(head)
    }

    /// Finds the element that holds a key by reading all elements of the set.
    fn search(&mut self, table: &TableName, head: &SetHead, key: &[u8], unknown: u64) -> Lookup {
        let connection = &mut self.connection;
        let name = (table.clone(), Arc::clone(&head.name));
        let all = self.elements.entry(name).or_insert_with(|| {
            let raw = connection.elements(table, &head.name).map_err(|error| error.to_string())?;
            Ok(decode::pair_of(head, raw))
        });
        match all {
            Err(why) => Lookup::Unreadable(why.clone()),
            Ok(all) => machine::among(head, all, key, unknown),
        }
    }
}

impl Ruleset for Live<'_> {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>, ReadError> {
        let tables = self.connection.tables()?;
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
        let (legacy, is_older) = &self.legacy;
        let place = if *is_older { 0 } else { chains.len() };
        chains.splice(place..place, legacy.iter().filter(|chain| chain.is_met()).map(|chain| chain.head.clone()));
        Ok(chains)
    }

    fn rules(&mut self, table: &TableName, chain: &str) -> Result<Arc<[RuleHead]>, ReadError> {
        let is_it = |of_legacy: &&Chain| (&of_legacy.head.table, &*of_legacy.head.name) == (table, chain);
        if let Some(of_legacy) = self.legacy.0.iter().find(is_it) {
            return Ok(Arc::clone(&of_legacy.rules));
        }
        let name = (table.clone(), Arc::from(chain));
        if let Some(rules) = self.rules.get(&name) {
            return Ok(Arc::clone(rules));
        }
        let rules: Arc<[RuleHead]> = self.connection.rules(table, chain)?.into();
        self.rules.insert(name, Arc::clone(&rules));
        Ok(rules)
    }

    fn find(&mut self, table: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup, ReadError> {
        let Some(head) = self.head(table, set)? else {
            return Ok(Lookup::Unreadable("it cannot be read".to_owned()));
        };
        let Some((key, unknown)) = machine::key_of(&head, key, unknown) else { return Ok(Lookup::too_long()) };
        if head.is_interval || unknown != 0 {
            return Ok(self.search(table, &head, key.as_slice(), unknown));
        }
        match self.connection.element(table, set, &key) {
            Ok(None) => Ok(Lookup::Missing),
            Ok(Some(raw)) => Ok(Lookup::Found(raw.element)),
            Err(ReadError::Decode(error)) => Ok(Lookup::Unreadable(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn elements(&mut self, table: &TableName, set: &str) -> Result<Vec<Element>, ReadError> {
        let Some(head) = self.head(table, set)? else { return Ok(Vec::new()) };
        Ok(decode::pair_of(&head, self.connection.elements(table, set)?))
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
        let query = RouteQuery { destination: address, source: None, input: None, output: None, mark: 0 };
        self.routes.route(&query).map_or(Link::Unknown, |route| self.link(route.output))
    }

    /// The source address that the kernel gives to a packet that leaves through its output interface and is masqueraded, and why; `None` when
    /// that cannot be told.
    pub(super) fn masqueraded(&mut self, packet: &Packet) -> Option<(IpAddr, String)> {
        let Link::Known(output, name) = &packet.output else { return None };
        let Masquerade { source, choice, of_route } = self.routes.masquerade(&query(packet), *output).ok()??;
        let why = match choice {
            Choice::NextHop(hop) => format!("the address of {name} in the network of the next hop, {hop}"),
            Choice::First => format!("the first address of {name}"),
            Choice::Preferred => format!("the address of {name} that the kernel prefers for this endpoint"),
            Choice::Elsewhere(index) => match self.link(Some(index)) {
                Link::Known(_, other) => {
                    format!("an address of {other}, because the interface towards the endpoint has none")
                }
                _ => "an address of another interface".to_owned(),
            },
        };
        let ignored =
            of_route.map_or_else(String::new, |other| format!("; the source of the route, {other}, does not count"));
        Some((source, why + &ignored))
    }

    /// Finds an interface by its index; [`Link::Unknown`] when there is none.
    pub(crate) fn link(&self, index: Option<u32>) -> Link {
        let known = index.and_then(|index| self.interfaces.iter().find(|(known, _)| *known == index));
        known.map_or(Link::Unknown, |(index, name)| Link::Known(*index, Arc::clone(name)))
    }
}

impl Host for ThisHost {
    fn address_type(&mut self, address: IpAddr) -> u8 {
        let query = RouteQuery { destination: address, source: None, input: None, output: None, mark: 0 };
        // An address without a route counts as unicast, as it does for the kernel's `fib` expression.
        self.routes.route(&query).map_or(routes::UNICAST, |route| route.kind)
    }
}

impl Routes for ThisHost {
    fn next(&mut self, packet: &Packet) -> Next {
        match self.routes.route(&query(packet)) {
            Ok(route) if route.kind == routes::UNICAST => Next::Elsewhere(self.link(route.output)),
            Ok(_) => Next::Here,
            Err(error) if is_discarded(&error) => Next::Discarded(reason(&error)),
            Err(error) => Next::Nowhere(reason(&error)),
        }
    }

    fn loopback(&mut self) -> Link {
        self.interface("lo").unwrap_or(Link::Unknown)
    }
}

/// The question for the route of a packet.
fn query(packet: &Packet) -> RouteQuery {
    let input = match &packet.input {
        Link::Known(index, _) => Some(*index),
        Link::None | Link::Unknown => None,
    };
    // If the input interface is unknown, leave the source out: the kernel would take the packet for one that this host sends.
    let source = (packet.input != Link::Unknown).then_some(packet.source);
    RouteQuery { destination: packet.destination, source, input, output: None, mark: packet.mark }
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
