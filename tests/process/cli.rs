//! The binary's command line: exit codes and messages. Nothing here needs rights or namespaces.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const KUBEADM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/component/config/testdata/kubeadm.yaml");

fn proxy(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kube-proxy")).args(args).output().unwrap()
}

/// Standard output of a call that succeeds.
fn printed(args: &[&str]) -> String {
    let output = proxy(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a call that ends with 1.
fn refused(args: &[&str]) -> String {
    let output = proxy(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn version_and_help_end_with_0() {
    assert!(printed(&["--version"]).starts_with("Kubernetes v1.37.0"));
    let help = printed(&["--help"]);
    assert!(help.starts_with("Programs Kubernetes Services into nf_tables"), "{help}");
    assert!(help.contains("--conntrack-max-per-core") && help.contains("\n  services "), "{help}");
    assert_eq!(printed(&["version"]), printed(&["--version"]));
    assert_eq!(printed(&["help"]), help);
    assert_eq!(printed(&["help", "services"]), printed(&["services", "--help"]));
}

// The help text of each command fits two screens of a terminal.
#[test]
fn the_help_of_each_command_fits_two_screens_of_80_columns() {
    let help = printed(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> =
        commands.filter(|line| !line.starts_with("    ")).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() >= 11 && commands.contains(&"render"), "{commands:?}");
    // Clap's own `help` has no flags.
    for command in commands.into_iter().filter(|command| *command != "help") {
        let texts = [printed(&["help", command]), printed(&[command, "--help"])];
        for text in texts {
            let widest = text.lines().map(|line| line.chars().count()).max();
            let lines = text.lines().count();
            assert!(lines <= 48 && widest <= Some(80), "{command}: {lines} lines, the widest {widest:?}:\n{text}");
        }
    }
}

#[test]
fn mistakes_end_with_1_and_say_where() {
    for (args, message) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["stray"], "stray"),
        (&["--config=/no/such/file"], "/no/such/file"),
        (&["--proxy-mode=userspace"], "\"userspace\""),
        (&["--proxy-mode=nftables", "--oom-score-adj", "-1001"], "oomScoreAdj"),
        (&["--proxy-mode=nftables", "--metrics-port=0"], "metricsBindAddress"),
    ] {
        let error = refused(args);
        assert!(error.contains(message), "{args:?}: {error}");
    }
}

#[test]
fn the_configuration_is_written_from_kubeadms_file() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    printed(&["--config", KUBEADM, "--hostname-override=node-1", "--write-config-to", first.to_str().unwrap()]);
    let text = fs::read_to_string(&first).unwrap();
    assert!(text.contains("\nclusterCIDR: 10.244.0.0/16\n"), "{text}");
    printed(&["--config", first.to_str().unwrap(), "--write-config-to", second.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&second).unwrap(), text);
    let nowhere = dir.path().join("no/such/dir");
    assert!(refused(&["--write-config-to", nowhere.to_str().unwrap()]).contains("no/such/dir"));
}

#[test]
fn foreign_text_stays_in_its_place_when_the_ruleset_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("a\nFORGED\u{1b}\u{202e}.yaml"), "[").unwrap();
    let config = dir.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
                hostnameOverride: here\ndetectLocalMode: BridgeInterface\n\
                detectLocal: {bridgeInterface: \"b\\\"drop;\\e}\"}\nstrange: 1\n";
    fs::write(&config, text).unwrap();
    let args = ["render", "--config", config.to_str().unwrap(), "--manifests", manifests.to_str().unwrap()];
    let output = proxy(&args);
    assert_eq!(output.status.code(), Some(1), "the manifest is broken: {output:?}");
    let [printed, messages] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(printed.contains("iifname \"b'drop; }\" "), "{printed}");
    assert!(!printed.contains("b\"drop"), "{printed}");
    assert!(messages.contains("\\nFORGED\\u{1b}\\u{202e}.yaml"), "{messages:?}");
    assert_eq!(messages.lines().count(), 3, "an unknown field, a bad file, and their number: {messages:?}");
}

// mandoc, which `make deps` installs, finds nothing wrong with the man page but that it has no date.
#[test]
fn the_man_page_has_no_warnings_and_all_commands() {
    let page = printed(&["man"]);
    let mut lint = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    lint.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = String::from_utf8(lint.wait_with_output().unwrap().stdout).unwrap();
    let warnings: Vec<&str> = output.lines().filter(|line| !line.contains("WARNING: missing date")).collect();
    assert_eq!(warnings, [""; 0]);
    let commands =
        ["render", "explain", "services", "changes", "top", "stats", "trace", "verify", "check", "completion", "man"];
    for command in commands {
        let heading = format!(".SH \"COMMAND {}\"", command.to_uppercase());
        assert!(page.contains(&heading), "no {heading} in\n{page}");
    }
}

// A word that is near to a command is answered with the command.
#[test]
fn an_unknown_command_is_answered_with_the_near_one() {
    for (typed, meant) in [("service", "services"), ("verfy", "verify"), ("chek", "check"), ("complete", "completion")]
    {
        let error = refused(&[typed]);
        assert!(error.contains(&format!("'{meant}'")), "{typed}: {error}");
    }
}

// What is written has our own fields too, each with its default, and reads back (P2).
#[test]
fn our_own_fields_are_written_with_their_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    printed(&["--proxy-mode=nftables", "--table-ownership=auto", "--write-config-to", first.to_str().unwrap()]);
    let text = fs::read_to_string(&first).unwrap();
    for line in
        ["  counters: \"off\"", "  rulesetLayout: maps", "  serviceElementsLimit: 100000", "  tableOwnership: auto"]
    {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    printed(&["--config", first.to_str().unwrap(), "--write-config-to", second.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&second).unwrap(), text);
}

// A flag that the file makes ineffective is named, with the field to set (P1).
#[test]
fn each_flag_without_effect_beside_a_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().to_str().unwrap();
    let args = [
        "--config",
        KUBEADM,
        "--hostname-override=n1",
        "--cluster-cidr=10.0.0.0/8",
        "--oom-score-adj=1",
        "--manifests",
        manifests,
    ];
    let written = dir.path().join("written");
    for output in [
        proxy(&[&["render"], &args[..]].concat()),
        proxy(&[&["--write-config-to", written.to_str().unwrap()], &args[..]].concat()),
    ] {
        let messages = String::from_utf8(output.stderr).unwrap();
        for warning in [
            "--cluster-cidr has no effect beside --config: set clusterCIDR",
            "--oom-score-adj has no effect beside --config",
        ] {
            assert_eq!(messages.lines().filter(|line| line.contains(warning)).count(), 1, "{messages}");
        }
        assert!(!messages.contains("--hostname-override") && !messages.contains("--manifests"), "{messages}");
    }
}
