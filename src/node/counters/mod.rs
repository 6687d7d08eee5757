//! Reads the counters of the rules (`nftables.counters`).
//!
//! Returns the totals of the busiest service ports (ports of Services). The counters are read every [`INTERVAL`] and not at each scrape of
//! the metrics, so that the cost of a scrape does not grow with the cluster, and a client cannot cause a read of the tables. A dump of a
//! set neither waits for a transaction nor delays one, because the kernel reads sets under RCU (`nf_tables_dump_set`).

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
use rules::ruleset::{map_steps, names, reading};

/// The time between two readings.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// The time between two readings before the first sync, while the tables have no counters yet.
const FIRST: Duration = Duration::from_secs(1);

/// The counts of one service port, or the sums over several service ports. Numbers do not decrease as long as the service port has a
/// counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// New connections that were forwarded to an endpoint.
    pub connections: u64,
    /// Packets that were refused because there are no endpoints.
    pub no_endpoints: u64,
    /// Packets that were dropped because the traffic policy is Local and no endpoint is on this node.
    pub no_local_endpoints: u64,
    /// Packets that were dropped because their source is not in the Service's source ranges.
    pub source_ranges: u64,
    /// New connections of the busiest endpoints.
    pub endpoints: Vec<(SocketAddr, u64)>,
}

/// The counts of all service ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The busiest service ports, by label (`namespace/name:port`).
    pub services: Vec<(Arc<str>, ServiceCounts)>,
    /// The sums of all other service ports, without endpoints.
    pub others: ServiceCounts,
    /// Packets to a cluster IP, at a port that the Service does not have.
    pub unused_ports: u64,
    /// Packets to an address of a ServiceCIDR that is no Service's cluster IP.
    pub unused_addresses: u64,
}

/// Reads the counters of the IPv4 table and of the IPv6 table.
pub struct Reader {
    connection: Connection,
    /// Whether endpoints have counters.
    of_endpoints: bool,
    /// The largest number of service ports that get metrics of their own.
    limit: usize,
    ledger: Ledger,
}

impl Reader {
    /// Opens a netlink socket. `of_endpoints` says whether endpoints have counters; without, their maps are not read. `limit` is the largest
    /// number of service ports that get metrics of their own.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open(of_endpoints: bool, limit: usize) -> std::io::Result<Self> {
        Ok(Self { connection: Connection::open()?, of_endpoints, limit, ledger: Ledger::default() })
    }

    /// Reads all counters. Returns the totals, and the time until the next reading. The totals are `None` while the tables have no
    /// counters, as before the first sync.
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

    /// Reads the counters of one family. Reads the rules before the maps, because a packet is counted first in a map of Services and later
    /// by the rule that drops it: of a packet that arrives meanwhile, a reading must not have the drop without the connection.
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
        // The sync loop changes the number of maps when the table grows, so this reads the number each time.
        let maps = endpoint_maps(&mut self.connection, &table)?.unwrap_or(1);
        // The label (`namespace/name:port`) of each frontend, from the comments of elements. The sets with comments come first; elements of
        // later sets have no comment and get their labels from this map.
        let mut labels: HashMap<Frontend, Arc<str>> = HashMap::default();
        for (number, set) in (0..).zip(counters::sets(self.of_endpoints, maps)) {
            let Some(kind) = SetKind::of(&set) else { continue };
            let mut found = Vec::new();
            self.connection.element_counters(&table, &set, |element, count| {
                let label_of = |frontend: &Frontend| labels.get(frontend).cloned();
                if let Some(meaning) = of_element(kind, family, &element, label_of) {
                    reading.insert((CounterId::Element(family, number, element.key), meaning), count.packets);
                }
                let frontend = reading::frontend(kind, family, element.key.as_slice());
                found.extend(frontend.zip(element.comment));
            })?;
            labels.extend(found);
        }
        Ok(())
    }
}

/// Asks the kernel into how many maps a table splits each map of endpoints; `None` when it has no such maps.
///
/// # Errors
/// See [`ReadError`].
pub fn endpoint_maps(connection: &mut Connection, table: &TableName) -> Result<Option<u8>, ReadError> {
    map_steps::found(|name| Ok(connection.set(table, name)?.is_some()))
}
