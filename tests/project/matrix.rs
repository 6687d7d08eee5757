//! The scripts of `vm-tests` without a guest: which part of the groups a commit runs, what is recorded where, and that the weekly job goes
//! on when a kernel fails.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What commands print that have the functions of `vm-tests`, in a folder; their exit code and errors too.
fn shell(folder: &Path, commands: &str) -> (Option<i32>, String, String) {
    let libraries = ["matrix.sh", "lib/table.sh", "lib/part.sh"].map(|name| root().join("vm-tests").join(name));
    let sourced: String = libraries.iter().map(|path| format!(". {}\n", path.display())).collect();
    let script = format!("set -euo pipefail\nARCH=amd64\n{sourced}{commands}");
    let output = Command::new("bash").args(["-c", &script]).current_dir(folder).output().expect("bash can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn each_part_is_chosen_by_some_commits_and_a_commit_always_chooses_the_same() {
    let hash = |n: u64| {
        let mut hasher = DefaultHasher::new();
        n.hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    let hashes: Vec<String> = (0..100).map(hash).collect();
    let commands: String = hashes.iter().map(|hash| format!("part_of {hash}{hash}\n")).collect();
    let parts = || shell(root(), &format!("echo ${{#PARTS[@]}}\n{commands}")).1;
    let printed = parts();
    let numbers: Vec<usize> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    let (count, chosen) = numbers.split_first().expect("the number of parts");
    assert_eq!(chosen.len(), hashes.len(), "{printed}");
    assert_eq!(chosen.iter().copied().collect::<BTreeSet<_>>(), (0..*count).collect());
    // Ten commits after each other, as a submission may have them, do not run one part alone.
    assert!(chosen.chunks(10).all(|ten| ten.iter().collect::<BTreeSet<_>>().len() > 2), "{chosen:?}");
    assert_eq!(parts(), printed);
}

/// A folder with what is recorded, and the results of a run: each group that is asked for on each suite.
fn recorded(groups: &str, verdict: &str) -> TempDir {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder can be made");
        fs::write(path, text).expect("a file can be written");
    };
    write("vm-tests/RESULTS.md", "# Results of the matrix\n\nold matrix\n\n## arm64\n\nold arm64\n");
    write(
        "deploy/COMPATIBILITY.md",
        "before\n<!-- kernels: written by vm-tests/run --record -->\nold\n<!-- kernels: end -->\nafter\n",
    );
    write("work/commits", "0123456789ab\n");
    write("work/versions", "kernel bookworm 6.1\nnft bookworm 1.0.6\n");
    write("work/results", "");
    let fill = format!(
        "for suite in \"${{SUITES[@]}}\"; do for group in {groups}; do for nft in \"${{SUITES[@]}}\"; do\n\
         echo \"$suite $nft $group {verdict} 1 fine\" >>work/results\ndone; done; done"
    );
    assert_eq!(shell(folder.path(), &fill).0, Some(0));
    folder
}

const ALL: &str = "\"${GROUPS_PER_KERNEL[@]}\" \"${GROUPS_PER_NFT[@]}\"";

/// Records what is in the folder; the exit code, errors, and RESULTS.md and COMPATIBILITY.md then.
fn record(folder: &TempDir, architecture: &str) -> (Option<i32>, String, String, String) {
    let (code, _, errors) = shell(folder.path(), &format!("WORK=work ARCH={architecture}\nrecord_results"));
    let [results, kernels] = ["vm-tests/RESULTS.md", "deploy/COMPATIBILITY.md"]
        .map(|name| fs::read_to_string(folder.path().join(name)).expect("the page is there"));
    (code, errors, results, kernels)
}

#[test]
fn a_whole_run_is_recorded_with_its_commit_and_keeps_the_section_about_arm64() {
    let (code, errors, results, kernels) = record(&recorded(ALL, "pass"), "amd64");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(results.contains("of commit 0123456789ab.") && !results.contains("old matrix"), "{results}");
    assert!(results.ends_with("\n\n## arm64\n\nold arm64\n"), "{results}");
    assert!(kernels.contains("6.1 (bookworm)") && !kernels.contains("old"), "{kernels}");
}

#[test]
fn a_run_on_arm64_writes_its_section_and_nothing_else() {
    let (code, errors, results, kernels) = record(&recorded("packets restart", "pass"), "arm64");
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let (matrix, section) = results.split_once("\n\n## arm64\n\n").expect("the section");
    assert_eq!(matrix, "# Results of the matrix\n\nold matrix");
    assert!(section.contains("of commit 0123456789ab.") && section.contains("| packets |"), "{section}");
    assert!(!section.contains("old") && kernels.contains("\nold\n"), "{section}{kernels}");
}

#[test]
fn what_failed_or_is_not_whole_is_not_recorded() {
    for (folder, architecture, reason) in [
        (recorded("packets restart", "pass"), "amd64", "listing was not run on bookworm with nft of sid"),
        (recorded(ALL, "fail"), "amd64", "failed: bookworm bookworm packets"),
        (recorded("packets restart", "fail"), "arm64", "failed: bookworm bookworm packets"),
    ] {
        let (code, errors, results, kernels) = record(&folder, architecture);
        assert!(code == Some(1) && errors.contains(reason), "{code:?}: {errors}");
        assert!(results.contains("old matrix") && results.contains("old arm64") && kernels.contains("old"));
    }
}

/// The targets that the weekly workflow makes, without those that only install what a later step needs of Debian.
fn jobs_of_the_week() -> Vec<String> {
    let workflow = fs::read_to_string(root().join(".github/workflows/weekly.yml")).expect("a workflow");
    let targets = workflow.lines().filter_map(|line| line.split_once("make ").map(|(_, target)| target.to_owned()));
    targets.filter(|target| target != "deps-build").collect()
}

#[test]
fn the_weekly_job_runs_all_also_when_one_fails_and_says_so() {
    let weekly = jobs_of_the_week();
    assert!(weekly.len() > 5, "{weekly:?}");
    for (failing, code) in [("vm-test", 1), ("vm-arm64", 1), ("regressions", 1), ("nothing", 0)] {
        let folder = TempDir::new().expect("a temporary directory can be made");
        let make = folder.path().join("make");
        fs::write(&make, format!("#!/bin/sh\necho \"$1\"\n[ \"$1\" != {failing} ]\n")).expect("a file can be written");
        fs::set_permissions(&make, fs::Permissions::from_mode(0o755)).expect("it can be made executable");
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("there is a PATH"));
        let output = Command::new(root().join(".ci/weekly")).env("PATH", path).output().expect("it can be run");
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), weekly);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), errors.contains(failing)), (Some(code), code == 1), "{errors}");
    }
}
