mod page;

use super::*;

fn lines(metrics: &Metrics, name: &str) -> Vec<String> {
    let starts = |line: &&str| line.starts_with(name);
    metrics.text().lines().filter(starts).map(str::to_owned).collect()
}

/// Returns the upper bounds of a histogram's buckets, as they are printed.
fn bounds(metrics: &Metrics, name: &str) -> Vec<String> {
    let bound = |line: &String| line.split_once("le=\"").unwrap().1.split('"').next().unwrap().to_owned();
    lines(metrics, &format!("{name}_bucket")).iter().map(bound).collect()
}

#[test]
fn series_appear_when_they_are_used() {
    let metrics = Metrics::new();
    assert!(lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds").is_empty());
    metrics.sync_finished(Family::V4, UNIX_EPOCH + Duration::from_millis(1500), Duration::ZERO, true, true);
    assert_eq!(
        lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds"),
        ["kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.5"]
    );
}

#[test]
fn a_failed_sync_is_counted_and_leaves_the_timestamp_alone() {
    let metrics = Metrics::new();
    metrics.sync_finished(Family::V6, SystemTime::now(), Duration::from_millis(3), false, false);
    assert!(lines(&metrics, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{").is_empty());
    let failures = |family, count| {
        format!("kubeproxy_sync_proxy_rules_nftables_sync_failures_total{{ip_family=\"{family}\"}} {count}")
    };
    let mut found = lines(&metrics, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{");
    found.sort();
    assert_eq!(found, [failures("IPv4", 0), failures("IPv6", 1)]);
    let count = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1";
    assert_eq!(lines(&metrics, "kubeproxy_sync_partial_proxy_rules_duration_seconds_count"), [count]);
}

#[test]
fn durations_of_syncs_have_upstreams_buckets() {
    let metrics = Metrics::new();
    metrics.sync_finished(Family::V4, SystemTime::now(), Duration::from_millis(3), true, true);
    let buckets = lines(&metrics, "kubeproxy_sync_proxy_rules_duration_seconds_bucket");
    assert_eq!(buckets.len(), 16);
    assert!(buckets[0].contains("le=\"0.001\"") && buckets[0].ends_with(" 0"), "{}", buckets[0]);
    assert!(buckets[2].contains("le=\"0.004\"") && buckets[2].ends_with(" 1"), "{}", buckets[2]);
    assert!(buckets[14].contains("le=\"16.384\""), "{}", buckets[14]);
}

#[test]
fn the_latency_of_the_network_has_upstreams_81_buckets() {
    let metrics = Metrics::new();
    metrics.programmed(Family::V4, Duration::from_secs(3));
    let bounds = bounds(&metrics, "kubeproxy_network_programming_duration_seconds");
    assert_eq!(bounds.len(), 82, "with +Inf");
    assert_eq!(bounds[..5], ["0", "0.25", "0.5", "1", "2"]);
    assert_eq!(bounds[60..64], ["58", "59", "60", "65"].map(str::to_owned)[..]);
    assert_eq!(bounds[73..], ["115", "120", "150", "180", "210", "240", "270", "300", "+Inf"]);
}

#[test]
fn transactions_add_up() {
    let metrics = Metrics::new();
    let kernel_time = Duration::from_micros(150);
    metrics.transactions(Transactions { count: 1, added: 2, removed: 1, bytes: 100, kernel_time });
    metrics.transactions(Transactions { count: 1, added: 3, removed: 0, bytes: 50, kernel_time });
    assert_eq!(lines(&metrics, "kubeproxy_nft_transactions_total"), ["kubeproxy_nft_transactions_total 2"]);
    assert_eq!(lines(&metrics, "kubeproxy_nft_elements_added_total"), ["kubeproxy_nft_elements_added_total 5"]);
    assert_eq!(lines(&metrics, "kubeproxy_nft_log_lines_dropped_total"), ["kubeproxy_nft_log_lines_dropped_total 0"]);
    assert_eq!(lines(&metrics, "kubeproxy_nft_message_bytes_total"), ["kubeproxy_nft_message_bytes_total 150"]);
    let buckets = lines(&metrics, "kubeproxy_nft_commit_duration_seconds_bucket");
    assert!(buckets[0].ends_with("{le=\"0.0001\"} 0") && buckets[1].ends_with("{le=\"0.0002\"} 2"), "{buckets:?}");
}

#[test]
fn deleted_maps_are_not_shown() {
    let metrics = Metrics::new();
    metrics.table_elements(Family::V4, [("services", 2), ("old", 1)].into_iter());
    metrics.table_elements(Family::V6, [("old", 7)].into_iter());
    metrics.table_elements(Family::V4, [("services", 3)].into_iter());
    let mut found = lines(&metrics, "kubeproxy_nft_table_elements{");
    found.sort();
    let line =
        |family, map, count| format!("kubeproxy_nft_table_elements{{ip_family=\"{family}\",map=\"{map}\"}} {count}");
    assert_eq!(found, [line("IPv4", "services", 3), line("IPv6", "old", 7)]);
}

#[test]
fn a_gauge_that_ends_in_total_is_a_gauge() {
    let metrics = Metrics::new();
    metrics.no_local_endpoints(Family::V4, 1, 2);
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    assert_eq!(lines(&metrics, &format!("# TYPE {name}")), [format!("# TYPE {name} gauge")]);
    let mut found = lines(&metrics, name);
    found.sort();
    let line = |policy, count| format!("{name}{{ip_family=\"IPv4\",traffic_policy=\"{policy}\"}} {count}");
    assert_eq!(found, [line("external", 2), line("internal", 1)]);
}

#[test]
fn changes_are_counted_for_each_family_and_wait_for_a_sync() {
    let metrics = Metrics::new();
    metrics.service_change(2);
    metrics.endpoint_change();
    metrics.pending(3, 1);
    let value = |name: &str| lines(&metrics, &format!("kubeproxy_sync_proxy_rules_{name} ")).concat();
    assert!(value("service_changes_total").ends_with(" 2"));
    assert!(value("endpoint_changes_total").ends_with(" 1"));
    assert!(value("endpoint_changes_pending").ends_with(" 3"));
    assert!(value("service_changes_pending").ends_with(" 1"));
    metrics.pending(0, 0);
    assert!(value("endpoint_changes_pending").ends_with(" 0"));
}

#[test]
fn each_kind_of_object_has_its_series_from_the_start() {
    let text = Metrics::new().text();
    let kinds = cluster::source::KINDS;
    let rejected =
        kinds.iter().chain(&["unknown"]).map(|kind| format!("rejected_objects_total{{kind=\"{kind}\"}} 0\n"));
    let reconnects = kinds.iter().map(|kind| format!("source_reconnects_total{{resource=\"{kind}\"}} 0\n"));
    for line in rejected.chain(reconnects) {
        assert!(text.contains(&format!("kubeproxy_nft_{line}")), "{line} is not in\n{text}");
    }
}

#[test]
fn labels_of_other_series() {
    let metrics = Metrics::new();
    metrics.source_connected("Service", false);
    metrics.source_connected("Node", true);
    metrics.source_received("Node", UNIX_EPOCH + Duration::from_millis(2500));
    metrics.source_reconnected("Service");
    metrics.object_rejected("Service");
    metrics.netlink_error("refused");
    metrics.feature_enabled("ComponentFlagz", "BETA", true);
    metrics.feature_enabled("MultiCIDRServiceAllocator", "", true);
    metrics.healthz(503);
    metrics.livez(200);
    metrics.readyz(503);
    let text = metrics.text();
    for line in [
        "kubeproxy_nft_source_connected{resource=\"Service\"} 0",
        "kubeproxy_nft_source_connected{resource=\"Node\"} 1",
        "kubeproxy_nft_source_last_received_timestamp_seconds{resource=\"Service\"} 0.0",
        "kubeproxy_nft_source_last_received_timestamp_seconds{resource=\"Node\"} 2.5",
        "kubeproxy_nft_source_reconnects_total{resource=\"Service\"} 1",
        "kubeproxy_nft_rejected_objects_total{kind=\"Service\"} 1",
        "kubeproxy_nft_errors_total{kind=\"refused\"} 1",
        "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 1",
        "kubernetes_feature_enabled{name=\"MultiCIDRServiceAllocator\",stage=\"\"} 1",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        "kubeproxy_nft_readyz_total{code=\"503\"} 1",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}

#[test]
fn metrics_of_the_process_are_read_at_each_scrape() {
    let metrics = Metrics::new();
    let value = |name: &str| -> f64 {
        let line = lines(&metrics, &format!("{name} ")).concat();
        line.rsplit_once(' ').unwrap_or_else(|| panic!("no {name}")).1.parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
    assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") > value("process_open_fds"));
    let age = seconds(SystemTime::now()) - value("process_start_time_seconds");
    assert!((-2.0..36000.0).contains(&age), "{age}");
    assert!(value("process_cpu_seconds_total") >= 0.0);
}

#[test]
fn the_number_of_registered_metrics_is_the_number_of_families() {
    let metrics = Metrics::new();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/proxy/metrics/families.rs")).unwrap();
    let families = text.split("impl Families").nth(1).unwrap();
    let ours = text.matches("\"kubeproxy_nftables_localhost").count() + families.matches("\"kube").count() - 1;
    let alpha = ours + text.matches("\"rest_client_").count();
    let line = |level, count| {
        format!("registered_metrics_total{{deprecated_version=\"\",stability_level=\"{level}\"}} {count}")
    };
    let mut found = lines(&metrics, "registered_metrics_total{");
    found.sort();
    assert_eq!(found, [line("ALPHA", alpha), line("BETA", 4)], "all but kubernetes_feature_enabled are ALPHA");
}

#[test]
fn requests_to_the_api_server_are_counted_under_upstreams_names() {
    let metrics = Metrics::new();
    let url = "https://10.0.0.1:6443/";
    metrics.api_request("GET", url, Some(200), Duration::from_millis(300));
    metrics.api_request("GET", url, Some(200), Duration::from_secs(1));
    metrics.api_request("POST", url, None, Duration::from_secs(1));
    metrics.api_answer_size(url, 2_000);
    let text = metrics.text();
    for line in [
        r#"rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"} 2"#,
        r#"rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="POST"} 1"#,
        r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"} 2"#,
        r#"rest_client_request_duration_seconds_bucket{le="0.5",host="10.0.0.1:6443",verb="GET"} 1"#,
        r#"rest_client_response_size_bytes_bucket{le="4096",host="10.0.0.1:6443",verb="GET"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}
