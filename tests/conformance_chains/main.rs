//! The conformance cases of `tests/conformance`, with the rules in layout `chains` (see `support::proxy::layout`).

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../conformance/case.rs"]
mod case;
#[path = "../conformance/judge.rs"]
mod judge;
#[path = "../conformance/network.rs"]
mod network;
#[path = "../conformance/run.rs"]
mod run;
