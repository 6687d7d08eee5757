//! Tests of the rules of validation. The configuration is valid except for the field under test, so that only this field can cause an
//! error.

use super::super::file::decode;
use super::super::{DetectLocal, LogFormat, NodePortAddresses, Scheduler};
use super::*;

fn validated(body: &str) -> Result<Config, Vec<FieldError>> {
    let mode = if body.contains("mode:") { "" } else { "mode: nftables\n" };
    let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{mode}{body}\n");
    let decoded = decode(&text).unwrap();
    validate(&decoded.config, Context::default(), decoded.warnings, || Ok(" Host-1\n".to_owned()))
}

/// Returns the one error that `body` causes, as text.
fn error(body: &str) -> String {
    let errors = validated(body).expect_err(body);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

fn good(body: &str) -> Config {
    validated(body).unwrap_or_else(|errors| panic!("{body}: {errors:?}"))
}

#[test]
fn all_errors_are_collected() {
    let wrong = [
        "mode: x",
        "oomScoreAdj: 2000",
        "nodePortAddresses: [x, z]",
        "clusterCIDR: x",
        "featureGates: {MultiCIDRServiceAllocator: false}",
        "logging: {format: xml}",
    ];
    let errors = validated(&wrong.join("\n")).unwrap_err();
    let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
    let expected = [
        "mode",
        "oomScoreAdj",
        "nodePortAddresses[0]",
        "nodePortAddresses[1]",
        "clusterCIDR",
        "featureGates.MultiCIDRServiceAllocator",
        "logging.format",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn the_mode_is_nftables() {
    assert_eq!(good("mode: nftables").warnings, [""; 0]);
    for (mode, found) in [("''", "mode is not set"), ("iptables", "mode is iptables")] {
        let config = good(&format!("mode: {mode}"));
        assert_eq!((config.warnings, config.mode_warning), (Vec::new(), None), "{mode}");
        let note = |without: &str| {
            Some(format!(
                "{found} in the configuration: this program always uses nftables{without}; set mode: nftables to silence this"
            ))
        };
        let without = ", and serves no node ports on 127.0.0.1 (iptables.localhostNodePorts)";
        assert_eq!(config.mode_note, note(without));
        for has_none_or_ours in
            ["iptables: {localhostNodePorts: false}", "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}"]
        {
            assert_eq!(good(&format!("mode: {mode}\n{has_none_or_ours}")).mode_note, note(""));
        }
    }
    let config = good("mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}");
    let expected = "mode is \"ipvs\", which this kube-proxy does not have: it runs nftables; set mode (or --proxy-mode) to \"nftables\"";
    assert_eq!((config.warnings, config.mode_note), (vec![expected.to_owned()], None));
    assert_eq!(config.mode_warning.as_deref(), Some(expected));
    assert_eq!(
        error("mode: userspace"),
        "mode: must be \"nftables\" (\"iptables\" and \"ipvs\" run it too), not \"userspace\""
    );
}

// The node's name is trimmed and in lower case (M1).
#[test]
fn the_node_name_is_trimmed_and_lower_case() {
    assert_eq!(good("").node_name, "host-1");
    assert_eq!(good("hostnameOverride: ' Node-A '").node_name, "node-a");
    assert_eq!(error("hostnameOverride: '  '"), "hostnameOverride: the node's name must not be empty");
    let config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
    let errors = validate(&config, Context::default(), Vec::new(), || Ok("\n".to_owned())).unwrap_err();
    assert_eq!(errors[0].to_string(), "hostnameOverride: the node's name must not be empty");
    let errors = validate(&config, Context::default(), Vec::new(), || Err(std::io::Error::other("gone"))).unwrap_err();
    assert_eq!(errors[0].to_string(), "hostnameOverride: not set, and the host name cannot be read: gone");
}

#[test]
fn masquerade_bits_are_0_to_31() {
    for bit in [0, 31] {
        assert_eq!(i32::from(good(&format!("nftables: {{masqueradeBit: {bit}}}")).masquerade_bit), bit);
    }
    assert_eq!(error("nftables: {masqueradeBit: 32}"), "nftables.masqueradeBit: must be between 0 and 31, not 32");
    assert_eq!(error("nftables: {masqueradeBit: -1}"), "nftables.masqueradeBit: must be between 0 and 31, not -1");
    assert_eq!(error("iptables: {masqueradeBit: 32}"), "iptables.masqueradeBit: must be between 0 and 31, not 32");
}

/// The configuration of a file with values in the sections of all modes that differ from each other and from the defaults.
fn in_each_mode(mode: &str) -> Config {
    good(&format!(
        "mode: '{mode}'\niptables: {{masqueradeAll: true, masqueradeBit: 20, syncPeriod: 40s, minSyncPeriod: 2s}}\n\
         ipvs: {{syncPeriod: 50s, minSyncPeriod: 3s, scheduler: sh, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, \
         tcpFinTimeout: 2s, udpTimeout: 3s}}\nnftables: {{masqueradeBit: 21, syncPeriod: 60s, minSyncPeriod: 4s}}"
    ))
}

// Each setting of `iptables` and `ipvs` is used in the modes in which upstream uses it, or named (P12).
#[test]
fn each_mode_takes_its_settings_from_the_sections_of_upstream() {
    let seconds = Duration::from_secs;
    for (mode, all, bit, sync, min, scheduler, excluded) in [
        ("", true, 20, 40, 2, Scheduler::Random, 0),
        ("iptables", true, 20, 40, 2, Scheduler::Random, 0),
        ("ipvs", true, 20, 50, 3, Scheduler::SourceHash, 1),
        ("nftables", false, 21, 60, 4, Scheduler::SourceHash, 0),
    ] {
        let config = in_each_mode(mode);
        assert_eq!((config.masquerade_all, config.masquerade_bit), (all, bit), "{mode}");
        assert_eq!((config.sync_period, config.min_sync_period), (seconds(sync), Some(seconds(min))), "{mode}");
        assert_eq!((config.scheduler, config.exclude_cidrs.len()), (scheduler, excluded), "{mode}");
    }
}

// What has no effect is named (P12).
#[test]
fn settings_of_other_modes_and_settings_without_effect_are_named() {
    let named = |mode: &str| {
        let warnings = in_each_mode(mode).warnings.into_iter();
        let about_fields = warnings.filter(|text| text.contains("has no effect"));
        about_fields
            .map(|text| text.replace(" has no effect", "").replace(", as in upstream's kube-proxy", ""))
            .collect::<Vec<_>>()
    };
    let unused = |mode: &str, section: &str| {
        let of = |field: &str, section: &str| format!("nftables.{field} {mode}: set {section}.{field}");
        [of("masqueradeBit", "iptables"), of("syncPeriod", section), of("minSyncPeriod", section)]
    };
    assert_eq!(named(""), unused("without a mode", "iptables"));
    assert_eq!(named("iptables"), unused("in mode iptables", "iptables"));
    let of_ipvs = [
        "ipvs.strictARP in this kube-proxy: no interface gets the addresses of Services, so none answers ARP for them",
        "ipvs.tcpTimeout in this kube-proxy: set conntrack.tcpEstablishedTimeout",
        "ipvs.tcpFinTimeout in this kube-proxy: set sysctl net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
        "ipvs.udpTimeout in this kube-proxy: set conntrack.udpTimeout and conntrack.udpStreamTimeout",
    ];
    assert_eq!(named("ipvs"), [&unused("in mode ipvs", "ipvs")[..], &of_ipvs.map(str::to_owned)].concat());
    let of_iptables = ["masqueradeAll", "masqueradeBit"]
        .map(|field| format!("iptables.{field} in mode nftables: set nftables.{field}"));
    assert_eq!(named("nftables"), of_iptables);
    let all = good("mode: iptables\nnftables: {masqueradeAll: true}").warnings;
    assert_eq!(all.len(), 1, "{all:?}");
    // What is in use in the other section too, or is the default there, loses nothing.
    for same in [
        "mode: iptables\niptables: {masqueradeAll: true, masqueradeBit: 3}\nnftables: {masqueradeAll: true, masqueradeBit: 3}",
        "mode: iptables\niptables: {masqueradeAll: true, syncPeriod: 1m}\nnftables: {masqueradeAll: false, syncPeriod: 30s}",
        "mode: nftables\nnftables: {masqueradeAll: true}\niptables: {masqueradeAll: true, syncPeriod: 1m}\nipvs: {strictARP: true}",
    ] {
        assert_eq!(good(same).warnings, [""; 0], "{same}");
    }
}

// As in upstream, only the values of the mode's sections have to be valid, and the bit of `iptables` in each mode.
#[test]
fn values_are_checked_in_the_section_of_the_mode() {
    for (mode, section) in [("''", "iptables"), ("iptables", "iptables"), ("ipvs", "ipvs"), ("nftables", "nftables")] {
        let with = |body: String| validated(&format!("mode: {mode}\n{body}"));
        for other in ["iptables", "ipvs", "nftables"] {
            let result = with(format!("{other}: {{syncPeriod: -1s}}"));
            assert_eq!(result.is_err(), section == other, "{mode}: {other}");
        }
        let errors = with(format!("{section}: {{syncPeriod: 5s, minSyncPeriod: 6s}}")).unwrap_err();
        let expected = format!("{section}.minSyncPeriod: must not exceed {section}.syncPeriod (5s), but is 6s");
        assert_eq!(errors[0].to_string(), expected);
        assert_eq!(with("iptables: {masqueradeBit: 32}".to_owned()).unwrap_err()[0].field, "iptables.masqueradeBit");
        assert_eq!(with("nftables: {masqueradeBit: 32}".to_owned()).is_err(), section == "nftables", "{mode}");
        assert_eq!(with("ipvs: {excludeCIDRs: [x]}".to_owned()).is_err(), section == "ipvs", "{mode}");
    }
}

// As client-go does, the proxy takes any content types, and asks for those that it can read; it names unknown ones (P2).
#[test]
fn content_types_may_have_parameters_and_be_unknown() {
    const JSON: &str = "application/json";
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let of = |field: &str, types: &str| {
        let config = good(&format!("clientConnection: {{{field}: '{types}'}}"));
        (config.client.accept, config.warnings.len())
    };
    let both = format!("{PROTOBUF},{JSON}");
    for (types, of_content_type, of_accept) in [
        (JSON, JSON, JSON),
        (PROTOBUF, &*both, PROTOBUF),
        ("application/json; charset=utf-8", JSON, JSON),
        ("Application/JSON;as=Table;q=0.9", "application/json;q=0.9", "application/json;q=0.9"),
        ("application/vnd.kubernetes.protobuf;type=watch", &*both, PROTOBUF),
        ("text/plain,application/json;q=.5,*/*", "application/json;q=.5", "application/json;q=.5"),
        ("application/json;q=high", JSON, JSON),
    ] {
        assert_eq!(of("contentType", types), (of_content_type.to_owned(), 0), "{types}");
        assert_eq!(of("acceptContentTypes", types), (of_accept.to_owned(), 0), "{types}");
    }
    for unknown in ["text/plain", "*/*", "application/cbor", " ", ",", ";"] {
        for field in ["contentType", "acceptContentTypes"] {
            assert_eq!(of(field, unknown), (both.clone(), 1), "{field}: {unknown}");
        }
    }
}

// IPVS schedulers `sh` and `mh` become this program's `source-hash` and `maglev`, and all others become `random`; each causes a warning,
// except an empty name (E14).
#[test]
fn a_scheduler_of_ipvs_counts_where_ours_is_not_set() {
    let of = |body: &str| {
        let config = good(body);
        (config.scheduler, config.warnings.into_iter().filter(|text| text.contains("scheduler")).collect::<Vec<_>>())
    };
    assert_eq!(of(""), (Scheduler::Random, vec![]));
    assert_eq!(of("ipvs: {scheduler: ''}"), (Scheduler::Random, vec![]));
    for (name, scheduler, says) in [
        ("sh", Scheduler::SourceHash, "source-hash stands for it"),
        ("mh", Scheduler::Maglev, "maglev stands for it"),
        ("rr", Scheduler::Random, "random is used instead: over many connections each endpoint gets as many"),
        ("lc", Scheduler::Random, "random is used instead: nf_tables cannot count the connections of an endpoint"),
        ("dh", Scheduler::Random, "random is used instead: nothing chooses by the destination here"),
        ("xx", Scheduler::Random, "random is used instead: that is no scheduler that this kube-proxy knows"),
    ] {
        let (found, warnings) = of(&format!("ipvs: {{scheduler: {name}}}"));
        let expected = format!("ipvs.scheduler is \"{name}\", and nftables.scheduler is not set: {says}; set ");
        assert!(found == scheduler && warnings.len() == 1, "{name}: {found:?} {warnings:?}");
        assert!(warnings[0].starts_with(&expected), "{warnings:?}");
        let ours = format!("nftables: {{scheduler: random}}\nipvs: {{scheduler: {name}}}");
        assert_eq!(of(&ours), (Scheduler::Random, vec![]), "{name}");
    }
    assert_eq!(of("nftables: {scheduler: maglev, rulesetLayout: chains}"), (Scheduler::Maglev, vec![]));
}

#[test]
fn a_table_has_a_prime_number_of_places() {
    assert_eq!(good("").maglev_table_size, 1021);
    assert_eq!(good("nftables: {maglevTableSize: 65521}").maglev_table_size, 65_521);
    for size in [-1, 0, 61, 1000, 1023, 65_537] {
        let error = error(&format!("nftables: {{maglevTableSize: {size}}}"));
        assert!(error.starts_with("nftables.maglevTableSize: must be a prime number from 67 to 65521"), "{error}");
    }
}

#[test]
fn no_elements_are_no_limit_of_them() {
    let limit = |text: &str| good(&format!("nftables: {{serviceElementsLimit: {text}}}")).service_elements_limit;
    assert_eq!((good("").service_elements_limit, limit("7"), limit("0")), (100_000, 7, u64::MAX));
    let wrong = error("nftables: {serviceElementsLimit: -1}");
    assert_eq!(wrong, "nftables.serviceElementsLimit: must not be negative, but is -1");
}

// Ports to reserve and the mark that drains the node are checked; both are off by default (N5, L10).
#[test]
fn ports_to_reserve_and_the_mark_that_drains_are_checked() {
    let config = good("");
    assert!(config.reserve_node_ports.is_empty() && config.drain_on.is_none());
    let config = good("nftables: {reserveNodePorts: '30000-32767', drainOn: 'label:drain=yes'}");
    assert_eq!(config.reserve_node_ports.to_string(), "30000-32767");
    assert_eq!(config.drain_on.unwrap().to_string(), "label:drain=yes");
    let wrong = error("nftables: {reserveNodePorts: 'all'}");
    assert!(wrong.starts_with("nftables.reserveNodePorts: must be ports"), "{wrong}");
    let wrong = error("nftables: {drainOn: 'cordon'}");
    assert!(wrong.starts_with("nftables.drainOn: must be taint:KEY"), "{wrong}");
}

#[test]
fn the_relist_removal_limit_is_a_percentage() {
    assert_eq!(good("").relist_removal_limit, 90);
    for limit in [0, 100] {
        let config = good(&format!("nftables: {{relistRemovalLimit: {limit}}}"));
        assert_eq!(i32::from(config.relist_removal_limit), limit);
    }
    for limit in [-1, 101] {
        let wrong = error(&format!("nftables: {{relistRemovalLimit: {limit}}}"));
        assert_eq!(wrong, format!("nftables.relistRemovalLimit: must be between 0 and 100, not {limit}"));
    }
}

#[test]
fn the_oom_score_is_within_1000() {
    good("oomScoreAdj: -1000");
    good("oomScoreAdj: 1000");
    assert_eq!(error("oomScoreAdj: 1001"), "oomScoreAdj: must be between -1000 and 1000, not 1001");
    assert_eq!(error("oomScoreAdj: -1001"), "oomScoreAdj: must be between -1000 and 1000, not -1001");
}

#[test]
fn conntrack_values_are_not_negative() {
    for field in ["maxPerCore", "min"] {
        let expected = format!("conntrack.{field}: must not be negative, but is -1");
        assert_eq!(error(&format!("conntrack: {{{field}: -1}}")), expected);
    }
    for field in ["tcpEstablishedTimeout", "tcpCloseWaitTimeout", "udpTimeout", "udpStreamTimeout"] {
        let expected = format!("conntrack.{field}: must not be negative, but is -1s");
        assert_eq!(error(&format!("conntrack: {{{field}: -1s}}")), expected);
    }
}

#[test]
fn periods_are_positive_and_in_order() {
    assert_eq!(error("configSyncPeriod: -1s"), "configSyncPeriod: must be greater than 0, but is -1s");
    assert_eq!(error("nftables: {syncPeriod: -1s}"), "nftables.syncPeriod: must be greater than 0, but is -1s");
    assert_eq!(error("nftables: {minSyncPeriod: -1s}"), "nftables.minSyncPeriod: must not be negative, but is -1s");
    assert_eq!(
        error("nftables: {syncPeriod: 5s, minSyncPeriod: 6s}"),
        "nftables.minSyncPeriod: must not exceed nftables.syncPeriod (5s), but is 6s"
    );
    let automatic = ["", "nftables: {minSyncPeriod: 0s}"].map(|text| good(text).min_sync_period);
    assert_eq!(automatic, [None, None], "a period that is not set, or 0, follows from how long syncs take");
    let equal = good("nftables: {syncPeriod: 5s, minSyncPeriod: 5s}");
    assert_eq!((equal.sync_period, equal.min_sync_period), (Duration::from_secs(5), Some(Duration::from_secs(5))));
}

// The bind address must be an IP (M6).
#[test]
fn the_bind_address_is_an_ip() {
    assert_eq!(good("bindAddress: 010.0.0.1").bind_address.to_string(), "10.0.0.1");
    assert_eq!(good("bindAddress: 'fd00::1'").bind_address.to_string(), "fd00::1");
    assert_eq!(error("bindAddress: host"), "bindAddress: must be an IP address, not \"host\"");
}

#[test]
fn server_addresses_are_ip_and_port() {
    for field in ["healthzBindAddress", "metricsBindAddress"] {
        for address in ["localhost:80", "192.0.2.1:0", "192.0.2.1:65536", "fd00::1:x", "192.0.2.1:", "[::1]"] {
            let expected = format!("{field}: must be IP:port with a port from 1 to 65535, not {address:?}");
            assert_eq!(error(&format!("{field}: '{address}'")), expected);
        }
    }
    let config = good("healthzBindAddress: '[fd00::1]:1'\nmetricsBindAddress: 192.0.2.1:65535");
    assert_eq!(config.healthz_bind_address, "[fd00::1]:1".parse().ok());
    assert_eq!(config.metrics_bind_address, "192.0.2.1:65535".parse().unwrap());
}

#[test]
fn only_healthz_can_be_without_address() {
    let mut config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
    config.healthz_bind_address.clear();
    let valid = validate(&config, Context::default(), Vec::new(), || Ok("n".to_owned())).unwrap();
    assert_eq!(valid.healthz_bind_address, None);
    config.metrics_bind_address.clear();
    assert_eq!(
        validate(&config, Context::default(), Vec::new(), || Ok("n".to_owned())).unwrap_err()[0].field,
        "metricsBindAddress"
    );
}

#[test]
fn node_port_addresses_are_cidrs_and_keywords_in_any_combination() {
    let of = |list: &str| {
        let NodePortAddresses { primary, ranges } = good(&format!("nodePortAddresses: {list}")).node_port_addresses;
        (primary, ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    let is = |primary: bool, ranges: &str| (primary, ranges.to_owned());
    // An empty list is `primary` (H1).
    assert_eq!(of("[]"), is(true, ""));
    // Keywords and CIDRs can be combined (H6).
    for (list, primary, ranges) in [
        ("[primary]", true, ""),
        ("[primary, primary]", true, ""),
        ("[localhost]", false, "127.0.0.0/8 ::1/128"),
        ("[all]", false, "0.0.0.0/0 ::/0"),
        ("[192.0.2.7/24, '::/0']", false, "192.0.2.0/24 ::/0"),
        ("[primary, localhost]", true, "127.0.0.0/8 ::1/128"),
        ("[192.0.2.0/24, primary]", true, "192.0.2.0/24"),
        ("['0.0.0.0/0', 127.0.0.1/32]", false, "0.0.0.0/0 127.0.0.1/32"),
        ("[all, localhost, primary, 192.0.2.0/24]", true, "0.0.0.0/0 ::/0 127.0.0.0/8 ::1/128 192.0.2.0/24"),
    ] {
        assert_eq!(of(list), is(primary, ranges), "{list}");
    }
    for (list, index, text) in [
        ("[192.0.2.1]", 0, "192.0.2.1"),
        ("[primary, Localhost]", 1, "Localhost"),
        ("[localhost, '']", 1, ""),
        ("[all, '*']", 1, "*"),
    ] {
        let expected = format!(
            "nodePortAddresses[{index}]: must be \"primary\", \"localhost\", \"all\" or a CIDR such as 192.0.2.0/24, not {text:?}"
        );
        assert_eq!(error(&format!("nodePortAddresses: {list}")), expected);
    }
    assert_eq!(validated("nodePortAddresses: [none, primary, every]").unwrap_err().len(), 2);
}

fn cluster_cidr(list: &str) -> DetectLocal {
    good(&format!("detectLocalMode: ClusterCIDR\nclusterCIDR: '{list}'")).detect_local
}

#[test]
fn cluster_cidrs_are_at_most_one_of_each_family() {
    // The list may have at most one CIDR of each family (I1).
    let (v4, v6) = ("10.0.0.0/8".parse().ok(), "fd00::/8".parse().ok());
    assert_eq!(good("").detect_local, DetectLocal::ClusterCidr { v4: None, v6: None });
    assert_eq!(cluster_cidr("10.0.0.0/8"), DetectLocal::ClusterCidr { v4, v6: None });
    assert_eq!(cluster_cidr("fd00::/8"), DetectLocal::ClusterCidr { v4: None, v6 });
    assert_eq!(cluster_cidr("fd00::/8,10.0.0.0/8"), DetectLocal::ClusterCidr { v4, v6 });
    for list in ["10.0.0.0/8,11.0.0.0/8", "10.0.0.0/8,fd00::/8,fe00::/8"] {
        let expected = format!("clusterCIDR: must be one CIDR, or one of each IP family, not {list:?}");
        assert_eq!(error(&format!("clusterCIDR: '{list}'")), expected);
    }
    assert!(error("clusterCIDR: '10.0.0.0/8, fd00::/8'").starts_with("clusterCIDR: must be a CIDR"));
    assert!(error("clusterCIDR: '10.0.0.0/8,'").starts_with("clusterCIDR: must be a CIDR"));
}

#[test]
fn cluster_cidrs_do_not_matter_in_other_modes() {
    // Mode NodeCIDR does not read `clusterCIDR` (I2).
    assert_eq!(good("detectLocalMode: NodeCIDR\nclusterCIDR: nonsense").detect_local, DetectLocal::NodeCidr);
}

#[test]
fn interface_modes_need_a_plausible_name() {
    // The kernel must accept the name, or the prefix as the beginning of a name (I3).
    for (mode, field) in [("BridgeInterface", "bridgeInterface"), ("InterfaceNamePrefix", "interfaceNamePrefix")] {
        let with = |name: &str| format!("detectLocalMode: {mode}\ndetectLocal: {{{field}: '{name}'}}");
        assert_eq!(error(&with("")), format!("detectLocal.{field}: must not be empty in this detectLocalMode"));
        for name in ["a/b", "a b", "a:0"] {
            let expected = format!("detectLocal.{field}: must not have a slash, a colon or whitespace");
            assert!(error(&with(name)).starts_with(&expected), "{name}");
        }
        assert!(
            error(&with("sixteen-bytes-xx")).starts_with(&format!("detectLocal.{field}: must be at most 15 bytes"))
        );
        let detect_local = good(&with("fifteen-bytes-x")).detect_local;
        let name = "fifteen-bytes-x".to_owned();
        let expected = match mode {
            "BridgeInterface" => DetectLocal::BridgeInterface(name),
            _ => DetectLocal::InterfaceNamePrefix(name),
        };
        assert_eq!(detect_local, expected);
    }
    // No interface has one of these names, and a name may begin so.
    for name in [".", ".."] {
        let error = error(&format!("detectLocalMode: BridgeInterface\ndetectLocal: {{bridgeInterface: '{name}'}}"));
        assert!(error.starts_with("detectLocal.bridgeInterface: must be the name of an interface"), "{error}");
        good(&format!("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: '{name}'}}"));
    }
    assert_eq!(
        error("detectLocalMode: Guess"),
        "detectLocalMode: must be ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix, not \"Guess\""
    );
}

#[test]
fn burst_is_not_negative() {
    assert_eq!(error("clientConnection: {burst: -1}"), "clientConnection.burst: must not be negative, but is -1");
}

#[test]
fn hidden_metrics_are_those_of_the_previous_minor() {
    good("showHiddenMetricsForVersion: '1.36'");
    // Kubernetes 1.36 accepts this value, so a configuration for 1.36 may have it.
    good("showHiddenMetricsForVersion: '1.35'");
    for version in ["1.37", "1.34", "1.36.0", "v1.36", "x"] {
        let expected = format!(
            "showHiddenMetricsForVersion: must be the previous minor release, \"1.36\", or \"1.35\", not {version:?}"
        );
        assert_eq!(error(&format!("showHiddenMetricsForVersion: '{version}'")), expected);
    }
}

#[test]
fn feature_gates_are_known_and_take_effect() {
    assert!(good("").allow_service_external_ips);
    assert!(!good("featureGates: {AllowServiceExternalIPs: false}").allow_service_external_ips);
    assert!(!good("").localhost_node_ports);
    assert!(good("featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}").localhost_node_ports);
    for gates in [
        "MultiCIDRServiceAllocator: true, ComponentFlagz: false",
        "NFTablesNetlink: false, KubeProxyIPVS: false, RelaxedServiceNameValidation: true",
    ] {
        assert_eq!(good(&format!("featureGates: {{{gates}}}")).warnings, [""; 0], "{gates}");
    }
    for locked in ["MultiCIDRServiceAllocator", "RelaxedServiceNameValidation"] {
        assert_eq!(
            error(&format!("featureGates: {{{locked}: false}}")),
            format!("featureGates.{locked}: cannot be false: the feature is always on")
        );
    }
    // Many clusters pass the same map of feature gates to all components, so it may contain gates of other components.
    for gate in ["InPlacePodVerticalScaling", "no-gate", "componentFlagz"] {
        let expected = format!("featureGates.{gate} has no effect: this kube-proxy does not look at that feature gate");
        assert_eq!(good(&format!("featureGates: {{{gate}: true}}")).warnings, [expected]);
    }
}

#[test]
fn a_gate_goes_before_the_gate_of_its_stage_and_that_before_the_default() {
    let of = |gates: &str| {
        let config = good(&format!("featureGates: {{{gates}}}"));
        let histograms = config.features.iter().find(|feature| feature.name == "NativeHistograms").unwrap();
        let external_ips = config.features.iter().find(|feature| feature.name == "AllowServiceExternalIPs").unwrap();
        assert_eq!(external_ips.enabled, config.allow_service_external_ips);
        (config.flagz, config.statusz, histograms.enabled, config.allow_service_external_ips)
    };
    assert_eq!(of(""), (true, true, false, true));
    assert_eq!(of("ComponentFlagz: false, NativeHistograms: true"), (false, true, true, true));
    assert_eq!(of("AllBeta: false"), (false, false, false, true));
    assert_eq!(of("AllBeta: false, ComponentStatusz: true, AllAlpha: true"), (false, true, true, true));
    assert_eq!(of("AllAlpha: false, AllBeta: false, AllowServiceExternalIPs: false"), (false, false, false, false));
}

#[test]
fn logging_rules() {
    let config = good("logging: {format: json, verbosity: 3}");
    assert_eq!((config.logging.format, config.logging.verbosity), (LogFormat::Json, 3));
    assert_eq!(error("logging: {format: xml}"), "logging.format: must be \"text\" or \"json\", not \"xml\"");
    assert_eq!(error("logging: {flushFrequency: -5s}"), "logging.flushFrequency: must be greater than 0, but is -5s");
    let vmodule = "vmodule: [{filePattern: proxier, verbosity: 5}]";
    assert_eq!(
        error(&format!("logging: {{format: json, {vmodule}}}")),
        "logging.vmodule: works only with format \"text\""
    );
    let config = good(&format!("logging: {{{vmodule}}}"));
    assert_eq!((config.logging.vmodule, config.warnings), (vec![("proxier".to_owned(), 5)], Vec::new()));
    assert_eq!(error("logging: {vmodule: [{verbosity: 5}]}"), "logging.vmodule[0].filePattern: must not be empty");
    assert_eq!(
        error("logging: {vmodule: [{filePattern: 'a=b', verbosity: 5}]}"),
        "logging.vmodule[0].filePattern: must have no equal sign and no comma, but is \"a=b\""
    );
    let too_much = "must be at most 2147483647, but is 2147483648";
    assert_eq!(error("logging: {verbosity: 2147483648}"), format!("logging.verbosity: {too_much}"));
    assert_eq!(
        error("logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}"),
        format!("logging.vmodule[0].verbosity: {too_much}")
    );
}

#[test]
fn logging_alpha_options_need_their_gate() {
    for format in ["text", "json"] {
        for (option, value) in [("splitStream", "true"), ("infoBufferSize", "64Ki")] {
            let body = format!("logging: {{options: {{{format}: {{{option}: {value}}}}}}}");
            let field = format!("logging.options.{format}.{option}");
            assert_eq!(error(&body), format!("{field}: needs feature gate LoggingAlphaOptions"));
            for gate in ["LoggingAlphaOptions", "AllAlpha"] {
                assert_eq!(good(&format!("{body}\nfeatureGates: {{{gate}: true}}")).warnings, [""; 0]);
            }
        }
    }
}

// Only the options of the configured log format are used, and the buffer size has an effect only with `splitStream`.
#[test]
fn informational_records_have_a_stream_and_a_buffer_if_their_format_has_them() {
    let buffer = |format: &str, options: &str| {
        let body = "featureGates: {LoggingAlphaOptions: true}\nlogging: {flushFrequency: 1s, ";
        let logging = good(&format!("{body}format: {format}, options: {{{options}}}}}")).logging;
        assert_eq!(logging.flush_every, Duration::from_secs(1));
        logging.info_buffer
    };
    assert_eq!(buffer("text", "text: {splitStream: true}"), Some(0));
    assert_eq!(buffer("text", "text: {splitStream: true, infoBufferSize: 64Ki}"), Some(65_536));
    assert_eq!(buffer("text", "text: {infoBufferSize: 64Ki}, json: {splitStream: true}"), None);
    assert_eq!(buffer("json", "json: {splitStream: true, infoBufferSize: 1M}"), Some(1_000_000));
}

#[test]
fn the_fast_path_is_on_interfaces() {
    assert_eq!(good("nftables: {flowtable: 'eth0,cni0'}").flowtable.to_string(), "eth0,cni0");
    assert_eq!(good("nftables: {flowtable: auto}").flowtable.to_string(), "auto");
    for (value, message) in [
        ("eth0,,eth1", "must be off, auto or names of interfaces, not \"eth0,,eth1\""),
        ("eth0,auto", "must be \"auto\" alone, or names of interfaces without it"),
        ("lo", "must not name lo: nothing is forwarded through it"),
        ("eth0, eth1", "must not have a slash, a colon or whitespace, as interface names have none, but is \" eth1\""),
        ("eth0:1", "must not have a slash, a colon or whitespace, as interface names have none, but is \"eth0:1\""),
        ("eth0,..", "must be the name of an interface, which \"..\" cannot be"),
        (
            "interface-number-1",
            "must be at most 15 bytes long, as interface names are, but \"interface-number-1\" is longer",
        ),
    ] {
        assert_eq!(error(&format!("nftables: {{flowtable: '{value}'}}")), format!("nftables.flowtable: {message}"));
    }
}
