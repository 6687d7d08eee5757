//! What is committed by netlink is what the kernel has, what nft lists, and what nft makes of the same commands.
//!
//! Each test runs again as a child in a fresh network namespace. Needs nft and the privilege for that; fails without them.

mod kernel;
#[path = "kernel/fixture.rs"]
mod kernel_fixture;
mod text_fixture;

use nft::text::command;
use nft::{Command, Ruleset, TableContent};

use kernel::{assert_committed, assert_same_text, commands, commit, connect, in_namespace, nft};

fn tables() -> Vec<TableContent> {
    text_fixture::tables().into_iter().chain(kernel_fixture::tables()).collect()
}

fn commit_all() {
    commit(&tables().iter().flat_map(commands).collect::<Vec<_>>());
}

#[test]
fn all_that_is_committed_is_read_back_as_it_was() {
    in_namespace("all_that_is_committed_is_read_back_as_it_was", || {
        commit_all();
        tables().iter().for_each(assert_committed);
    });
}

#[test]
fn nft_lists_all_that_is_committed() {
    in_namespace("nft_lists_all_that_is_committed", || {
        commit_all();
        let ours = Ruleset { tables: tables() }.to_string();
        assert_same_text(&ours, &nft(&["--stateless", "list", "ruleset"], ""));
        nft(&["list", "ruleset"], "");
        assert!(nft(&["--json", "list", "ruleset"], "").starts_with("{\"nftables\": ["));
    });
}

#[test]
fn a_listing_of_what_was_committed_is_loaded_again() {
    in_namespace("a_listing_of_what_was_committed_is_loaded_again", || {
        commit_all();
        let listing = nft(&["list", "ruleset"], "");
        nft(&["flush", "ruleset"], "");
        nft(&["-f", "-"], &listing);
        assert_same_text(&Ruleset { tables: tables() }.to_string(), &nft(&["--stateless", "list", "ruleset"], ""));
    });
}

/// A table's commands as a script. Anonymous sets have no commands of their own there: they stand in the rules.
fn script(content: &TableContent) -> Vec<String> {
    let line = |item: &Command| match item {
        Command::AddSet(_, set) | Command::AddElements(_, set, _) if set.flags.anonymous => None,
        Command::AddRule(table, chain, rule) => Some(command::add_rule(table, chain, rule, &content.sets)),
        other => Some(other.to_string()),
    };
    commands(content).iter().filter_map(line).collect()
}

#[test]
fn commands_as_text_do_the_same() {
    in_namespace("commands_as_text_do_the_same", || {
        let lines: Vec<String> = tables().iter().flat_map(script).collect();
        nft(&["-f", "-"], &lines.join("\n"));
        let by_text = nft(&["--stateless", "list", "ruleset"], "");
        nft(&["flush", "ruleset"], "");
        commit_all();
        assert_same_text(&nft(&["--stateless", "list", "ruleset"], ""), &by_text);
    });
}

#[test]
fn the_generation_grows_by_one_with_each_commit() {
    in_namespace("the_generation_grows_by_one_with_each_commit", || {
        let mut connection = connect();
        let [first, .., last] = &tables()[..] else { panic!("several tables") };
        let before = connection.generation().expect("a generation");
        connection.commit(&commands(first)).expect("committed");
        assert_eq!(connection.generation().expect("a generation"), before + 1);
        nft(&["add", "table", "ip", "foreign"], "");
        assert_eq!(connection.generation().expect("a generation"), before + 2);
        connection.commit(&commands(last)).expect("committed after a foreign change");
        assert_eq!(connection.generation().expect("a generation"), before + 3);
        assert_committed(last);
    });
}
