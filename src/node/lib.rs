//! What only the kernel of a node can do: commit and list tables of nf_tables, list and delete tracked connections, tell addresses and
//! routes, keep a flowtable, count.
//!
//! Takes commands and gives what the kernel answers. Knows neither Services nor when to try again.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod counters;
pub mod flowtable;
pub mod kernel;
