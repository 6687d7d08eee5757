//! Kubernetes objects of the repository: read, rendered by Helm, and held to the schemas of the API.
//!
//! Needs Helm and the schemas, which `make deps` unpacks into `target/tools/charts` (`tests/charts.txt`).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::NamedTempFile;

/// The releases of the API that the objects are for: the oldest that Chart.yaml takes, and the newest.
const RELEASES: [&str; 2] = ["1.25.0", "1.37.0"];

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tools() -> PathBuf {
    let folder = project().join("target/tools/charts");
    assert!(folder.join("bin/helm").exists(), "no {}: run `make deps`", folder.display());
    folder
}

/// The objects of a file of the repository.
pub(crate) fn documents(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What Helm prints for the chart with some values, and whether it succeeded.
pub(crate) fn helm(arguments: &[&str], values: &Value) -> (bool, String) {
    let mut file = NamedTempFile::new().expect("a file can be made");
    file.write_all(values.to_string().as_bytes()).expect("it can be written");
    let mut command = Command::new(tools().join("bin/helm"));
    command.args(arguments).arg(project().join("deploy/chart")).arg("--values").arg(file.path());
    let output = command.env("HELM_DEBUG", "false").output().expect("helm can be started");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(output_text(text)).expect("text"))
}

/// Helm warns of each link in a chart on its standard output or error; the chart has one.
fn output_text(text: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(text).expect("text");
    text.lines()
        .filter(|line| !line.contains("found symbolic link"))
        .flat_map(|line| [line, "\n"])
        .collect::<String>()
        .into()
}

/// The objects that the chart makes of some values.
pub(crate) fn rendered(values: &Value) -> Vec<Value> {
    let (succeeded, text) = helm(&["template", "kube-proxy-nft", "--namespace", "kube-system"], values);
    assert!(succeeded, "{values}: {text}");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// The one object of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let first = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "more than one {kind}");
    first
}

/// What the API's schemas have against some objects, in all releases; kinds of other APIs are left out.
pub(crate) fn refused(objects: &[Value]) -> String {
    let known = |object: &&Value| !object["apiVersion"].as_str().is_some_and(|api| api.starts_with("monitoring."));
    let known = Value::Array(objects.iter().filter(known).cloned().collect());
    RELEASES.iter().map(|release| compared(release, &known)).collect()
}

fn compared(release: &str, objects: &Value) -> String {
    let mut command = Command::new("python3");
    command.arg(project().join("tests/project/schema.py")).arg(tools()).arg(release);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3");
    child.stdin.take().expect("a pipe").write_all(objects.to_string().as_bytes()).expect("it is read");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The definitions of the newest API, by their names.
pub(crate) fn definitions() -> &'static Value {
    static DEFINITIONS: OnceLock<Value> = OnceLock::new();
    DEFINITIONS.get_or_init(|| {
        let folder = tools().join("kubernetes_validate/kubernetes-json-schema");
        let file = folder.join(format!("v{}-local-strict/_definitions.json", RELEASES[1]));
        let text = fs::read(file).expect("the schemas are there");
        serde_json::from_slice::<Value>(&text).expect("JSON")["$defs"].take()
    })
}

#[test]
fn an_object_with_an_unknown_field_or_a_wrong_type_is_refused() {
    let good = documents("deploy/base/daemonset.yaml").remove(0);
    assert_eq!(refused(std::slice::from_ref(&good)), "");
    for (path, name, value) in [
        ("/spec/template/spec", "hostNetwerk", Value::Bool(true)),
        ("/spec/template/spec", "hostNetwork", Value::from("yes")),
        ("/spec/template/spec/containers/0/securityContext/capabilities", "add", Value::from("NET_ADMIN")),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(path).expect("it is there")[name] = value;
        let found = refused(&[bad]);
        assert!(found.lines().count() >= RELEASES.len() && found.contains(name), "{name}: {found}");
    }
}
