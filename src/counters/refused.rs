//! How many packets to node ports on loopback addresses the rules refused (R5).

use std::io;

use foldhash::HashMap;
use nft::{Connection, ReadError, TableName};

use crate::metrics::Metrics;
use crate::model::{Family, Protocol};
use crate::ruleset::localhost::{CHAIN, protocol_of};

/// Reads the counters of the rules that refuse such packets.
pub(crate) struct Refused {
    connection: Connection,
    metrics: Metrics,
    /// What the rules had counted at the last reading.
    before: HashMap<(Family, Protocol), u64>,
}

impl Refused {
    /// Opens a socket of its own.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub(crate) fn open(metrics: Metrics) -> io::Result<Self> {
        Ok(Self { connection: Connection::open()?, metrics, before: HashMap::default() })
    }

    /// Adds what the rules counted since the last call to the metrics. At the first call that is all they ever counted: rules outlive the
    /// process that wrote them. A rule that counted less than before is a new one.
    ///
    /// # Errors
    /// See [`ReadError`]; the metrics stay as they are.
    pub(crate) fn read(&mut self) -> Result<(), ReadError> {
        for family in Family::BOTH {
            let table = TableName::new(family.into(), "kube-proxy");
            let mut found = Vec::new();
            self.connection.rule_counters(&table, Some(CHAIN), |_, rule, count| {
                found.extend(protocol_of(&rule).map(|protocol| (protocol, count.packets)));
            })?;
            for (protocol, packets) in found {
                let before = self.before.insert((family, protocol), packets).unwrap_or_default();
                let more = packets.checked_sub(before).unwrap_or(packets);
                self.metrics.localhost_rejected(family, protocol, more);
            }
        }
        Ok(())
    }
}
