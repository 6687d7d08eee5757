//! The completion of zsh and fish: the names of Services come from the kernel's tables. That of bash is in the packet tests.

use super::top::node;
use crate::support::layout::Layout;
use crate::support::netns::run;
use crate::support::proxy::binary;
use crate::support::terminal::Terminal;

/// `PATH` with the binary's folder in front.
fn path() -> String {
    let program = binary();
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.parent().expect("the binary is in a folder").display())
}

// The names of Services are completed (Q9).
#[test]
fn fish_completes_commands_options_and_the_names_of_services() {
    let node = node(Layout::Maps);
    let completed = |words: &str| {
        let script = format!("kube-proxy completion fish | source; complete -C '{words}'");
        let mut fish = node.command("fish");
        let text = run(fish.env("PATH", path()).env("HOME", "/nonexistent").args(["--no-config", "-c", &script]));
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(completed("kube-proxy serv"), ["services"]);
    assert_eq!(completed("kube-proxy services --sta"), ["--stats"]);
    assert_eq!(completed("kube-proxy services kube"), ["kube-system/kube-dns"]);
    assert_eq!(completed("kube-proxy probe kube"), ["kube-system/kube-dns"]);
    assert_eq!(completed("kube-proxy changes --service ym"), ["ym/echo-app"]);
    assert_eq!(completed("kube-proxy explain --to kube"), ["kube-system/kube-dns"]);
    assert_eq!(completed("kube-proxy services 10.96.0.10:91"), ["10.96.0.10:9153"]);
    assert_eq!(completed("kube-proxy services -n kube"), ["kube-system"]);
    assert_eq!(completed("kube-proxy probe --namespace y"), ["ym"]);
    assert_eq!(completed("kube-proxy services 300"), ["30080"]);
    assert_eq!(completed("kube-proxy explain --to 300"), [""; 0], "a packet goes to an address");
    assert_eq!(completed("kube-proxy --ruleset-layout "), ["chains", "maps"]);
    assert_eq!(completed("kube-proxy explain --from "), [""; 0]);
}

// The names of Services are completed (Q9).
#[test]
fn zsh_completes_commands_options_and_the_names_of_services() {
    let node = node(Layout::Maps);
    let terminal = Terminal::start(&node, 120, 20);
    terminal.line(&format!("PATH={} PS1='zsh> ' zsh -f", path()));
    terminal.wait_for("the prompt of zsh", |screen| screen.contains("zsh>"));
    terminal.line("autoload -U compinit; compinit -u -D; source <(kube-proxy completion zsh); clear");
    for (typed, completed) in [
        ("kube-proxy serv", "kube-proxy services "),
        ("kube-proxy services --sta", "kube-proxy services --stats "),
        ("kube-proxy services kube", "kube-proxy services kube-system/kube-dns "),
        ("kube-proxy probe kube", "kube-proxy probe kube-system/kube-dns "),
        ("kube-proxy changes --service ym", "kube-proxy changes --service ym/echo-app "),
        ("kube-proxy explain --to kube", "kube-proxy explain --to kube-system/kube-dns "),
        ("kube-proxy services 10.96.0.10:91", "kube-proxy services 10.96.0.10:9153 "),
        ("kube-proxy services -n kube", "kube-proxy services -n kube-system "),
        ("kube-proxy probe 300", "kube-proxy probe 30080 "),
        ("kube-proxy --ruleset-layout ch", "kube-proxy --ruleset-layout chains "),
    ] {
        terminal.wait_for("an empty line", |screen| screen.trim_end().ends_with("zsh>"));
        terminal.text(typed);
        terminal.key("Tab");
        terminal.text("|");
        // zsh takes its own space back before a bar.
        let completed = format!("zsh> {}|", completed.trim_end());
        terminal.wait_for(&completed, |screen| screen.contains(&completed));
        terminal.key("C-u");
    }
}
