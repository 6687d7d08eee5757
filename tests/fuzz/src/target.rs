// The program of a fuzzer. Each file of `bin` is one, and has the name of its target.

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../targets/mod.rs"]
mod targets;

use targets::{TARGETS, Target};

fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let found = TARGETS.into_iter().find(|(name, _)| *name == env!("CARGO_BIN_NAME"));
        found.expect("a program is called like a target").1
    })
}

fuzz_target!(|bytes: &[u8]| target()(bytes));
