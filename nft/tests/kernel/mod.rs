//! What the tests on the kernel share: a network namespace for each, the host's nft, and the reading back of what was committed.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{self, Stdio};
use std::sync::Arc;

use nft::{
    Command, CommitError, Connection, Element, Expr, Refusal, RuleDump, Set, SetContent, TableContent, TableDump,
    TableName,
};

/// Runs a test's body in a network namespace of its own: as the same test of a child process.
pub(crate) fn in_namespace(test: &str, body: impl FnOnce()) {
    const MARK: &str = "NFT_TEST_IN_NAMESPACE";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("this program has a path");
    let output = process::Command::new("unshare")
        .arg("--net")
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        .output()
        .expect("unshare (util-linux) is installed");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "in the namespace (needs root or CAP_SYS_ADMIN): {text}");
    assert!(text.contains("1 passed"), "the child did not run the test: {text}");
}

/// Runs nft with arguments and input, and gives its output.
pub(crate) fn nft(args: &[&str], input: &str) -> String {
    let mut child = process::Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("nft reads its input");
    let output = child.wait_with_output().expect("nft ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {args:?}: {errors}\n{input}");
    String::from_utf8(output.stdout).expect("listings are text")
}

pub(crate) fn connect() -> Connection {
    Connection::open().expect("a netlink socket")
}

pub(crate) fn commit(commands: &[Command]) {
    connect().commit(commands).unwrap_or_else(|error| panic!("{error:#?}"));
}

/// Commits what must be refused.
pub(crate) fn refused(commands: &[Command]) -> Vec<Refusal> {
    match connect().commit(commands) {
        Err(CommitError::Refused(refusals)) => refusals,
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) fn read(name: &TableName) -> TableDump {
    let dump = connect().read_table(name).expect("readable").unwrap_or_else(|| panic!("there is no table {name}"));
    assert_eq!(dump.unreadable, [], "in {name}");
    dump
}

/// The elements of a set as the kernel has them, ordered by key.
pub(crate) fn read_set(table: &TableName, set: &Set) -> Vec<Element> {
    sorted(connect().read_set(table, set).expect("readable"))
}

pub(crate) fn sorted(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_by_key(|element| element.key);
    elements
}

/// The commands that make a table, in an order that the kernel takes.
pub(crate) fn commands(content: &TableContent) -> Vec<Command> {
    let table = &content.table.name;
    let mut commands = vec![Command::AddTable(content.table.clone())];
    commands.extend(content.chains.iter().map(|(chain, _)| Command::AddChain(table.clone(), chain.clone())));
    for (set, elements) in &content.sets {
        commands.push(Command::AddSet(table.clone(), Arc::clone(set)));
        if !elements.is_empty() {
            commands.push(Command::AddElements(table.clone(), Arc::clone(set), elements.clone()));
        }
    }
    for (chain, rules) in &content.chains {
        let add = |rule: &nft::Rule| Command::AddRule(table.clone(), Arc::clone(&chain.name), rule.clone());
        commands.extend(rules.iter().map(add));
    }
    commands
}

/// Asserts that the kernel has the table as it was sent. Anonymous sets are compared by content, in the place of their name.
pub(crate) fn assert_committed(content: &TableContent) {
    let family = content.table.name.family;
    let dump = read(&content.table.name);
    assert_eq!(dump.table, content.table);
    let sent: BTreeMap<_, _> =
        content.sets.iter().map(|(set, list)| (Arc::clone(&set.name), named(set, list))).collect();
    let kept: BTreeMap<_, _> =
        dump.sets.iter().map(|(name, (set, list))| (Arc::clone(name), named(set, list))).collect();
    let of_table = |sets: &BTreeMap<Arc<str>, NamedSet>| -> Vec<NamedSet> {
        sets.values().filter(|set| !set.0.flags.anonymous).cloned().collect()
    };
    assert_same_list(&of_table(&sent), &of_table(&kept), "sets");
    assert_eq!(dump.chains.len(), content.chains.len());
    for (chain, rules) in &content.chains {
        let (kept_chain, kept_rules) = &dump.chains[&chain.name];
        assert_eq!(chain, kept_chain);
        let rules: Vec<_> = rules.iter().map(|rule| resolved(rule.to_dump(family), &sent)).collect();
        let kept: Vec<_> = kept_rules.iter().map(|rule| resolved(rule.clone(), &kept)).collect();
        assert_same_list(&rules, &kept, &chain.name);
    }
}

fn assert_same_list<T: PartialEq + std::fmt::Debug>(sent: &[T], kept: &[T], what: &str) {
    for (sent, kept) in sent.iter().zip(kept) {
        assert_eq!(sent, kept, "{what}");
    }
    assert_eq!(sent.len(), kept.len(), "{what}");
}

/// A set with its elements ordered.
type NamedSet = (Set, Vec<Element>);

fn named(set: &Set, elements: &[Element]) -> NamedSet {
    (set.clone(), sorted(elements.to_vec()))
}

/// The rule with the content of anonymous sets in the place of their names, which the kernel chooses.
fn resolved(rule: RuleDump, sets: &BTreeMap<Arc<str>, NamedSet>) -> RuleDump {
    let resolve = |expr| match expr {
        Expr::Lookup { set, sreg, result } => Expr::Lookup { set: content_or_name(set, sets), sreg, result },
        other => other,
    };
    RuleDump { exprs: rule.exprs.into_iter().map(resolve).collect(), ..rule }
}

fn content_or_name(name: Arc<str>, sets: &BTreeMap<Arc<str>, NamedSet>) -> Arc<str> {
    match sets.get(&name) {
        Some((set, elements)) if set.flags.anonymous => {
            let nameless = Set { name: "".into(), ..set.clone() };
            format!("{nameless:?} {elements:?}").into()
        }
        _ => name,
    }
}

/// The lines of a listing, with the elements of each set one per line and sorted: the kernel has an order of its own.
pub(crate) fn normal(listing: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = listing.lines();
    while let Some(line) = rest.next() {
        let Some(elements) = line.trim_start().strip_prefix("elements = { ") else {
            lines.push(sorted_braces(line));
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

/// A rule with the elements of its anonymous set sorted.
fn sorted_braces(line: &str) -> String {
    let Some((before, rest)) = line.split_once("{ ") else { return line.to_owned() };
    let Some((list, behind)) = rest.split_once(" }") else { return line.to_owned() };
    let mut elements: Vec<&str> = list.split(", ").collect();
    elements.sort_unstable();
    format!("{before}{{ {} }}{behind}", elements.join(", "))
}

/// Asserts that two listings say the same.
pub(crate) fn assert_same_text(ours: &str, listed: &str) {
    assert_same_list(&normal(ours), &normal(listed), "ours (left), nft's (right)");
}

/// The named sets of a table.
pub(crate) fn named_sets(content: &TableContent) -> impl Iterator<Item = &SetContent> {
    content.sets.iter().filter(|(set, _)| !set.flags.anonymous)
}
