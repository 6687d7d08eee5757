//! The packet tests of `tests/packets`, all of them, with the rules in layout `chains` (see `support::proxy::layout`).

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../packets/affinity.rs"]
mod affinity;
#[path = "../packets/changes.rs"]
mod changes;
#[path = "../packets/claims.rs"]
mod claims;
#[path = "../packets/fronts.rs"]
mod fronts;
#[path = "../packets/identity.rs"]
mod identity;
#[path = "../packets/judge.rs"]
mod judge;
#[path = "../packets/layouts.rs"]
mod layouts;
#[path = "../packets/locality.rs"]
mod locality;
#[path = "../packets/nodeports.rs"]
mod nodeports;
#[path = "../packets/policies.rs"]
mod policies;
#[path = "../packets/refusals.rs"]
mod refusals;
#[path = "../packets/restart.rs"]
mod restart;
#[path = "../packets/takeover.rs"]
mod takeover;
mod tree;
