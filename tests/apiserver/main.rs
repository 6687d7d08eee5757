//! The test API server itself, asked by a client that knows no Kubernetes: what other tests rely on is known to be right.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod client;
mod entry;
mod faults;
mod lists;
mod watches;
