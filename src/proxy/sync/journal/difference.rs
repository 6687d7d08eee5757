//! Finds the frontends and endpoints of a Service that change in the table of one family, by comparing the Service's records. A record has
//! the rules and elements of one Service in one table; an entry of a record is an element, or a group: the numbered elements of a map that
//! list the endpoints of one port.
//!
//! Reads only the records of Services that changed.

use std::cmp::Ordering;
use std::net::SocketAddr;

use nft::ElementRef;
use nft::packed::ValueRef;

use crate::history;
use crate::sync::tables::ChangedIn;
use inspect::history::{Change, CommitOutcome, Fate, FrontendChange};
use rules::diff::{Content, Entry, Group};
use rules::model::Frontend;
use rules::ruleset::kinds::Role;
use rules::ruleset::reading::{self, FrontendSet};
use rules::table::ChainContent;

/// How many earlier groups a group is compared with, to skip it if one of them has the same values. A few are enough, because the groups of
/// one port's frontends follow each other.
const ALIKE: usize = 4;

/// Adds the differences in a table to a change. If they are committed, logs each endpoint that came or went.
pub(super) fn add(change: &mut Change, table: ChangedIn<'_>) {
    add_endpoints(change, table);
    add_frontends(change, table);
}

fn add_endpoints(change: &mut Change, table: ChangedIn<'_>) {
    let [chains_before, chains] = table.changed.chains();
    let before = endpoints(table, table.changed.before_entries(), chains_before);
    let now = endpoints(table, table.changed.entries(), chains);
    let Change { service, result, endpoints: told, .. } = change;
    let log = |endpoint, is_new| {
        if *result == CommitOutcome::Committed {
            history::log_endpoint(service, endpoint, is_new);
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

/// Returns the endpoints that the entries and chains of a record lead to, sorted, each once.
fn endpoints<'a>(
    table: ChangedIn<'_>,
    entries: impl Iterator<Item = Entry<'a>>,
    chains: &[ChainContent],
) -> Vec<SocketAddr> {
    let mut lists: Vec<Group<'_>> = Vec::new();
    let mut places: Vec<&[u8]> = Vec::new();
    for entry in entries {
        match entry.content {
            Content::Group(group) if lists.iter().rev().take(ALIKE).any(|list| list.has_values_of(group)) => {}
            Content::Group(group) => lists.push(group),
            Content::Element(element) if reading::is_endpoint_map(table.set_name(entry)) => {
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
    all.extend(chains.iter().filter_map(reading::chain_endpoint));
    all.sort_unstable();
    all.dedup();
    all
}

fn add_frontends(change: &mut Change, table: ChangedIn<'_>) {
    let mut frontends: Vec<Frontend> = Vec::new();
    table.changed.each_difference(|before, now| {
        frontends.extend(before.or(now).and_then(|entry| frontend_of(table, entry)).map(|(_, frontend, _)| frontend));
    });
    let [chains_before, chains] = table.changed.chains();
    if drop_elsewhere(chains_before, chains) {
        let all = table.changed.before_entries().chain(table.changed.entries());
        frontends.extend(all.filter_map(|entry| frontend_of(table, entry)).map(|(_, frontend, _)| frontend));
    }
    if frontends.is_empty() {
        return;
    }
    frontends.sort_unstable();
    frontends.dedup();
    let before = fates(table, table.changed.before_entries(), chains_before, &frontends);
    let after = fates(table, table.changed.entries(), chains, &frontends);
    for ((frontend, before), after) in
        frontends.into_iter().zip(before).zip(after).filter(|((_, before), after)| before != after)
    {
        change.frontend(FrontendChange { frontend, before, after });
    }
}

/// Returns the frontend that an element belongs to, if the element is in a set of frontends.
fn frontend_of<'a>(table: ChangedIn<'_>, entry: Entry<'a>) -> Option<(FrontendSet, Frontend, ElementRef<'a>)> {
    let Content::Element(element) = entry.content else { return None };
    let set = reading::frontend_set(table.set_name(entry))?;
    Some((set, set.frontend(table.family, element.key())?, element))
}

/// Returns whether a chain that was there before drops packets now and did not before, or the other way round. Then traffic changes
/// although the elements that jump to the chain are the same.
fn drop_elsewhere(before: &[ChainContent], now: &[ChainContent]) -> bool {
    let other = |content: &ChainContent| {
        let index = before.binary_search_by(|other| other.chain.name.cmp(&content.chain.name)).ok()?;
        Some(&before[index])
    };
    now.iter().any(|content| other(content).is_some_and(|other| reading::has_drop(other) != reading::has_drop(content)))
}

/// Returns what happens to traffic to each of the sorted `frontends`, according to the entries and chains of a record; `None` if the record
/// has no element of the frontend.
fn fates<'a>(
    table: ChangedIn<'_>,
    entries: impl Iterator<Item = Entry<'a>>,
    chains: &[ChainContent],
    frontends: &[Frontend],
) -> Vec<Option<Fate>> {
    let mut fates = vec![None; frontends.len()];
    for entry in entries {
        let Some((set, frontend, element)) = frontend_of(table, entry) else { continue };
        let Ok(index) = frontends.binary_search(&frontend) else { continue };
        let fate = match set.role {
            Role::Refuse => Fate::Refused,
            Role::Dispatch | Role::FromOutside if reading::drops(element.parts().value, chains) => Fate::Dropped,
            Role::Dispatch | Role::FromOutside => Fate::Served,
        };
        fates[index] = fates[index].max(Some(fate));
    }
    fates
}
