//! A scrape of `/metrics` against the metrics of upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::client::{Answer, ask, cluster, config, get, get_until, node_namespace};
use crate::support::netns::run;
use crate::support::objects::{service, slices};
use crate::support::probe::Proto;
use crate::support::proxy::Proxy;

const METRICS: &str = "127.0.0.1:10249";
const HEALTHZ: &str = "127.0.0.1:10256";

/// A family as it was scraped.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    /// The names of labels but for `le`.
    labels: BTreeSet<String>,
    /// The values of each label.
    values: BTreeMap<String, BTreeSet<String>>,
    bounds: Vec<String>,
    samples: usize,
}

/// Takes a scrape in the classic format apart; panics at what the format does not allow.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            let family = families.entry(name.to_owned()).or_default();
            assert!(family.help.is_empty(), "{name} comes twice");
            family.help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            families.get_mut(name).expect("HELP comes before TYPE").kind = kind.to_owned();
        } else {
            sample(&mut families, line);
        }
    }
    families
}

fn sample(families: &mut BTreeMap<String, Family>, line: &str) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
    value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}"));
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let base = base.filter(|base| families.get(*base).is_some_and(|family| family.kind == "histogram"));
    let family = families.get_mut(base.unwrap_or(name)).unwrap_or_else(|| panic!("nothing describes {line}"));
    family.samples += 1;
    for pair in labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty()) {
        let (label, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        let value = value.trim_end_matches('"').to_owned();
        if label == "le" {
            if !family.bounds.contains(&value) {
                family.bounds.push(value);
            }
        } else {
            family.labels.insert(label.to_owned());
            family.values.entry(label.to_owned()).or_default().insert(value);
        }
    }
}

const BY_FAMILY: &[&str] = &["ip_family"];

/// Name, type, labels and help text of what a busy proxy without failures shows.
const UPSTREAM: &[(&str, &str, &[&str], &str)] = &[
    ("sync_proxy_rules_duration_seconds", "histogram", BY_FAMILY, "SyncProxyRules latency in seconds"),
    (
        "sync_full_proxy_rules_duration_seconds",
        "histogram",
        BY_FAMILY,
        "SyncProxyRules latency in seconds for full resyncs",
    ),
    (
        "sync_partial_proxy_rules_duration_seconds",
        "histogram",
        BY_FAMILY,
        "SyncProxyRules latency in seconds for partial resyncs",
    ),
    (
        "sync_proxy_rules_last_timestamp_seconds",
        "gauge",
        BY_FAMILY,
        "The last time proxy rules were successfully synced",
    ),
    (
        "sync_proxy_rules_last_queued_timestamp_seconds",
        "gauge",
        BY_FAMILY,
        "The last time a sync of proxy rules was queued",
    ),
    (
        "network_programming_duration_seconds",
        "histogram",
        BY_FAMILY,
        "In Cluster Network Programming Latency in seconds",
    ),
    ("sync_proxy_rules_endpoint_changes_pending", "gauge", &[], "Pending proxy rules Endpoint changes"),
    ("sync_proxy_rules_endpoint_changes_total", "counter", &[], "Cumulative proxy rules Endpoint changes"),
    ("sync_proxy_rules_service_changes_pending", "gauge", &[], "Pending proxy rules Service changes"),
    ("sync_proxy_rules_service_changes_total", "counter", &[], "Cumulative proxy rules Service changes"),
    (
        "sync_proxy_rules_no_local_endpoints_total",
        "gauge",
        &["ip_family", "traffic_policy"],
        "Number of services with a Local traffic policy and no endpoints",
    ),
    (
        "conntrack_reconciler_sync_duration_seconds",
        "histogram",
        BY_FAMILY,
        "ReconcileConntrackFlowsLatency latency in seconds",
    ),
    (
        "conntrack_reconciler_deleted_entries_total",
        "counter",
        BY_FAMILY,
        "Cumulative conntrack flows deleted by conntrack reconciler",
    ),
    ("sync_proxy_rules_nftables_sync_failures_total", "counter", BY_FAMILY, "Cumulative proxy nftables sync failures"),
    (
        "sync_proxy_rules_nftables_cleanup_failures_total",
        "counter",
        BY_FAMILY,
        "Cumulative proxy nftables cleanup failures",
    ),
    ("nftables_localhost_nodeport_listeners", "gauge", BY_FAMILY, "Number of active localhost NodePort listeners"),
    (
        "nftables_localhost_nodeport_listener_creation_failures_total",
        "counter",
        BY_FAMILY,
        "Number of localhost NodePort listeners that could not be created",
    ),
    (
        "nftables_localhost_nodeport_rejected_packets_total",
        "counter",
        &["ip_family", "protocol"],
        "Number of packets to localhost NodePorts that were rejected",
    ),
    ("proxy_healthz_total", "counter", &["code"], "Cumulative proxy healthz HTTP status"),
    ("proxy_livez_total", "counter", &["code"], "Cumulative proxy livez HTTP status"),
];

/// Upper bounds of buckets as Go prints them.
fn bounds(values: impl IntoIterator<Item = f64>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).chain(["+Inf".to_owned()]).collect()
}

fn expected_bounds(name: &str) -> Vec<String> {
    if name == "network_programming_duration_seconds" {
        let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30)).map(f64::from);
        return bounds([0.0, 0.25, 0.5].into_iter().chain(whole));
    }
    bounds((0..15).map(|k| f64::from(1 << k) / 1000.0))
}

/// A proxy that did everything that can be counted without a failure.
fn busy_scrape() -> String {
    let node = node_namespace();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    let web = web.spec("internalTrafficPolicy", json!("Local")).json();
    let mut objects = cluster();
    objects.push(web);
    let mut proxy = Proxy::start(&node, &config(), &objects);
    let mut changed = slices("shop", "web", &[2, 3], &[("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 5353)]);
    let now = jiff::Timestamp::now().to_string();
    for slice in &mut changed {
        slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
    }
    proxy.apply(&changed);
    get(&node, HEALTHZ, "/livez");
    get_until(&node, HEALTHZ, "/healthz", |answer| answer.status == "HTTP/1.1 200 OK");
    let open = ask(&node, METRICS, &["GET /metrics", "Accept: application/openmetrics-text;version=1.0.0"], "");
    assert!(open.body.ends_with("\n# EOF\n"), "OpenMetrics has an end mark");
    let scrape = get(&node, METRICS, "/metrics");
    let content_type = ("Content-Type".to_owned(), "text/plain; version=0.0.4; charset=utf-8".to_owned());
    assert_eq!(scrape.headers[0], content_type);
    scrape.body
}

#[test]
fn every_family_of_upstream_has_its_name_type_labels_buckets_and_help() {
    // Upstream's metrics are exact (P6).
    let text = busy_scrape();
    let families = parse(&text);
    for (name, kind, labels, help) in UPSTREAM {
        let family = families.get(&format!("kubeproxy_{name}")).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        assert_eq!(family.kind, *kind, "{name}");
        assert_eq!(family.help, format!("[ALPHA] {help}"));
        assert_eq!(family.labels.iter().map(String::as_str).collect::<Vec<_>>(), *labels, "{name}");
        assert!(family.samples > 0, "{name}");
        let expected = if *kind == "histogram" { expected_bounds(name) } else { Vec::new() };
        assert_eq!(family.bounds, expected, "{name}");
        if labels.contains(&"ip_family") {
            let both = ["IPv4", "IPv6"].map(str::to_owned);
            assert_eq!(family.values["ip_family"], BTreeSet::from(both), "{name}");
        }
    }
    let known: BTreeSet<String> = UPSTREAM.iter().map(|(name, ..)| format!("kubeproxy_{name}")).collect();
    let unknown = families.keys().filter(|name| name.starts_with("kubeproxy_") && !name.starts_with("kubeproxy_nft_"));
    let unknown: Vec<_> = unknown.filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let of_go: Vec<_> = families.keys().filter(|name| name.starts_with("go_")).collect();
    assert_eq!(of_go, ["go_goroutines", "go_threads"], "the others are about a Go program");
}

#[test]
fn values_count_syncs_changes_and_failures() {
    let text = busy_scrape();
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().expect("samples are numbers")
    };
    let sync = |rest: &str| value(&format!("kubeproxy_sync_proxy_rules_{rest}"));
    for family in ["IPv4", "IPv6"] {
        assert_eq!(
            sync(&format!("no_local_endpoints_total{{ip_family=\"{family}\",traffic_policy=\"internal\"}}")),
            2.0
        );
        assert_eq!(
            sync(&format!("no_local_endpoints_total{{ip_family=\"{family}\",traffic_policy=\"external\"}}")),
            0.0
        );
        let programming = format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"{family}\"}}");
        assert_eq!(value(&programming), 1.0);
        let services = format!("kubeproxy_nft_table_elements{{ip_family=\"{family}\",map=\"services\"}}");
        assert_eq!(value(&services), 2.0);
    }
    assert_eq!(sync("service_changes_total"), 2.0, "one event, two families");
    assert_eq!(sync("endpoint_changes_total"), 2.0);
    assert_eq!(sync("service_changes_pending"), 0.0);
    assert_eq!(sync("endpoint_changes_pending"), 0.0);
    assert!(value("kubeproxy_proxy_healthz_total{code=\"200\"}") >= 1.0);
    assert_eq!(value("kubeproxy_proxy_livez_total{code=\"200\"}"), 1.0);
    assert!(value("kubeproxy_nft_transactions_total") >= 2.0);
    assert_eq!(value("kubeproxy_nft_commit_duration_seconds_count"), value("kubeproxy_nft_transactions_total"));
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert_eq!(value("kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"}"), 1.0);
    assert!(text.lines().any(|line| line.starts_with("kubernetes_build_info{") && line.contains("minor=\"37\"")));
}

const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const KINDS: &[&str] = &["EndpointSlice", "Node", "Service", "ServiceCIDR"];
const KINDS_OR_NONE: &[&str] = &["EndpointSlice", "Node", "Service", "ServiceCIDR", "unknown"];
const FAILURES: &[&str] = &["decode", "encode", "refused", "socket", "too_large", "unconfirmed", "unstable"];

/// Every counter whose series are known before anything happens: its name without `kubeproxy_` and `_total`, its label, and the values
/// of that.
const COUNTERS: &[(&str, &str, &[&str])] = &[
    ("sync_proxy_rules_endpoint_changes", "", &[]),
    ("sync_proxy_rules_service_changes", "", &[]),
    ("sync_proxy_rules_nftables_sync_failures", "ip_family", FAMILIES),
    ("sync_proxy_rules_nftables_cleanup_failures", "ip_family", FAMILIES),
    ("conntrack_reconciler_deleted_entries", "ip_family", FAMILIES),
    ("nftables_localhost_nodeport_listener_creation_failures", "ip_family", FAMILIES),
    ("proxy_healthz", "code", &["200", "503"]),
    ("proxy_livez", "code", &["200", "503"]),
    ("nft_transactions", "", &[]),
    ("nft_elements_added", "", &[]),
    ("nft_elements_removed", "", &[]),
    ("nft_message_bytes", "", &[]),
    ("nft_foreign_changes", "", &[]),
    ("nft_conntrack_walks", "", &[]),
    ("nft_repairs", "", &[]),
    ("nft_errors", "kind", FAILURES),
    ("nft_source_reconnects", "resource", KINDS),
    ("nft_rejected_objects", "kind", KINDS_OR_NONE),
    ("nft_invalid_dropped_packets", "ip_family", FAMILIES),
    ("nft_log_lines_dropped", "", &[]),
    ("nft_readyz", "code", &["200", "503"]),
];

/// The counter that has two labels, a family and a protocol.
const REJECTED: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total";

/// The samples of all counters in a scrape, but for those about the process and about the metrics themselves.
fn counters(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    let names: BTreeSet<&str> = types.filter(|name| name.starts_with("kubeproxy_")).collect();
    let is_counter = |line: &&str| names.contains(line.split(['{', ' ']).next().unwrap_or_default());
    text.lines().filter(is_counter).map(str::to_owned).collect()
}

#[test]
fn every_counter_is_there_with_0_before_anything_was_counted() {
    // Counters are there from the start (P6).
    // Without its API server a process has nothing to count.
    let node = node_namespace();
    let nowhere = TempDir::new().expect("a temporary directory can be made");
    let kubeconfig = nowhere.path().join("kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [],
        "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:9" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "" } }],
    });
    fs::write(&kubeconfig, content.to_string()).expect("a file can be written");
    let mut proxy = Proxy::with_api(&node, &config(), &kubeconfig);
    proxy.spawn();
    let scrape = get_until(&node, METRICS, "/metrics", |answer| answer.status == "HTTP/1.1 200 OK");
    let mut expected = BTreeSet::new();
    for (name, label, values) in COUNTERS {
        let name = format!("kubeproxy_{name}_total");
        match values {
            [] => drop(expected.insert(format!("{name} 0"))),
            values => expected.extend(values.iter().map(|value| format!("{name}{{{label}=\"{value}\"}} 0"))),
        }
    }
    for (family, protocol) in
        FAMILIES.iter().flat_map(|family| ["SCTP", "TCP", "UDP"].map(|protocol| (family, protocol)))
    {
        expected.insert(format!("{REJECTED}{{ip_family=\"{family}\",protocol=\"{protocol}\"}} 0"));
    }
    // The kernel's counters, which are 0 in a new network namespace.
    let tracking = ["dropped_packets", "failed_inserts", "early_drops"];
    expected.extend(tracking.map(|name| format!("kubeproxy_nft_conntrack_{name}_total 0")));
    assert_eq!(counters(&scrape.body), expected);
}

#[test]
fn the_list_of_counters_is_whole() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/proxy/metrics/families.rs");
    let source = fs::read_to_string(source).expect("the source is there");
    let fields = source.lines().filter(|line| line.ends_with(": Counter,") || line.ends_with(", Counter>,")).count();
    // `rest_client_requests_total` has a series for each code that the server gave, and `REJECTED` has two labels.
    assert_eq!(
        fields,
        COUNTERS.len() + 2,
        "counters that src/proxy/metrics/families.rs declares, and those listed here"
    );
}

// Repairs of what another program changed are counted (G10).
#[test]
fn what_others_break_is_counted_when_it_is_repaired() {
    let node = node_namespace();
    let mut objects = cluster();
    objects.push(service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json());
    let _proxy = Proxy::start(&node, &config(), &objects);
    let has = |answer: &Answer, series: &str| answer.body.lines().any(|line| line == series);
    assert!(has(&get(&node, METRICS, "/metrics"), "kubeproxy_nft_repairs_total 0"));
    run(node.command("nft").args(["delete", "table", "ip", "kube-proxy"]));
    let answer = get_until(&node, METRICS, "/metrics", |answer| has(answer, "kubeproxy_nft_repairs_total 1"));
    assert!(has(&answer, "kubeproxy_nft_foreign_changes_total 1"), "{}", answer.body);
}
