//! Generates and checks two parts of `deploy/REFERENCE.md`: upstream's flags, and the fields without a flag. Holds the table of our own
//! flags, which is written by hand, to their defaults and fields.

use serde_json::Value;

use super::*;
use crate::pages::{assert_generated, table};

/// The descriptions of the fields that no flag sets.
const FIELDS: [(&str, &str); 14] = [
    ("apiVersion", "Must be as here."),
    ("kind", "Must be as here."),
    (
        "clientConnection.acceptContentTypes",
        "What the API server is asked for, in place of `contentType`: application/vnd.kubernetes.protobuf, application/json, or both, comma-separated; other types cause a warning.",
    ),
    ("iptables.masqueradeAll", "As `nftables.masqueradeAll`, in modes iptables and ipvs and without a mode."),
    ("iptables.minSyncPeriod", "As `nftables.minSyncPeriod`, in mode iptables and without a mode."),
    ("iptables.syncPeriod", "As `nftables.syncPeriod`, in mode iptables and without a mode."),
    ("nftables.masqueradeBit", "The bit of the packet mark that asks for masquerading, 0 to 31; in mode nftables."),
    ("portRange", "Without effect: no mode uses it."),
    ("windowsRunAsService", "Without effect: for Windows."),
    ("winkernel.enableDSR", "Without effect: for Windows."),
    ("winkernel.forwardHealthCheckVip", "Without effect: for Windows."),
    ("winkernel.networkName", "Without effect: for Windows."),
    ("winkernel.rootHnsEndpointName", "Without effect: for Windows."),
    ("winkernel.sourceVip", "Without effect: for Windows."),
];

/// Collects the path and the default of each field that is not a section.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        // An empty object is the value of a map field, such as `featureGates`, and no section.
        Value::Object(fields) if !fields.is_empty() => {
            let dot = if path.is_empty() { "" } else { "." };
            fields.iter().for_each(|(name, value)| leaves(&format!("{path}{dot}{name}"), value, found));
        }
        value => found.push((path.to_owned(), value.clone())),
    }
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// The field that a flag sets, with a mark for a flag that has an effect beside `--config`.
fn field(flag: &Described) -> String {
    let field = flag.field.map_or_else(|| "-".to_owned(), code);
    match flag {
        Described { help, with_file, .. } if !with_file || help.starts_with(WITHOUT_EFFECT) => field,
        Described { field: Some(_), .. } => format!("{field} (wins)"),
        Described { .. } => format!("{field} (counts)"),
    }
}

fn default(flag: &Described) -> String {
    if flag.default.is_empty() { "-".to_owned() } else { code(&flag.default) }
}

fn flags_as_text() -> String {
    let mut text = String::new();
    for group in GROUPS.into_iter().filter(|group| ![GLOBAL, OWN].contains(group)) {
        let of_group: Vec<_> = described().into_iter().filter(|flag| flag.group == group).collect();
        if of_group.iter().all(|flag| flag.help.starts_with(WITHOUT_EFFECT)) {
            let names: Vec<String> = of_group.iter().map(|flag| code(&format!("--{}", flag.name))).collect();
            text += &format!("### {group}\n\n{}\n\n", names.join(", "));
            continue;
        }
        let rows: Vec<_> = of_group
            .into_iter()
            .map(|flag| [code(&format!("--{}", flag.name)), default(&flag), field(&flag), flag.help.to_owned()])
            .collect();
        let head = ["flag", "default", "field", "effect"];
        text += &format!("### {group}\n\n{}\n", table(head, &rows));
    }
    text
}

fn fields_as_text() -> String {
    let mut all = Vec::new();
    leaves("", &serde_json::to_value(KubeProxyConfiguration::default()).unwrap(), &mut all);
    let has_flag = |path: &str| FLAGS.iter().any(|flag| flag.path == path);
    all.retain(|(path, _)| !has_flag(path));
    all.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(all.len(), FIELDS.len(), "the list has a field that is not there");
    let (mut rows, mut idle) = (Vec::new(), Vec::new());
    for (path, default) in all {
        let (_, effect) =
            FIELDS.iter().find(|(name, _)| *name == path).unwrap_or_else(|| panic!("no words about field {path}"));
        match effect.starts_with(WITHOUT_EFFECT) {
            true => idle.push(code(&path)),
            false => rows.push([code(&path), code(&default.to_string()), (*effect).to_owned()]),
        }
    }
    format!("{}\nWithout effect: {}.\n", table(["field", "default", "effect"], &rows), idle.join(", "))
}

#[test]
fn our_own_flags_are_on_the_page_with_their_defaults_and_fields() {
    let path = format!("{}/../../deploy/REFERENCE.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).unwrap();
    let own: Vec<_> = described().into_iter().filter(|flag| flag.group == OWN).collect();
    assert!(own.len() > 10);
    for flag in own {
        let field = flag.field.map_or_else(|| "-".to_owned(), code);
        let row = format!("| `--{}` | {} | {field} | ", flag.name, default(&flag));
        assert!(page.contains(&row), "the page has no row {row}");
    }
}

#[test]
fn the_page_of_flags_is_what_the_code_says() {
    assert_generated("REFERENCE.md", "flags", &flags_as_text());
    assert_generated("REFERENCE.md", "fields", &fields_as_text());
}
