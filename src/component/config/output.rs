//! Writes the configuration as text: the file of `--write-config-to` and the body of `/configz`.
//!
//! Takes a decoded configuration file with the flags applied, and writes v1alpha1 text as upstream does: keys are in alphabetical order,
//! and empty fields that upstream marks with `omitempty` are left out. The mode is nftables: the sync periods, `masqueradeAll` and
//! `masqueradeBit` have their values in the section `nftables`, and `0s` and `false` in the sections of the other modes. Invariant: the
//! text decodes to a configuration with the same meaning, but for `ipvs.excludeCIDRs`, which only mode ipvs has.

use serde_json::{Map, Value, json};

use super::file::KubeProxyConfiguration;

/// Returns the body of `/configz`: an object whose only key is the API group.
///
/// # Errors
/// Fails if the configuration cannot be serialised. That does not happen in practice, because every value has a form in JSON.
pub(super) fn configz(file: &KubeProxyConfiguration) -> Result<String, String> {
    let document = document(file).map_err(|error| error.to_string())?;
    Ok(json!({ "kubeproxy.config.k8s.io": document }).to_string())
}

/// Returns the text of `--write-config-to`.
///
/// # Errors
/// Fails for the same reasons as [`configz`].
pub(super) fn yaml(file: &KubeProxyConfiguration) -> Result<String, String> {
    let document = document(file).map_err(|error| error.to_string())?;
    // Write each field on one line, even if its value is long.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&document, options).map_err(|error| error.to_string())
}

/// Returns the configuration as a JSON value with upstream's names and defaults for Linux.
fn document(file: &KubeProxyConfiguration) -> Result<Value, serde_json::Error> {
    let mut file = file.clone();
    file.nftables.masquerade_bit = file.masquerade_bit();
    if file.section() == "iptables" {
        // It has no effect in mode iptables, but has one in mode nftables.
        file.ipvs.scheduler.clear();
    }
    file.mode = "nftables".to_owned();
    if file.detect_local_mode.is_empty() {
        file.detect_local_mode = "ClusterCIDR".to_owned();
    }
    if file.node_port_addresses.is_empty() {
        file.node_port_addresses = vec!["primary".to_owned()];
    }
    let mut document = serde_json::to_value(&file)?;
    // Convert f32 to f64 through text, so that 0.1 stays 0.1 and does not become 0.10000000149.
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

/// Replaces an empty list by null, because Go writes null for a list that is not set.
fn null_if_empty(list: &mut Value) {
    if list.as_array().is_some_and(Vec::is_empty) {
        *list = Value::Null;
    }
}

/// Removes empty fields that upstream's types mark with `omitempty`.
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

/// Sorts the keys of all objects. It is needed if a dependency enables feature `preserve_order` of serde_json, which keeps the order of
/// insertion.
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
mod tests {
    use std::ffi::OsString;

    use super::super::file::{API_VERSION, KIND};
    use super::super::{Invocation, load};
    use super::*;

    fn written(args: &[&str]) -> String {
        let args = ["kube-proxy", "--write-config-to=out"].iter().chain(args).map(OsString::from);
        match load(args).unwrap() {
            Invocation::WriteConfig { path, text, .. } if path.as_os_str() == "out" => text,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the file that upstream writes for its defaults, with this program's own fields added, and with `minSyncPeriod: 0s` in place
    /// of upstream's default of 1s: with 0 this program chooses the period itself.
    fn defaults() -> String {
        let (others, nftables) = include_str!("testdata/defaults.yaml").split_once("\nnftables:").unwrap();
        format!("{others}\nnftables:{}", nftables.replace("minSyncPeriod: 1s", "minSyncPeriod: 0s"))
    }

    #[test]
    fn defaults_are_written_with_upstreams_fields_in_upstreams_order() {
        assert_eq!(written(&["--proxy-mode=nftables"]), defaults());
    }

    #[test]
    fn kubeadms_file_is_written_with_the_defaults_filled_in() {
        let text = written(&["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/config/testdata/kubeadm.yaml")]);
        let expected = defaults()
            .replace("clusterCIDR: \"\"", "clusterCIDR: 10.244.0.0/16")
            .replace("kubeconfig: \"\"", "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf");
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_written_reads_back_and_is_written_the_same() {
        let long = format!("--kubeconfig=/{}", "a b: ".repeat(40));
        let first = written(&[
            "--proxy-mode=nftables",
            "--kube-api-qps=0.1",
            "--masquerade-all",
            "--relist-removal-limit=75",
            "--service-elements-limit=0",
            "--feature-gates=A=true",
            "--nodeport-addresses=10.0.0.0/8",
            "--healthz-bind-address=[::]:1",
            "--ipvs-exclude-cidrs=10.0.0.0/8",
            &long,
        ]);
        for line in
            ["  qps: 0.1\n", "  relistRemovalLimit: 75\n  reserveNodePorts: \"\"\n", "  serviceElementsLimit: 0\n"]
        {
            assert!(first.contains(line), "{first}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &first).unwrap();
        assert_eq!(written(&["--config", file.path().to_str().unwrap()]), first);
    }

    #[test]
    fn what_is_written_for_another_mode_has_the_same_meaning() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let body = "iptables: {masqueradeAll: true, masqueradeBit: 20, syncPeriod: 40s, minSyncPeriod: 2s}\n\
                    ipvs: {syncPeriod: 50s, minSyncPeriod: 3s, scheduler: sh}\nhostnameOverride: n1\n";
        for mode in ["''", "iptables", "ipvs"] {
            let head = format!("apiVersion: {API_VERSION}\nkind: {KIND}\nmode: {mode}\n");
            std::fs::write(file.path(), format!("{head}{body}")).unwrap();
            let args = ["--config", file.path().to_str().unwrap()];
            let meaning = || match load(std::iter::once(&"kube-proxy").chain(&args).map(OsString::from)).unwrap() {
                Invocation::Run(config) => (
                    (config.masquerade_all, config.masquerade_bit, config.scheduler),
                    (config.sync_period, config.min_sync_period),
                ),
                other => panic!("{other:?}"),
            };
            let before = meaning();
            std::fs::write(file.path(), written(&args)).unwrap();
            assert_eq!(meaning(), before, "{mode}");
        }
    }

    /// Texts that a YAML 1.1 parser could take for something else than a text are written in quotes.
    #[test]
    fn texts_that_look_like_other_types_are_quoted() {
        let texts = [
            "",
            "0",
            "1.35",
            "1e3",
            "0x10",
            "no",
            "On",
            "~",
            "null",
            "1_000",
            "1:20",
            "2026-01-01",
            "::",
            "[::]:1",
            "a: b",
            "-1",
        ];
        for text in texts {
            let file = KubeProxyConfiguration { port_range: text.to_owned(), ..KubeProxyConfiguration::default() };
            let written = yaml(&file).unwrap();
            let line = written.lines().find_map(|line| line.strip_prefix("portRange: ")).unwrap();
            assert!(line.starts_with(['"', '\'']), "{line}");
            let read: Value = serde_saphyr::from_str(&written).unwrap();
            assert_eq!(read["portRange"], text);
        }
    }

    #[test]
    fn configz_is_keyed_by_the_group() {
        let body: Value = serde_json::from_str(&configz(&KubeProxyConfiguration::default()).unwrap()).unwrap();
        let object = &body["kubeproxy.config.k8s.io"];
        assert_eq!(object["kind"], "KubeProxyConfiguration");
        assert_eq!(object["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
        assert_eq!(object["nodePortAddresses"], json!(["primary"]));
        assert_eq!(object["clientConnection"]["qps"], json!(5));
        assert_eq!(object["iptables"]["syncPeriod"], "0s");
        assert_eq!(object["nftables"]["syncPeriod"], "30s");
        assert_eq!(
            (&object["nftables"]["tableOwnership"], &object["nftables"]["counters"]),
            (&json!("off"), &json!("off"))
        );
    }
}
