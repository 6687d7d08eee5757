//! Writes each command as a line of `nft -f` input.

use std::fmt;

use crate::command::Command;
use crate::object::{Element, Set};
use crate::packed::{ElementRef, Elements};
use crate::table::{Table, TableName};
use crate::text::element::ElementText;
use crate::text::statement::Scope;
use crate::text::words::quoted;
use crate::text::{chain, flowtable, set};

/// The line of `nft -f` input that has the effect of the command.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable(table) => f.write_str(&add_table(table, None)),
            Self::OwnTable(table) => f.write_str(&add_table(table, Some("owner,persist"))),
            Self::LockTable(table) => f.write_str(&add_table(table, Some("owner"))),
            Self::DeleteTable(table) => write!(f, "delete table {table}"),
            Self::AddChain(table, chain) => {
                write!(f, "add chain {table} {}{}", chain.name, block(&chain::properties(chain)))
            }
            Self::DeleteChain(table, chain) => write!(f, "delete chain {table} {chain}"),
            Self::FlushChain(table, chain) => write!(f, "flush chain {table} {chain}"),
            Self::DeleteRule(table, chain, handle) => write!(f, "delete rule {table} {chain} handle {handle}"),
            Self::AddRule(table, chain, rule) => {
                write!(f, "add rule {table} {chain} {}", Scope::table(table.family).rule(rule))
            }
            Self::AddSet(table, set) => {
                write!(f, "add {} {table} {}{}", set::keyword(set), set.name, block(&set::properties(set)))
            }
            Self::DeleteSet(table, set) => write!(f, "delete {} {table} {}", set::keyword(set), set.name),
            Self::AddFlowtable(table, flowtable) => {
                write!(f, "add flowtable {table} {}{}", flowtable.name, block(&flowtable::properties(flowtable)))
            }
            Self::DeleteObject(table, object) => write!(f, "delete {} {table} {}", object.kind, object.name),
            Self::AddElements(table, set, list) => f.write_str(&elements("add", table, set, list)),
            Self::DeleteElements(table, set, list) => f.write_str(&elements("delete", table, set, list)),
            Self::DestroyElements(table, set, list) => f.write_str(&elements("destroy", table, set, list)),
        }
    }
}

/// The command that adds a table: `add table ip kube-proxy { flags owner,persist; comment "..."; }`.
fn add_table(table: &Table, flags: Option<&str>) -> String {
    let flags = flags.map(|flags| format!("flags {flags}"));
    let comment = table.comment.as_deref().map(|text| format!("comment {}", quoted(text)));
    let properties: Vec<String> = flags.into_iter().chain(comment).collect();
    format!("add table {}{}", table.name, block(&properties))
}

/// A command about elements: `add element ip kube-proxy services { 10.96.0.10 . tcp . 80 comment "x" : goto lb-2 }`. With verbs other than
/// `add`, elements have only their keys. nft needs at least one element, and knows `destroy` since 1.0.7.
fn elements(verb: &str, table: &TableName, set: &Set, elements: &Elements) -> String {
    let text = ElementText::of(set);
    let one = |element: Element| if verb == "add" { text.element(&element) } else { text.key(&element) };
    let elements: Vec<String> = elements.iter().map(ElementRef::element).map(one).collect();
    format!("{verb} element {table} {} {{ {} }}", set.name, elements.join(", "))
}

/// The lines in braces, ` { a; b; }`, or nothing if there are no lines.
fn block(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end_matches(';')).collect();
    format!(" {{ {}; }}", lines.join("; "))
}
