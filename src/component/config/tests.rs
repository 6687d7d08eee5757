//! Tests that call [`load`] with arguments and a file, and compare the [`Config`].

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use super::*;

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn file(body: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{HEADER}{body}").unwrap();
    file
}

fn load_with(args: &[&str]) -> Result<Invocation, Error> {
    load(std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from))
}

fn run(args: &[&str]) -> Config {
    match load_with(args).unwrap() {
        Invocation::Run(config) => config,
        other => panic!("{other:?}"),
    }
}

fn run_file(body: &str, args: &[&str]) -> Config {
    let file = file(body);
    let mut all = vec!["--config", file.path().to_str().unwrap()];
    all.extend(args);
    run(&all)
}

fn os_hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_lowercase()
}

#[test]
fn defaults_without_file_or_flags() {
    let config = run(&["--proxy-mode=nftables"]);
    let expected = Config {
        node_name: os_hostname(),
        manifests: None,
        sync_period: Duration::from_secs(30),
        min_sync_period: None,
        masquerade_bit: 14,
        masquerade_all: false,
        ruleset_layout: RulesetLayout::Maps,
        endpoint_chains: true,
        flowtable: Flowtable::Off,
        counters: Counters::Off,
        scheduler: Scheduler::Random,
        scheduler_hash: SchedulerHash::Source,
        maglev_table_size: 1021,
        endpoint_maps: None,
        metrics_services_limit: 100,
        detect_local: DetectLocal::ClusterCidr { v4: None, v6: None },
        node_port_addresses: NodePortAddresses::PRIMARY,
        bind_address: "0.0.0.0".parse().unwrap(),
        metrics_bind_address: "127.0.0.1:10249".parse().unwrap(),
        healthz_bind_address: Some("0.0.0.0:10256".parse().unwrap()),
        bind_address_hard_fail: false,
        own_tables: false,
        relist_removal_limit: 90,
        service_elements_limit: 100_000,
        reserve_node_ports: PortRanges::default(),
        answer_pings: false,
        refuse_unused_ports: false,
        drop_invalid_from_endpoints: false,
        drain_on: None,
        allow_service_external_ips: true,
        client: Client {
            kubeconfig: None,
            master: None,
            accept: "application/vnd.kubernetes.protobuf,application/json".into(),
        },
        localhost_node_ports: false,
        mode_note: None,
        mode_warning: None,
        conntrack: Conntrack {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Some(Duration::from_secs(24 * 3600)),
            tcp_close_wait: Some(Duration::from_secs(3600)),
            tcp_be_liberal: false,
            udp: None,
            udp_stream: None,
        },
        oom_score_adj: -999,
        profiling: false,
        version: cli::VERSION.to_owned(),
        config_file: None,
        exclude_cidrs: Vec::new(),
        flagz: true,
        statusz: true,
        features: vec![
            Feature { name: "AllowServiceExternalIPs", stage: Stage::Stable, enabled: true },
            Feature { name: "ComponentFlagz", stage: Stage::Beta, enabled: true },
            Feature { name: "ComponentStatusz", stage: Stage::Beta, enabled: true },
            Feature { name: "KubeProxyIPVS", stage: Stage::Deprecated, enabled: true },
            Feature { name: "KubeProxyNFTablesLocalhostNodePorts", stage: Stage::Alpha, enabled: false },
            Feature { name: "MultiCIDRServiceAllocator", stage: Stage::Stable, enabled: true },
            Feature { name: "NFTablesNetlink", stage: Stage::Beta, enabled: true },
            Feature { name: "NativeHistograms", stage: Stage::Alpha, enabled: false },
            Feature { name: "PreferSameTrafficDistribution", stage: Stage::Stable, enabled: true },
        ],
        configz: config.configz.clone(), // compared in the tests of `output`
        flags: config.flags.clone(),     // compared in the tests of `cli`
        logging: LoggingConfig { flush_every: Duration::from_secs(5), ..LoggingConfig::default() },
        warnings: Vec::new(),
    };
    assert_eq!(config, expected);
}

/// The file has the format of the configuration files in the cases of the test `conformance`.
#[test]
fn the_file_of_a_conformance_case_works() {
    let body = serde_json::json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clientConnection": {"kubeconfig": "", "contentType": "application/json", "qps": 1000, "burst": 2000},
        "hostnameOverride": "Node-1", "clusterCIDR": "10.244.0.0/16,fd00:10:244::/56", "detectLocalMode": "",
        "detectLocal": {"bridgeInterface": "", "interfaceNamePrefix": ""},
        "nodePortAddresses": [],
        "nftables": {"masqueradeAll": true, "syncPeriod": "10s", "minSyncPeriod": "10ms"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0, "featureGates": {},
        "metricsBindAddress": "127.0.0.1:10249", "healthzBindAddress": "127.0.0.1:10256"
    });
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), serde_json::to_string_pretty(&body).unwrap()).unwrap();
    let config = run(&["--config", file.path().to_str().unwrap(), "--manifests", "/some/dir"]);
    assert_eq!(config.node_name, "node-1");
    assert_eq!(config.manifests, Some(PathBuf::from("/some/dir")));
    assert_eq!(config.sync_period, Duration::from_secs(10));
    assert_eq!(config.min_sync_period, Some(Duration::from_millis(10)));
    assert!(config.masquerade_all);
    let (v4, v6) = ("10.244.0.0/16".parse().ok(), "fd00:10:244::/56".parse().ok());
    assert_eq!(config.detect_local, DetectLocal::ClusterCidr { v4, v6 });
    assert_eq!(config.node_port_addresses, NodePortAddresses::PRIMARY);
    assert_eq!(config.healthz_bind_address, "127.0.0.1:10256".parse().ok());
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn with_a_file_only_few_flags_count() {
    let body = "mode: nftables\nhostnameOverride: from-file\nclusterCIDR: 10.0.0.0/8\nlogging: {verbosity: 2}\n";
    let config = run_file(
        body,
        &[
            "--hostname-override=from-flag",
            "--manifests=dir",
            "-v=5",
            "--logging-format=json",
            "--proxy-mode=iptables",
            "--cluster-cidr=192.168.0.0/16",
            "--detect-local-mode=NodeCIDR",
            "--nodeport-addresses=127.0.0.0/8",
            "--masquerade-all",
            "--metrics-bind-address=192.0.2.1:1",
        ],
    );
    // `--hostname-override`, the logging flags and this program's own flags take precedence over the file.
    assert_eq!(config.node_name, "from-flag");
    assert_eq!(config.manifests, Some(PathBuf::from("dir")));
    assert_eq!((config.logging.format, config.logging.verbosity), (LogFormat::Json, 5));
    // The other flags of this test have no effect if there is a file, and a warning names each of them.
    assert_eq!(config.detect_local, DetectLocal::ClusterCidr { v4: "10.0.0.0/8".parse().ok(), v6: None });
    assert_eq!(config.node_port_addresses, NodePortAddresses::PRIMARY);
    assert!(!config.masquerade_all);
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249".parse().unwrap());
    let fields =
        ["mode", "clusterCIDR", "detectLocalMode", "nodePortAddresses", "nftables.masqueradeAll", "metricsBindAddress"];
    assert_eq!(config.warnings.len(), fields.len(), "{:?}", config.warnings);
    for field in fields {
        let end = format!(" has no effect beside --config: set {field} in the file");
        assert!(config.warnings.iter().any(|text| text.ends_with(&end)), "{field}: {:?}", config.warnings);
    }
}

// The warning about a flag that has no effect names the field that the mode of the file uses.
#[test]
fn a_flag_without_effect_is_named_with_the_field_of_the_mode() {
    for (mode, of_all, of_period) in [
        ("nftables", "nftables", "nftables"),
        ("iptables", "iptables", "iptables"),
        ("''", "iptables", "iptables"),
        ("ipvs", "iptables", "ipvs"),
    ] {
        let config = run_file(&format!("mode: {mode}\n"), &["--masquerade-all", "--iptables-sync-period=1m"]);
        let warnings = config.warnings.into_iter().filter(|text| text.starts_with("--")).collect::<Vec<_>>();
        let expected = [("masquerade-all", of_all, "masqueradeAll"), ("iptables-sync-period", of_period, "syncPeriod")]
            .map(|(flag, section, field)| {
                format!("--{flag} has no effect beside --config: set {section}.{field} in the file")
            });
        assert_eq!(warnings, expected, "{mode}");
    }
}

// Without a file the flags have upstream's meaning in each mode (P1, P12).
#[test]
fn flags_for_masquerading_and_syncs_count_in_the_modes_of_upstream() {
    let flags =
        ["--masquerade-all", "--iptables-masquerade-bit=20", "--iptables-sync-period=40s", "--ipvs-sync-period=50s"];
    let flags = [&flags[..], &["--iptables-min-sync-period=2s", "--ipvs-min-sync-period=3s"]].concat();
    let of = |mode: &[&str]| {
        let Config { masquerade_all, masquerade_bit, sync_period, min_sync_period, .. } = run(&[&flags, mode].concat());
        (masquerade_all, masquerade_bit, sync_period.as_secs(), min_sync_period.map(|period| period.as_secs()))
    };
    assert_eq!(of(&[]), (true, 20, 40, Some(2)));
    assert_eq!(of(&["--proxy-mode=iptables"]), (true, 20, 40, Some(2)));
    assert_eq!(of(&["--proxy-mode=ipvs"]), (true, 20, 50, Some(3)));
    assert_eq!(of(&["--proxy-mode=nftables"]), (true, 14, 40, Some(2)));
}

#[test]
fn what_flags_leave_open_comes_from_the_file() {
    let config = run_file("mode: nftables\nhostnameOverride: from-file\nlogging: {verbosity: 2, format: json}\n", &[]);
    assert_eq!(config.node_name, "from-file");
    assert_eq!((config.logging.format, config.logging.verbosity), (LogFormat::Json, 2));
}

#[test]
fn unknown_fields_end_up_in_the_warnings() {
    let config = run_file("mode: nftables\nnftables: {masqueradBit: 3}\n", &[]);
    assert_eq!(config.warnings, ["unknown field nftables.masqueradBit in the configuration file is ignored"]);
}

#[test]
fn errors_say_which_file_and_field() {
    let error = load_with(&["--config=/no/such/file"]).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the configuration file /no/such/file");
    let bad = file("nftables: {masqueradeBit: x}");
    let error = load_with(&["--config", bad.path().to_str().unwrap()]).unwrap_err();
    let Error::Decode { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().starts_with("nftables.masqueradeBit: "), "{source}");
    let error = load_with(&["--proxy-mode=nftables", "--cluster-cidr=x", "--logging-format=xml"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the configuration is not valid:\n  \
         clusterCIDR: must be a CIDR such as 10.244.0.0/16, not \"x\"\n  \
         logging.format: must be \"text\" or \"json\", not \"xml\""
    );
    assert!(matches!(load_with(&["--nonsense"]), Err(Error::Usage(_))));
}

#[test]
fn render_needs_manifests() {
    let args = ["render", "--proxy-mode=nftables", "--hostname-override=n1"];
    assert!(matches!(load_with(&args), Err(Error::Usage(text)) if text.contains("--manifests")));
    let with_manifests = [&args[..], &["--manifests=dir"]].concat();
    let with_manifests = [&with_manifests[..], &["--manifests", "-"]].concat();
    let Invocation::Render { config, manifests, is_named: true, .. } = load_with(&with_manifests).unwrap() else {
        panic!()
    };
    assert_eq!((config.node_name.as_str(), manifests), ("n1", ["dir", "-"].map(PathBuf::from).to_vec()));
    let error = load_with(&["--manifests=a", "--manifests=b"]).unwrap_err().to_string();
    assert!(error.contains("--manifests is given 2 times"), "{error}");
    let unnamed = load_with(&["render", "--proxy-mode=nftables", "--manifests=dir"]).unwrap();
    assert!(matches!(unnamed, Invocation::Render { is_named: false, .. }));
}

// If several flags request different actions, the first one in upstream's order counts: `--write-config-to`, `--cleanup`, `--init-only`
// (P3).
#[test]
fn what_to_do_follows_upstreams_order() {
    let name = "--proxy-mode=nftables";
    assert!(matches!(load_with(&[name, "--init-only"]), Ok(Invocation::InitOnly(_))));
    assert!(matches!(load_with(&[name, "--init-only", "--cleanup"]), Ok(Invocation::Cleanup { force: false, .. })));
    assert!(matches!(load_with(&["--cleanup", "--cleanup-force"]), Ok(Invocation::Cleanup { force: true, .. })));
    assert!(matches!(load_with(&[name, "--cleanup-force"]), Err(Error::Usage(text)) if text.contains("--cleanup,")));
    let args = [name, "--init-only", "--cleanup", "--write-config-to=f"];
    assert!(matches!(load_with(&args), Ok(Invocation::WriteConfig { .. })));
    assert!(matches!(load_with(&["--cleanup", "--oom-score-adj=2000"]), Err(Error::Invalid(_))));
    // As in upstream, port 0 leaves no address for the metrics, so the start fails.
    assert!(matches!(load_with(&[name, "--metrics-port=0"]), Err(Error::Invalid(_))));
    assert_eq!(run(&[name, "--healthz-port=0"]).healthz_bind_address, None);
}

// Configuration files that installers write for Kubernetes 1.36 and 1.37 are accepted with any mode (P1, P2, P12). They also pass the check
// of a changed file (O5).
#[test]
fn files_of_clusters_are_taken_and_run_nftables() {
    for (file, note, warning) in [
        ("kubeadm.yaml", Some("mode is not set in the configuration"), None),
        ("kubeadm-1.37.yaml", Some("mode is iptables in the configuration"), None),
        ("kind.yaml", Some("mode is iptables in the configuration"), None),
        ("ipvs.yaml", None, Some("mode is \"ipvs\", which this kube-proxy does not have: it runs nftables")),
        ("kubespray.yaml", None, Some("mode is \"ipvs\", which this kube-proxy does not have: it runs nftables")),
        ("helm.yaml", Some("mode is iptables in the configuration"), None),
        ("localhost-1.37.yaml", None, None),
    ] {
        let path = format!("{}/config/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
        let config = run(&["--config", &path]);
        check_content(&fs::read(&path).unwrap()).unwrap();
        for (text, start) in [(&config.mode_note, note), (&config.mode_warning, warning)] {
            assert_eq!(text.is_some(), start.is_some(), "{file}: {text:?}");
            assert!(text.as_deref().unwrap_or_default().starts_with(start.unwrap_or_default()), "{file}: {text:?}");
        }
        let warns_of_mode = config.warnings.iter().any(|warning| warning.contains("mode"));
        assert_eq!(warns_of_mode, warning.is_some(), "{file}: {:?}", config.warnings);
        assert!(config.configz.contains("\"mode\":\"nftables\""), "{file}: {}", config.configz);
        let masquerades = ["kubespray.yaml", "helm.yaml"].contains(&file);
        assert_eq!(
            (config.masquerade_all, config.masquerade_bit),
            (masquerades, if masquerades { 16 } else { 14 }),
            "{file}"
        );
    }
}

// k3s and RKE2 use no configuration file: these are the flags that they pass to kube-proxy (P1, P12).
#[test]
fn flags_of_k3s_and_rke2_are_taken() {
    let common = [
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-close-wait=0s",
        "--conntrack-tcp-timeout-established=0s",
        "--healthz-bind-address=127.0.0.1",
        "--hostname-override=node-1",
        "--proxy-mode=iptables",
    ];
    let k3s = ["--cluster-cidr=10.42.0.0/16", "--kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig"];
    let rke2 = [
        "--cluster-cidr=10.42.0.0/16,2001:cafe:42::/56",
        "--kubeconfig=/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig",
        "--feature-gates=NFTablesProxyMode=true",
        "--nodeport-addresses=primary,localhost",
    ];
    for own in [&k3s[..], &rke2] {
        let config = run(&[&common[..], own].concat());
        assert_eq!((config.node_name.as_str(), config.conntrack.max_per_core), ("node-1", 0));
        assert!(config.mode_note.unwrap().starts_with("mode is iptables in the configuration"), "{own:?}");
        let warns_of_mode = config.warnings.iter().any(|warning| warning.starts_with("mode"));
        assert_eq!((config.mode_warning, warns_of_mode), (None, false), "{own:?}");
        assert_eq!(config.node_port_addresses.ranges.len(), if own.len() > 2 { 2 } else { 0 });
    }
}

#[test]
fn new_content_is_checked() {
    assert_eq!(check_content(format!("{HEADER}mode: nftables\n").as_bytes()), Ok(()));
    let error = check_content(format!("{HEADER}mode: userspace\noomScoreAdj: 2000\n").as_bytes()).unwrap_err();
    assert!(error.contains("mode: ") && error.contains("oomScoreAdj: "), "{error}");
    assert!(check_content(b"mode: [").is_err());
    assert!(check_content(b"\xff").is_err());
}

#[test]
fn version_is_printed() {
    let Invocation::Print(text) = load_with(&["--version"]).unwrap() else { panic!() };
    assert_eq!(text, format!("Kubernetes v1.37.0+kube-proxy-nft.{}\n", env!("CARGO_PKG_VERSION")));
    assert!(text.starts_with(&format!("Kubernetes v1.{KUBERNETES_MINOR}.")));
}

#[test]
fn the_version_of_the_cluster_is_reported_within_the_range_and_unless_a_flag_gives_one() {
    let ours = |numbers: &str| Some(format!("{numbers}+kube-proxy-nft.{}", env!("CARGO_PKG_VERSION")));
    let config = run(&["--master=http://192.0.2.1"]);
    for (server, reported) in [
        ("v1.36.2", ours("v1.36.2")),
        ("v1.34.1+k3s1", ours("v1.34.1")),
        ("v1.30.9-eks-5d4a308", ours("v1.30.9")),
        ("v1.25.0", ours("v1.25.0")),
        ("v1.24.17", None),
        ("v1.38.0", None),
        ("", None),
    ] {
        assert_eq!(config.version_for(server), reported, "{server}");
    }
    let told = run(&["--master=http://192.0.2.1", "--version=v1.35.4"]);
    assert_eq!((told.version.as_str(), told.version_for("v1.36.2")), ("v1.35.4", None));
}

/// Returns the configuration of a command with the flags `given`, beside a proxy that runs with the flags `running` and with the
/// configuration file `file`.
fn beside(running: &[&str], file: &str, given: &[&str]) -> Result<Config, Error> {
    let args = ["kube-proxy", "--hostname-override=here"].iter().chain(running).map(OsString::from);
    let line = CommandLine::of_running(args, |_| Ok(file.to_owned()))?;
    let arguments = <ProxyArgs as clap::Args>::augment_args(clap::Command::new("verify").no_binary_name(true));
    let matches = arguments.try_get_matches_from(given).unwrap();
    <ProxyArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap().config_beside(&line)
}

#[test]
fn a_flag_of_a_command_wins_over_file_and_flags_of_the_running_proxy() {
    let file = "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, clusterCIDR: 10.1.0.0/16, \
                healthzBindAddress: '0.0.0.0:7', clientConnection: {kubeconfig: /of/file}, nftables: {rulesetLayout: chains}}";
    let with_file = |given: &[&str]| beside(&["--config=/c", "--manifests=/m"], file, given).unwrap();
    let same = with_file(&[]);
    assert_eq!((same.ruleset_layout, same.manifests.as_deref()), (RulesetLayout::Chains, Some(Path::new("/m"))));
    assert_eq!((same.node_name.as_str(), same.healthz_bind_address), ("here", "0.0.0.0:7".parse().ok()));
    let changed = with_file(&["--cluster-cidr=10.2.0.0/16", "--healthz-port=8", "--hostname-override=there"]);
    assert_eq!(changed.detect_local, DetectLocal::ClusterCidr { v4: "10.2.0.0/16".parse().ok(), v6: None });
    assert_eq!((changed.node_name.as_str(), changed.healthz_bind_address), ("there", "0.0.0.0:8".parse().ok()));
    assert_eq!(changed.ruleset_layout, RulesetLayout::Chains, "what is not given stays");
    // If the command names a source of objects, that source is used, and not the source of the running proxy.
    let source = |config: Config| (config.manifests, config.client.kubeconfig, config.client.master);
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(source(with_file(&["--kubeconfig=/k"])), (None, path("/k"), None));
    assert_eq!(source(with_file(&["--manifests=/other"])), (path("/other"), path("/of/file"), None));
    let of_master = beside(&["--master=https://a"], "", &["--kubeconfig=/k"]).unwrap();
    assert_eq!(source(of_master), (None, path("/k"), None));
    let wrong = beside(&["--config=/c"], "kind: other", &[]).unwrap_err();
    assert!(wrong.to_string().contains("/c"), "{wrong}");
    assert!(beside(&["--version"], "", &[]).is_err(), "no proxy runs with that");
}
