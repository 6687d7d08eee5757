//! Generates the tables of `deploy/METRICS.md`: names, types, labels and meanings from a scrape, and what to do when a metric moves.

use super::*;
use component::pages::{assert_generated, table};
use node::counters::{Counted, ServiceCounts};
use node::kernel::ConntrackLoad;

/// For each metric that only this program has, what to do when it moves.
#[rustfmt::skip] // a table: one metric a line
const OWN: &[(&str, &str)] = &[
    ("kubeproxy_nft_transactions_total", "It follows the changes of Services and endpoints. If it rises while nothing in the cluster changes, compare it with `kubeproxy_nft_foreign_changes_total`."),
    ("kubeproxy_nft_elements_added_total", "It follows the changes of endpoints."),
    ("kubeproxy_nft_elements_removed_total", "It follows the changes of endpoints."),
    ("kubeproxy_nft_message_bytes_total", "It follows the changes of endpoints."),
    ("kubeproxy_nft_commit_duration_seconds", "If it grows, the kernel works on large sets or on many maps with session affinity: look at `kubeproxy_nft_table_elements`, and at which Services have session affinity."),
    ("kubeproxy_nft_table_elements", "Its size follows the cluster. A jump of `endpoints` is a large Service."),
    ("kubeproxy_nft_foreign_changes_total", "The log names the program and its process id, unless it wrote only once: stop it from writing there. It is often a firewall script with `nft flush ruleset`."),
    ("kubeproxy_nft_repairs_total", "As for `kubeproxy_nft_foreign_changes_total`. Until the repair, new connections may have been lost."),
    ("kubeproxy_nft_tables_verified_timestamp_seconds", "An age of more than two hours: syncs fail, or none takes place; the log and `/livez` say which. `kube-proxy verify` names what differs now."),
    ("kubeproxy_nft_quarantined_services", "The log and the event ServiceNotProgrammed have the kernel's error. Change the Service, or report the error. It is tried again after an hour."),
    ("kubeproxy_nft_oversized_services", "The log has the Service and its size. Give it fewer ports, addresses or endpoints, or raise the limit."),
    ("kubeproxy_nft_lost_claims", "The log and the event FrontNotProgrammed name both Services and the reason. [SECURITY](SECURITY.md#who-gets-an-address) has the order of claims."),
    ("kubeproxy_nft_errors_total", "Each is tried again. If `refused` rises steadily, see `kubeproxy_nft_quarantined_services`; `unstable`: another program commits to these tables without a pause; `decode` or `encode`: report it, with the kernel's version."),
    ("kubeproxy_nft_source_connected", "0: the log has the URL and the likely cause, at once and every 5 minutes. Check the server, the route, the credentials and the role."),
    ("kubeproxy_nft_source_last_received_timestamp_seconds", "An age of more than 300 s: as for `kubeproxy_nft_source_connected`."),
    ("kubeproxy_nft_source_reconnects_total", "A few an hour are normal, because servers end watches. Many mean an unstable server or network."),
    ("kubeproxy_nft_rejected_objects_total", "The log names the object, the field and what is wrong. The rest of the object, or its state from before, is used."),
    ("kubeproxy_nft_log_lines_dropped_total", "Check what reads standard error (the container runtime), and the disk that it writes to."),
    ("kubeproxy_nft_readyz_total", "503: `curl -s http://127.0.0.1:10256/readyz` shows the reason; see [Check](INSTALL.md#check)."),
    ("kubeproxy_nft_conntrack_entries", "Near `kubeproxy_nft_conntrack_limit` new connections are dropped: `kube-proxy top --sort open` names the Services whose connections fill the table. Raise `conntrack.maxPerCore`, or shorten the time-outs of `conntrack`."),
    ("kubeproxy_nft_conntrack_limit", "It changes with the sysctl, which a start raises by `conntrack.maxPerCore` and `conntrack.min`."),
    ("kubeproxy_nft_conntrack_dropped_packets_total", "The table is full: as for `kubeproxy_nft_conntrack_entries`. The kernel's log has `nf_conntrack: table full`."),
    ("kubeproxy_nft_conntrack_failed_inserts_total", "A few are normal, as when a resolver sends two queries from one port at once. Many: a client uses its source ports faster than they become free."),
    ("kubeproxy_nft_conntrack_early_drops_total", "The table was full, and room was made: as for `kubeproxy_nft_conntrack_entries`."),
    ("kubeproxy_nft_service_connections_total", "It follows the traffic. A fall to zero while clients try: look at `kubeproxy_nft_service_rejected_packets_total`."),
    ("kubeproxy_nft_service_rejected_packets_total", "Give the Service endpoints; have the load balancer check its health-check node port; add the range. A client repeats a packet that is dropped, so this is no number of connections."),
    ("kubeproxy_nft_endpoint_connections_total", "Endpoints of one service port should grow alike."),
    ("kubeproxy_nft_unused_cluster_ip_packets_total", "A client uses a wrong port, or an address that it remembered from before."),
];

/// For each metric that upstream has as well, what to do when it moves.
#[rustfmt::skip] // a table: one metric a line
const UPSTREAM: &[(&str, &str)] = &[
    ("kubeproxy_sync_proxy_rules_duration_seconds", "Long syncs: compare with `kubeproxy_nft_commit_duration_seconds`, which is the kernel's part. The log warns about a sync of more than a second."),
    ("kubeproxy_sync_full_proxy_rules_duration_seconds", "These syncs read both tables back: the first one, one after a failure or a foreign write, and the hourly one."),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "These syncs look at the Services that changed."),
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "If it stays behind `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds` for minutes, syncs fail: see the log."),
    ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "It follows the changes of the cluster."),
    ("kubeproxy_network_programming_duration_seconds", "The API server's and the controller's share is included. There is a sample when the content of a slice changed. If it grows and syncs are short, look at the control plane."),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "It falls to 0 with each sync. If it stays, syncs fail."),
    ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "It follows the changes of the cluster."),
    ("kubeproxy_sync_proxy_rules_service_changes_pending", "It falls to 0 with each sync. If it stays, syncs fail."),
    ("kubeproxy_sync_proxy_rules_service_changes_total", "It follows the changes of the cluster; each change counts once for each address family."),
    ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with a policy Local that have endpoints, but none on this node. Expected for `external` behind a load balancer that checks health; clients of `internal` get no answer here."),
    ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "The rules from before stay in force. The log has each error."),
    ("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "Chains that could not be deleted are empty and are tried again."),
    ("kubeproxy_nftables_localhost_nodeport_listeners", "TCP node ports that are served on 127.0.0.1 or ::1 ([how to switch it on](REFERENCE.md#node-ports-on-localhost)). It follows the Services with node ports and endpoints."),
    ("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", "Another program has the port. The log names port, Service and error; it is tried again every second."),
    ("kubeproxy_nftables_localhost_nodeport_rejected_packets_total", "A client uses UDP or SCTP to a node port on a loopback address, or the list of node-port addresses lacks `localhost`. Read every 2 s."),
    ("kubeproxy_conntrack_reconciler_sync_duration_seconds", "It grows with the number of flows of the node."),
    ("kubeproxy_conntrack_reconciler_deleted_entries_total", "Flows that led to an endpoint that is gone: UDP flows, TCP and SCTP flows that nobody answered, and connections that are closed by annotation. It follows the changes of endpoints."),
    ("kubeproxy_proxy_healthz_total", "503: `curl -s http://127.0.0.1:10256/healthz` shows the reason, or the Node is being deleted."),
    ("kubeproxy_proxy_livez_total", "503: `curl -s http://127.0.0.1:10256/livez` shows the reason."),
    ("kubernetes_build_info", "The version that is reported: [below](#the-version-that-is-reported)."),
    ("kubernetes_feature_enabled", "It changes with the configuration only."),
    ("rest_client_requests_total", "A `code` of 401 or 403 means credentials or rights; `<error>` means no answer, and the log says why. A watch is one request, which counts when it begins."),
    ("rest_client_request_duration_seconds", "Each page of a list, and each event that is sent. Watches, which last for minutes, are not in it; a server that streams lists is asked for pages only after a failure."),
    ("rest_client_response_size_bytes", "Each page of a list. It follows the size of the cluster."),
    ("registered_metrics_total", "It changes with the release only."),
    ("disabled_metrics_total", "Always 0: no metric can be disabled."),
    ("hidden_metrics_total", "Always 0: no metric is hidden."),
    ("process_cpu_seconds_total", "It follows the changes of the cluster. If it rises while nothing changes, compare it with `kubeproxy_nft_foreign_changes_total`."),
    ("process_open_fds", "Connections to the pages, watches and listeners. Near `process_max_fds` new connections to the pages are refused."),
    ("process_max_fds", "It changes with the limits of the container only."),
    ("process_virtual_memory_bytes", "Address space, not memory in use."),
    ("process_virtual_memory_max_bytes", "-1: no limit."),
    ("process_resident_memory_bytes", "It follows the number of endpoints of the cluster."),
    ("process_start_time_seconds", "It changes with each start: the log of the process before has the reason."),
    ("go_goroutines", "This is no Go program; the number of its threads is constant in service."),
    ("go_threads", "As `go_goroutines`."),
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
    metrics.flows_reconciled(Family::V4, took, 0);
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
            [format!("`{name}`"), format!("{kind}{}", labels(sample)), format!("{help}{advice}")]
        })
        .collect();
    assert_eq!(rows.len(), advice.len(), "the list has a metric that is not there");
    let place = |row: &[String; 3]| advice.iter().position(|(name, _)| row[0] == format!("`{name}`"));
    rows.sort_by_key(place);
    rows
}

#[test]
fn the_tables_of_metrics_are_what_the_code_says() {
    let head = ["metric", "type and labels", "what it says, and what to do when it moves"];
    assert_generated("METRICS.md", "our metrics", &table(head, &rows(OWN, is_own)));
    assert_generated("METRICS.md", "metrics of upstream", &table(head, &rows(UPSTREAM, |name| !is_own(name))));
}
