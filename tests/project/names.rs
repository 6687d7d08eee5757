//! Names of chains, sets and maps of our tables stand in one file, `src/rules/ruleset/names.rs`, and everything else uses its constants:
//! then a name can be changed in one place, and nothing goes on looking for the old one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use crate::walls::{is_unit_test, skip_item, sources};

const NAMES: &str = "src/rules/ruleset/names.rs";
/// Has names of iptables and ipvs mode, some of which are also ours: they stay as other releases wrote them.
const LEFTOVERS: &str = "src/node/kernel/leftovers";
/// The crates that know our tables.
const CRATES: [&str; 4] = ["rules", "node", "inspect", "proxy"];

/// The texts in code, without what is only there for tests.
fn texts(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let attribute = tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                if attribute.is_some_and(|attribute| attribute.to_string().replace(' ', "") == "[cfg(test)]") {
                    skip_item(&mut tokens);
                }
            }
            TokenTree::Group(group) => texts(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                found.extend(inner.map(str::to_owned));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

fn texts_of(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    texts(code.parse().unwrap_or_else(|error| panic!("{error} in {code}")), &mut found);
    found
}

/// The names that cannot be anything else: those with a hyphen. The table bears the name of the program.
fn names(file: &Path) -> BTreeSet<String> {
    let mut names = texts_of(&fs::read_to_string(file).expect("the file of the names"));
    names.retain(|name| name.contains('-') && name != "kube-proxy");
    names
}

#[test]
fn names_of_our_tables_are_in_one_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = names(&root.join(NAMES));
    assert!(names.contains("KUBE-SERVICES") && names.contains("no-endpoints"), "{names:?}");
    let mut found = Vec::new();
    for file in CRATES.iter().flat_map(|name| sources(&root.join("src").join(name))) {
        if is_unit_test(&file) || file.ends_with(NAMES) || file.starts_with(root.join(LEFTOVERS)) {
            continue;
        }
        let texts = texts_of(&fs::read_to_string(&file).expect("a source file"));
        found.extend(texts.intersection(&names).map(|name| format!("{}: {name:?}", file.display())));
    }
    assert!(found.is_empty(), "use the constants of {NAMES}:\n{}", found.join("\n"));
}

#[test]
fn a_name_in_code_is_found_and_one_in_a_test_is_not() {
    let code = "fn a() -> &'static str { b(\"KUBE-INPUT\") } // \"KUBE-OUTPUT\"\n\
                #[cfg(test)]\nmod tests { const C: &str = \"KUBE-FORWARD\"; }\nconst D: char = 'x';";
    assert_eq!(texts_of(code), BTreeSet::from(["KUBE-INPUT".to_owned()]));
}
