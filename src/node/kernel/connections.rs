//! The data of a tracked connection (conntrack entry).

use std::net::SocketAddr;

/// A connection that the kernel tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The IANA number of the transport protocol.
    pub protocol: u8,
    /// Source and destination of the client's packets, before address translation.
    pub original: Ends,
    /// Source and destination of the answers. The source is the endpoint, if the connection leads to one.
    pub reply: Ends,
    /// The status bits (`IPS_*`).
    pub status: u32,
    /// Whether the connection is unanswered, open or ended.
    pub phase: Phase,
    /// The connection mark (`CONFIG_NF_CONNTRACK_MARK`); `None` if the kernel reports none.
    pub mark: Option<u32>,
    /// The kernel's id for the connection, which never changes.
    pub id: u32,
    /// Packets and bytes from the client, then to the client; `None` if accounting (`nf_conntrack_acct`) was off when the connection began.
    pub counters: Option<(Counters, Counters)>,
}

/// The source and the destination of the packets in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// The phase of a connection.
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
    /// The number of packets.
    pub packets: u64,
    /// Their length in bytes.
    pub bytes: u64,
}
