//! Every kind of Service: which endpoints a packet reaches, with which source address, and what is refused or dropped.
//!
//! Each test runs in both layouts of the ruleset, unless it is about one of them, and names the rules of the contract that it checks.

mod addresses;
mod affinity;
mod changes;
mod claims;
mod connections;
mod counters;
mod ephemeral;
mod frontends;
mod guard;
mod health;
mod identity;
mod layouts;
mod localhost;
mod locality;
mod nodeports;
mod policies;
mod refusals;
mod restart;
mod scheduler;
mod surroundings;
mod takeover;
mod tracking;
mod tree;
mod udp;
mod weights;
