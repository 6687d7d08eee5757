//! A drop-in kube-proxy for Linux nodes that programs Services into nf_tables over netlink.
//!
//! The modules are the stages of the picture in the README, in its order; beside the line stand `config`, `health`, `metrics`,
//! `http` under these two, `events`, `fastpath`, `logging`, `privileges`, `supervise`, and `serving`, which joins some of them.

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
pub mod config;
pub mod conntrack;
pub mod events;
pub mod fastpath;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod privileges;
pub mod serving;
pub mod supervise;
