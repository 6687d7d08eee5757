//! What the running proxy did, for people who ask "what changed in the last minute?": entries, and the ring that keeps the latest.
//!
//! ```text
//!  sync: before and after a transaction ──► Entry ──► Changes (ring) ──► /debug/changes ──► `kube-proxy changes`
//!  source: API server lost and found   ──►            │
//!                                                     └──► log, from -v=2 on
//! ```
//!
//! Takes what `sync` and `app` report, once the kernel has acknowledged or refused it; gives pages of entries ([`inspect::history`]). Pure:
//! clocks are handed in.
//!
//! Invariants: the ring keeps at most [`MAX_ENTRIES`] entries and [`MAX_BYTES`] bytes, whatever is reported; entries have the numbers 1,
//! 2, 3 and so on, each once; the lock of the ring is held for no formatting and no I/O.

mod fields;
mod log;
mod ring;

pub use fields::{between, merge};
pub(crate) use log::endpoint as log_endpoint;
pub use log::log;
pub use ring::{History, MAX_BYTES, MAX_ENTRIES, Snapshot};

#[cfg(test)]
mod tests;
