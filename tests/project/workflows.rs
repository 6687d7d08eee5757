//! The workflows of `.github`: each step is a make target that exists, and each action is pinned to a commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The targets of the Makefile.
pub(super) fn targets() -> BTreeSet<String> {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let names = makefile.lines().filter_map(|line| Some(line.split_once(':')?.0));
    names.filter(|name| is_name(name)).map(str::to_owned).collect()
}

fn workflows() -> Vec<(String, Value)> {
    let folder = fs::read_dir(root().join(".github/workflows")).expect("a folder");
    let read = |path: &Path| {
        let text = fs::read_to_string(path).expect("a workflow");
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let paths = folder.map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), read(&path))).collect()
}

/// What is wrong with a step.
fn wrong(step: &Value, targets: &BTreeSet<String>) -> Option<String> {
    if let Some(action) = step["uses"].as_str() {
        let pinned = action.split_once('@').is_some_and(|(_, commit)| {
            commit.len() == 40 && commit.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        });
        return (!pinned).then(|| format!("{action} is not pinned to a commit"));
    }
    let Some(command) = step["run"].as_str() else { return Some(format!("{step} does nothing")) };
    let mut words =
        command.split_whitespace().skip_while(|word| *word == "sudo" || word.starts_with("--preserve-env="));
    if words.next() != Some("make") {
        return Some(format!("{command} is no make target"));
    }
    words
        .find(|word| !word.contains('=') && !targets.contains(*word))
        .map(|target| format!("the Makefile has no target {target}"))
}

#[test]
fn each_step_of_a_workflow_is_a_make_target_or_a_pinned_action() {
    let (workflows, targets) = (workflows(), targets());
    let names: BTreeSet<&str> = workflows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["kind.yml", "release.yml", "test.yml", "weekly.yml"].into());
    for (name, workflow) in &workflows {
        assert_eq!(workflow["permissions"]["contents"], "read", "{name}: nothing may write unless its job says so");
        assert!(workflow["on"].is_object(), "{name} says when it runs");
        for (id, job) in workflow["jobs"].as_object().expect("jobs") {
            assert!(job["runs-on"].is_string() && job["timeout-minutes"].is_u64(), "{name}: {id}");
            let steps = job["steps"].as_array().expect("steps");
            assert!(steps.len() > 1, "{name}: {id}");
            for step in steps {
                assert_eq!(wrong(step, &targets), None, "{name}: {id}");
            }
        }
    }
}

#[test]
fn a_step_without_a_target_or_a_pin_is_noticed() {
    let targets = targets();
    assert!(targets.len() > 20, "{targets:?}");
    for (step, is_good) in [
        (serde_json::json!({ "run": "sudo --preserve-env=PATH make test" }), true),
        (serde_json::json!({ "run": "make kind-test LAYOUT=${{ matrix.layout }}" }), false),
        (serde_json::json!({ "run": "make kind-test LAYOUT=${{matrix.layout}}" }), true),
        (serde_json::json!({ "run": "make tset" }), false),
        (serde_json::json!({ "run": "cargo test" }), false),
        (serde_json::json!({ "uses": "actions/checkout@v4" }), false),
        (serde_json::json!({ "name": "nothing" }), false),
    ] {
        assert_eq!(wrong(&step, &targets).is_none(), is_good, "{step}");
    }
}
