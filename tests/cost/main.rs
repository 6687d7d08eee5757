//! What a change costs in each layout: elements, messages and bytes that go over netlink, whatever else the cluster holds.
//!
//! Drives the engine with a kernel that only remembers; needs no root. Every cost is asserted for 10 and for 2,000 Services.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod chains;
mod maps;
mod service_chains;
