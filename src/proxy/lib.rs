//! A drop-in kube-proxy for Linux nodes that programs Services into nf_tables over netlink: the process, from its start to its end.
//!
//! The binary uses only [`app`]. The other public modules are public for the integration tests, the benchmarks and the fuzz targets.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "in a test, a panic is the right answer to an unexpected value"))]

pub mod app;
pub mod health;
pub mod history;
mod localhost;
pub mod metrics;
pub mod sync;
mod verify;
