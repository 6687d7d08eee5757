//! Reads the counters of the rules (`nftables.counters`).
//!
//! Takes the kernel's tables, gives the totals of the busiest service ports. They are read every [`INTERVAL`], whether anything asks for
//! them or not: so what a scrape costs does not grow with the cluster, and whoever may ask cannot have the tables read. Only reads; a
//! dump of a set waits for no transaction and holds none up.

mod ledger;
mod refused;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use nft::{Connection, ReadError, TableName};

use ledger::{CounterId, Ledger};
pub use refused::Refused;
use rules::model::{Family, Frontend};
use rules::ruleset::counters::{self, Meaning, of_element, of_rule};
use rules::ruleset::kinds::SetKind;
use rules::ruleset::{names, reading};
use rules::table::SetName;

/// The time between two readings.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// The time between two readings while the tables have no counters yet.
const FIRST: Duration = Duration::from_secs(1);

/// The counts of a service port, or of several. Numbers only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// New connections that went on to an endpoint.
    pub connections: u64,
    /// Packets that were refused because there are no endpoints.
    pub no_endpoints: u64,
    /// Packets that were dropped because no endpoint is on this node and the policy is Local.
    pub no_local_endpoints: u64,
    /// Packets that were dropped because their source may not use the frontend.
    pub source_ranges: u64,
    /// New connections of the busiest endpoints.
    pub endpoints: Vec<(SocketAddr, u64)>,
}

/// The counts of all service ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The busiest service ports, by label (`namespace/name:port`).
    pub services: Vec<(Arc<str>, ServiceCounts)>,
    /// All others together, without endpoints.
    pub others: ServiceCounts,
    /// Packets to ports of cluster IPs that no service port has.
    pub unused_ports: u64,
    /// Packets to addresses of ServiceCIDRs that no Service has.
    pub unused_addresses: u64,
}

/// Reads the counters of both tables.
pub struct Reader {
    connection: Connection,
    /// The number of service ports with series of their own.
    limit: usize,
    /// The sets with counters.
    sets: Vec<(SetName, SetKind)>,
    ledger: Ledger,
}

impl Reader {
    /// Opens a socket of its own.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn open(limit: usize, endpoint_maps: u8) -> std::io::Result<Self> {
        let kind = |name: SetName| SetKind::of(&name).map(|kind| (name, kind));
        let sets = counters::sets(endpoint_maps).into_iter().filter_map(kind).collect();
        Ok(Self { connection: Connection::open()?, limit, sets, ledger: Ledger::default() })
    }

    /// Reads all counters; gives the totals, and the time until the next reading. Before the first sync there are no counters.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(&mut self) -> Result<(Option<Counted>, Duration), ReadError> {
        let mut reading = HashMap::default();
        for family in Family::BOTH {
            self.read_family(family, &mut reading)?;
        }
        if reading.is_empty() {
            return Ok((None, FIRST));
        }
        Ok((Some(self.ledger.take(reading, self.limit)), INTERVAL))
    }

    /// Rules come first: a connection that a rule drops was counted by a dispatch map before, so that drops are never too many.
    fn read_family(
        &mut self,
        family: Family,
        reading: &mut HashMap<(CounterId, Meaning), u64>,
    ) -> Result<(), ReadError> {
        let table = TableName::new(family.into(), names::TABLE);
        self.connection.rule_counters(&table, None, |chain, rule, count| {
            if let Some(meaning) = of_rule(chain, &rule) {
                *reading.entry((CounterId::Chain(family, chain.into()), meaning)).or_default() += count.packets;
            }
        })?;
        // The labels of frontends, for sets whose elements have none; those that have one are read first.
        let mut labels: HashMap<Frontend, Arc<str>> = HashMap::default();
        for (number, (set, kind)) in (0..).zip(&self.sets) {
            let mut found = Vec::new();
            self.connection.element_counters(&table, set, |element, count| {
                let label_of = |frontend: &Frontend| labels.get(frontend).cloned();
                if let Some(meaning) = of_element(*kind, family, &element, label_of) {
                    reading.insert((CounterId::Element(family, number, element.key), meaning), count.packets);
                }
                let frontend = reading::frontend(*kind, family, element.key.as_slice());
                found.extend(frontend.zip(element.comment));
            })?;
            labels.extend(found);
        }
        Ok(())
    }
}
