//! A connection as the kernel tracks it.

use std::net::SocketAddr;

/// A connection that the kernel tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The IANA number of its protocol.
    pub protocol: u8,
    /// The ends as the client sees them.
    pub original: Ends,
    /// The ends of the answers: their source is the endpoint.
    pub reply: Ends,
    /// Bits of `IPS_*`.
    pub status: u32,
    /// How far it is.
    pub phase: Phase,
    /// Its mark, if the kernel has one for connections and it is not 0.
    pub mark: Option<u32>,
    /// The kernel's number for it, which it keeps for its life.
    pub id: u32,
    /// Packets and bytes from the client and to it; `None` when accounting was off when it began.
    pub counters: Option<(Counters, Counters)>,
}

/// The two ends of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who sends.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No packet came back yet.
    Unanswered,
    /// Both sides sent packets.
    Open,
    /// Closed or reset; the kernel still keeps it for a while.
    Ended,
}

/// Packets and bytes, headers of the network layer included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}
