//! Access to the kernel of a node: commits and reads nf_tables tables, lists and deletes tracked connections, looks up addresses and
//! routes, sets sysctls, maintains the flowtable, reads counters, removes what other proxy modes left, and finds how the running proxy is
//! configured.
//!
//! The crate executes commands and returns the kernel's answers. After an error, the caller decides when to try again.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic at an unexpected value"))]

pub mod configured;
pub mod counters;
pub mod flowtable;
pub mod kernel;
