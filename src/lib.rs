//! A drop-in kube-proxy for Linux nodes that programs Services into nf_tables over netlink.
//!
//! The first seven modules are the stages of the drawing in the README, in its order. Public items are those that the binary, the
//! integration tests, the benchmarks and the fuzz targets use.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod source;

pub mod model;

pub mod select;

pub mod ruleset;

pub mod table;

pub mod diff;

pub mod kernel;

pub mod sync;

pub mod app;
pub mod changes;
pub mod config;
pub mod conntrack;
mod counters;
mod events;
mod fastpath;
pub mod health;
mod http;
pub mod inspect;
mod localhost;
pub mod logging;
pub mod metrics;
mod privileges;
mod supervise;
#[cfg(test)]
mod tests;
