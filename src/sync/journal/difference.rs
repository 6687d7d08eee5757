//! What differs for a Service in the table of one family: fronts and endpoints, as far as they are in the records.
//!
//! Costs as much as the Service is large, like the comparison that made the commands.

use std::cmp::Ordering;
use std::net::SocketAddr;

use nft::ElementRef;
use nft::packed::ValueRef;

use crate::changes::{self, Change, Fate, FrontChange, Outcome};
use crate::diff::{Content, Entry, Group};
use crate::model::Front;
use crate::ruleset::reading::{self, FrontSet, Role};
use crate::sync::tables::ChangedIn;
use crate::table::ChainContent;

/// Groups among which is looked for one with the same values: fronts of one port follow each other.
const ALIKE: usize = 4;

/// Adds to a change what differs in a table.
pub(super) fn add(change: &mut Change, table: ChangedIn<'_>) {
    add_endpoints(change, table);
    add_fronts(change, table);
}

fn add_endpoints(change: &mut Change, table: ChangedIn<'_>) {
    let before = endpoints(table, table.changed.before_entries());
    let now = endpoints(table, table.changed.entries());
    let Change { service, result, endpoints: told, .. } = change;
    let log = |endpoint, is_new| {
        if *result == Outcome::Committed {
            changes::log_endpoint(service, endpoint, is_new);
        }
    };
    told.before += before.len();
    told.after += now.len();
    let (mut before, mut now) = (before.into_iter().peekable(), now.into_iter().peekable());
    loop {
        let order = match (before.peek(), now.peek()) {
            (Some(before), Some(now)) => before.cmp(now),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let gone = before.next_if(|_| order != Ordering::Greater);
        let came = now.next_if(|_| order != Ordering::Less);
        match (gone, came) {
            (Some(gone), None) => {
                told.remove(gone);
                log(gone, false);
            }
            (None, Some(came)) => {
                told.add(came);
                log(came, true);
            }
            _ => {}
        }
    }
}

/// The endpoints that a record leads to, sorted, each once.
fn endpoints<'a>(table: ChangedIn<'_>, entries: impl Iterator<Item = Entry<'a>>) -> Vec<SocketAddr> {
    let mut lists: Vec<Group<'_>> = Vec::new();
    let mut places: Vec<&[u8]> = Vec::new();
    for entry in entries {
        match entry.content {
            Content::Group(group) if lists.iter().rev().take(ALIKE).any(|list| list.has_values_of(group)) => {}
            Content::Group(group) => lists.push(group),
            Content::Element(element) if reading::endpoint_map(table.set_name(entry)).is_some() => {
                if let ValueRef::Data(value) = element.parts().value {
                    places.push(value);
                }
            }
            Content::Element(_) => {}
        }
    }
    let mut all = Vec::with_capacity(lists.iter().map(|list| list.len()).sum());
    let values = lists.iter().flat_map(|list| list.values()).chain(places);
    all.extend(values.filter_map(|value| reading::slot_endpoint(table.family, value)));
    all.sort_unstable();
    all.dedup();
    all
}

fn add_fronts(change: &mut Change, table: ChangedIn<'_>) {
    let mut fronts: Vec<Front> = Vec::new();
    table.changed.each_difference(|before, now| {
        fronts.extend(before.or(now).and_then(|entry| front_of(table, entry)).map(|(_, front, _)| front));
    });
    let [chains_before, chains] = table.changed.chains();
    if drop_elsewhere(chains_before, chains) {
        let all = table.changed.before_entries().chain(table.changed.entries());
        fronts.extend(all.filter_map(|entry| front_of(table, entry)).map(|(_, front, _)| front));
    }
    if fronts.is_empty() {
        return;
    }
    fronts.sort_unstable();
    fronts.dedup();
    let before = fates(table, table.changed.before_entries(), chains_before, &fronts);
    let after = fates(table, table.changed.entries(), chains, &fronts);
    for ((front, before), after) in
        fronts.into_iter().zip(before).zip(after).filter(|((_, before), after)| before != after)
    {
        change.front(FrontChange { front, before, after });
    }
}

/// The front of an element, if it is about one.
fn front_of<'a>(table: ChangedIn<'_>, entry: Entry<'a>) -> Option<(FrontSet, Front, ElementRef<'a>)> {
    let Content::Element(element) = entry.content else { return None };
    let set = reading::front_set(table.set_name(entry))?;
    Some((set, set.front(table.family, element.key())?, element))
}

/// Whether a chain drops packets now and did not before, or the other way round, although the elements that lead there are the same.
fn drop_elsewhere(before: &[ChainContent], now: &[ChainContent]) -> bool {
    let other = |content: &ChainContent| {
        let index = before.binary_search_by(|other| other.chain.name.cmp(&content.chain.name)).ok()?;
        Some(&before[index])
    };
    now.iter().any(|content| other(content).is_some_and(|other| reading::has_drop(other) != reading::has_drop(content)))
}

/// What becomes of traffic to these fronts, which are sorted, by the entries of a record.
fn fates<'a>(
    table: ChangedIn<'_>,
    entries: impl Iterator<Item = Entry<'a>>,
    chains: &[ChainContent],
    fronts: &[Front],
) -> Vec<Option<Fate>> {
    let mut fates = vec![None; fronts.len()];
    for entry in entries {
        let Some((set, front, element)) = front_of(table, entry) else { continue };
        let Ok(index) = fronts.binary_search(&front) else { continue };
        let fate = match set.role {
            Role::Refuse => Fate::Refused,
            Role::Dispatch | Role::FromOutside if reading::drops(element.parts().value, chains) => Fate::Dropped,
            Role::Dispatch | Role::FromOutside => Fate::Served,
        };
        fates[index] = fates[index].max(Some(fate));
    }
    fates
}
