//! `.ci/ratios.py`, which compares what `make bench` measured for two commits.
//!
//! Runs it on small files of results; needs Python and no root. `.ci/compare` measures, and runs it on whole ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A file of results with these rows: a name and what was measured.
fn results(folder: &Path, name: &str, rows: &[(&str, &str)]) -> PathBuf {
    let row = |(what, measured): &(&str, &str)| json!({ "part": "growth", "what": what, "measured": measured });
    let path = folder.join(name);
    fs::write(&path, Value::from_iter(rows.iter().map(row)).to_string()).expect("a file can be written");
    path
}

fn ratios(limit: &str, base: &[PathBuf], head: &[PathBuf]) -> Output {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/ratios.py"));
    command.arg(limit).args(base).arg("--").args(head);
    command.output().expect("Python is there")
}

#[test]
fn the_least_of_each_side_is_compared_and_what_is_above_the_limit_fails() {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let file = |name: &str, rows: &[(&str, &str)]| results(folder.path(), name, rows);
    let base = [
        file(
            "b1",
            &[("first sync", "1.00 s"), ("peak", "20 MB"), ("p99", "1.000 ms"), ("ratio", "1.00 x"), ("gone", "1 s")],
        ),
        file("b2", &[("first sync", "500.000 ms"), ("peak", "24 MB"), ("p99", "1.000 ms")]),
    ];
    // Slower by 1.4 in the better of two turns; a percentile and a ratio are not judged.
    let head = [
        file("h1", &[("first sync", "900.000 ms"), ("peak", "28 MB"), ("p99", "9.000 ms"), ("ratio", "9.00 x")]),
        file("h2", &[("first sync", "700.000 ms"), ("peak", "30 MB")]),
    ];
    let output = ratios("1.5", &base, &head);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("1.40 x  growth: first sync\n") && text.contains("1.40 x  growth: peak\n"), "{text}");
    assert!(text.contains("9.00 x  growth: p99 (not judged)\n") && !text.contains("ratio"), "{text}");
    assert!(text.ends_with("3 rows; 1 only before, 0 only now\n"), "{text}");

    let output = ratios("1.3", &base, &head);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("growth: first sync: 1.40 x"), "{text}");
}

#[test]
fn results_without_a_common_row_are_an_error() {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let one = results(folder.path(), "one", &[("first sync", "1.00 s")]);
    let other = results(folder.path(), "other", &[("restart", "1.00 s")]);
    let output = ratios("1.5", &[one], &[other]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no row in common"), "{output:?}");
}
