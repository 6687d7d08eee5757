//! Generates and checks two parts of `deploy/REFERENCE.md`: all flags, and the fields without a flag.

use serde_json::Value;

use super::*;
use crate::pages::{assert_generated, table};

/// The descriptions of the fields that no flag sets.
const FIELDS: [(&str, &str); 14] = [
    ("apiVersion", "Must be as here."),
    ("kind", "Must be as here."),
    (
        "clientConnection.acceptContentTypes",
        "What the API server is asked for, in place of `contentType`: application/vnd.kubernetes.protobuf, application/json, or both, comma-separated.",
    ),
    ("iptables.masqueradeAll", "Without effect: for iptables mode."),
    ("iptables.minSyncPeriod", "Without effect: for iptables mode."),
    ("iptables.syncPeriod", "Without effect: for iptables mode."),
    ("nftables.masqueradeBit", "The bit of the packet mark that asks for masquerading, 0 to 31."),
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

fn flags_as_text() -> String {
    let mut text = String::new();
    for group in GROUPS.into_iter().filter(|group| *group != GLOBAL) {
        let of_group = described().into_iter().filter(|flag| flag.group == group);
        let rows: Vec<_> = of_group
            .map(|flag| {
                let default = if flag.default.is_empty() { "-".to_owned() } else { code(&flag.default) };
                [code(&format!("--{}", flag.name)), default, field(&flag), flag.help.to_owned()]
            })
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
    let rows: Vec<_> = all
        .into_iter()
        .map(|(path, default)| {
            let (_, effect) =
                FIELDS.iter().find(|(name, _)| *name == path).unwrap_or_else(|| panic!("no words about field {path}"));
            [code(&path), code(&default.to_string()), (*effect).to_owned()]
        })
        .collect();
    assert_eq!(rows.len(), FIELDS.len(), "the list has a field that is not there");
    table(["field", "default", "effect"], &rows)
}

#[test]
fn the_page_of_flags_is_what_the_code_says() {
    assert_generated("REFERENCE.md", "flags", &flags_as_text());
    assert_generated("REFERENCE.md", "fields", &fields_as_text());
}
