//! The commands of `deploy/README.md`: each can be typed as it stands.
//!
//! Takes the code blocks of the page and the commands within its sentences. What can be had here is run beside a proxy, in a network
//! namespace (root), and has to print what stands behind it; the flags of the tools of a cluster are held to lists, from the tools' own
//! help, of what the page may use.

#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use kube_proxy::config;
use serde_json::Value;
use support::mixed;
use support::netns::run;
use support::proxy::{Proxy, binary};
use support::world::World;

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(project().join("deploy/README.md")).expect("the page can be read")
}

/// A command of a page, and the remark behind it.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    remark: String,
}

impl Step {
    fn new(text: &str) -> Self {
        let (command, remark) = text.split_once("  #").unwrap_or((text, ""));
        Self { command: command.trim().to_owned(), remark: remark.trim().to_owned() }
    }
}

/// The programs that the page has commands of.
const PROGRAMS: [&str; 7] = ["kubectl", "kind", "docker", "make", "curl", "nft", "kube-proxy"];

/// The commands of a page: its code blocks, with here-documents as a part of their command, and code in sentences that is a whole command.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        let is_code = line.starts_with("    ") && !line.trim().is_empty();
        if open {
            let step = steps.last_mut().expect("a here-document is of a command");
            step.command += &format!("\n{}", line.trim_start());
            open = line.trim() != "EOF";
        } else if is_code {
            steps.push(Step::new(line));
            open = line.contains("<<EOF");
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            steps.extend(spans.filter(|span| PROGRAMS.contains(&first(span)) && span.contains(' ')).map(Step::new));
        }
    }
    steps
}

fn first(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// The words of each command of a pipeline, without quotes.
fn pipeline(command: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![String::new()]];
    let mut quote = None;
    for c in command.lines().next().unwrap_or_default().chars() {
        let words = commands.last_mut().expect("never empty");
        let word = words.last_mut().expect("never empty");
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('|', None) => commands.push(vec![String::new()]),
            (' ', None) => words.push(String::new()),
            (c, _) => word.push(c),
        }
    }
    commands.iter_mut().for_each(|words| words.retain(|word| !word.is_empty()));
    commands
}

/// What a tool of the page takes: its sub-command, and the flags of that.
const FLAGS: &[(&str, &[&str])] = &[
    ("kubectl get", &["-n", "-o", "-l", "--field-selector"]),
    ("kubectl logs", &["-n", "-l", "-c", "-f", "--tail"]),
    ("kubectl delete", &["-n", "-l", "-k", "--field-selector"]),
    ("kubectl patch", &["-n", "-p"]),
    ("kubectl edit", &["-n"]),
    ("kubectl set image", &["-n"]),
    ("kubectl rollout status", &["-n"]),
    ("kubectl rollout history", &["-n"]),
    ("kubectl rollout undo", &["-n", "--to-revision"]),
    ("kubectl apply", &["-k", "--server-side", "--force-conflicts"]),
    ("docker build", &["-f", "-t"]),
    ("docker push", &[]),
    ("docker exec", &[]),
    ("kind create cluster", &["--config"]),
    ("kind load docker-image", &[]),
    ("make", &[]),
    ("curl", &["-s"]),
    ("nft list map", &[]),
    ("head", &[]),
    ("grep", &["-E"]),
    ("cat", &[]),
];

/// What is wrong with a command, if anything is.
fn flaw(command: &str) -> Option<String> {
    let syntax = Command::new("sh").args(["-n", "-c", command]).output().expect("sh can be started");
    if !syntax.status.success() {
        return Some(String::from_utf8_lossy(&syntax.stderr).into_owned());
    }
    pipeline(command).iter().find_map(|words| flaw_of(words))
}

fn flaw_of(words: &[String]) -> Option<String> {
    if words.first().is_some_and(|word| word == "kube-proxy") {
        let help = run(Command::new(binary()).arg("--help"));
        return words[1..].iter().find(|flag| !help.contains(flag.as_str())).map(|flag| format!("kube-proxy {flag}"));
    }
    // A flag before the sub-command has its value behind it.
    let plain: Vec<&str> = match words {
        [tool, flag, _, rest @ ..] if flag.starts_with('-') => {
            [tool].into_iter().chain(rest).map(String::as_str).collect()
        }
        words => words.iter().map(String::as_str).collect(),
    };
    let is_of = |name: &str| name.split(' ').eq(plain.iter().copied().take(name.split(' ').count()));
    let Some((name, known)) = FLAGS.iter().find(|(name, _)| is_of(name)) else {
        return Some(format!("unknown command {plain:?}"));
    };
    let flags = words.iter().filter(|word| word.starts_with('-')).map(|word| word.split('=').next().unwrap_or(word));
    if let Some(unknown) = flags.into_iter().find(|flag| !known.contains(flag)) {
        return Some(format!("{name} has no {unknown}, or the page has not used it before"));
    }
    let patch = words.iter().skip_while(|word| *word != "-p").nth(1);
    if let Some(error) = patch.and_then(|patch| serde_json::from_str::<Value>(patch).err()) {
        return Some(format!("the patch is no JSON: {error}"));
    }
    let makefile = fs::read_to_string(project().join("Makefile")).expect("the Makefile can be read");
    let target = plain.get(1).filter(|_| *name == "make");
    target.filter(|target| !makefile.contains(&format!("\n{target}:"))).map(|target| format!("no target {target}"))
}

#[test]
fn every_command_can_be_typed() {
    let steps = steps(&page());
    assert!(steps.len() > 25, "the page has few commands: {steps:#?}");
    let flaws: Vec<_> = steps.iter().filter_map(|step| Some((&step.command, flaw(&step.command)?))).collect();
    assert!(flaws.is_empty(), "{flaws:#?}");
    for path in steps.iter().flat_map(|step| step.command.split(' ')).filter(|word| word.starts_with("deploy/")) {
        assert!(project().join(path).exists(), "{path}");
    }
}

#[test]
fn what_is_looked_at_on_a_node_is_there() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &support::proxy::config(), &mixed::cluster());
    let mut looked = 0;
    for Step { command, remark } in steps(&page()) {
        if !["curl", "nft"].contains(&first(&command)) {
            continue;
        }
        looked += 1;
        let output = run(world.node.command("sh").args(["-c", &command]));
        let shown = match remark.as_str() {
            "your Services, by name" => "\"shop/",
            remark => remark,
        };
        assert!(!output.trim().is_empty() && output.contains(shown), "{command}: no {shown} in {output}");
    }
    assert!(looked >= 4, "{looked} commands");
}

#[test]
fn what_the_page_says_of_a_config_map_that_goes_back_is_so() {
    let kubeadms = project().join("src/config/testdata/kubeadm.yaml");
    let content = fs::read_to_string(kubeadms).expect("it can be read");
    let with = |mode: &str| content.replace("mode: \"\"", &format!("mode: {mode:?}"));
    assert!(content.contains("mode: \"\""), "{content}");
    for (mode, used) in [("nftables", true), ("", true), ("iptables", false), ("ipvs", false)] {
        assert_eq!(config::check_content(with(mode).as_bytes()).is_ok(), used, "mode {mode:?}");
    }
}

#[test]
fn a_command_that_cannot_be_typed_is_found() {
    for (command, says) in [
        (
            "kubectl -n kube-system logs -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE | head",
            "--field-selector",
        ),
        ("kubectl -n kube-system patch daemonset kube-proxy -p '{\"spec\":'", "no json"),
        ("kubectl -n kube-system replace -f x.yaml", "unknown command"),
        ("kubectl rollout undo daemonset/kube-proxy --to 1", "--to"),
        ("curl -s 'http://127.0.0.1:10256/livez", "quote"),
        ("make image", "no target image"),
        ("curl -s http://x | jq .", "unknown command"),
        ("kube-proxy --clean-up", "--clean-up"),
    ] {
        let found = flaw(command).unwrap_or_else(|| panic!("{command} is taken for good"));
        assert!(found.to_lowercase().contains(says), "{command}: {found}");
    }
    let found = steps(
        "text `kubectl apply -k a` and `a b`\n\n       curl -s x   # y\n\n    cat > f <<EOF\n    a: b\n    EOF\n    nft x\n",
    );
    let expected = [("kubectl apply -k a", ""), ("curl -s x", "y"), ("cat > f <<EOF\na: b\nEOF", ""), ("nft x", "")];
    let expected = expected.map(|(command, remark)| Step { command: command.to_owned(), remark: remark.to_owned() });
    assert_eq!(found, expected);
}
