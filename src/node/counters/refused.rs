//! How many packets to node ports on loopback addresses the rules refused (R5).

use std::io;

use foldhash::HashMap;
use nft::{Connection, ReadError, TableName};

use rules::model::{Family, Protocol};
use rules::ruleset::names::{self, chain};
use rules::ruleset::reading::rule_protocol;

/// Reads the counters of the rules that refuse such packets.
pub struct Refused {
    connection: Connection,
    /// What the rules had counted at the last reading.
    before: HashMap<(Family, Protocol), u64>,
}

impl Refused {
    /// Opens a socket of its own.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn open() -> io::Result<Self> {
        Ok(Self { connection: Connection::open()?, before: HashMap::default() })
    }

    /// Gives `add` the packets that each rule counted since the last call. At the first call that is all they ever counted: rules
    /// outlive the process that wrote them. A rule that counted less than before is a new one.
    ///
    /// # Errors
    /// See [`ReadError`]; what was read before it was given.
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
