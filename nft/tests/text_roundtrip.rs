//! The text of a ruleset is what nft lists after loading it: as a listing, and command by command.
//!
//! Needs nft 1.0.6 or newer and the privilege to make a network namespace; fails without them.

mod text_fixture;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nft::statement::CtBit;
use nft::text::command;
use nft::{Chain, Field, Operand, Rule, Ruleset, Statement, TableContent};

/// The fixture, and rules that nft lowers in another way than this crate but lists alike.
fn tables() -> Vec<TableContent> {
    let mut tables = text_fixture::tables();
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
    tables[0].chains.push((Chain { name: "lowered-otherwise".into(), base: None, comment: None }, rules));
    tables
}

/// Loads the input into a fresh network namespace and gives nft's listing of it.
fn load_and_list(input: &str) -> String {
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-c", "nft -f - && exec nft --stateless list ruleset"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare (util-linux) is installed");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("sh reads its input");
    let output = child.wait_with_output().expect("the child ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "needs nft, and root or CAP_NET_ADMIN for a namespace: {errors}\n{input}");
    String::from_utf8(output.stdout).expect("listings are text")
}

/// The lines of a listing, with the elements of each set one per line and sorted: the kernel has an order of its own.
fn normal(listing: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = listing.lines();
    while let Some(line) = rest.next() {
        let Some(elements) = line.trim_start().strip_prefix("elements = { ") else {
            lines.push(line.to_owned());
            continue;
        };
        let mut text = elements.to_owned();
        while !text.ends_with(" }") {
            text = format!("{text} {}", rest.next().expect("the list is closed").trim());
        }
        let mut elements: Vec<&str> = text.trim_end_matches(" }").split(',').map(str::trim).collect();
        elements.sort_unstable();
        lines.extend(elements.into_iter().map(|element| format!("element {element}")));
    }
    lines
}

fn assert_same(ours: &str, listed: &str) {
    for (ours, listed) in normal(ours).iter().zip(normal(listed)) {
        assert_eq!(*ours, listed, "ours is left");
    }
    assert_eq!(normal(ours).len(), normal(listed).len());
}

/// Every command that builds the tables from nothing.
fn commands(content: &TableContent) -> Vec<String> {
    let table = &content.table.name;
    let mut lines = vec![command::add_table(&content.table)];
    let named = || content.sets.iter().filter(|(set, _)| !set.flags.anonymous);
    // Chains first: nft sends the elements of an interval map together with the map, whatever the order of the lines.
    lines.extend(content.chains.iter().map(|(chain, _)| command::add_chain(table, chain)));
    lines.extend(named().map(|(set, _)| command::add_set(table, set)));
    let filled = named().filter(|(_, elements)| !elements.is_empty());
    lines.extend(filled.map(|(set, elements)| command::add_elements(table, set, elements)));
    for (chain, rules) in &content.chains {
        lines.extend(rules.iter().map(|rule| command::add_rule(table, &chain.name, rule, &content.sets)));
    }
    lines
}

/// Every command that takes the content of the tables away again.
fn inverse_commands(content: &TableContent) -> Vec<String> {
    let table = &content.table.name;
    let mut lines: Vec<String> =
        content.chains.iter().map(|(chain, _)| command::flush_chain(table, &chain.name)).collect();
    let named = || content.sets.iter().filter(|(set, _)| !set.flags.anonymous);
    let filled = named().filter(|(_, elements)| !elements.is_empty());
    lines.extend(filled.map(|(set, elements)| command::delete_elements(table, set, elements)));
    lines.extend(named().map(|(set, _)| command::delete_set(table, set)));
    lines.extend(content.chains.iter().map(|(chain, _)| command::delete_chain(table, &chain.name)));
    lines
}

#[test]
fn a_listing_is_what_nft_lists() {
    let ours = Ruleset { tables: tables() }.to_string();
    assert_same(&ours, &load_and_list(&ours));
}

#[test]
fn commands_make_the_same_ruleset() {
    let input: Vec<String> = tables().iter().flat_map(commands).collect();
    let ours = Ruleset { tables: tables() }.to_string();
    assert_same(&ours, &load_and_list(&input.join("\n")));
}

#[test]
fn deleting_commands_leave_empty_tables() {
    let content = tables();
    let mut input: Vec<String> =
        content.iter().flat_map(commands).chain(content.iter().flat_map(inverse_commands)).collect();
    let empty = content.into_iter().map(|content| TableContent::new(content.table)).collect();
    assert_same(&Ruleset { tables: empty }.to_string(), &load_and_list(&input.join("\n")));
    input.extend(tables().iter().map(|content| command::delete_table(&content.table.name)));
    assert_eq!(load_and_list(&input.join("\n")), "");
}

#[test]
fn a_command_is_one_line() {
    let tables = tables();
    let (services, elements) = &tables[0].sets[0];
    let text = command::add_elements(&tables[0].table.name, services, &elements[..1]);
    assert_eq!(
        text,
        r#"add element ip kube-proxy services { 10.96.0.10 . tcp . 80 comment "ns/web:http" : goto lb-2 }"#
    );
    let text = command::delete_elements(&tables[0].table.name, services, &elements[..1]);
    assert_eq!(text, "delete element ip kube-proxy services { 10.96.0.10 . tcp . 80 }");
}
