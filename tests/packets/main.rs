//! Packets through the rules of a running proxy, and how other programs read these rules.
//!
//! Needs root and the packages of `make deps`. The tests make namespaces of their own and may all run side by side.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod flowtable;
mod inspect;
mod inspection;
mod judge;
mod neighbours;
mod nodes;
mod services;
mod swap;
