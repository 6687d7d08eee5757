//! The history of what the running proxy did, for people who ask "what changed in the last minute?": a ring buffer of the latest entries.
//!
//! ```text
//!  sync: before and after a transaction ──► Entry ──► History (ring) ──► /debug/changes ──► `kube-proxy changes`
//!  source: API server lost and found   ──►            │
//!                                                     └──► log, from -v=2 on
//! ```
//!
//! Takes the reports of `sync` and `app`, after the kernel has committed or refused a transaction; returns pages of entries
//! ([`inspect::history`]). Pure: the caller passes in the time.
//!
//! Invariants: the ring keeps at most [`MAX_ENTRIES`] entries and [`MAX_BYTES`] bytes, whatever is reported; entries are numbered 1, 2, 3
//! and so on without a gap; nothing is formatted or written while the ring is locked.

mod fields;
mod log;
mod ring;

pub use fields::{between, merge};
pub(crate) use log::endpoint as log_endpoint;
pub use log::log;
pub use ring::{History, MAX_BYTES, MAX_ENTRIES, Snapshot};

#[cfg(test)]
mod tests;
