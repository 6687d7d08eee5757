//! The history of what the running proxy did, for people who ask "what changed in the last minute?": a ring buffer of the latest entries.
//!
//! ```text
//!  sync: what a transaction changed ──┬──► History (ring) ──► /debug/changes ──► `kube-proxy changes`
//!                                     └──► log, from -v=2 on
//!  app: API server lost and found ───────► History (ring)
//! ```
//!
//! Takes entries ([`inspect::history`]): from `sync`, after the kernel has committed or refused a transaction, and from `app`. Returns pages
//! of entries. The caller passes in the time.
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
