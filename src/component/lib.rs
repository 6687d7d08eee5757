//! The parts that every Kubernetes component needs, modelled on k8s.io/component-base: configuration from flags and a file, the log,
//! HTTP servers with limits, dropping of privileges, and threads whose failure ends the process.
//!
//! This crate depends on no other crate of this project: it reads the settings for Services and nf_tables, and other crates use them.

#![forbid(unsafe_code)]
#![cfg_attr(
    any(test, feature = "testing"),
    allow(clippy::unwrap_used, reason = "a test may panic at an unexpected value")
)]

pub mod addresses;
pub mod config;
pub mod dns_names;
pub mod excerpt;
pub mod files;
pub mod http;
pub mod log_runner;
pub mod logging;
#[cfg(any(test, feature = "testing"))]
pub mod pages;
pub mod privileges;
pub mod rates;
pub mod redact;
pub mod supervise;
pub mod terminal;
