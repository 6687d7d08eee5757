//! Counts the packets that the rules of one chain stopped: those to node ports on loopback addresses that were refused (R5), or invalid ones
//! of endpoints that were dropped (D27).

use std::io;

use foldhash::HashMap;
use nft::{Connection, ReadError, TableName};

use rules::model::{Family, Protocol};
use rules::ruleset::names;
use rules::ruleset::reading::rule_protocol;

/// Reads the counters of the rules of a chain. The chain has at most one rule with a counter for each protocol, or a single rule for all.
pub struct Refused {
    connection: Connection,
    chain: &'static str,
    /// The count of each rule at the last reading.
    before: HashMap<(Family, Option<Protocol>), u64>,
}

impl Refused {
    /// Opens a netlink socket, for a chain of the tables of both families.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open(chain: &'static str) -> io::Result<Self> {
        Ok(Self { connection: Connection::open()?, chain, before: HashMap::default() })
    }

    /// Calls `add` with the number of packets that each rule counted since the last call, and with the protocol that the rule matches, if it
    /// matches one. The first call passes everything that the rules have counted since they were created, because rules outlive the process
    /// that wrote them. A count that is lower than at the last call means that the rule was created again and began at zero.
    ///
    /// # Errors
    /// See [`ReadError`]; the counts that were read before the error were given to `add`.
    pub fn read(&mut self, mut add: impl FnMut(Family, Option<Protocol>, u64)) -> Result<(), ReadError> {
        for family in Family::BOTH {
            let table = TableName::new(family.into(), names::TABLE);
            let mut found = Vec::new();
            self.connection.rule_counters(&table, Some(self.chain), |_, rule, count| {
                found.push((rule_protocol(&rule), count.packets));
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
