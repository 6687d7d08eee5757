//! `kube-proxy services --watch` on a real terminal: keys, sizes, and a terminal that is as before whatever ends it.

use rustix::process::Signal;

use super::top::{assert_restored, connections, node, type_and_wait};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::terminal::{Terminal, signal, wait_until_gone};

const WATCH: &str = "services --watch --interval 1";

/// The row of the first frontend.
fn first_row(screen: &str) -> &str {
    screen.lines().nth(1).unwrap_or_default()
}

test_in_each_layout!(a_watched_list_scrolls_sorts_and_fits_the_terminal);
fn a_watched_list_scrolls_sorts_and_fits_the_terminal(layout: Layout) {
    let node = node(layout);
    connections(&node, 1_000, 40, "10.200.192.74", true);
    let terminal = Terminal::start(&node, 180, 30);
    let modes = terminal.modes();
    type_and_wait(&terminal, WATCH, "SERVICE");
    let screen = terminal.wait_for("rates", |screen| screen.contains("NEW/S"));
    assert!(first_row(&screen).starts_with("default/kubernetes"), "in order of name:\n{screen}");
    let dns = "kube-system/kube-dns:dns ";
    let has_open = |screen: &str, open: &str| {
        let row = screen.lines().find(|line| line.starts_with(dns)).unwrap_or_default();
        row.contains(&format!(" {open} "))
    };
    assert!(has_open(&screen, "40") && screen.contains("rows 1 to 6 of 6"), "{screen}");
    connections(&node, 2_000, 20, "10.200.192.75", true);
    terminal.wait_for("new connections", |screen| has_open(screen, "60"));

    for (columns, rows) in [(60, 4), (140, 40), (20, 3)] {
        terminal.resize(columns, rows);
        let last = usize::from(rows) - 1;
        terminal.wait_for("the keys in the last row", |screen| {
            screen.lines().nth(last).is_some_and(|line| line.starts_with("q quit")) && screen.starts_with("SERVICE")
        });
    }
    terminal.resize(100, 3);
    terminal.key("End");
    terminal.wait_for("the last row", |screen| first_row(screen).starts_with("ym/echo-app"));
    terminal.key("Home");
    terminal.key("o");
    terminal.wait_for("the most connections first", |screen| first_row(screen).starts_with(dns));
    terminal.key("q");
    assert_restored(&terminal, &modes, "q");
}

#[test]
fn the_terminal_of_a_watched_list_is_as_before_whatever_ends_it() {
    let node = node(Layout::Maps);
    let terminal = Terminal::start(&node, 100, 24);
    let modes = terminal.modes();
    type_and_wait(&terminal, WATCH, "SERVICE");
    terminal.key("C-c");
    assert_restored(&terminal, &modes, "the key Control and C");
    for by in [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL] {
        type_and_wait(&terminal, WATCH, "SERVICE");
        let processes = terminal.processes();
        let [(watch, guards)] = processes.as_slice() else { panic!("not one process of the shell: {processes:?}") };
        signal(*watch, by);
        for guard in guards {
            wait_until_gone(*guard);
        }
        assert_restored(&terminal, &modes, &format!("{by:?}"));
    }
}
