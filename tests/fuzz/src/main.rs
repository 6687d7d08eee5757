//! The fuzzer: one libFuzzer program for all targets. `tests/fuzz/run` (`make fuzz`) builds and starts it.
//!
//! Takes the target's name from the environment variable `FUZZ_TARGET`, everything else as libFuzzer does.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../targets/mod.rs"]
mod targets;

use targets::{TARGETS, Target};

/// The target that the environment names.
fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.into_iter().find(|(known, _)| *known == name);
        let names = TARGETS.map(|(known, _)| known).join(" ");
        found.unwrap_or_else(|| panic!("FUZZ_TARGET must be one of {names}, not {name:?}")).1
    })
}

fuzz_target!(|bytes: &[u8]| target()(bytes));
