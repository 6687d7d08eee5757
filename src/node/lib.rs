//! Access to the kernel of a node: commits and reads nf_tables tables, lists and deletes tracked connections, looks up addresses and
//! routes, maintains the flowtable, reads counters, and finds how the running proxy is configured.
//!
//! Executes commands and returns the kernel's answers. The caller decides when to try again.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod configured;
pub mod counters;
pub mod flowtable;
pub mod kernel;
