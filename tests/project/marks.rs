//! Every command of the pages for operators is run by a test, or the page says that it is not, and why.
//!
//! A mark is a comment `<!-- Not run by the tests: ... -->` with the programs, in backticks, and the reason. Takes the code blocks of the pages. The
//! commands of the proxy itself are typed in a network namespace beside an API server (root); what a here-document writes is read, and
//! so is each block of YAML. `every_command_can_be_typed` in `pages` holds marked commands too to what their tools take.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::pages::{Place, Step, first, is_looked_at, page, pages, pipeline, project, steps};
use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::mixed;
use crate::support::netns::{Namespace, run_with_input};
use crate::support::plan::NODE;
use crate::support::proxy::{binary, config};
use component::config::check_content;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How a mark begins. It is a comment, because it is about the tests and not for the reader.
const MARK: &str = "<!-- Not run by the tests: ";
/// What stands in a pipeline behind a command that is run, or writes a file of which the content is checked; and `source`, which the tests
/// of `kube-proxy services` type for the completion of words.
const BESIDE: [&str; 4] = ["head", "grep", "cat", "source"];

/// The programs that a page marks as not run.
fn marked(page: &str) -> BTreeSet<&str> {
    let mut programs = BTreeSet::new();
    for paragraph in page.split("\n\n").filter_map(|paragraph| paragraph.strip_prefix(MARK)) {
        let names: Vec<&str> = paragraph.split('`').skip(1).step_by(2).filter(|name| !name.starts_with('$')).collect();
        let reason = paragraph.split(": ").nth(1).unwrap_or_default();
        assert!(!names.is_empty() && reason.split_whitespace().count() > 2, "a mark without a reason: {paragraph}");
        programs.extend(names);
    }
    programs
}

/// The programs of the commands in the code blocks of a page that no test runs.
fn not_run(steps: &[Step]) -> BTreeSet<String> {
    let typed = steps.iter().filter(|step| step.place == Place::Block && !is_looked_at(&step.command));
    let programs = typed.flat_map(|step| pipeline(&step.command)).map(|words| words[0].clone());
    programs.filter(|program| program != "kube-proxy" && !BESIDE.contains(&program.as_str())).collect()
}

#[test]
fn each_command_that_no_test_runs_is_marked_with_the_reason() {
    for name in pages() {
        let page = page(&name);
        let (marked, not_run) = (marked(&page), not_run(&steps(&page)));
        let unmarked: Vec<_> = not_run.iter().filter(|program| !marked.contains(program.as_str())).collect();
        assert!(
            unmarked.is_empty(),
            "no test runs {unmarked:?} of {name}: run them in one, or write a comment \"{MARK}`PROGRAM`: reason -->\""
        );
        let idle: Vec<_> = marked.iter().filter(|program| !not_run.contains(**program)).collect();
        assert!(idle.is_empty(), "{name} marks {idle:?}, of which it has no command");
    }
}

#[test]
fn a_command_without_a_mark_and_a_mark_without_a_command_are_found() {
    let page = "<!-- Not run by the tests: `a`, `b`: they need a cluster. -->\n\n    a x\n    curl -s y | head\n\n    c z | b\n";
    assert_eq!(marked(page), BTreeSet::from(["a", "b"]));
    assert_eq!(not_run(&steps(page)), BTreeSet::from(["a", "b", "c"].map(str::to_owned)));
}

/// The pages with commands above what they print, each with the test that types them.
const TRANSCRIPTS: [(&str, &str); 3] = [
    ("README.md", "the_pages_show"),
    ("deploy/INSTALL.md", "the_check_before_a_migration_prints_what_the_page_shows"),
    ("deploy/TROUBLESHOOTING.md", "the_pages_show"),
];

#[test]
fn each_transcript_is_of_a_page_whose_commands_a_test_types() {
    let has = |name: &String| steps(&page(name)).iter().any(|step| step.place == Place::Transcript);
    let found: Vec<String> = pages().into_iter().filter(has).collect();
    assert_eq!(found, TRANSCRIPTS.map(|(name, _)| name));
}

/// The blocks between lines of three backticks, with what stands behind the first ones.
fn fences(page: &str) -> Vec<(&str, &str)> {
    page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect()
}

#[test]
fn no_block_without_a_language_holds_a_command_and_all_yaml_can_be_read() {
    for name in pages() {
        let page = page(&name);
        for (language, block) in fences(&page) {
            if language == "yaml" {
                assert_is_read(&name, block);
                continue;
            }
            let is_command = |line: &&str| ["kube-proxy", "kubectl", "nft", "curl", "source"].contains(&first(line));
            assert_eq!(block.lines().find(is_command), None, "{name}: indent what is to be typed");
        }
        for Step { command, .. } in steps(&page).into_iter().filter(|step| step.command.contains("<<EOF")) {
            let (head, content) = command.split_once('\n').expect("a here-document has lines");
            assert!([".yaml", ".yml", ".json"].iter().any(|ending| head.contains(ending)), "{name}: {head}");
            assert_is_read(&name, content.trim_end_matches("EOF"));
        }
    }
}

/// Whether a text is a YAML mapping; a KubeProxyConfiguration has to be one that the program uses.
fn assert_is_read(name: &str, text: &str) {
    let value: Value = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error} in\n{text}"));
    assert!(value.is_object(), "{name}: {text}");
    if value["kind"] == "KubeProxyConfiguration" {
        assert!(check_content(text.as_bytes()).is_ok(), "{name}: {text}");
    }
}

/// A node with an API server, and the files that stand for `FILE` and its like.
struct Site {
    node: Namespace,
    _server: ApiServer,
    directory: TempDir,
    kubeconfig: PathBuf,
}

impl Site {
    fn new() -> Self {
        let node = Namespace::new("marks");
        node.ip(&["link set lo up"]);
        let server = node.enter(|| ApiServer::start(Scheme::Https));
        server.apply(&mixed::cluster());
        let kubeconfig = server.kubeconfig(&server.certified_user("system:kube-proxy"));
        let site = Self {
            node,
            _server: server,
            directory: TempDir::new().expect("a temporary directory can be made"),
            kubeconfig,
        };
        for (name, mode) in [("FILE", "nftables"), ("FILE.ipvs", "ipvs")] {
            let mut config = config();
            config["mode"] = mode.into();
            config["clientConnection"]["kubeconfig"] = json!(site.kubeconfig);
            fs::write(site.directory.path().join(name), config.to_string()).expect("a file can be written");
        }
        site
    }

    /// A command with files and names for the words in capitals, in the node's namespace, where `kube-proxy` is the one under test.
    fn command(&self, text: &str) -> Command {
        let folder = binary().parent().expect("the binary is in a folder").to_owned();
        let examples = project().join("examples").display().to_string();
        let words = text.split(' ').map(|word| match word {
            "NAME" => NODE.to_owned(),
            "DIR" | "examples" => examples.clone(),
            "--hostname-override=NODE" => format!("--hostname-override={NODE}"),
            "--kubeconfig=FILE" => format!("--kubeconfig={}", self.kubeconfig.display()),
            word => word.to_owned(),
        });
        // A configuration is not written over the one that is read.
        let line = words.collect::<Vec<_>>().join(" ").replace("--write-config-to FILE", "--write-config-to WRITTEN");
        let mut command = self.node.command("bash");
        command.args([
            "-c",
            &format!("export PATH={}:$PATH; cd {}; exec {line}", folder.display(), self.directory.path().display()),
        ]);
        command
    }

    fn output(&self, text: &str) -> Output {
        self.command(text).output().unwrap_or_else(|error| panic!("{text}: {error}"))
    }
}

/// Whether this starts the proxy itself, which does not end.
fn is_the_proxy(command: &str) -> bool {
    let ends = ["--init-only", "--cleanup", "--write-config-to", "--version", "--help"];
    let second = command.split(' ').nth(1).unwrap_or_default();
    second.starts_with('-') && !ends.iter().any(|flag| command.contains(flag))
}

#[test]
fn each_command_of_the_proxy_itself_does_what_it_is_for() {
    let mut typed = 0;
    for name in pages() {
        let steps = steps(&page(&name)).into_iter().filter(|step| step.place == Place::Block);
        for Step { command, .. } in steps.filter(|step| first(&step.command) == "kube-proxy") {
            let site = Site::new();
            typed += 1;
            if is_the_proxy(&command) {
                assert_serves(&site, &name, &command);
            } else {
                let output = site.output(&command);
                assert!(output.status.success(), "{name}: {command}: {output:?}");
            }
        }
    }
    assert!(typed >= 7, "{typed} commands");
}

/// The proxy writes its rules, and ends when it is told to.
fn assert_serves(site: &Site, name: &str, command: &str) {
    let mut proxy = site.command(command).stderr(Stdio::null()).spawn().expect("bash can be started");
    let end = Instant::now() + Duration::from_secs(60);
    while !site
        .node
        .command("nft")
        .args(["list", "map", "ip", "kube-proxy", "services"])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("shop/"))
    {
        let ended = proxy.try_wait().expect("its state can be read");
        assert!(ended.is_none() && Instant::now() < end, "{name}: {command} wrote no rules: {ended:?}");
        thread::sleep(Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_child(&proxy);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it can be signalled");
    assert!(proxy.wait().is_ok_and(|status| status.success()), "{name}: {command}");
}

/// Each command of a page behind `$ `, with the lines below it.
fn transcripts(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_output = false;
    for line in page.lines() {
        let code = line.strip_prefix("    ").map(str::trim);
        match code.map(|code| (code, code.strip_prefix("$ "))) {
            Some((_, Some(command))) => {
                found.push((command.to_owned(), Vec::new()));
                is_output = true;
            }
            Some((shown, None)) if is_output => found.last_mut().expect("a command").1.push(shown.to_owned()),
            _ => is_output = false,
        }
    }
    found
}

#[test]
fn the_check_before_a_migration_prints_what_the_page_shows() {
    let site = Site::new();
    let rules = fs::read_to_string(project().join("tests/data/iptables-mode.txt")).expect("the rules are there");
    run_with_input(site.node.command("iptables-nft-restore").arg("--noflush"), &rules);
    let transcripts = transcripts(&page("deploy/INSTALL.md"));
    assert_eq!(transcripts.len(), 2);
    for (command, shown) in transcripts {
        let printed = String::from_utf8(site.output(&command).stdout).expect("it prints text");
        assert!(!shown.is_empty(), "{command} shows nothing");
        for line in shown {
            assert!(printed.contains(&line), "{command} does not print {line:?} in\n{printed}");
        }
    }
}
