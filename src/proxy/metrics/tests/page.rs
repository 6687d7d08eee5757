//! Generates the tables of `deploy/METRICS.md`: names, types, labels and meanings from a scrape, and what to do when a metric changes.

use super::*;
use component::pages::{assert_generated, table};
use node::counters::{Counted, ServiceCounts};
use node::kernel::ConntrackLoad;

/// For each metric that only this program has, what to do when it changes.
#[rustfmt::skip] // a table: one metric a line
const OWN: &[(&str, &str)] = &[
    ("kubeproxy_nft_transactions_total", "If it rises while nothing in the cluster changes, compare it with `kubeproxy_nft_foreign_changes_total`."),
    ("kubeproxy_nft_elements_added_total", ""),
    ("kubeproxy_nft_elements_removed_total", ""),
    ("kubeproxy_nft_message_bytes_total", ""),
    ("kubeproxy_nft_commit_duration_seconds", "If it grows: large sets, or many maps with session affinity; see `kubeproxy_nft_table_elements`."),
    ("kubeproxy_nft_table_elements", "A jump of `endpoints`, or of `counted-endpoints` where endpoints have counters, is a large Service."),
    ("kubeproxy_nft_foreign_changes_total", "The log names the program, unless it wrote only once: stop it from writing there."),
    ("kubeproxy_nft_repairs_total", "As for `kubeproxy_nft_foreign_changes_total`. Until the repair, new connections may have been lost."),
    ("kubeproxy_nft_tables_verified_timestamp_seconds", "[More than two hours](#kubeproxytablesnotverified): syncs fail, or none takes place."),
    ("kubeproxy_nft_table_foreign_owner", "1: end that program, which the log and `kube-proxy check` name. The other family is served."),
    ("kubeproxy_nft_quarantined_services", "The log and the event ServiceNotProgrammed have the kernel's error. It is tried again after an hour."),
    ("kubeproxy_nft_oversized_services", "Fewer ports, addresses or endpoints, or a higher limit."),
    ("kubeproxy_nft_lost_claims", "The log and the event FrontNotProgrammed name both Services ([order](SECURITY.md#who-gets-an-address))."),
    ("kubeproxy_nft_errors_total", "Each is tried again. `refused`: see `kubeproxy_nft_quarantined_services`; `unstable`: another program commits without a pause; `decode`, `encode`: report it."),
    ("kubeproxy_nft_source_connected", "0: the log has the URL and the likely cause."),
    ("kubeproxy_nft_source_last_received_timestamp_seconds", "More than 300 s ago: as for `kubeproxy_nft_source_connected`."),
    ("kubeproxy_nft_source_reconnects_total", "A few an hour are normal. Many: an unstable server or network."),
    ("kubeproxy_nft_rejected_objects_total", "The log names the object and the field. The rest of it, or its former state, is used."),
    ("kubeproxy_nft_invalid_dropped_packets_total", "Each would have reset a connection of a Service. A few are normal. Many: packets get lost or overtake each other; `conntrack.tcpBeLiberal` keeps them from being invalid."),
    ("kubeproxy_nft_log_lines_dropped_total", "Check the container runtime, and its disk."),
    ("kubeproxy_nft_readyz_total", "503: the page has the reason ([Check](INSTALL.md#check))."),
    ("kubeproxy_nft_conntrack_entries", "Near `kubeproxy_nft_conntrack_limit` new connections are dropped: [what to do](#kubeproxyconntrackfull)."),
    ("kubeproxy_nft_conntrack_limit", "A start raises it by `conntrack.maxPerCore` and `conntrack.min`."),
    ("kubeproxy_nft_conntrack_dropped_packets_total", "The table is [full](#kubeproxyconntrackfull)."),
    ("kubeproxy_nft_conntrack_failed_inserts_total", "A few are normal. Many: a client uses its source ports faster than they become free."),
    ("kubeproxy_nft_conntrack_early_drops_total", "The table was full, and room was made."),
    ("kubeproxy_nft_conntrack_walks_total", "Rises with changes of UDP Services, and with endpoints that go. Each costs milliseconds of processor time, more on nodes with a larger table."),
    ("kubeproxy_nft_service_connections_total", "A fall to zero while clients try: see `kubeproxy_nft_service_rejected_packets_total`."),
    ("kubeproxy_nft_service_rejected_packets_total", "A client repeats a packet that is dropped, so this is no number of connections."),
    ("kubeproxy_nft_endpoint_connections_total", "Endpoints of one service port should grow alike."),
    ("kubeproxy_nft_unused_cluster_ip_packets_total", "A client uses a wrong port, or an old address."),
];

/// For each metric that upstream has as well, what to do when it changes.
#[rustfmt::skip] // a table: one metric a line
const UPSTREAM: &[(&str, &str)] = &[
    ("kubeproxy_sync_proxy_rules_duration_seconds", "Compare with `kubeproxy_nft_commit_duration_seconds`, the kernel's part."),
    ("kubeproxy_sync_full_proxy_rules_duration_seconds", "Both tables are read back: the first sync, one after a failure or a foreign write, the hourly one."),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "Of the Services that changed."),
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "Behind `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds` for minutes: syncs fail."),
    ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", ""),
    ("kubeproxy_network_programming_duration_seconds", "With the share of API server and controller. If it grows and syncs are short, look at the control plane."),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "If it stays above 0, syncs fail."),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_total", ""),
    ("kubeproxy_sync_proxy_rules_service_changes_pending", "If it stays above 0, syncs fail."),
    ("kubeproxy_sync_proxy_rules_service_changes_total", ""),
    ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with policy Local and no endpoint here. Expected for `external`; clients of `internal` get no answer."),
    ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "The present rules stay. The log has each error."),
    ("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "Chains that could not be deleted are empty, and tried again."),
    ("kubeproxy_nftables_localhost_nodeport_listeners", "TCP node ports on [loopback](REFERENCE.md#node-ports-on-localhost)."),
    ("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", "Most often another program has the port; the log has the reason."),
    ("kubeproxy_nftables_localhost_nodeport_rejected_packets_total", "UDP or SCTP to a loopback node port, or the list lacks `localhost`."),
    ("kubeproxy_conntrack_reconciler_sync_duration_seconds", "It grows with the number of flows."),
    ("kubeproxy_conntrack_reconciler_deleted_entries_total", "Flows that led to an endpoint that is gone."),
    ("kubeproxy_proxy_healthz_total", "503: the page has the reason."),
    ("kubeproxy_proxy_livez_total", "503: the page has the reason."),
    ("kubernetes_build_info", "[The version that is reported](#the-version-that-is-reported)."),
    ("kubernetes_feature_enabled", ""),
    ("rest_client_requests_total", "A `code` of 401 or 403: credentials or rights; `<error>`: no answer. A watch counts when it begins."),
    ("rest_client_request_duration_seconds", "Pages of lists, and events; no watches."),
    ("rest_client_response_size_bytes", "Pages of lists."),
    ("registered_metrics_total", ""),
    ("disabled_metrics_total", ""),
    ("hidden_metrics_total", ""),
    ("process_cpu_seconds_total", "If it rises while nothing changes, compare it with `kubeproxy_nft_foreign_changes_total`."),
    ("process_open_fds", "Near `process_max_fds` connections to the pages are refused."),
    ("process_max_fds", ""),
    ("process_virtual_memory_bytes", ""),
    ("process_virtual_memory_max_bytes", ""),
    ("process_resident_memory_bytes", "It follows the number of endpoints of the cluster."),
    ("process_start_time_seconds", "It changes with each start."),
    ("go_goroutines", "Threads, under the name that dashboards show."),
    ("go_threads", ""),
];

/// Returns metrics with at least one series in each family.
fn used() -> Metrics {
    let metrics = Metrics::with_conntrack(|| Ok(ConntrackLoad::default()));
    let (at, took) = (UNIX_EPOCH, Duration::ZERO);
    metrics.sync_queued(Family::V4, at);
    metrics.sync_finished(Family::V4, at, took, true, true);
    metrics.sync_finished(Family::V4, at, took, false, true);
    metrics.programmed(Family::V4, took);
    metrics.no_local_endpoints(Family::V4, 0, 0);
    metrics.flows_reconciled(Family::V4, took, 0, 0);
    metrics.build_info(Build::default());
    metrics.feature_enabled("A", "BETA", true);
    metrics.table_elements(Family::V4, [("services", 1)].into_iter());
    metrics.api_request("GET", "https://192.0.2.1/", Some(200), took);
    metrics.api_answer_size("https://192.0.2.1/", 1);
    metrics.source_connected("Service", true);
    let counts = ServiceCounts { endpoints: vec![("192.0.2.1:80".parse().unwrap(), 1)], ..ServiceCounts::default() };
    metrics.counted(Counted { services: vec![("shop/web:http".into(), counts)], ..Counted::default() });
    metrics
}

/// Returns whether only this program has the metric.
fn is_own(name: &str) -> bool {
    name.starts_with("kubeproxy_nft_")
}

/// Returns the label names of a sample behind a comma, without `le`; empty if there are none.
fn labels(sample: &str) -> String {
    let Some((_, rest)) = sample.split_once('{') else { return String::new() };
    let inside = rest.rsplit_once('}').unwrap().0;
    let names = inside.split("\",").filter_map(|pair| pair.split_once("=\"")).map(|(name, _)| name);
    let mut names: Vec<String> = names.filter(|name| *name != "le").map(|name| format!("`{name}`")).collect();
    names.sort();
    names.iter().map(|name| format!(", {name}")).collect()
}

/// Returns a table row for each metric family of a scrape for which `is_of_list` returns `true`.
fn rows(advice: &[(&str, &str)], is_of_list: impl Fn(&str) -> bool) -> Vec<[String; 3]> {
    let text = used().text();
    let families = text.split("# HELP ").skip(1).filter(|family| is_of_list(family));
    let mut rows: Vec<[String; 3]> = families
        .map(|family| {
            let mut lines = family.lines();
            let (name, help) = lines.next().unwrap().split_once(' ').unwrap();
            let kind = lines.next().unwrap().rsplit_once(' ').unwrap().1;
            let sample = lines.next().unwrap_or_else(|| panic!("{name} has no series: use it in `used`"));
            let help = help.split_once("] ").map_or(help, |(_, help)| help).trim_end_matches('.');
            let (_, advice) =
                advice.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no words about {name}"));
            // Upstream's help texts say no more than its names.
            let help = if is_own(name) { format!("{help}. ") } else { String::new() };
            [format!("`{name}`"), format!("{kind}{}", labels(sample)), format!("{help}{advice}").trim_end().to_owned()]
        })
        .collect();
    assert_eq!(rows.len(), advice.len(), "the list has a metric that is not there");
    let place = |row: &[String; 3]| advice.iter().position(|(name, _)| row[0] == format!("`{name}`"));
    rows.sort_by_key(place);
    rows
}

/// Returns a table of the rows with words, and a sentence with the names of the others.
fn table_and_names(rows: Vec<[String; 3]>) -> String {
    let (told, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| !row[2].is_empty());
    let names: Vec<&str> = others.iter().map(|row| &*row[0]).collect();
    let table = table(["metric", "type and labels", "what it says, and what to do when it moves"], &told);
    if names.is_empty() { table } else { format!("{table}\nBesides: {}.\n", names.join(", ")) }
}

#[test]
fn the_tables_of_metrics_are_what_the_code_says() {
    assert_generated("METRICS.md", "our metrics", &table_and_names(rows(OWN, is_own)));
    assert_generated("METRICS.md", "metrics of upstream", &table_and_names(rows(UPSTREAM, |name| !is_own(name))));
}
