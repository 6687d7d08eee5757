//! The library within the test's own process: what it sends to a kernel that records or refuses, and what the real one makes of it.
//!
//! Root, for network namespaces; a test that needs the real kernel makes its own.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod changes;
mod expiry;
mod faults;
mod first_sync;
mod flows;
mod foreign;
mod health;
mod layouts;
mod leftovers;
mod log;
mod maps;
mod remembered;
mod room;
