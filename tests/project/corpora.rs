//! The inputs that the fuzzers start from and those that once broke a decoder, replayed: no input makes a decoder panic, overflow the
//! stack or work for seconds.
//!
//! Takes every file of `tests/fuzz/corpus/TARGET` and `tests/fuzz/crashes/TARGET`, and the manifests and configurations of
//! `tests/data/golden`, in a thread with the stack that the proxy's own threads have. `make fuzz` looks for more.

#[path = "../fuzz/targets/mod.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use targets::{TARGETS, Target};

/// What the standard library gives a thread.
const STACK: usize = 2 << 20;
/// How much work one input may be, in a build without optimisation. They take milliseconds.
const LONGEST: Duration = Duration::from_secs(5);

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(name)
}

/// What is in a folder; nothing if there is none, as git keeps no empty ones.
fn entries(folder: &Path) -> Vec<PathBuf> {
    if !folder.exists() {
        return Vec::new();
    }
    let listing = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    paths
}

/// The files of the golden clusters that a target decodes: `config.yaml` is for the target `config`, the others for `yaml`.
fn golden(target: &str) -> Vec<PathBuf> {
    if !["config", "yaml"].contains(&target) {
        return Vec::new();
    }
    let clusters = entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden"));
    let files = clusters.iter().flat_map(|cluster| entries(cluster));
    files.filter(|file| file.ends_with("config.yaml") == (target == "config")).collect()
}

/// The processor time of this thread so far: a busy machine must not make an input look slow.
fn worked() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel keeps the time of threads");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("it begins with the nanoseconds on a processor"))
}

/// Has a target look at a file; what is wrong, if something is.
fn replay(target: Target, file: &Path) -> Option<String> {
    let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let start = worked();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
    let took = worked() - start;
    match outcome {
        Err(_) => Some(format!("{}: panics", file.display())),
        Ok(()) if took > LONGEST => Some(format!("{}: takes {took:?}", file.display())),
        Ok(()) => None,
    }
}

/// Replays all files of a target; gives their number.
fn replay_all(name: &str, target: Target) -> usize {
    let files = [entries(&folder("corpus").join(name)), entries(&folder("crashes").join(name)), golden(name)].concat();
    let replays = || files.iter().filter_map(|file| replay(target, file)).collect::<Vec<_>>();
    let problems = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, replays);
        thread.expect("a thread can be started").join().expect("panics are caught within")
    });
    assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
    files.len()
}

#[test]
fn every_input_that_is_kept_comes_to_an_end() {
    for (name, target) in TARGETS {
        let count = replay_all(name, target);
        assert!(count >= 3, "{name}: only {count} inputs");
    }
}

#[test]
fn inputs_are_few_and_named_after_what_they_hold() {
    let folders = ["corpus", "crashes"].into_iter().flat_map(|kept| entries(&folder(kept)));
    let files: Vec<PathBuf> = folders.flat_map(|target| entries(&target)).collect();
    assert!(files.len() < 100, "{} inputs: what a fuzzer made is made again by `make fuzz`", files.len());
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).expect("names are text");
        let is_hash = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(!is_hash, "{}: a fuzzer's name for it; keep it under a name that says what it holds", file.display());
    }
}

#[test]
fn every_target_is_a_program_of_the_fuzzers() {
    let manifest = fs::read_to_string(folder("Cargo.toml")).expect("it can be read");
    let programs = manifest.split("[[bin]]").skip(1).map(|entry| entry.split('"').nth(1).unwrap_or_default());
    assert_eq!(programs.collect::<BTreeSet<_>>(), TARGETS.iter().map(|(name, _)| *name).collect());
    for (name, _) in TARGETS {
        assert!(folder("src/bin").join(format!("{name}.rs")).exists(), "{name}");
    }
}

#[test]
fn every_folder_of_inputs_has_a_target() {
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    for kept in ["corpus", "crashes"] {
        for entry in entries(&folder(kept)) {
            let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            assert!(targets.contains(&*name), "{} is of no target", entry.display());
        }
    }
}

#[test]
fn an_input_that_breaks_a_target_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("broken");
    fs::write(&file, "x").expect("it can be written");
    let problem = replay(|bytes| assert!(bytes.is_empty()), &file).expect("it panics");
    assert!(problem.contains("broken: panics"), "{problem}");
    assert_eq!(replay(|_| {}, &file), None);
    // Works until the clock shows some time.
    let before = worked();
    while worked() - before < Duration::from_millis(20) {}
}
