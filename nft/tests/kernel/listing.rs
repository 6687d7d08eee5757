//! nft loads this crate's text of a ruleset, both as a listing and command by command, and then lists the ruleset in the same words.

use std::sync::Arc;
use std::time::Duration;

use nft::statement::CtBit;
use nft::{Chain, Command, Field, Operand, Rule, Ruleset, Statement, TableContent};

use crate::fixtures::{chain, statement_tables};
use crate::support::{assert_same_text, commands, in_namespace, loadable, nft};

/// The tables of the fixture, with more rules, for which nft sends other expressions than this crate but prints the same words.
fn tables() -> Vec<TableContent> {
    let mut tables = statement_tables();
    let aligned = Statement::Match(vec![Field::IpSaddr], Operand::NotInPrefix([10, 244, 0, 0].into(), 16));
    let protocol = |number: u8| Statement::Match(vec![Field::L4Proto], Operand::Is(number.into()));
    let port = Statement::Match(vec![Field::ThDport], Operand::Is(53_u16.into()));
    let update = Statement::Update {
        set: "affinity-x".into(),
        key: vec![Field::IpSaddr],
        value: vec![Field::IpDaddr, Field::ThDport],
        timeout: Some(Duration::from_secs(5400)),
    };
    let dnat = Statement::Dnat(([10, 0, 0, 1], 80).into());
    let rules = vec![
        Rule::new([aligned]),
        Rule::new([protocol(17), Statement::CtBit(CtBit::StateNew), port]),
        Rule::new([protocol(6), dnat]),
        Rule::new([update]),
    ];
    tables[0].chains.push(chain("lowered-otherwise", rules));
    tables
}

/// Loads an input and gives nft's listing.
fn load_and_list(input: &str) -> String {
    nft(&["-f", "-"], input);
    nft(&["--stateless", "list", "ruleset"], "")
}

/// The commands that delete the content of a table.
fn deletions(content: &TableContent) -> Vec<Command> {
    let table = || content.table.name.clone();
    let name = |(chain, _): &(Chain, Vec<Rule>)| Arc::clone(&chain.name);
    let flush = content.chains.iter().map(|chain| Command::FlushChain(table(), name(chain)));
    let filled = content.sets.iter().filter(|(_, elements)| !elements.is_empty());
    let empty = filled.map(|(set, list)| Command::DeleteElements(table(), Arc::clone(set), list.clone().into()));
    let sets = content.sets.iter().map(|(set, _)| Command::DeleteSet(table(), Arc::clone(set)));
    let chains = content.chains.iter().map(|chain| Command::DeleteChain(table(), name(chain)));
    flush.chain(empty).chain(sets).chain(chains).collect()
}

fn lines(commands: impl IntoIterator<Item = Command>) -> String {
    commands.into_iter().map(|command| command.to_string() + "\n").collect()
}

#[test]
fn a_listing_is_what_nft_lists() {
    in_namespace(|| {
        let ours = Ruleset { tables: loadable(tables()) }.to_string();
        assert_same_text(&ours, &load_and_list(&ours));
    });
}

#[test]
fn commands_make_the_same_ruleset() {
    in_namespace(|| {
        let tables = loadable(tables());
        let ours = Ruleset { tables: tables.clone() }.to_string();
        assert_same_text(&ours, &load_and_list(&lines(tables.iter().flat_map(commands))));
    });
}

#[test]
fn deleting_commands_leave_empty_tables() {
    in_namespace(|| {
        let tables = loadable(tables());
        let commands = tables.iter().flat_map(commands).chain(tables.iter().flat_map(deletions)).collect::<Vec<_>>();
        let empty = tables.iter().cloned().map(|content| TableContent::new(content.table)).collect();
        assert_same_text(&Ruleset { tables: empty }.to_string(), &load_and_list(&lines(commands)));
        let tables = tables.into_iter().map(|content| Command::DeleteTable(content.table.name));
        assert_eq!(load_and_list(&lines(tables)), "");
    });
}

#[test]
fn a_command_is_one_line() {
    let content = tables().swap_remove(0);
    let (set, elements) = &content.sets[0];
    let (name, one) = (content.table.name, elements[..1].to_vec());
    let [add, delete, destroy] = [Command::AddElements, Command::DeleteElements, Command::DestroyElements]
        .map(|command| command(name.clone(), Arc::clone(set), one.clone().into()).to_string());
    let key = "element ip kube-proxy services { 10.96.0.10 . tcp . 80";
    assert_eq!(add, format!(r#"add {key} comment "ns/web:http" : goto lb-2 }}"#));
    assert_eq!(delete, format!("delete {key} }}"));
    assert_eq!(destroy, format!("destroy {key} }}"));
}

#[test]
fn flags_and_comments_of_a_table_are_in_its_command() {
    let table = |comment: Option<&str>| nft::Table {
        name: nft::TableName::new(nft::Family::Inet, "t"),
        comment: comment.map(Into::into),
    };
    assert_eq!(Command::AddTable(table(None)).to_string(), "add table inet t");
    assert_eq!(Command::AddTable(table(Some("c"))).to_string(), "add table inet t { comment \"c\"; }");
    assert_eq!(Command::LockTable(table(Some("c"))).to_string(), "add table inet t { flags owner; comment \"c\"; }");
    assert_eq!(Command::OwnTable(table(None)).to_string(), "add table inet t { flags owner,persist; }");
}
