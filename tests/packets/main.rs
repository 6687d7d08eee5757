//! Packets through the rules of a running proxy: who is reached, from which source, and what is refused or dropped.
//!
//! Needs root, iproute2 and nft (`make deps`). Each test names the rules of the behavioural contract that it checks.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod affinity;
mod changes;
mod claims;
mod fronts;
mod identity;
mod judge;
mod layouts;
mod locality;
mod nodeports;
mod policies;
mod refusals;
mod restart;
mod surroundings;
mod takeover;
