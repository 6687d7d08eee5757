//! Single commands, each a line of `nft -f` input.

use std::fmt;

use crate::batch::Command;
use crate::object::{Chain, Element, Flowtable, NamedObject, Rule, Set, Table, TableName};
use crate::ruleset::SetContent;
use crate::text::element::ElementText;
use crate::text::statement::Scope;
use crate::text::{chain, flowtable, quoted, set};

/// The line of `nft -f` input that does the same.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Self::AddTable(table) => add_table(table),
            Self::OwnTable(table) => own_table(table),
            Self::LockTable(table) => lock_table(table),
            Self::DeleteTable(table) => delete_table(table),
            Self::AddChain(table, chain) => add_chain(table, chain),
            Self::DeleteChain(table, chain) => delete_chain(table, chain),
            Self::FlushChain(table, chain) => flush_chain(table, chain),
            Self::DeleteRule(table, chain, handle) => delete_rule(table, chain, *handle),
            Self::AddRule(table, chain, rule) => add_rule(table, chain, rule, &[]),
            Self::AddSet(table, set) => add_set(table, set),
            Self::DeleteSet(table, set) => delete_set(table, set),
            Self::AddFlowtable(table, flowtable) => add_flowtable(table, flowtable),
            Self::DeleteObject(table, object) => delete_object(table, object),
            Self::AddElements(table, set, elements) => add_elements(table, set, elements),
            Self::DeleteElements(table, set, elements) => delete_elements(table, set, elements),
            Self::DestroyElements(table, set, elements) => destroy_elements(table, set, elements),
        })
    }
}

/// `add table ip kube-proxy { comment "..."; }`.
#[must_use]
pub fn add_table(table: &Table) -> String {
    match &table.comment {
        Some(text) => format!("add table {} {{ comment {}; }}", table.name, quoted(text)),
        None => format!("add table {}", table.name),
    }
}

/// `add table ip kube-proxy { flags owner,persist; comment "..."; }`.
#[must_use]
pub fn own_table(table: &Table) -> String {
    let comment = table.comment.as_ref().map_or_else(String::new, |text| format!(" comment {};", quoted(text)));
    format!("add table {} {{ flags owner,persist;{comment} }}", table.name)
}

/// `add table inet kube-proxy-lock { flags owner; comment "..."; }`.
#[must_use]
pub fn lock_table(table: &Table) -> String {
    own_table(table).replacen("owner,persist", "owner", 1)
}

/// `delete table ip kube-proxy`.
#[must_use]
pub fn delete_table(table: &TableName) -> String {
    format!("delete table {table}")
}

/// `add chain ip kube-proxy KUBE-SERVICES { type nat hook prerouting priority dstnat; policy accept; }`.
#[must_use]
pub fn add_chain(table: &TableName, chain: &Chain) -> String {
    format!("add chain {table} {}{}", chain.name, block(&chain::properties(chain)))
}

/// `flush chain ip kube-proxy KUBE-SERVICES`.
#[must_use]
pub fn flush_chain(table: &TableName, chain: &str) -> String {
    format!("flush chain {table} {chain}")
}

/// `delete rule ip kube-proxy KUBE-SERVICES handle 7`.
#[must_use]
pub fn delete_rule(table: &TableName, chain: &str, handle: u64) -> String {
    format!("delete rule {table} {chain} handle {handle}")
}

/// `delete chain ip kube-proxy KUBE-SERVICES`.
#[must_use]
pub fn delete_chain(table: &TableName, chain: &str) -> String {
    format!("delete chain {table} {chain}")
}

/// `add rule ip kube-proxy KUBE-SERVICES ...`. Anonymous sets that the rule refers to are written in it.
#[must_use]
pub fn add_rule(table: &TableName, chain: &str, rule: &Rule, anonymous: &[SetContent]) -> String {
    format!("add rule {table} {chain} {}", Scope::table(table.family, anonymous).rule(rule))
}

/// `add set ip kube-proxy nodeport-ips { type ipv4_addr; }`, or `add map`.
#[must_use]
pub fn add_set(table: &TableName, set: &Set) -> String {
    format!("add {} {table} {}{}", set::keyword(set), set.name, block(&set::properties(set)))
}

/// `delete set ip kube-proxy nodeport-ips`, or `delete map`.
#[must_use]
pub fn delete_set(table: &TableName, set: &Set) -> String {
    format!("delete {} {table} {}", set::keyword(set), set.name)
}

/// `add flowtable inet kube-proxy-flowtable fastpath { hook ingress priority filter; devices = { eth0 }; }`.
#[must_use]
pub fn add_flowtable(table: &TableName, flowtable: &Flowtable) -> String {
    format!("add flowtable {table} {}{}", flowtable.name, block(&flowtable::properties(flowtable)))
}

/// `delete counter ip kube-proxy foreign`.
#[must_use]
pub fn delete_object(table: &TableName, object: &NamedObject) -> String {
    format!("delete {} {table} {}", object.kind, object.name)
}

/// `add element ip kube-proxy services { 10.96.0.10 . tcp . 80 comment "x" : goto lb-2 }`. At least one element.
#[must_use]
pub fn add_elements(table: &TableName, set: &Set, elements: &[Element]) -> String {
    let text = ElementText::of(set);
    elements_command("add", table, set, elements.iter().map(|element| text.element(element)))
}

/// `delete element ip kube-proxy services { 10.96.0.10 . tcp . 80 }`: the keys only. At least one element.
#[must_use]
pub fn delete_elements(table: &TableName, set: &Set, elements: &[Element]) -> String {
    let text = ElementText::of(set);
    elements_command("delete", table, set, elements.iter().map(|element| text.key(element)))
}

/// `destroy element ip kube-proxy affinity-x { 203.0.113.7 }`: the keys only. At least one element. nft 1.0.7 and later.
#[must_use]
pub fn destroy_elements(table: &TableName, set: &Set, elements: &[Element]) -> String {
    let text = ElementText::of(set);
    elements_command("destroy", table, set, elements.iter().map(|element| text.key(element)))
}

fn elements_command(verb: &str, table: &TableName, set: &Set, elements: impl Iterator<Item = String>) -> String {
    let elements: Vec<String> = elements.collect();
    format!("{verb} element {table} {} {{ {} }}", set.name, elements.join(", "))
}

/// ` { a; b; }`, or nothing.
fn block(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end_matches(';')).collect();
    format!(" {{ {}; }}", lines.join("; "))
}
