//! Tests of the command line: each flag, and the rules that hold for all flags.

mod page;

use super::table::OWN;
use super::*;
use crate::config::duration::GoDuration;

fn request(args: &[&str]) -> Result<Request, String> {
    let args = std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from);
    parse(args, |line| line).map_err(|error| match error {
        ParseError::OfProxy(text) | ParseError::OfCommand(text) => text,
    })
}

fn flags(args: &[&str]) -> Flags {
    match request(args) {
        Ok(Request::Run(flags)) => flags,
        other => panic!("{args:?}: {other:?}"),
    }
}

fn applied(args: &[&str]) -> KubeProxyConfiguration {
    let mut config = KubeProxyConfiguration::default();
    flags(args).apply(&mut config).unwrap();
    config
}

fn shown(args: &[&str], name: &str) -> String {
    let all = flags(args).shown();
    all.into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no flag {name}")).1
}

/// Every flag but `--help` (P1): its name, its default, and a value that it takes, as Go prints it.
#[rustfmt::skip] // a table
const SURFACE: &[(&str, &str, &str)] = &[
    ("config", "", "f"), ("write-config-to", "", "f"), ("cleanup", "false", "true"), ("init-only", "false", "true"),
    ("cleanup-force", "false", "true"),
    ("proxy-mode", "", "nftables"), ("kubeconfig", "", "f"), ("master", "", "https://192.0.2.1"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf", "application/json"),
    ("kube-api-qps", "5", "7.5"), ("kube-api-burst", "10", "20"), ("hostname-override", "", "n1"),
    ("bind-address", "0.0.0.0", "192.0.2.1"), ("bind-address-hard-fail", "false", "true"),
    ("healthz-bind-address", "0.0.0.0:10256", "192.0.2.1:1"), ("healthz-port", "10256", "0"),
    ("metrics-bind-address", "127.0.0.1:10249", "[::1]:1"), ("metrics-port", "10249", "1"), ("profiling", "false", "true"),
    ("show-hidden-metrics-for-version", "", "1.35"), ("feature-gates", "", "A=true,B=false"),
    ("masquerade-all", "false", "true"), ("detect-local-mode", "", "NodeCIDR"), ("cluster-cidr", "", "10.0.0.0/8,fd00::/8"),
    ("pod-bridge-interface", "", "br0"), ("pod-interface-name-prefix", "", "veth"), ("nodeport-addresses", "[]", "[10.0.0.0/8,fd00::/8]"),
    ("iptables-sync-period", "30s", "1m0s"), ("iptables-min-sync-period", "0s", "300ms"), ("config-sync-period", "15m0s", "1h0m0s"),
    ("oom-score-adj", "-999", "-5"), ("conntrack-max-per-core", "32768", "0"), ("conntrack-min", "131072", "1"),
    ("conntrack-tcp-timeout-established", "24h0m0s", "0s"), ("conntrack-tcp-timeout-close-wait", "1h0m0s", "1m40s"),
    ("conntrack-tcp-be-liberal", "false", "true"), ("conntrack-udp-timeout", "0s", "1s"), ("conntrack-udp-timeout-stream", "0s", "1s"),
    ("logging-format", "text", "json"), ("log-flush-frequency", "5s", "1s"), ("v", "0", "4"), ("vmodule", "", "a=1,b*=2"),
    ("log-text-split-stream", "false", "true"), ("log-json-split-stream", "false", "true"),
    ("log-text-info-buffer-size", "0", "64Ki"), ("log-json-info-buffer-size", "0", "1M"),
    ("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "f"), ("boot-id-file", "/proc/sys/kernel/random/boot_id", "f"),
    ("iptables-masquerade-bit", "14", "15"), ("iptables-localhost-nodeports", "true", "false"), ("ipvs-sync-period", "30s", "1s"),
    ("ipvs-scheduler", "", "rr"), ("ipvs-exclude-cidrs", "[]", "[10.0.0.0/8]"), ("ipvs-strict-arp", "false", "true"),
    ("ipvs-tcp-timeout", "0s", "1s"), ("ipvs-tcpfin-timeout", "0s", "1s"), ("ipvs-udp-timeout", "0s", "1s"),
    ("ipvs-min-sync-period", "0s", "1s"), ("manifests", "", "dir"), ("ruleset-layout", "maps", "chains"), ("endpoint-chains", "true", "false"), ("relist-removal-limit", "90", "50"), ("service-elements-limit", "100000", "5"), ("flowtable", "off", "eth0,cni0"), ("counters", "off", "endpoints"), ("metrics-services-limit", "100", "7"), ("scheduler", "", "maglev"), ("scheduler-hash", "source", "source-and-port"), ("maglev-table-size", "1021", "251"), ("endpoint-maps", "0", "16"), ("table-ownership", "off", "auto"), ("reserve-node-ports", "", "30000-32767"), ("drain-on", "", "label:drain"), ("answer-pings", "false", "true"), ("refuse-unused-ports", "false", "true"), ("drop-invalid-from-endpoints", "false", "true"), ("version", "false", "false"),
];

// Each flag has its default and takes its type (P1).
#[test]
fn each_flag_has_its_default_and_takes_its_type() {
    for (name, default, other) in SURFACE {
        assert_eq!(shown(&[], name), *default, "{name}");
        let value = other.trim_start_matches('[').trim_end_matches(if other.starts_with("[1") { "]" } else { "" });
        let value = if *name == "metrics-bind-address" { other } else { value };
        assert_eq!(shown(&[&format!("--{name}={value}")], name), *other, "{name}");
        assert_eq!(shown(&[&format!("--{}={value}", name.replace('-', "_"))], name), *other, "{name}");
    }
    assert_eq!(flags(&[]).shown().len(), SURFACE.len(), "a flag is not in the table of this test");
}

#[test]
fn wrong_types_are_refused_with_the_flags_name() {
    for (name, value) in [
        ("kube-api-qps", "fast"),
        ("kube-api-burst", "1.5"),
        ("oom-score-adj", "low"),
        ("iptables-sync-period", "30"),
        ("masquerade-all", "yes"),
        ("cleanup", "yes"),
        ("healthz-bind-address", "localhost"),
        ("metrics-port", "http"),
        ("v", "-1"),
        ("vmodule", "a"),
        ("feature-gates", "A=maybe"),
        ("log-text-info-buffer-size", "lots"),
        ("ruleset-layout", "tables"),
        ("relist-removal-limit", "90%"),
        ("service-elements-limit", "1e5"),
        ("version", "nope"),
    ] {
        let error = request(&[&format!("--{name}={value}")]).unwrap_err();
        assert!(error.contains(&format!("--{name}")) && error.contains(value), "{error}");
    }
}

#[test]
fn flags_reach_the_configuration() {
    let config = applied(&[
        "--iptables-sync-period=1m",
        "--iptables-min-sync-period",
        "10ms",
        "--masquerade-all",
        "--metrics-bind-address=192.0.2.1",
        "--oom-score-adj",
        "-5",
        "--conntrack-udp-timeout=2s",
        "--feature-gates=A=true",
        "--feature-gates=B=false",
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses=fd00::/8",
    ]);
    assert_eq!(config.nftables.sync_period, GoDuration::from_secs(60));
    assert_eq!(config.nftables.min_sync_period.to_string(), "10ms");
    assert!(config.nftables.masquerade_all);
    assert_eq!(config.metrics_bind_address, "192.0.2.1:10249");
    assert_eq!(config.oom_score_adj, -5);
    assert_eq!(config.conntrack.udp_timeout, GoDuration::from_secs(2));
    assert_eq!(config.feature_gates, [("A".to_owned(), true), ("B".to_owned(), false)].into());
    assert_eq!(config.node_port_addresses, ["10.0.0.0/8", "fd00::/8"]);
}

#[test]
fn deprecated_ports_complete_or_clear_the_addresses() {
    let config = applied(&["--healthz-port=0", "--metrics-port=0"]);
    assert_eq!((config.healthz_bind_address.as_str(), config.metrics_bind_address.as_str()), ("", ""));
    let config = applied(&["--healthz-port=1", "--healthz-bind-address=192.0.2.1", "--metrics-port=2"]);
    assert_eq!(config.healthz_bind_address, "192.0.2.1:1");
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249");
    let config = applied(&[
        "--metrics-port=0x50",
        "--metrics-bind-address=::1",
        "--healthz-port=70000",
        "--healthz-bind-address=192.0.2.1",
    ]);
    assert_eq!(config.metrics_bind_address, "[::1]:80");
    assert_eq!(config.healthz_bind_address, "192.0.2.1:70000", "which validation refuses");
    // With one of these flags the port flag has no effect.
    for other in ["--config=f", "--write-config-to=f"] {
        assert_eq!(applied(&["--healthz-port=0", other]).healthz_bind_address, "0.0.0.0:10256", "{other}");
    }
}

#[test]
fn vmodule_goes_before_the_files() {
    let mut config = KubeProxyConfiguration::default();
    flags(&["--vmodule=b=2"]).apply(&mut config).unwrap();
    flags(&["--config=f", "--vmodule=a=1"]).apply(&mut config).unwrap();
    let patterns: Vec<_> = config.logging.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b"]);
}

// With `--config`, only the flags with `with_file` in the table take effect (P1).
#[test]
fn beside_a_file_only_the_flags_of_the_table_count() {
    for flag in FLAGS {
        let (_, _, other) = SURFACE.iter().find(|(name, _, _)| *name == flag.name).unwrap();
        let other = if other.starts_with("[1") { other.trim_matches(['[', ']']) } else { other };
        let changed =
            applied(&["--config=f", &format!("--{}={other}", flag.name)]) != KubeProxyConfiguration::default();
        let counts = flag.name == "hostname-override"
            || flag.group == OWN
            || flag.name.starts_with("log")
            || flag.name.starts_with('v');
        assert_eq!(changed, counts, "{}", flag.name);
    }
}

#[test]
fn verbosity_has_all_its_spellings() {
    for args in [&["-v", "6"][..], &["-v=6"], &["-v6"], &["--v=6"], &["--v", "6"]] {
        assert_eq!(applied(args).logging.verbosity, 6, "{args:?}");
    }
}

#[test]
fn empty_values_mean_not_given() {
    let args = [
        "--config=",
        "--hostname-override=",
        "--metrics-bind-address=",
        "--healthz-bind-address=",
        "--nodeport-addresses=",
    ];
    assert_eq!(applied(&args), KubeProxyConfiguration::default());
}

#[test]
fn help_and_version_are_text() {
    for args in [&["--help"][..], &["-h"]] {
        let Ok(Request::Print(text)) = request(args) else { panic!("{args:?}") };
        assert!(text.contains("Usage: kube-proxy"), "{text}");
        FLAGS.iter().for_each(|flag| assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    for args in [&["render", "--help"][..], &["help", "render"], &["render", "-h"]] {
        let Ok(Request::Print(text)) = request(args) else { panic!("{args:?}") };
        let of_proxy = FLAGS.iter().map(|flag| flag.name).filter(|name| text.contains(&format!("--{name}")));
        assert_eq!(of_proxy.collect::<Vec<_>>(), ["kubeconfig", "hostname-override"], "{text}");
        assert!(text.contains("--strict") && text.contains("--manifests") && text.contains("--config"), "{text}");
        assert!(text.contains("All flags of the proxy are accepted too"), "{text}");
    }
    for (args, start) in [("--version", "Kubernetes v1.37.0"), ("--version=raw", "version.Info{Major:\"1\"")] {
        let Ok(Request::Print(text)) = request(&[args]) else { panic!("{args}") };
        assert!(text.starts_with(start), "{text}");
    }
    for (args, reported) in [("--version=false", VERSION), ("--version=v1.35.9-custom", "v1.35.9-custom")] {
        let Ok(Request::Run(flags)) = request(&[args]) else { panic!("{args}") };
        assert_eq!(flags.version(), reported);
    }
}

#[test]
fn what_is_unknown_is_refused() {
    for args in
        [&["--no-such-flag"][..], &["stray"], &["--config"], &["render", "stray"], &["--masquerade-all", "false"]]
    {
        assert!(request(args).is_err(), "{args:?}");
    }
}

#[test]
fn render_takes_the_same_flags() {
    let Ok(Request::Render(flags, args)) =
        request(&["render", "--manifests=dir", "--strict", "--hostname_override", "n1", "--config=f"])
    else {
        panic!()
    };
    assert_eq!(args, RenderArgs { strict: true, ..RenderArgs::default() });
    assert_eq!((flags.option("manifests"), flags.config_file()), (Some("dir"), Some("f")));
    assert_eq!(flags.values("hostname-override"), ["n1"]);
}

/// A command of the caller with an option of its own.
fn with_look(line: Command) -> Command {
    line.subcommand(Command::new("look").arg(Arg::new("far").long("far").action(ArgAction::SetTrue)))
}

fn request_with_look(args: &[&str]) -> Result<Request, ParseError> {
    parse(std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from), with_look)
}

#[test]
fn commands_of_the_caller_get_their_arguments_and_their_own_errors() {
    let Ok(Request::Command(matches)) = request_with_look(&["look", "--far"]) else { panic!() };
    let (name, look) = matches.subcommand().unwrap();
    assert!(name == "look" && look.get_flag("far"));
    let Err(ParseError::OfCommand(text)) = request_with_look(&["look", "--farr"]) else { panic!() };
    assert!(text.contains("--far"), "the near option is not named: {text}");
    let Err(ParseError::OfProxy(text)) = request_with_look(&["lok"]) else { panic!() };
    assert!(text.contains("'look'"), "the near command is not named: {text}");
}

// A warning names each flag without effect, and says what to do.
#[test]
fn flags_that_do_nothing_are_named() {
    let given = [
        "--config=f",
        "--cluster-cidr=10.0.0.0/8",
        "--hostname-override=n1",
        "--healthz-port=1",
        "--ipvs-scheduler=rr",
        "--boot-id-file=x",
        "--master=https://192.0.2.1",
        "--table-ownership=auto",
        "--v=2",
    ];
    assert_eq!(
        flags(&given).warnings(str::to_owned),
        [
            "--cluster-cidr has no effect beside --config: set clusterCIDR in the file",
            "--ipvs-scheduler has no effect beside --config: set ipvs.scheduler in the file",
            "--healthz-port has no effect beside --config: set healthzBindAddress in the file",
            "--boot-id-file has no effect in this program: take the flag away",
        ]
    );
    assert_eq!(
        flags(&given[1..]).warnings(str::to_owned),
        [
            "--healthz-port is deprecated: use --healthz-bind-address with the port",
            "--boot-id-file has no effect in this program: take the flag away",
        ]
    );
    assert_eq!(flags(&["--config=f"]).warnings(str::to_owned), [""; 0]);
}

// Each flag sets only the field that its warning and `deploy/REFERENCE.md` name.
#[test]
fn each_flag_sets_the_field_of_its_path() {
    let default = serde_json::to_value(KubeProxyConfiguration::default()).unwrap();
    for flag in FLAGS {
        let (_, _, other) = SURFACE.iter().find(|(name, _, _)| *name == flag.name).unwrap();
        let other = if other.starts_with("[1") { other.trim_matches(['[', ']']) } else { other };
        let mut config = KubeProxyConfiguration::default();
        flag.field.set(&mut config, &[other.to_owned()]).unwrap();
        let mut changed = serde_json::to_value(config).unwrap();
        let pointer = format!("/{}", flag.path.replace('.', "/"));
        let [field, before] = [&mut changed, &mut default.clone()]
            .map(|document| document.pointer_mut(&pointer).unwrap_or_else(|| panic!("no field {}", flag.path)).take());
        assert_ne!(field, before, "--{}", flag.name);
        *changed.pointer_mut(&pointer).unwrap() = before;
        assert_eq!(changed, default, "--{} sets more than {}", flag.name, flag.path);
    }
}

// The help text has each flag below its heading, with its type and its default; flags that upstream lacks have a heading of their own.
#[test]
fn help_has_groups_types_and_defaults() {
    let Ok(Request::Print(text)) = request(&["--help"]) else { panic!() };
    let headings: Vec<&str> = text.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    let wanted: Vec<String> = ["Commands"].iter().chain(&GROUPS).map(|group| format!("{group}:")).collect();
    assert_eq!(headings, wanted);
    for flag in described() {
        let below = text.split(&format!("\n{}:\n", flag.group)).nth(1).unwrap().split("\n\n").next().unwrap();
        // The text is broken into lines.
        let below = below.split_whitespace().collect::<Vec<_>>().join(" ");
        let value = if flag.kind == "bool" { "[=<bool>]".to_owned() } else { format!(" <{}>", flag.kind) };
        assert!(below.contains(&format!("--{}{value}", flag.name)), "--{}{value} is not in\n{below}", flag.name);
        let default = format!("{} (default {})", flag.help, flag.default);
        let has_default = !["", "[]"].contains(&flag.default.as_str());
        assert_eq!(below.contains(&default), has_default, "{default} in\n{below}");
    }
}

#[test]
fn completion_and_man_page_know_the_commands_and_their_options() {
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef kube-proxy"), ("fish", "complete -c kube-proxy")] {
        let Ok(Request::Print(script)) = request_with_look(&["completion", shell]) else { panic!("{shell}") };
        for part in [mark, "look", "far", "masquerade-all"] {
            assert!(script.contains(part), "{shell} lacks {part}: {script}");
        }
    }
    assert!(request(&["completion", "tcsh"]).is_err());
    let Ok(Request::Print(page)) = request_with_look(&["man"]) else { panic!() };
    let parts = [
        ".TH KUBE-PROXY 8",
        "masquerade\\-all",
        ".SH \"COMMAND LOOK\"",
        "\\-\\-far",
        ".SH \"COMMAND RENDER\"",
        "\\-\\-strict",
    ];
    for part in parts {
        assert!(page.contains(part), "the page lacks {part}: {page}");
    }
    let groups = GROUPS.map(str::to_uppercase);
    for heading in groups {
        let found = page.lines().filter(|line| line.starts_with(".SH ") && line.contains(&heading)).count();
        assert_eq!(found, 1, "{heading}: {page}");
    }
}
