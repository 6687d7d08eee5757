//! What the commands print on a terminal of 80 columns and 24 rows, beside a running proxy. `BLESS=1 cargo test --test process screen`
//! writes `tests/data/inspect/80x24` again; look at the difference then.

use std::fs;
use std::path::Path;

use crate::support::layout::Layout;
use crate::support::mixed;
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::slices;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, binary, config_in};
use crate::support::terminal::Terminal;
use crate::support::world::World;

/// The lines that a command prints on the terminal.
fn printed(terminal: &Terminal, arguments: &str) -> Vec<String> {
    terminal.line("clear");
    terminal.wait_for("an empty screen", |screen| screen.trim() == "ready>");
    // The line that is typed must not look like the mark of the end, wherever the terminal breaks it.
    terminal.line(&format!("clear; {} {arguments}; echo o''ver", binary().display()));
    let screen = terminal.wait_for("the end", |screen| screen.lines().any(|line| line == "over"));
    screen.lines().take_while(|line| *line != "over").map(str::to_owned).collect()
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

#[test]
fn the_commands_fit_a_terminal_of_80_columns_and_24_rows() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &mixed::cluster());
    let terminal = Terminal::start(&world.node, 80, 24);
    for (name, arguments) in [
        ("services", "services 10.96.0.1:80"),
        ("not-served", "services --not-served"),
        ("explain", "explain --from 10.244.1.99 --to shop/web:http"),
        ("explain-unknown", "explain --from 10.244.1.99 --to 10.96.0.99:80"),
        ("sources", "services 192.0.2.131"),
        ("stats", "services --stats 10.96.0.1:80"),
        ("error", "services 10.96.0.1:81"),
        ("top", "top --once --interval 100ms --sort name --filter shop/web"),
    ] {
        let lines = printed(&terminal, arguments);
        assert!(lines.len() < 24, "{name}: more than a screen");
        assert_expected(&format!("{name}.txt"), &(lines.join("\n") + "\n"));
    }
    // Times and numbers of syncs are different each time.
    proxy.apply(&slices("shop", "web", &[0], &[("http", Proto::Tcp, 8080)]));
    let lines = printed(&terminal, "changes --service shop/web");
    assert!(lines[0].starts_with("TIME ") && lines[0].ends_with(" RESULT"), "{lines:#?}");
    assert!(lines[1].trim() == "CHANGE" && lines.iter().any(|line| line.starts_with("    endpoints ")), "{lines:#?}");

    let (config, manifests) = (proxy.config_path(), proxy.manifests().path().to_owned());
    proxy.kill();
    nft::load(&world.node, "flush chain ip kube-proxy KUBE-REJECT");
    let arguments = format!("verify --config {} --manifests {}", config.display(), manifests.display());
    assert_expected("verify.txt", &(printed(&terminal, &arguments).join("\n") + "\n"));
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
