//! The configuration as others read it: the file of `--write-config-to` and the body of `/configz`.
//!
//! Takes a validated [`Config`], gives v1alpha1 text. As upstream writes it: keys in alphabetical order, what upstream omits
//! when empty is omitted, and the settings that all modes share stand in the `nftables` section only (surface.md section 2).
//! Invariant: the text decodes to a configuration with the same meaning.

mod yaml;

use serde_json::{Map, Value, json};

use super::Config;

/// The body of `/configz`: one object, keyed by the group of the API.
///
/// # Errors
/// None in practice: every value is a number, a text or a list of these.
pub fn configz(config: &Config) -> Result<String, serde_json::Error> {
    Ok(json!({ "kubeproxy.config.k8s.io": document(config)? }).to_string())
}

/// The text of `--write-config-to`.
///
/// # Errors
/// As [`configz`].
pub(super) fn text(config: &Config) -> Result<String, String> {
    document(config).map(|document| yaml::write(&document)).map_err(|error| error.to_string())
}

/// The configuration after the platform's defaults.
fn document(config: &Config) -> Result<Value, serde_json::Error> {
    let mut file = config.file.clone();
    file.mode = "nftables".to_owned();
    if file.detect_local_mode.is_empty() {
        file.detect_local_mode = "ClusterCIDR".to_owned();
    }
    if file.node_port_addresses.is_empty() {
        file.node_port_addresses = vec!["primary".to_owned()];
    }
    let mut document = serde_json::to_value(&file)?;
    // Through text, so that the digits are those of the 32 bits and not of 64.
    let qps: f64 = file.client_connection.qps.to_string().parse().unwrap_or_default();
    document["clientConnection"]["qps"] = qps.to_string().parse::<i64>().map_or(json!(qps), Value::from);
    for section in ["iptables", "ipvs"] {
        document[section]["syncPeriod"] = json!("0s");
        document[section]["minSyncPeriod"] = json!("0s");
    }
    document["iptables"]["masqueradeAll"] = json!(false);
    null_if_empty(&mut document["ipvs"]["excludeCIDRs"]);
    omit_empty(&mut document);
    Ok(sorted(document))
}

/// A list that nobody set is null in Go.
fn null_if_empty(list: &mut Value) {
    if list.as_array().is_some_and(Vec::is_empty) {
        *list = Value::Null;
    }
}

/// Drops the fields that upstream's types mark with `omitempty`.
fn omit_empty(document: &mut Value) {
    for (path, field) in [
        ("", "featureGates"),
        ("", "windowsRunAsService"),
        ("/logging", "format"),
        ("/logging", "vmodule"),
        ("/logging/options/text", "splitStream"),
        ("/logging/options/json", "splitStream"),
    ] {
        if let Some(fields) = document.pointer_mut(path).and_then(Value::as_object_mut)
            && fields.get(field).is_some_and(is_empty)
        {
            fields.remove(field);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        other => *other == json!(false),
    }
}

/// The keys in alphabetical order, whatever order the maps of the JSON library keep.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
