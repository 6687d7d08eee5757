//! The pages for operators, `README.md` and those below `deploy/`: each command can be typed as it stands, each flag, field, metric and message
//! that they name is the program's.
//!
//! Takes the code blocks of the pages and the commands within their sentences. What can be had here is run beside a proxy, in a network
//! namespace (root), and has to print what stands behind it; the flags of the tools of a cluster are held to lists, from the tools' own
//! help, of what the pages may use.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::tools_of_clusters::FLAGS;
use crate::support::mixed;
use crate::support::netns::run;
use crate::support::proxy::{Proxy, binary};
use crate::support::world::World;
use component::config;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages for operators, by their paths: the first page, and each below `deploy/`.
pub(super) fn pages() -> Vec<String> {
    let mut pages = ["README.md", ".github/SECURITY.md", ".github/RELEASING.md"].map(str::to_owned).to_vec();
    let mut folders = vec!["deploy".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(project().join(&folder)).expect("a folder can be read") {
            let entry = entry.expect("it can be listed");
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

pub(super) fn page(name: &str) -> String {
    fs::read_to_string(project().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The commands of all pages.
fn all_steps() -> Vec<Step> {
    pages().iter().flat_map(|name| steps(&page(name))).collect()
}

/// A command of a page, and the remark behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    remark: String,
    pub(super) place: Place,
}

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a code block, to be typed.
    Block,
    /// Behind `$ `, above what it prints.
    Transcript,
    /// Within a sentence.
    Sentence,
}

impl Step {
    fn new(text: &str, place: Place) -> Self {
        let (command, remark) = text.split_once("  #").unwrap_or((text, ""));
        Self { command: command.trim().to_owned(), remark: remark.trim().to_owned(), place }
    }
}

/// The commands of a page: its code blocks, with here-documents as a part of their command, and code in sentences that is a whole command.
pub(super) fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // The indentation of a here-document that is open.
    let mut open = None;
    // A drawing or an output stands between two lines of three backticks.
    let mut is_drawing = false;
    // Behind `$ ` stands a command, and below it what it prints.
    let mut is_output = false;
    for line in page.lines() {
        is_drawing ^= line.starts_with("```");
        if is_drawing {
            continue;
        }
        let code = line.strip_prefix("    ").map(str::trim_start);
        if let Some(command) = code.and_then(|code| code.strip_prefix("$ ")) {
            steps.push(Step::new(command, Place::Transcript));
            is_output = true;
            continue;
        }
        is_output &= line.is_empty() || line.starts_with("    ");
        if is_output {
            continue;
        }
        // A line such as `mode: nftables` is configuration, which has a test of its own.
        let is_code = code.is_some_and(|code| !code.is_empty()) && !first(line).ends_with(':');
        if let Some(indentation) = open {
            let step = steps.last_mut().expect("a here-document is of a command");
            step.command += &format!("\n{}", line.get(indentation..).unwrap_or_default());
            open = open.filter(|_| line.trim() != "EOF");
        } else if is_code {
            steps.push(Step::new(line, Place::Block));
            open = line.contains("<<EOF").then(|| line.len() - line.trim_start().len());
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            let commands = spans.filter(|span| is_program(first(span)) && span.contains(' '));
            steps.extend(commands.map(|span| Step::new(span, Place::Sentence)));
        }
    }
    steps
}

/// Whether code in a sentence that begins with this word is a command; `ip kube-proxy`, for one, is the name of a table.
fn is_program(name: &str) -> bool {
    let is_word = ["ip", "cat", "head", "grep", "source"].contains(&name);
    name == "kube-proxy" || (!is_word && FLAGS.iter().any(|(command, _)| first(command) == name))
}

pub(super) fn first(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// The words of each command of a pipeline, without quotes.
pub(super) fn pipeline(command: &str) -> Vec<Vec<String>> {
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

/// What is wrong with a command; `None` when it is right.
fn flaw(command: &str) -> Option<String> {
    let syntax = Command::new("bash").args(["-n", "-c", command]).output().expect("bash can be started");
    if !syntax.status.success() {
        return Some(String::from_utf8_lossy(&syntax.stderr).into_owned());
    }
    if is_synopsis(command) {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        return flaw_of(&words);
    }
    pipeline(command).iter().find_map(|words| flaw_of(words))
}

/// Whether this says how a command of the proxy is written, with brackets or a choice: only its flags can be checked.
fn is_synopsis(command: &str) -> bool {
    command.starts_with("kube-proxy ")
        && (command.contains(" [") || command.contains("h|z") || command.contains(" IP:"))
}

fn flaw_of(words: &[String]) -> Option<String> {
    if let [program, name, ..] = words
        && program == "kube-proxy"
        && !name.starts_with('-')
    {
        let is_synopsis = is_synopsis(&words.join(" "));
        // What stands before `--help` has to be right; of a synopsis the flags.
        let arguments = words[2..].iter().filter(|_| !is_synopsis).map(String::as_str).chain(["--help"]);
        let output = Command::new(binary()).arg(name).args(arguments).output().expect("the binary can be run");
        if !output.status.success() {
            return Some(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let mut help = String::from_utf8_lossy(&output.stdout).into_owned();
        if help.contains("All flags of the proxy are accepted too") {
            help += &run(Command::new(binary()).arg("--help"));
        }
        let flags = words.iter().map(|word| word.trim_matches(['[', ']'])).filter(|word| word.starts_with("--"));
        let unknown = flags.map(|flag| flag.split('=').next().unwrap_or(flag)).find(|flag| !help.contains(flag));
        return unknown.map(|flag| format!("kube-proxy {name} {flag}"));
    }
    if words.first().is_some_and(|word| word == "kube-proxy") {
        let help = run(Command::new(binary()).arg("--help"));
        // A word in capitals stands for what the operator types there.
        let is_placeholder = |word: &str| word.chars().all(|c| c.is_ascii_uppercase());
        let plain = words[1..].iter().filter(|word| !is_placeholder(word) && !project().join(word).exists());
        let known = |word: &str| help.split([' ', '\n', '[']).any(|found| found == word);
        return plain
            .map(|word| word.split('=').next().unwrap_or(word))
            .find(|word| !known(word))
            .map(|word| format!("kube-proxy {word}"));
    }
    // What the runner of the image starts is a command of its own.
    if words.first().is_some_and(|word| word == "/go-runner")
        && let Some(inner) = words.iter().position(|word| word.ends_with("/kube-proxy"))
    {
        let proxy = [&["kube-proxy".to_owned()], &words[inner + 1..]].concat();
        return flaw_of(&words[..inner]).or_else(|| flaw_of(&proxy));
    }
    if let Some(inner) = words.iter().position(|word| word == "--") {
        return flaw_of(&words[inner + 1..]).or_else(|| flaw_of(&words[..inner]));
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
    let is_patch = |word: &str| word == "-p" && name.starts_with("kubectl");
    let patch = words.iter().skip_while(|word| !is_patch(word)).nth(1);
    let inline = patch.filter(|patch| !patch.starts_with('@'));
    if let Some(error) = inline.and_then(|patch| serde_json::from_str::<Value>(patch).err()) {
        return Some(format!("the patch is no JSON: {error}"));
    }
    let makefile = fs::read_to_string(project().join("Makefile")).expect("the Makefile can be read");
    let target = plain.get(1).filter(|_| *name == "make");
    target.filter(|target| !makefile.contains(&format!("\n{target}:"))).map(|target| format!("no target {target}"))
}

#[test]
fn every_command_can_be_typed() {
    let steps = all_steps();
    assert!(steps.len() > 45, "the pages have few commands: {steps:#?}");
    let flaws: Vec<_> = steps.iter().filter_map(|step| Some((&step.command, flaw(&step.command)?))).collect();
    assert!(flaws.is_empty(), "{flaws:#?}");
    for path in steps.iter().flat_map(|step| step.command.split(' ')).filter(|word| word.starts_with("deploy/")) {
        assert!(project().join(path).exists(), "{path}");
    }
}

/// Whether a test types this command beside a running proxy, and compares what it prints with the remark.
pub(super) fn is_looked_at(command: &str) -> bool {
    ["curl ", "nft list "].iter().any(|start| command.starts_with(start))
}

#[test]
fn what_is_looked_at_on_a_node_is_there() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &crate::support::proxy::config(), &mixed::cluster());
    let mut looked = 0;
    for Step { command, remark, .. } in all_steps() {
        if !is_looked_at(&command) {
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
    assert!(looked >= 12, "{looked} commands");
}

/// The words of a page that look like this, in order, each once.
fn words(page: &str, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && !['_', '-', '.'].contains(&c));
    words.map(|word| word.trim_end_matches(['.', '-'])).filter(|word| is_wanted(word)).collect()
}

/// The flags of the help text, with their dashes.
fn flags_of_help() -> BTreeSet<String> {
    let help = run(Command::new(binary()).arg("--help"));
    let flags = help.lines().filter(|line| line.trim_start().starts_with('-'));
    flags.flat_map(|line| words(line, |word| word.starts_with("--"))).map(str::to_owned).collect()
}

/// Flags that sentences name and that are of other programs, and in no command of the pages.
const OTHERS_FLAGS: [&str; 7] = [
    "--disable-kube-proxy",
    "--help",
    "--patches",
    "--record",
    "--field-selector",
    "--cluster-cidr",
    "--endpointslice-updates-batch-period",
];

/// The commands beside the proxy itself.
const COMMANDS: [&str; 11] =
    ["services", "probe", "explain", "changes", "top", "stats", "trace", "verify", "check", "bundle", "render"];

#[test]
fn every_flag_that_a_page_names_is_one_of_the_program() {
    let mut known = flags_of_help();
    assert!(known.len() > 50, "{known:?}");
    for command in COMMANDS {
        let help = run(Command::new(binary()).args([command, "--help"]));
        known.extend(words(&help, |word| word.starts_with("--")).into_iter().map(str::to_owned));
    }
    let of_tools: BTreeSet<&str> = FLAGS.iter().flat_map(|(_, flags)| flags.iter().copied()).collect();
    for name in pages() {
        let page = page(&name);
        let named = words(&page, |word| word.starts_with("--") && word.len() > 2);
        let is_others = |flag: &str| OTHERS_FLAGS.contains(&flag) || of_tools.contains(flag);
        let unknown: Vec<_> = named.into_iter().filter(|flag| !known.contains(*flag) && !is_others(flag)).collect();
        assert!(unknown.is_empty(), "{name} names {unknown:?}");
    }
}

/// The first cells of the rows of all tables of a page, without the mark of code.
fn first_cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(cell, _)| cell)
}

/// The flags that upstream does not have.
const OWN_FLAGS: [&str; 19] = [
    "--answer-pings",
    "--cleanup-force",
    "--counters",
    "--drain-on",
    "--drop-invalid-from-endpoints",
    "--endpoint-chains",
    "--endpoint-maps",
    "--flowtable",
    "--maglev-table-size",
    "--manifests",
    "--metrics-services-limit",
    "--refuse-unused-ports",
    "--relist-removal-limit",
    "--reserve-node-ports",
    "--ruleset-layout",
    "--scheduler",
    "--scheduler-hash",
    "--service-elements-limit",
    "--table-ownership",
];

#[test]
fn the_flags_and_fields_of_our_own_are_on_their_page() {
    let page = page("deploy/REFERENCE.md");
    let (_, part) = page.split_once("## Own flags and fields\n").expect("the page has that section");
    let part = part.split("\n## ").next().unwrap_or_default();
    let listed: BTreeSet<&str> = first_cells(part).filter(|cell| cell.starts_with("--")).collect();
    assert_eq!(listed, BTreeSet::from(OWN_FLAGS));
    // The example has each field, and each is taken as it stands.
    let example: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("    apiVersion:")).collect();
    let example: Vec<&str> = example.into_iter().map_while(|line| line.strip_prefix("    ")).collect();
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (file, written) = (directory.path().join("file"), directory.path().join("written"));
    fs::write(&file, example.join("\n")).expect("a file can be written");
    run(Command::new(binary()).arg("--config").arg(&file).arg("--write-config-to").arg(&written));
    let written = fs::read_to_string(&written).expect("it was written");
    let fields = words(&page, |word| word.starts_with("nftables."));
    let own: Vec<&str> = example.iter().copied().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(own.len(), 15, "{example:?}");
    for line in own {
        assert!(written.lines().any(|found| found == line), "{line:?} was not taken:\n{written}");
        let field = format!("nftables.{}", line.trim().split(':').next().unwrap_or_default());
        assert!(fields.contains(field.as_str()), "the page does not describe {field}");
    }
}

// That METRICS.md has the metrics of the code, and no others, is held by the unit tests that write it.
#[test]
fn every_metric_of_our_own_that_a_page_names_is_there() {
    let page = page("deploy/METRICS.md");
    let listed: BTreeSet<&str> = first_cells(&page).filter(|cell| cell.starts_with("kubeproxy_nft_")).collect();
    assert!(listed.len() > 15, "{listed:?}");
    for name in pages() {
        let text = self::page(&name);
        let unknown: Vec<_> =
            words(&text, |word| word.starts_with("kubeproxy_nft_") && word.len() > 14 && !listed.contains(word))
                .into_iter()
                .collect();
        assert!(unknown.is_empty(), "{name} names {unknown:?}, which is not in METRICS.md");
    }
}

#[test]
fn a_scrape_has_the_metrics_of_the_page_with_their_types() {
    let world = World::new();
    let mut config = crate::support::proxy::config();
    config["nftables"]["counters"] = json!("endpoints");
    let proxy = Proxy::start(&world.node, &config, &mixed::cluster());
    // The counters are read a moment after the first sync.
    let end = Instant::now() + Duration::from_secs(60);
    while proxy.series("kubeproxy_nft_endpoint_connections_total").is_empty() {
        assert!(Instant::now() < end, "the counters were not read");
        thread::sleep(Duration::from_millis(50));
    }
    let scrape = run(world.node.command("curl").args(["-s", "http://127.0.0.1:10249/metrics"]));
    let page = page("deploy/METRICS.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `kubeproxy_nft_")?.split_once("` | "));
    let mut looked = 0;
    for (name, rest) in rows {
        let Some(kind) = ["counter", "gauge", "histogram"].into_iter().find(|kind| rest.starts_with(kind)) else {
            continue;
        };
        // Only a proxy with an API server follows kinds of objects.
        if !name.starts_with("source_") || kind == "counter" {
            looked += 1;
            assert!(
                scrape.contains(&format!("# TYPE kubeproxy_nft_{name} {kind}\n")),
                "{name} is no {kind} in\n{scrape}"
            );
        }
    }
    assert!(looked > 12, "{looked} metrics");
    // Metrics of upstream appear with their first sample, so their names are searched in the sources.
    let source = sources(&project().join("src/proxy/metrics"));
    let upstreams = words(&page, |word| word.starts_with("kubeproxy_") && !word.starts_with("kubeproxy_nft_"));
    assert!(upstreams.len() > 4, "{upstreams:?}");
    for name in upstreams {
        let registered = [name, name.trim_end_matches("_total")].map(|name| format!("\"{name}\""));
        assert!(registered.iter().any(|literal| source.contains(literal)), "there is no {name}");
    }
}

/// The sources below a folder as one text.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            text += &fs::read_to_string(path).expect("a source can be read");
        }
    }
    text
}

#[test]
fn the_messages_that_troubleshooting_explains_are_the_programs() {
    let source = ["src", "nft/src"].map(|folder| sources(&project().join(folder))).concat();
    let lines: Vec<&str> = source.split("\\\n").collect();
    let source =
        lines.iter().enumerate().map(|(n, line)| if n == 0 { line } else { line.trim_start() }).collect::<String>();
    let page = page("deploy/TROUBLESHOOTING.md");
    let (_, part) = page.split_once("## Messages\n").expect("the page has that section");
    let part = part.split("\n## ").next().unwrap_or_default();
    let messages: Vec<&str> = first_cells(part).filter(|cell| !cell.starts_with("nft ")).collect();
    assert!(messages.len() > 9, "{messages:?}");
    for message in messages {
        assert!(source.contains(message), "no message has {message:?}");
    }
}

/// The most bytes of a picture, so that a page is there at once.
const PICTURE: usize = 150_000;

#[test]
fn each_picture_is_small_and_on_a_page() {
    let pages: String = pages().iter().map(|name| page(name)).collect();
    for name in ["explain.svg", "services.png"] {
        assert!(pages.contains(&format!("](images/{name})")), "no page shows {name}");
        let picture = fs::read(project().join("deploy/images").join(name)).expect("the picture is there");
        assert!((1_000..PICTURE).contains(&picture.len()), "{name} has {} bytes", picture.len());
        let (is_png, text) = (picture.starts_with(b"\x89PNG"), String::from_utf8_lossy(&picture));
        assert!(
            is_png || text.starts_with("<svg ") && !text.contains("<script"),
            "{name} is neither PNG nor plain SVG"
        );
    }
}

/// The rows of the table of hops in `src/README.md`: a file, and names of functions in it.
fn hops(page: &str) -> Vec<(&str, Vec<&str>)> {
    let rows = page
        .lines()
        .filter(|line| line.strip_prefix("| ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())));
    let cells = rows.map(|row| row.split(" | ").map(|cell| cell.trim_matches('`')).collect::<Vec<_>>());
    cells.map(|cells| (cells[1], cells[2].split("`, `").collect())).collect()
}

#[test]
fn each_hop_of_the_way_of_a_slice_is_in_the_sources() {
    let page = page("src/README.md");
    assert!(page.lines().count() <= 120, "the page is read at once");
    assert_eq!(page.lines().find(|line| line.chars().count() > 100), None, "the page fits a terminal");
    let hops = hops(&page);
    assert!(hops.len() > 9, "{hops:?}");
    for (file, functions) in hops {
        let source = self::page(&format!("src/{file}"));
        for function in functions {
            let (owner, name) = function.rsplit_once("::").unwrap_or(("", function));
            let has = [format!("fn {name}("), format!("fn {name}<")].iter().any(|text| source.contains(text));
            assert!(has && source.contains(owner), "{file} has no {function}");
        }
    }
    // Files and folders in the rest of the page.
    for span in page.split('`').skip(1).step_by(2).filter(|span| span.ends_with(".rs") || span.ends_with('/')) {
        assert!(project().join("src").join(span).exists() || project().join(span).exists(), "there is no {span}");
    }
}

/// The words of a table that look like the name of a test: four words or more.
fn names_of_tests(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| word.matches('_').count() > 3 && !word.starts_with("kubeproxy_")).collect()
}

#[test]
fn the_tests_that_promises_name_exist() {
    // Those of the first page are below its heading of reports.
    let page = page("tests/README.md") + &page("README.md");
    let sources = ["src", "nft", "tests"].map(|folder| sources(&project().join(folder))).concat();
    let names = names_of_tests(&page);
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> = names.into_iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no test is called {missing:?}");
}

// One answer everywhere: the first page, the table, the metrics, the chart, and what the program reports and warns of.
#[test]
fn the_releases_of_kubernetes_are_the_same_everywhere() {
    let range = format!("1.{} to 1.{}", config::OLDEST_KUBERNETES_MINOR, config::KUBERNETES_MINOR);
    for name in ["README.md", "deploy/COMPATIBILITY.md", "deploy/METRICS.md", "deploy/chart/README.md"] {
        assert!(page(name).contains(&range), "{name} does not say {range}");
    }
    let chart = fs::read_to_string(project().join("deploy/chart/Chart.yaml")).expect("it can be read");
    assert!(chart.contains(&format!("kubeVersion: \">=1.{}.0-0\"", config::OLDEST_KUBERNETES_MINOR)), "{chart}");
}

#[test]
fn what_the_page_says_of_a_config_map_that_goes_back_is_so() {
    let kubeadms = project().join("src/component/config/testdata/kubeadm.yaml");
    let content = fs::read_to_string(kubeadms).expect("it can be read");
    let with = |mode: &str| content.replace("mode: \"\"", &format!("mode: {mode:?}"));
    assert!(content.contains("mode: \"\""), "{content}");
    for (mode, used) in [("nftables", true), ("", true), ("iptables", true), ("ipvs", true), ("userspace", false)] {
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
        ("curl -s 'http://127.0.0.1:10256/livez", "unexpected eof"),
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
    let found: Vec<_> = found.iter().map(|step| (step.command.as_str(), step.remark.as_str())).collect();
    assert_eq!(found, expected);
}
