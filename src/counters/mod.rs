//! Reads what the rules counted, and shows it as metrics (`nftables.counters`).
//!
//! Takes the kernel's tables, gives the totals of the busiest service ports to [`Metrics`] every [`INTERVAL`], whether anything asks for
//! them or not: so what a scrape costs does not grow with the cluster, and whoever may ask cannot have the tables read. Only reads; a
//! dump of a set waits for no transaction and holds none up.

mod ledger;
mod refused;

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use nft::{Connection, Data, Family, ReadError, TableName};

use crate::metrics::Metrics;
use crate::ruleset::counters::{self, Meaning, of_element, of_rule};
use crate::table::SetName;
use ledger::{Ledger, Place};
pub(crate) use refused::Refused;

/// The time between two readings.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// The same as long as there is nothing to read.
const FIRST: Duration = Duration::from_secs(1);

/// Reads the counters of both tables.
pub(crate) struct Reader {
    connection: Connection,
    metrics: Metrics,
    /// The number of service ports with series of their own.
    limit: usize,
    /// The names of the sets with counters.
    sets: Vec<SetName>,
    ledger: Ledger,
}

impl Reader {
    /// Opens a socket of its own.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub(crate) fn open(metrics: Metrics, limit: usize, endpoint_maps: u8) -> std::io::Result<Self> {
        let sets = counters::sets(endpoint_maps);
        Ok(Self { connection: Connection::open()?, metrics, limit, sets, ledger: Ledger::default() })
    }

    /// Reads all counters and shows the totals; gives the time until the next reading. Before the first sync there are no counters.
    ///
    /// # Errors
    /// See [`ReadError`]; the metrics stay as they are.
    pub(crate) fn read(&mut self) -> Result<Duration, ReadError> {
        let mut reading = HashMap::default();
        for family in [Family::Ip, Family::Ip6] {
            self.read_family(family, &mut reading)?;
        }
        if reading.is_empty() {
            return Ok(FIRST);
        }
        self.metrics.counted(self.ledger.take(reading, self.limit));
        Ok(INTERVAL)
    }

    /// Rules come first: a connection that a rule drops was counted by a dispatch map before, so that drops are never too many.
    fn read_family(&mut self, family: Family, reading: &mut HashMap<(Place, Meaning), u64>) -> Result<(), ReadError> {
        let table = TableName::new(family, "kube-proxy");
        self.connection.rule_counters(&table, None, |chain, rule, count| {
            if let Some(meaning) = of_rule(chain, &rule) {
                *reading.entry((Place::Chain(family, chain.into()), meaning)).or_default() += count.packets;
            }
        })?;
        // The labels of fronts by the set and the key that they have there; only some sets have no labels of their own.
        let mut labels: HashMap<(&str, Data), Arc<str>> = HashMap::default();
        for (number, set) in (0..).zip(&self.sets) {
            let mut found = Vec::new();
            self.connection.element_counters(&table, set, |element, count| {
                let port_of = |set: &str, key: &[u8]| labels.get(&(set, Data::from_bytes(key)?)).cloned();
                if let Some(meaning) = of_element(set, &element, port_of) {
                    reading.insert((Place::Element(family, number, element.key), meaning), count.packets);
                }
                found.extend(element.comment.map(|label| ((&**set, element.key), label)));
            })?;
            labels.extend(found);
        }
        Ok(())
    }
}
