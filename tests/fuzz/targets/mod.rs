//! What is done with foreign bytes, one function a decoder. Each must come to an end without a panic, whatever the bytes are, and what
//! it says about the result must hold.
//!
//! Shared by the fuzzers (`tests/fuzz/src/bin`, `make fuzz`) and by `tests/project/corpora.rs`, which replays what the fuzzer found.

mod api;
mod cluster;
mod config;
mod conntrack;
#[path = "../../support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[allow(clippy::duplicate_mod, reason = "the test binary has it among the tests' support, a fuzzer has only this one")]
mod kernel;
mod manifests;
mod netlink;
mod refusals;
mod tampered;

/// What is done with some bytes.
pub(crate) type Target = fn(&[u8]);

/// Every target by its name, which is also that of its folder in `tests/fuzz/corpus`.
pub(crate) const TARGETS: [(&str, Target); 9] = [
    ("netlink", netlink::run),
    ("refusals", refusals::run),
    ("tampered", tampered::run),
    ("conntrack", conntrack::run),
    ("yaml", manifests::yaml),
    ("json", manifests::json),
    ("config", config::run),
    ("watch", api::watch),
    ("page", api::page),
];
