//! From kube-proxy in mode iptables or ipvs to ours: a start that cannot serve leaves the node as it is, and the change from mode iptables
//! loses no packet.
//!
//! The rules of mode iptables are those that iptables-nft or iptables-legacy makes. Needs root, iproute2, nft, iptables and conntrack (`make deps`).

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod change;
mod iptables;
mod ipvs;
mod kept;
mod packets;
