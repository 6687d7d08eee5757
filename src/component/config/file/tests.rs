//! Tests that decode files, and compare every default with upstream's documentation.

use serde_json::{Value, json};

use super::*;

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn decoded(body: &str) -> Decoded {
    decode(&format!("{HEADER}{body}")).unwrap()
}

fn refused(body: &str) -> String {
    decode(&format!("{HEADER}{body}")).unwrap_err().to_string()
}

/// Returns every field with its documented default.
fn documented_defaults() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "featureGates": {},
        "clientConnection": {
            "kubeconfig": "", "acceptContentTypes": "", "contentType": "application/vnd.kubernetes.protobuf",
            "qps": 5.0, "burst": 10
        },
        "logging": {
            "format": "text", "flushFrequency": "5s", "verbosity": 0, "vmodule": [],
            "options": {
                "text": {"splitStream": false, "infoBufferSize": "0"},
                "json": {"splitStream": false, "infoBufferSize": "0"}
            }
        },
        "hostnameOverride": "",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "0.0.0.0:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "bindAddressHardFail": false,
        "enableProfiling": false,
        "showHiddenMetricsForVersion": "",
        "mode": "",
        "iptables": {
            "masqueradeBit": 14, "masqueradeAll": false, "localhostNodePorts": true,
            "syncPeriod": "30s", "minSyncPeriod": "0s"
        },
        "ipvs": {
            "syncPeriod": "30s", "minSyncPeriod": "0s", "scheduler": "", "excludeCIDRs": [], "strictARP": false,
            "tcpTimeout": "0s", "tcpFinTimeout": "0s", "udpTimeout": "0s"
        },
        "nftables": {
            "masqueradeBit": 14, "masqueradeAll": false, "syncPeriod": "30s", "minSyncPeriod": "0s",
            // Upstream does not have the following fields.
            "rulesetLayout": "maps", "endpointChains": true, "relistRemovalLimit": 90, "serviceElementsLimit": 100_000, "flowtable": "off",
            "counters": "off", "metricsServicesLimit": 100, "tableOwnership": "off",
            "scheduler": "", "schedulerHash": "source", "maglevTableSize": 1021, "endpointMaps": 0,
            "reserveNodePorts": "", "drainOn": "",
            "answerPings": false, "refuseUnusedPorts": false, "dropInvalidFromEndpoints": false
        },
        "winkernel": {
            "networkName": "", "sourceVip": "", "enableDSR": false, "rootHnsEndpointName": "",
            "forwardHealthCheckVip": false
        },
        "detectLocalMode": "",
        "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""},
        "clusterCIDR": "",
        "nodePortAddresses": [],
        "oomScoreAdj": -999,
        "conntrack": {
            "maxPerCore": 32768, "min": 131072, "tcpEstablishedTimeout": "24h0m0s", "tcpCloseWaitTimeout": "1h0m0s",
            "tcpBeLiberal": false, "udpTimeout": "0s", "udpStreamTimeout": "0s"
        },
        "configSyncPeriod": "15m0s",
        "portRange": "",
        "windowsRunAsService": false
    })
}

// A file that has only `apiVersion` and `kind` decodes to the documented defaults (P2).
#[test]
fn an_empty_file_gives_the_documented_defaults() {
    let empty = decoded("");
    assert_eq!(serde_json::to_value(&empty.config).unwrap(), documented_defaults());
    assert_eq!(empty.config, KubeProxyConfiguration::default());
    assert_eq!(empty.warnings, [""; 0]);
}

#[test]
fn empty_sections_give_the_same_defaults() {
    let sections = "clientConnection: {}\nlogging: {options: {text: {}}}\niptables: {}\nipvs: {}\nnftables: {}\n\
                    winkernel: {}\ndetectLocal: {}\nconntrack: {}\n";
    assert_eq!(decoded(sections).config, KubeProxyConfiguration::default());
}

#[test]
fn what_is_written_out_reads_back() {
    let json = serde_json::to_string(&KubeProxyConfiguration::default()).unwrap();
    assert_eq!(decode(&json).unwrap().config, KubeProxyConfiguration::default());
    let yaml = serde_saphyr::to_string(&KubeProxyConfiguration::default()).unwrap();
    assert_eq!(decode(&yaml).unwrap().config, KubeProxyConfiguration::default());
}

/// In the file of `kubeadm init`, most fields are null, zero or empty. It must decode to the defaults, but for the two fields that kubeadm
/// fills in.
#[test]
fn kubeadms_file_is_the_defaults() {
    let kubeadm = include_str!("../testdata/kubeadm.yaml");
    let decoded = decode(kubeadm).unwrap();
    let expected = KubeProxyConfiguration {
        cluster_cidr: "10.244.0.0/16".to_owned(),
        client_connection: ClientConnection {
            kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf".to_owned(),
            ..ClientConnection::default()
        },
        ..KubeProxyConfiguration::default()
    };
    assert_eq!(decoded.config, expected);
    assert_eq!(decoded.warnings, [""; 0]);
}

#[test]
fn zero_stands_for_the_default() {
    let zeros = "nftables: {syncPeriod: 0s, minSyncPeriod: 0s}\niptables: {syncPeriod: 0s, minSyncPeriod: 0s}\n\
                 ipvs: {syncPeriod: 0s}\nclientConnection: {qps: 0, burst: 0}\nconfigSyncPeriod: 0s\n\
                 logging: {flushFrequency: 0s}\n";
    assert_eq!(decoded(zeros).config, KubeProxyConfiguration::default());
}

#[test]
fn zero_is_meant_where_it_has_a_meaning() {
    let config = decoded(
        "oomScoreAdj: 0\nconntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n\
         nftables: {masqueradeBit: 0}\niptables: {localhostNodePorts: false}\n",
    )
    .config;
    assert_eq!(config.oom_score_adj, 0);
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (0, 0));
    assert!(config.conntrack.tcp_established_timeout.is_zero());
    assert!(config.conntrack.tcp_close_wait_timeout.is_zero());
    assert_eq!(config.nftables.masquerade_bit, 0);
    assert!(!config.iptables.localhost_node_ports);
}

#[test]
fn addresses_follow_the_bind_address_and_get_ports() {
    let v6 = decoded("bindAddress: '::'\n").config;
    assert_eq!(v6.healthz_bind_address, "[::]:10256");
    assert_eq!(v6.metrics_bind_address, "[::1]:10249");
    let bare = decoded("healthzBindAddress: 192.0.2.1\nmetricsBindAddress: '2001:db8::1'\n").config;
    assert_eq!(bare.healthz_bind_address, "192.0.2.1:10256");
    assert_eq!(bare.metrics_bind_address, "[2001:db8::1]:10249");
    let full = decoded("healthzBindAddress: 192.0.2.1:1\nmetricsBindAddress: nonsense\n").config;
    assert_eq!(full.healthz_bind_address, "192.0.2.1:1");
    assert_eq!(full.metrics_bind_address, "nonsense");
}

// Every field of upstream and of this program is read from a file (P2).
#[test]
fn every_field_is_read() {
    let mut changed = documented_defaults();
    change_leaves(&mut changed);
    changed["apiVersion"] = json!(API_VERSION);
    changed["kind"] = json!(KIND);
    // In another mode the settings of its section replace those of section `nftables`.
    changed["mode"] = json!("nftables");
    changed["featureGates"] = json!({"Gate": true});
    let words = [("rulesetLayout", "chains"), ("counters", "endpoints"), ("tableOwnership", "auto")];
    for (field, value) in words.into_iter().chain([("scheduler", "maglev"), ("schedulerHash", "source-and-port")]) {
        changed["nftables"][field] = json!(value);
    }
    changed["logging"]["vmodule"] = json!([{"filePattern": "proxier", "verbosity": 3}]);
    let decoded = decode(&changed.to_string()).unwrap();
    assert_eq!(serde_json::to_value(&decoded.config).unwrap(), changed);
    assert_eq!(decoded.warnings, [""; 0]);
}

/// Replaces every value with another one of the same type, and adds an item to each list.
fn change_leaves(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(change_leaves),
        Value::Array(items) => items.push(json!("fd00::/8")),
        Value::Bool(flag) => *flag = !*flag,
        Value::Number(number) if number.is_f64() => *value = json!(7.5),
        Value::Number(_) => *value = json!(7),
        Value::String(text) if text.parse::<GoDuration>().is_ok() && text != "0" => *value = json!("1m1s"),
        Value::String(text) if text == "0" => *value = json!("64Ki"),
        other => *other = json!("192.0.2.9:9"),
    }
}

// An unknown field causes a warning that names it, and no error (P2).
#[test]
fn unknown_fields_are_named_not_fatal() {
    let decoded =
        decoded("mode: nftables\nnftables: {masqueradBit: 3}\nflavour: [1]\nlogging: {vmodule: [{file: x}]}\n");
    assert_eq!(
        decoded.warnings,
        [
            "unknown field flavour in the configuration file is ignored",
            "unknown field logging.vmodule.0.file in the configuration file is ignored",
            "unknown field nftables.masqueradBit in the configuration file is ignored",
        ]
    );
    assert_eq!(decoded.config.nftables.masquerade_bit, 14);
}

#[test]
fn duplicate_fields_are_a_warning_and_the_last_wins() {
    let decoded = decoded(
        "mode: ipvs\nmode: iptables\nmode: nftables\nnftables: {masqueradeBit: 1, masqueradeAll: true, masqueradeBit: 2}\nlogging: \
         {vmodule: [{filePattern: a, verbosity: 1}, {filePattern: b, verbosity: 3, verbosity: 4}]}\n",
    );
    let config = &decoded.config;
    assert_eq!(
        (&*config.mode, config.nftables.masquerade_bit, config.logging.vmodule[1].verbosity),
        ("nftables", 2, 4)
    );
    let expected = ["logging.vmodule[1].verbosity", "mode", "nftables.masqueradeBit"]
        .map(|field| format!("a field is given twice, its last value is used: {field}"));
    assert_eq!(decoded.warnings, expected);
}

#[test]
fn a_file_with_a_field_twice_is_read_like_one_without() {
    let body = "mode: nftables\nconntrack: {maxPerCore: 7, min: null, udpTimeout: 1s}\nclientConnection: {qps: 1.5, burst: 1}\n\
                nodePortAddresses: [primary, 192.0.2.0/24]\nenableProfiling: true\noomScoreAdj: -5\nfeatureGates: {X: true}\n";
    let twice = decoded(&format!("mode: ipvs\n{body}"));
    assert_eq!((twice.config, twice.warnings.len()), (decoded(body).config, 1));
}

#[test]
fn repeated_numbers_are_a_warning_too() {
    let warnings = decoded("1: a\n1: b\n").warnings;
    assert!(warnings[0].starts_with("a field is given twice, its last value is used: "), "{warnings:?}");
}

#[test]
fn wrong_types_name_the_field() {
    assert_eq!(
        refused("nftables: {masqueradeBit: fourteen}"),
        "nftables.masqueradeBit: invalid type: string \"fourteen\", expected i32"
    );
    assert!(refused("conntrack: {udpTimeout: soon}").starts_with("conntrack.udpTimeout: invalid duration \"soon\""));
    assert!(refused("nodePortAddresses: [primary, 5]").starts_with("nodePortAddresses[1]: "));
    assert!(refused("featureGates: {X: maybe}").starts_with("featureGates.X: "));
    assert!(
        refused("logging: {options: {json: {infoBufferSize: lots}}}")
            .starts_with("logging.options.json.infoBufferSize: ")
    );
    assert!(refused("nftables: 5").starts_with("nftables: "));
    assert_eq!(
        refused("hostnameOverride: n"),
        "hostnameOverride: invalid type: boolean `false`, expected a string; put it in quotes"
    );
}

// As upstream, the program reads the first document and nothing behind it (P2).
#[test]
fn the_first_document_counts() {
    let body = format!("{HEADER}mode: nftables\nclusterCIDR: 10.0.0.0/8\n");
    let expected = decode(&body).unwrap().config;
    let json = serde_json::to_string(&expected).unwrap();
    for text in [
        format!("{body}---\n"),
        format!("{body}--- # the end\n"),
        format!("{body}...\n"),
        format!("{body}...\n# the end"),
        format!("{body}---\nkind: Other\n- ] not YAML"),
        format!("---\n{body}"),
        body.replace('\n', " # comment\n# comment\n"),
        body.replace('\n', &format!("\n{}", "# comment\n".repeat(300))),
        json.replacen('{', &format!("{{\"{}\": 1,", "x".repeat(1100)), 1),
        format!("{body}nodePortAddresses: # comment\n# comment\n"),
        format!("# first\n--- # second\n\n{body}"),
        format!("%YAML 1.1\n---\n{body}"),
        format!("\u{feff}{body}"),
        body.replace('\n', "\r\n"),
        body.replace(": ", ":    "),
        format!("base: &base {{clusterCIDR: 10.0.0.0/8}}\n<<: *base\n{HEADER}mode: nftables\n"),
        json.clone(),
        json.replace(',', ",\n\t"),
        json.replace("10.0.0.0/8", "10.0.0.0\\/8"),
    ] {
        assert_eq!(decode(&text).unwrap_or_else(|error| panic!("{error}: {text}")).config, expected, "{text}");
    }
    for text in [format!("---\n---\n{body}"), format!("{body}]\n"), format!("{body}mode\n"), "{".to_owned()] {
        assert!(decode(&text).is_err(), "{text}");
    }
}

#[test]
fn anchors_and_merge_keys_are_followed_within_limits() {
    let config = decoded(
        "x: [&one {syncPeriod: 40s, minSyncPeriod: 2s}, &two {syncPeriod: 50s, masqueradeBit: 3}]\nmode: nftables\n\
         nftables: {<<: [*one, *two], minSyncPeriod: 1s}\nhostnameOverride: &name n1\nportRange: *name\n",
    )
    .config;
    let nftables = &config.nftables;
    assert_eq!((nftables.sync_period, nftables.min_sync_period), (GoDuration::from_secs(40), GoDuration::from_secs(1)));
    assert_eq!((nftables.masquerade_bit, &*config.port_range), (3, "n1"));
    let bomb = (1..40).map(|n| format!("x{n}: &x{n} [*x{0}, *x{0}]\n", n - 1)).collect::<String>();
    assert!(refused(&format!("x0: &x0 [a]\n{bomb}")).contains("aliases stand for more than 1000 values"));
    for deep in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000), format!("x: {}", "[".repeat(65))] {
        assert!(matches!(decode(&deep), Err(DecodeError::Syntax(_))));
    }
    assert!(matches!(decode("x: &x [*x]"), Err(DecodeError::Syntax(_))));
    assert!(matches!(decode("<<: 5"), Err(DecodeError::Syntax(_))));
}

#[test]
fn other_kinds_and_versions_are_refused() {
    let error = decode("apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "apiVersion: must be \"kubeproxy.config.k8s.io/v1alpha1\", not \"kubeproxy.config.k8s.io/v1beta1\""
    );
    let error = decode("apiVersion: kubeproxy.config.k8s.io/v1alpha1\n").unwrap_err();
    assert_eq!(error.to_string(), "kind: must be \"KubeProxyConfiguration\", not null");
    assert!(decode("").is_err());
    assert!(matches!(decode("mode: [").unwrap_err(), DecodeError::Syntax(_)));
}

#[test]
fn our_own_fields_are_read_and_written_unless_they_have_their_defaults() {
    let chains = decoded("nftables: {rulesetLayout: chains}\n").config;
    assert_eq!(chains.nftables.ruleset_layout, RulesetLayout::Chains);
    assert_eq!(serde_json::to_value(&chains.nftables).unwrap()["rulesetLayout"], "chains");
    let maps = decoded("nftables: {rulesetLayout: maps}\n").config;
    assert_eq!(maps, KubeProxyConfiguration::default());
    let limit = decoded("nftables: {relistRemovalLimit: 50}\n").config;
    assert_eq!(serde_json::to_value(&limit.nftables).unwrap()["relistRemovalLimit"], 50);
    assert_eq!(decoded("nftables: {relistRemovalLimit: 90}\n").config, KubeProxyConfiguration::default());
    let limit = decoded("nftables: {serviceElementsLimit: 5}\n").config;
    assert_eq!(serde_json::to_value(&limit.nftables).unwrap()["serviceElementsLimit"], 5);
    assert_eq!(decoded("nftables: {serviceElementsLimit: 100000}\n").config, KubeProxyConfiguration::default());
    assert!(refused("nftables: {relistRemovalLimit: most}\n").contains("relistRemovalLimit"));
    let error = refused("nftables: {rulesetLayout: lists}\n");
    assert!(error.contains("rulesetLayout") && error.contains("chains"), "{error}");
}

#[test]
fn what_is_counted_is_read_and_written_unless_it_is_off() {
    for counters in [Counters::Services, Counters::Endpoints] {
        let config = decoded(&format!("nftables: {{counters: {counters}, metricsServicesLimit: 7}}\n")).config;
        assert_eq!((config.nftables.counters, config.nftables.metrics_services_limit), (counters, 7));
        assert_eq!(serde_json::to_value(&config.nftables).unwrap()["counters"], counters.to_string());
    }
    let off = decoded("nftables: {counters: off, metricsServicesLimit: 100}\n").config;
    assert_eq!(off, KubeProxyConfiguration::default());
    assert!(refused("nftables: {counters: packets}\n").contains("counters"));
}

#[test]
fn the_scheduler_is_read_and_written() {
    for scheduler in [Scheduler::Random, Scheduler::SourceHash, Scheduler::Maglev] {
        let text =
            format!("nftables: {{scheduler: {scheduler}, schedulerHash: source-and-port, maglevTableSize: 251}}\n");
        let nftables = decoded(&text).config.nftables;
        assert_eq!((nftables.scheduler, nftables.maglev_table_size), (scheduler, 251));
        let written = serde_json::to_value(&nftables).unwrap();
        assert_eq!(written["scheduler"], scheduler.to_string());
        assert_eq!((&written["schedulerHash"], &written["maglevTableSize"]), (&"source-and-port".into(), &251.into()));
    }
    let unset = decoded("nftables: {scheduler: '', schedulerHash: source, maglevTableSize: 1021}\n").config;
    assert_eq!(unset, KubeProxyConfiguration::default());
    assert!(refused("nftables: {scheduler: lc}\n").contains("scheduler"));
    assert!(refused("nftables: {schedulerHash: port}\n").contains("schedulerHash"));
}

#[test]
fn the_fast_path_is_read_and_written_unless_it_is_off() {
    let auto = decoded("nftables: {flowtable: auto}\n").config;
    assert_eq!(serde_json::to_value(&auto.nftables).unwrap()["flowtable"], "auto");
    let named = decoded("nftables: {flowtable: 'eth0,cni0'}\n").config;
    assert_eq!(named.nftables.flowtable, Flowtable::Interfaces(vec!["eth0".into(), "cni0".into()]));
    assert_eq!(serde_json::to_value(&named.nftables).unwrap()["flowtable"], "eth0,cni0");
    assert_eq!(decoded("nftables: {flowtable: off}\n").config, KubeProxyConfiguration::default());
    assert_eq!(decoded("nftables: {flowtable: ''}\n").config, KubeProxyConfiguration::default());
}
