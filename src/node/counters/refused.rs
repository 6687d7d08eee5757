//! Counts the packets to node ports on loopback addresses that the rules refused (R5).

use std::io;

use foldhash::HashMap;
use nft::{Connection, ReadError, TableName};

use rules::model::{Family, Protocol};
use rules::ruleset::names::{self, chain};
use rules::ruleset::reading::rule_protocol;

/// Reads the counters of the rules that refuse packets to node ports on loopback addresses.
pub struct Refused {
    connection: Connection,
    /// The count of each rule at the last reading.
    before: HashMap<(Family, Protocol), u64>,
}

impl Refused {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open() -> io::Result<Self> {
        Ok(Self { connection: Connection::open()?, before: HashMap::default() })
    }

    /// Calls `add` with the number of packets that each rule counted since the last call. The first call passes everything that the rules
    /// have counted since they were created, because rules outlive the process that wrote them. A count that is lower than at the last call
    /// means that the rule was created again and began at zero.
    ///
    /// # Errors
    /// See [`ReadError`]; the counts that were read before the error were given to `add`.
    pub fn read(&mut self, mut add: impl FnMut(Family, Protocol, u64)) -> Result<(), ReadError> {
        for family in Family::BOTH {
            let table = TableName::new(family.into(), names::TABLE);
            let mut found = Vec::new();
            self.connection.rule_counters(&table, Some(chain::LOCALHOST), |_, rule, count| {
                found.extend(rule_protocol(&rule).map(|protocol| (protocol, count.packets)));
            })?;
            for (protocol, packets) in found {
                let before = self.before.insert((family, protocol), packets).unwrap_or_default();
                let more = packets.checked_sub(before).unwrap_or(packets);
                add(family, protocol, more);
            }
        }
        Ok(())
    }
}
