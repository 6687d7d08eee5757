//! What the commands print on a terminal of 80 columns and 24 rows, beside a running proxy. `BLESS=1 cargo test --test process screen`
//! writes `tests/data/inspect/80x24` again; look at the difference then.

use std::fs;
use std::path::Path;

use regex::Regex;

use crate::support::layout::Layout;
use crate::support::mixed;
use crate::support::netns::Namespace;
use crate::support::proxy::{Proxy, binary, config_in};
use crate::support::terminal::Terminal;
use crate::support::world::World;

/// What changes from run to run, and what stands for it.
const CHANGING: [(&str, &str); 6] = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-01-01T00:00:00.000Z"),
    (r"\d+\.\d ms|  +\d+ us|\d+\.\d s", "1.0 ms"),
    (r"/tmp/\.tmp[A-Za-z0-9]{6}", "/tmp/directory"),
    (r"Linux [^ ]+", "Linux 6.12.0"),
    (r"pid \d+", "pid 4711"),
    (r"nftables v[^\n]*", "nftables v1.0.9"),
];

/// The lines that a command prints on the terminal, without what changes from run to run.
fn printed(terminal: &Terminal, arguments: &str) -> Vec<String> {
    terminal.line("clear");
    terminal.wait_for("an empty screen", |screen| screen.trim() == "ready>");
    terminal.line(&format!("clear; {} {arguments}; echo over", binary().display()));
    let screen = terminal.wait_for("the end", |screen| screen.lines().any(|line| line == "over"));
    let lines = screen.lines().take_while(|line| *line != "over");
    let changed = |line: &str| {
        CHANGING.iter().fold(line.to_owned(), |line, (pattern, stand)| {
            Regex::new(pattern).expect("a pattern").replace_all(&line, *stand).into_owned()
        })
    };
    lines.map(changed).collect()
}

/// Compares the text with the expected one of this name.
fn assert_expected(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inspect/80x24").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
        fs::write(&path, text).expect("the expected text can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text, expected, "{name}");
}

fn assert_screens(node: &Namespace, commands: &[(&str, String)]) {
    let terminal = Terminal::start(node, 80, 24);
    for (name, arguments) in commands {
        let lines = printed(&terminal, arguments);
        assert!(lines.len() < 24, "{name}: more than a screen");
        // A line that the terminal itself had to break is full; what is broken between words ends before.
        assert_expected(name, &(lines.join("\n") + "\n"));
    }
}

#[test]
fn the_commands_fit_a_terminal_of_80_columns_and_24_rows() {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &mixed::cluster());
    let (config, manifests) = (proxy.config_path(), proxy.manifests().path().to_owned());
    let of_proxy = format!("--config {} --manifests {}", config.display(), manifests.display());
    let commands = [
        ("services.txt", "services shop/web".to_owned()),
        ("not-served.txt", "services --not-served".to_owned()),
        ("explain.txt", "explain --from 203.0.113.7 --to 192.0.2.2:30080".to_owned()),
        ("explain-unknown.txt", "explain --from 10.244.1.99 --to 10.96.0.99:80".to_owned()),
        ("changes.txt", "changes --service shop/web".to_owned()),
        ("top.txt", "top --once --interval 100ms --sort name --filter shop/web".to_owned()),
        ("verify.txt", format!("verify {of_proxy}")),
    ];
    assert_screens(&world.node, &commands);
}

// The sentences of `check` depend on the machine; that they are broken between words does not.
#[test]
fn a_sentence_of_check_is_broken_between_words() {
    let node = Namespace::new("check");
    let terminal = Terminal::start(&node, 80, 200);
    let lines = printed(&terminal, "check --kubeconfig /does/not/exist --cluster-cidr 10.0.0.0/8");
    assert!(lines.iter().any(|line| line.starts_with("RESULT ")) && lines.len() > 12, "{lines:#?}");
    let column = lines[0].find("FOUND").expect("the heading");
    let is_continuation =
        |line: &&String| line.starts_with(&" ".repeat(column)) && !line.trim_start().starts_with("->");
    assert!(lines.iter().filter(is_continuation).count() > 0, "{lines:#?}");
    // A word that the terminal broke would go on in the first column.
    for line in &lines[1..] {
        let is_row = ["ok", "warning", "unknown", "failure", " "].iter().any(|start| line.starts_with(start));
        assert!(is_row || line.starts_with("kube-proxy:"), "{line:?} in {lines:#?}");
    }
}
