//! The load of connection tracking: how full the table is, and what the kernel dropped because of it.
//!
//! Numbers are those of the calling thread's network namespace, but for the limit, which is one value for the whole machine. The counters
//! come over ctnetlink, because some distributions' kernels have no `/proc/net/stat/nf_conntrack`. A reading costs one dump with a message
//! for each processor, whatever the number of connections.

use std::fs;
use std::io;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::Attrs;

use super::{finished, message_about, number};

/// Entries and counters of connection tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackLoad {
    /// Tracked connections, of all programs.
    pub entries: u64,
    /// The most connections that the kernel tracks.
    pub limit: u64,
    /// Packets that were dropped because their connection could not be tracked, as with a full table.
    pub drops: u64,
    /// Connections that could not be added, because one with the same addresses and ports was there; their packet was dropped.
    pub failed_inserts: u64,
    /// Connections that were not established yet (without `IPS_ASSURED`), and were forgotten to make room for others.
    pub early_drops: u64,
}

impl ConntrackLoad {
    /// Reads the numbers.
    ///
    /// # Errors
    /// When connection tracking is not loaded, and the error that the kernel reports: `EPERM` without `CAP_NET_ADMIN`.
    pub fn read() -> io::Result<Self> {
        let mut load =
            Self { entries: sysctl("nf_conntrack_count")?, limit: sysctl("nf_conntrack_max")?, ..Self::default() };
        let mut socket = Socket::open(Bus::Netfilter)?;
        socket.send(&finished(message_about(number::GET_STATISTICS, number::NLM_F_DUMP, 0)))?;
        loop {
            for message in Messages::new(socket.receive()?) {
                match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                    Some(0) => return Ok(load),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => load.add(message),
                }
            }
        }
    }

    /// Adds the counters of one processor.
    fn add(&mut self, message: &[u8]) {
        let kind = message.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        let attrs = message.get(number::HEADERS..).filter(|_| kind == Some(number::GET_STATISTICS));
        for attr in attrs.into_iter().flat_map(Attrs::new) {
            let counter = match attr.kind {
                number::STATISTICS_INSERT_FAILED => &mut self.failed_inserts,
                number::STATISTICS_DROP => &mut self.drops,
                number::STATISTICS_EARLY_DROP => &mut self.early_drops,
                _ => continue,
            };
            *counter = counter.saturating_add(attr.u32().map_or(0, u64::from));
        }
    }
}

/// Returns how many connections the kernel tracks in the calling thread's network namespace, in both families. Unlike a list, this takes the
/// same time whatever the size of the kernel's table. Makes the kernel load its module.
///
/// # Errors
/// The error that the kernel reports, such as for a missing module.
pub(crate) fn tracked() -> io::Result<u32> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    socket.send(&finished(message_about(number::GET_COUNT, 0, 0)))?;
    loop {
        for message in Messages::new(socket.receive()?) {
            if let Some(ack) = decode::ack(message) {
                return Err(io::Error::from_raw_os_error(ack.errno));
            }
            if let Some(count) = count(message) {
                return Ok(count);
            }
        }
    }
}

/// Returns the number of connections in an answer to [`number::GET_COUNT`].
fn count(message: &[u8]) -> Option<u32> {
    let kind = message.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let attrs = Attrs::new(message.get(number::HEADERS..).filter(|_| kind == Some(number::GET_COUNT))?);
    attrs.find(number::COUNT)?.u32()
}

fn sysctl(name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/sys/net/netfilter/{name}"))?;
    text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nft::wire::Writer;

    /// The answer for one processor with these counters.
    fn processor(kind: u16, counters: &[(u16, u32)]) -> Vec<u8> {
        let mut writer: Writer = message_about(kind, 0, 0);
        counters.iter().for_each(|(kind, count)| writer.u32(*kind, *count));
        finished(writer)
    }

    #[test]
    fn the_number_of_connections_is_read_from_the_answer_and_from_no_other_message() {
        assert_eq!(count(&processor(number::GET_COUNT, &[(1, 300), (2, 262_144)])), Some(300));
        assert_eq!(count(&processor(number::GET_COUNT, &[(2, 262_144)])), None);
        assert_eq!(count(&processor(number::NEW, &[(1, 300)])), None);
        assert_eq!(count(&[0; 3]), None);
    }

    // The counters of all processors are added up; other messages and counters are ignored.
    #[test]
    fn counters_of_all_processors_are_added_up() {
        let mut load = ConntrackLoad::default();
        load.add(&processor(number::GET_STATISTICS, &[(2, 9), (9, 3), (10, u32::MAX), (11, 1)]));
        load.add(&processor(number::GET_STATISTICS, &[(9, 4), (10, 2), (15, 7)]));
        load.add(&processor(number::NEW, &[(10, 100)]));
        load.add(&[0; 3]);
        let expected = ConntrackLoad { failed_inserts: 7, drops: u64::from(u32::MAX) + 2, early_drops: 1, ..load };
        assert_eq!(load, expected);
    }
}
