//! The proxy beside other programs that change its tables, and under traffic while everything changes: repairs within their deadlines.
//!
//! Needs root and the packages of `make deps`. A test that loads the machine takes [`turns::alone`]; a test with a deadline takes
//! [`turns::beside_others`], so that the load of the former does not spoil its times.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod busy;
mod listeners;
mod localhost;
mod neighbours;
mod strangers;
mod tampering;
mod traffic;
mod turns;
