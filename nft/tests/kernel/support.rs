//! Helpers of the tests: a network namespace for each test, the `nft` program, and the comparison of sent and listed objects.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{self, Stdio};
use std::sync::Arc;

use nft::{
    Command, CommitError, Connection, Element, ElementRef, Elements, Field, Refusal, Set, TableContent, TableDump,
    TableName, Types,
};

/// Runs the body of a test in a network namespace of its own: starts this program again as a child that runs only this test.
pub(crate) fn in_namespace(body: impl FnOnce()) {
    const MARK: &str = "NFT_TEST_IN_NAMESPACE";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let thread = std::thread::current();
    let test = thread.name().expect("the test harness names each thread after its test");
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
    text.lines().filter(|line| line.starts_with(NOT_SHOWN)).for_each(say);
}

/// The start of a line that says what a test did not check, because the kernel or nft lacks it.
const NOT_SHOWN: &str = "NOT SHOWN: ";

/// Writes a line directly to standard error: the test harness hides what a successful test prints with `println!`, but not this.
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is open");
}

/// Returns whether the kernel accepts commands that make `table`, which kernels accept from release `since` on, and deletes the table
/// again. If an older kernel refuses them, prints a line; if a kernel from that release on refuses them, panics.
pub(crate) fn kernel_has(what: &str, since: (u32, u32), table: &TableName, commands: &[Command]) -> bool {
    let mut connection = connect();
    match connection.commit(commands) {
        Ok(_) => {
            connection.commit(&[Command::DeleteTable(table.clone())]).expect("a table of this test can be deleted");
            true
        }
        Err(error) => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel has a release");
            let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
            let is = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            assert!(is < since, "{release} refuses {what}, which kernels have from {since:?} on: {error:#?}");
            say(&format!("{NOT_SHOWN}{what}: kernels have it from {}.{} on", since.0, since.1));
            false
        }
    }
}

/// Returns the tables without the elements that this nft loads with other keys than it lists, and prints a line if this nft does so. nft
/// 1.1.7 puts a key that is only a generated number into network order when it loads it, while kernels and nft 1.0.6 have it in host order.
pub(crate) fn loadable(mut tables: Vec<TableContent>) -> Vec<TableContent> {
    const PROBE: &str =
        "table ip probe { map m { typeof numgen random mod 4 : verdict; elements = { 1 : accept }; }; }";
    nft(&["-f", "-"], PROBE);
    let keeps_numbers = nft(&["list", "map", "ip", "probe", "m"], "").contains(" 1 : accept");
    nft(&["delete", "table", "ip", "probe"], "");
    if !keeps_numbers {
        say(&format!("{NOT_SHOWN}keys that are generated numbers: this nft loads them in network order"));
        let sets = tables.iter_mut().flat_map(|content| &mut content.sets);
        sets.filter(|(set, _)| matches!(&set.key, Types::Of(fields) if matches!(fields[..], [Field::NumgenRandom(_)])))
            .for_each(|(_, elements)| elements.clear());
    }
    tables
}

/// Runs nft with arguments and an input, and gives its output.
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

/// Commits commands and returns the kernel's refusals; panics when the kernel refuses none.
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

fn unpacked(elements: &Elements) -> Vec<Element> {
    elements.iter().map(ElementRef::element).collect()
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
            commands.push(Command::AddElements(table.clone(), Arc::clone(set), elements.clone().into()));
        }
    }
    for (chain, rules) in &content.chains {
        let add = |rule: &nft::Rule| Command::AddRule(table.clone(), Arc::clone(&chain.name), rule.clone());
        commands.extend(rules.iter().map(add));
    }
    commands
}

/// Asserts that the kernel has the table as it was sent.
pub(crate) fn assert_committed(content: &TableContent) {
    let family = content.table.name.family;
    let dump = read(&content.table.name);
    assert_eq!(dump.table, content.table);
    let sent: BTreeMap<_, _> =
        content.sets.iter().map(|(set, list)| (&set.name, (&**set, sorted(list.clone())))).collect();
    let kept: BTreeMap<_, _> =
        dump.sets.iter().map(|(name, (set, list))| (name, (set, sorted(unpacked(list))))).collect();
    assert_same_list(&sent.into_values().collect::<Vec<_>>(), &kept.into_values().collect::<Vec<_>>(), "sets");
    assert_eq!(dump.chains.len(), content.chains.len());
    for (chain, rules) in &content.chains {
        let (kept_chain, kept_rules) = &dump.chains[&chain.name];
        assert_eq!(chain, kept_chain);
        let rules: Vec<_> = rules.iter().map(|rule| rule.to_dump(family)).collect();
        assert_same_list(&rules, kept_rules, &chain.name);
    }
}

fn assert_same_list<T: PartialEq + std::fmt::Debug>(sent: &[T], kept: &[T], what: &str) {
    for (sent, kept) in sent.iter().zip(kept) {
        assert_eq!(sent, kept, "{what}");
    }
    assert_eq!(sent.len(), kept.len(), "{what}");
}

/// The line with the priority of a chain as a number: nft 1.1.3 has names for more hooks than nft 1.0.6.
fn with_numeric_priority(line: &str) -> String {
    const NAMES: [(&str, i32); 6] =
        [("raw", -300), ("mangle", -150), ("dstnat", -100), ("filter", 0), ("security", 50), ("srcnat", 100)];
    let priority = || {
        let (before, rest) = line.split_once(" priority ")?;
        let (text, after) = rest.split_once(';')?;
        let mut words = text.split(' ');
        let name = words.next()?;
        let base = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)?;
        let offset: i32 = words.collect::<String>().parse().unwrap_or(0);
        Some(format!("{before} priority {};{after}", base + offset))
    };
    priority().unwrap_or_else(|| line.to_owned())
}

/// The lines of a listing, with one line for each element of a set, sorted, because the kernel lists them in an order of its own.
fn normal(listing: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = listing.lines();
    while let Some(line) = rest.next() {
        let Some(elements) = line.trim_start().strip_prefix("elements = { ") else {
            // nft 1.1.7 appends the number of elements to the line of a set, behind `# count`. Older versions do not, so it is cut off.
            lines.push(with_numeric_priority(line.split("\t# count ").next().unwrap_or(line)));
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

/// Asserts that two listings are equal except for the order of elements.
pub(crate) fn assert_same_text(ours: &str, listed: &str) {
    assert_same_list(&normal(ours), &normal(listed), "ours (left), nft's (right)");
}
