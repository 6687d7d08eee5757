//! Which statement of `tests/BEHAVIOUR.md` is covered by which test.
//!
//! A test names the statements that it shows by their numbers: in a comment above it or within it, in parentheses behind the rule in
//! words (`// Hints narrow the choice (C2, C3).`), or at the start of a line of the comment. Writes the table `tests/COVERAGE.md`
//! (`BLESS=1 cargo test --test project coverage`). Fails when a statement has neither a test nor a reason here, when a reason is left over,
//! when the table is not what the tests say, when a comment or a page names a statement that does not exist, and when a comment is only
//! numbers, because a reader needs the rule in words.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Statements without a test, and why.
const REASONS: &[(&str, &str)] = &[
    ("C10", "a race of upstream's start-up; here nothing is written before the initial objects (G1), which is tested"),
    ("F7", "the hooks and priorities are in every ruleset of nft/rulesets, which the test `golden` compares"),
    ("G12", "one thread syncs"),
];

/// A statement's number, such as `D6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Statement(char, u32);

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

impl Statement {
    /// Reads a word such as `D6`. No section has a letter behind Q or a number above 99.
    fn parse(word: &str) -> Option<Self> {
        let section = word.chars().next().filter(|letter| ('A'..='R').contains(letter))?;
        let digits = &word[1..];
        let is_number = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !digits.starts_with('0')).then(|| Some(Self(section, digits.parse().ok()?)))?
    }
}

/// The statements of a list such as `D6, D7` or `K1 to K3, K5`; `None` if there is anything else in it, or nothing.
fn list(text: &str) -> Option<Vec<Statement>> {
    let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty() && *word != "and").collect();
    let mut found: Vec<Statement> = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "to" {
            let (first, last) = (*found.last()?, Statement::parse(words.next()?)?);
            found.extend((first.1 + 1..=last.1).filter(|_| first.0 == last.0).map(|number| Statement(first.0, number)));
        } else {
            found.push(Statement::parse(word)?);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The statements that a comment says its test shows. `lines` are those of the comment, without their marks.
fn shown(lines: &[&str]) -> Vec<Statement> {
    let heads = lines.iter().filter_map(|line| list(line.split([':', ';']).next()?));
    let text = lines.join(" ");
    let parentheses = text.split('(').skip(1).filter_map(|rest| list(rest.split_once(')')?.0));
    heads.chain(parentheses).flatten().collect()
}

/// The text of a line that is a comment as a whole.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim)
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ").unwrap_or(line.trim_start());
    let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split('(').next()
}

/// How the line above the function of a test starts.
const TESTS: [&str; 4] = ["#[test]", "#[tokio::test", "test_in_each_layout!(", "test_in_each_format!("];

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The tests of a file with the statements they name.
fn tests_of(text: &str) -> Vec<(String, Vec<Statement>)> {
    let mut tests: Vec<(String, Vec<Statement>)> = Vec::new();
    // The indentation of the test that the lines belong to, while they do.
    let mut within: Option<usize> = None;
    let mut above: Vec<Statement> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(text) = comment(line) {
            let mut block = vec![text];
            while let Some(more) = lines.next_if(|next| comment(next).is_some()) {
                block.extend(comment(more));
            }
            let named = shown(&block);
            match tests.last_mut().filter(|_| within.is_some_and(|test| indentation(line) > test)) {
                Some((_, list)) => list.extend(named),
                None => above = named,
            }
            continue;
        }
        if TESTS.iter().any(|start| line.trim_start().starts_with(start)) {
            within = Some(indentation(line));
            tests.push((String::new(), std::mem::take(&mut above)));
        } else if line.trim_start().starts_with('}') && within.is_some_and(|test| indentation(line) <= test) {
            within = None;
        } else if let Some(name) = function_name(line)
            && let Some((test, _)) = tests.last_mut().filter(|(test, _)| test.is_empty())
        {
            name.clone_into(test);
        }
        // A comment belongs to a test only if nothing but attributes stands between them.
        if !line.trim_start().starts_with("#[") {
            above.clear();
        }
    }
    tests.retain(|(_, list)| !list.is_empty());
    tests
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder of the repository with one of these endings, without what cargo builds.
fn files(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(path.strip_prefix(root()).unwrap().to_str().unwrap(), endings));
        } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn place(file: &Path) -> String {
    file.strip_prefix(root()).unwrap().display().to_string()
}

/// Every statement that a test names, with the tests.
fn covered() -> BTreeMap<Statement, BTreeSet<String>> {
    let mut covered: BTreeMap<Statement, BTreeSet<String>> = BTreeMap::new();
    for file in ["src", "nft", "tests"].into_iter().flat_map(|folder| files(folder, &["rs"])) {
        for (test, list) in tests_of(&fs::read_to_string(&file).unwrap()) {
            for statement in list {
                covered.entry(statement).or_default().insert(format!("`{}`: {test}", place(&file)));
            }
        }
    }
    covered
}

/// The statements of the contract, each with its first sentence.
fn contract() -> BTreeMap<Statement, String> {
    statements(&fs::read_to_string(root().join("tests/BEHAVIOUR.md")).unwrap())
}

fn statements(page: &str) -> BTreeMap<Statement, String> {
    let mut found = BTreeMap::new();
    for rest in page.split("- <a id=\"").skip(1) {
        let (anchor, rest) = rest.split_once("\"></a>**").expect("an anchor is followed by its statement's number");
        let (number, rest) = rest.split_once("** ").expect("a number is followed by its statement");
        assert_eq!(anchor, number.to_lowercase(), "anchors are numbers in lower case");
        let text = rest.split("\n- ").next().unwrap().split("\n\n").next().unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = words.split_once(". ").map_or(words.as_str(), |(first, _)| first);
        let statement = Statement::parse(number).unwrap_or_else(|| panic!("{number} is no statement's number"));
        let before = found.insert(statement, sentence.trim_end_matches('.').replace('|', "\\|"));
        assert_eq!(before, None, "{number} stands twice");
    }
    found
}

fn reason(wanted: Statement) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| Statement::parse(name) == Some(wanted)).map(|(_, text)| *text)
}

fn table(covered: &BTreeMap<Statement, BTreeSet<String>>) -> String {
    let mut text = "# Which test covers which statement\n\nWritten by `BLESS=1 cargo test --test project coverage` from the comments \
                    of the tests; not by hand.\nThe statements are those of [BEHAVIOUR.md](BEHAVIOUR.md), each with its first sentence.\n\n\
                    | statement | | tests |\n|---|---|---|\n"
        .to_owned();
    for (statement, sentence) in contract() {
        let tests = covered.get(&statement).map(|tests| tests.iter().cloned().collect::<Vec<_>>().join("<br>"));
        let cell = tests.or_else(|| reason(statement).map(|text| format!("none: {text}"))).unwrap_or("none".to_owned());
        let anchor = statement.to_string().to_lowercase();
        writeln!(text, "| [{statement}](BEHAVIOUR.md#{anchor}) | {sentence} | {cell} |").unwrap();
    }
    text
}

#[test]
fn every_statement_has_a_test_or_a_reason() {
    let covered = covered();
    let missing: Vec<String> = contract()
        .into_iter()
        .filter(|(statement, _)| !covered.contains_key(statement) && reason(*statement).is_none())
        .map(|(statement, sentence)| format!("{statement}: {sentence}"))
        .collect();
    assert!(missing.is_empty(), "no test names\n{}", missing.join("\n"));
    let idle: Vec<&str> =
        REASONS.iter().map(|(name, _)| *name).filter(|n| covered.contains_key(&Statement::parse(n).unwrap())).collect();
    assert!(idle.is_empty(), "there are tests for {}: drop their reasons", idle.join(", "));
}

#[test]
fn the_table_says_what_the_tests_say() {
    let path = root().join("tests/COVERAGE.md");
    let wanted = table(&covered());
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let present = fs::read_to_string(&path).unwrap_or_default();
    assert!(present == wanted, "tests/COVERAGE.md is out of date: run BLESS=1 cargo test --test project coverage");
}

/// The statements that a line names: in the comment of a source or script, or anywhere on a page.
fn named(line: &str, is_page: bool) -> Vec<Statement> {
    let start = if is_page { Some(0) } else { line.find("//").or_else(|| line.find('#')) };
    let text = start.map_or("", |start| &line[start..]);
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(Statement::parse).collect()
}

#[test]
fn every_number_that_a_comment_or_a_page_names_is_a_statement() {
    let contract = contract();
    let mut unknown = String::new();
    let folders = ["src", "nft", "tests", "benches", "vm-tests", "deploy", "examples"];
    let pages = ["README.md", "CHANGELOG.md"].map(|page| root().join(page));
    for file in folders.into_iter().flat_map(|folder| files(folder, &["rs", "md", "sh"])).chain(pages) {
        let is_page = file.extension().is_some_and(|ending| ending == "md");
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            for statement in named(line, is_page).into_iter().filter(|found| !contract.contains_key(found)) {
                writeln!(unknown, "{}:{}: {statement}", place(&file), number + 1).unwrap();
            }
        }
    }
    assert!(unknown.is_empty(), "tests/BEHAVIOUR.md has no such statement:\n{unknown}");
}

/// The lines of a source that are comments of numbers and nothing else. A number may stand alone on a later line of a comment in words.
fn only_numbers(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut follows_words = false;
    for (number, line) in (1..).zip(text.lines()) {
        let rest = line.rsplit_once("//").map(|(_, rest)| rest.trim_start_matches(['/', '!']));
        let is_only_numbers =
            rest.is_some_and(|rest| list(rest.trim_matches([' ', '(', ')', '.', ';', ':'])).is_some());
        if is_only_numbers && !follows_words {
            found.push((number, line.trim()));
        }
        follows_words = comment(line).is_some() && (follows_words || !is_only_numbers);
    }
    found
}

#[test]
fn no_comment_is_only_numbers() {
    let mut found = String::new();
    for file in ["src", "nft", "tests", "benches"].into_iter().flat_map(|folder| files(folder, &["rs"])) {
        for (number, line) in only_numbers(&fs::read_to_string(&file).unwrap()) {
            // The lines of this file that are input of the tests below stand between quotation marks.
            if !line.starts_with('"') {
                writeln!(found, "{}:{number}: {line}", place(&file)).unwrap();
            }
        }
    }
    assert!(found.is_empty(), "these comments do not say their rule in words:\n{found}");
}

#[test]
fn comments_of_numbers_are_found_with_and_without_parentheses() {
    let text = "// D6\nfn a() {}\n    /// I1 to I3.\n    // (C9; \n    let b = 1; // H3, H5\n// Words (C2,\n// C3).\n// In words (A1).\n// http://D6x";
    let lines: Vec<usize> = only_numbers(text).into_iter().map(|(number, _)| number).collect();
    assert_eq!(lines, [1, 3, 4, 5]);
}

#[test]
fn statements_are_found_above_and_within_tests() {
    let lines = [
        "// D6 D7",
        "#[test]",
        "fn above() {}",
        "#[test]",
        "fn within() {",
        "    // C9, E1",
        "}",
        "/// Helps (A2).",
        "fn helper() {",
        "    // A1",
        "}",
        "/// Words, also",
        "/// over lines (K1 to K3,",
        "/// K5).",
        "#[ignore]",
        "#[test]",
        "fn words() {",
        "    let a = 1; // A3",
        "}",
        "// (A4)",
        "",
        "#[test]",
        "fn apart() {}",
        "test_in_each_layout!(twice);",
        "fn twice(layout: Layout) {",
        "    // It happens in both (B1).",
        "}",
    ];
    let of = |names: &[&str]| names.iter().map(|name| Statement::parse(name).unwrap()).collect::<Vec<_>>();
    let found = tests_of(&lines.join("\n"));
    let expected = [
        ("above", of(&["D6", "D7"])),
        ("within", of(&["C9", "E1"])),
        ("words", of(&["K1", "K2", "K3", "K5"])),
        ("twice", of(&["B1"])),
    ];
    assert_eq!(found, expected.map(|(name, list)| (name.to_owned(), list)));
    assert_eq!(shown(&["D6 is about this"]), []);
    assert_eq!(shown(&["D6, D7: both"]), of(&["D6", "D7"]));
    assert_eq!(shown(&["as upstream (a bug in J4, and J5)"]), [], "words in parentheses name no statement to be shown");
    assert_eq!(["A1", "P11"].map(Statement::parse).map(|found| found.is_some()), [true, true]);
    for word in ["", "A", "A0", "A100", "a1", "V4", "C2a"] {
        assert_eq!(Statement::parse(word), None, "{word}");
    }
}

#[test]
fn names_of_statements_are_found_in_comments_and_not_in_code() {
    let of =
        |line: &str, is_page: bool| named(line, is_page).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(of("let b4 = B4; // as B5 and (C1) say, not IPv4", false), "B5 C1");
    assert_eq!(of("let b4 = B4;", false), "");
    assert_eq!(of("run # (A1)", false), "A1");
    assert_eq!(of("text of a page about A1", true), "A1");
}

#[test]
fn statements_of_the_contract_are_found_with_their_first_sentence() {
    let page = "- <a id=\"a1\"></a>**A1** One.  Two\n  three. Four.\n- <a id=\"a2\"></a>**A2** Five\n  six.\n\n## B\n";
    let found = statements(page);
    assert_eq!(found[&Statement('A', 1)], "One");
    assert_eq!(found[&Statement('A', 2)], "Five six");
}
