//! The host's `nft`: load a ruleset, list it, and compare listings.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::netns::{Namespace, run, run_with_input};

/// The proxy's lock, as nft lists it.
const LOCK: &str = "table inet kube-proxy-lock ";

/// The text of `nft list ruleset`, without the proxy's lock, because each process has its own.
pub(crate) fn list_ruleset(namespace: &Namespace) -> String {
    let listing = list_everything(namespace);
    let Some((before, lock)) = listing.split_once(LOCK) else { return listing };
    let (_, after) = lock.split_once("\n}\n").expect("a table has an end");
    format!("{before}{after}")
}

/// The text of `nft list ruleset`.
pub(crate) fn list_everything(namespace: &Namespace) -> String {
    run(namespace.command("nft").args(["list", "ruleset"]))
}

/// The lines of `nft list tables`, without the proxy's lock.
pub(crate) fn list_tables(namespace: &Namespace) -> String {
    let tables = run(namespace.command("nft").args(["list", "tables"]));
    tables.lines().filter(|line| *line != LOCK.trim_end()).map(|line| format!("{line}\n")).collect()
}

/// The objects of all tables but the proxy's lock, as `nft -j list table` shows them.
///
/// `nft -j list ruleset` of nft 1.0.6 prints no JSON while there is a table with an owner, such as the lock: it has no name for that flag.
/// nft prints an empty line if a chain is deleted while it lists: then this function runs it again.
pub(crate) fn list_json(namespace: &Namespace) -> Value {
    const TRIES: usize = 10;
    let mut objects = Vec::new();
    for table in list_tables(namespace).lines() {
        let list = |_| run(namespace.command("nft").args(["-j", "list"]).args(table.split(' ')));
        let text = (0..TRIES).map(list).find(|text| !text.trim().is_empty()).expect("nft lists something");
        let mut json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{table}: no JSON: {error}"));
        objects.extend(json["nftables"].as_array_mut().map(std::mem::take).unwrap_or_default());
    }
    json!({ "nftables": objects })
}

/// Loads a ruleset with `nft -f`.
pub(crate) fn load(namespace: &Namespace, text: &str) {
    run_with_input(namespace.command("nft").args(["-f", "-"]), text);
}

/// Returns whether the host's nft loads a map key that is only a number from `numgen` in the form in which it lists it; nft 1.1.7 converts
/// the number to network byte order.
pub(crate) fn keeps_numbers() -> bool {
    let probe = Namespace::new("numbers");
    load(&probe, "table ip t { map m { typeof numgen random mod 4 : verdict; elements = { 1 : accept }; }; }");
    list_ruleset(&probe).contains(" 1 : accept")
}

/// Whether a line shows that a table has an owner: `flags owner` while the owner lives, and the forms in which nft 1.0.6 and later ones
/// print the flags of a table whose owner has ended.
fn is_ownership(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("flags owner") || line == "flags" || line == "flags persist"
}

/// The listing without `flags owner`: the kernel would delete an owned table when the `nft` that loads it ends.
pub(crate) fn without_owner(listing: &str) -> String {
    let lines = listing.lines().filter(|line| !is_ownership(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A listing as a map from "table / object" to its lines, so that two listings of the same rules are equal.
///
/// Leaves out what may differ between equal rulesets: the order of objects and of elements, whether an owner is alive, counters, the time
/// left of an element, and the number of an endpoint in the maps whose name ends in `endpoints` and in the maps of layout `chains`.
pub(crate) fn normalised(listing: &str) -> BTreeMap<String, Vec<String>> {
    let mut objects = BTreeMap::new();
    let (mut table, mut object, mut elements) = (String::new(), String::new(), None::<String>);
    for line in without_owner(listing).lines().map(str::trim).filter(|line| !["", "}"].contains(line)) {
        if let Some(text) = &mut elements {
            text.push_str(line);
        } else if line.starts_with("table ") {
            // An owned table is followed by "# progname ...".
            table = line.split_once(" {").map_or(line, |(header, _)| header).to_owned();
            object = table.clone();
        } else if ["chain ", "map ", "set "].iter().any(|kind| line.starts_with(kind)) && line.ends_with('{') {
            object = format!("{table} / {}", line.trim_end_matches(" {"));
        } else if let Some(text) = line.strip_prefix("elements = {") {
            elements = Some(text.to_owned());
        }
        let lines: &mut Vec<String> = objects.entry(object.clone()).or_default();
        match &elements {
            Some(text) if text.ends_with('}') => {
                lines.extend(sorted_elements(&object, text));
                elements = None;
            }
            Some(_) => {}
            None => lines.push(without_counters(line.split_once(" # progname").map_or(line, |(text, _)| text))),
        }
    }
    objects
}

/// Removes the chains that nothing leads to: the proxy may keep such a chain, because it does nothing and may be needed again.
pub(crate) fn without_unused_chains(mut objects: BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    // A chain is used if it has a hook, or if its name stands in another object of its table.
    let is_used = |objects: &BTreeMap<String, Vec<String>>, header: &str| {
        let Some((table, chain)) = header.split_once(" / chain ") else { return true };
        let names = |line: &String| line.split(' ').any(|word| word.trim_end_matches(',') == chain);
        let others = || objects.iter().filter(|(other, _)| other.starts_with(table) && *other != header);
        objects[header].iter().any(|line| line.contains(" hook ")) || others().any(|(_, lines)| lines.iter().any(names))
    };
    while let Some(unused) = objects.keys().find(|header| !is_used(&objects, header)).cloned() {
        objects.remove(&unused);
    }
    objects
}

fn sorted_elements(object: &str, text: &str) -> Vec<String> {
    let has_slots = object.ends_with("endpoints") || object.contains(" / map KUBE-SV");
    let inner = text.trim_end_matches('}');
    let elements = split_outside_quotes(inner).into_iter().map(|element| {
        let element = without_counters(element.trim());
        if has_slots { without_slot(&element) } else { element }
    });
    let mut elements: Vec<String> = elements.collect();
    elements.sort();
    elements
}

/// Splits at commas that are not inside a comment.
fn split_outside_quotes(text: &str) -> Vec<&str> {
    let mut quoted = false;
    let split = text.split(|character| {
        quoted ^= character == '"';
        character == ',' && !quoted
    });
    split.filter(|part| !part.trim().is_empty()).collect()
}

/// Replaces the number of an endpoint in a map key by `*`: `10.96.0.10 . udp . 53 . 0 : ...` becomes `10.96.0.10 . udp . 53 . * : ...`.
fn without_slot(element: &str) -> String {
    let Some((key, value)) = element.split_once(" : ") else { return element.to_owned() };
    if key.parse::<u32>().is_ok() {
        return format!("* : {value}");
    }
    match key.trim_end_matches(" counter").rsplit_once(" . ") {
        Some((frontend, slot)) if slot.parse::<u32>().is_ok() => format!("{frontend} . * : {value}"),
        _ => element.to_owned(),
    }
}

fn without_counters(line: &str) -> String {
    let mut words = line.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "packets" | "bytes" | "expires" if words.peek().is_some() => drop(words.next()),
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}
