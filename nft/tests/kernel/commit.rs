//! A commit over netlink has the same result as nft with the same commands: in the kernel, and in nft's listing.

use nft::{Ruleset, TableContent};

use crate::fixtures::all_tables as tables;
use crate::support::{assert_committed, assert_same_text, commands, commit, connect, in_namespace, loadable, nft};

fn commit_all() {
    commit_tables(&tables());
}

fn commit_tables(tables: &[TableContent]) {
    commit(&tables.iter().flat_map(commands).collect::<Vec<_>>());
}

#[test]
fn committed_tables_are_read_back_as_they_were() {
    in_namespace(|| {
        commit_all();
        tables().iter().for_each(assert_committed);
    });
}

#[test]
fn nft_lists_committed_tables_in_the_same_words() {
    in_namespace(|| {
        commit_all();
        let ours = Ruleset { tables: tables() }.to_string();
        assert_same_text(&ours, &nft(&["--stateless", "list", "ruleset"], ""));
        nft(&["list", "ruleset"], "");
        assert!(nft(&["--json", "list", "ruleset"], "").starts_with("{\"nftables\": ["));
    });
}

#[test]
fn nft_loads_its_listing_of_committed_tables() {
    in_namespace(|| {
        let tables = loadable(tables());
        commit_tables(&tables);
        let listing = nft(&["list", "ruleset"], "");
        nft(&["flush", "ruleset"], "");
        nft(&["-f", "-"], &listing);
        assert_same_text(&Ruleset { tables }.to_string(), &nft(&["--stateless", "list", "ruleset"], ""));
    });
}

/// The commands that make a table, as lines for `nft -f`.
fn script(content: &TableContent) -> Vec<String> {
    commands(content).iter().map(ToString::to_string).collect()
}

#[test]
fn nft_makes_the_same_tables_of_the_text_of_the_commands() {
    in_namespace(|| {
        let tables = loadable(tables());
        let lines: Vec<String> = tables.iter().flat_map(script).collect();
        nft(&["-f", "-"], &lines.join("\n"));
        let by_text = nft(&["--stateless", "list", "ruleset"], "");
        nft(&["flush", "ruleset"], "");
        commit_tables(&tables);
        assert_same_text(&nft(&["--stateless", "list", "ruleset"], ""), &by_text);
    });
}

#[test]
fn the_generation_grows_by_one_with_each_commit() {
    in_namespace(|| {
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
