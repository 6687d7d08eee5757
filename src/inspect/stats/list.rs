//! The page with all Services: problems first, then one part of the list, with search, filter and order. Pure.

use std::cmp::Reverse;
use std::fmt::Display;
use std::net::IpAddr;

use hyper::StatusCode;

use super::page::{Page, Tab, chip, data, notices, scrolled, service_address, side};
use super::query::{ListQuery, Order, STATES};
use super::reading::Reading;
use crate::markup::{Markup, class};
use crate::names::split_port;
use crate::output::Cell;
use crate::services::print::{frontend, sentences, state};
use crate::services::stats::Numbers;
use crate::tables::FrontendView;
use crate::top::view::short;

/// The number of Services on a page.
const ROWS: usize = 100;

/// A Service in the list.
pub(super) struct Row<'a> {
    /// `namespace/name`; `None` for a frontend whose Service the tables do not name.
    pub(super) name: Option<&'a str>,
    pub(super) frontends: &'a [FrontendView],
    /// The sums over its frontends.
    pub(super) numbers: Numbers,
}

/// The Services of a reading, sorted by name.
pub(super) fn rows(reading: &Reading) -> Vec<Row<'_>> {
    let name = |view: &FrontendView| view.service.as_deref().map(|service| split_port(service).0.len());
    let is_one = |a: &FrontendView, b: &FrontendView| {
        let (Some(a_name), Some(b_name)) = (name(a), name(b)) else { return false };
        a.service.as_deref().map(|service| &service[..a_name]) == b.service.as_deref().map(|service| &service[..b_name])
    };
    let mut position = 0;
    let groups = reading.listing.view.frontends.chunk_by(is_one);
    let mut rows: Vec<Row<'_>> = groups
        .map(|frontends| {
            let mut numbers = Numbers::default();
            for view in frontends {
                numbers.add(reading.stats.of_frontend(position, view));
                position += 1;
            }
            let name = frontends.first().and_then(|view| view.service.as_deref()).map(|service| split_port(service).0);
            Row { name, frontends, numbers }
        })
        .collect();
    rows.sort_by_key(|row| row.name);
    rows
}

impl Row<'_> {
    /// The number of its frontends in each state of [`STATES`].
    fn states(&self) -> [usize; STATES.len()] {
        STATES.map(|(state, _)| self.frontends.iter().filter(|view| view.state == state).count())
    }

    /// The position of its worst state in [`STATES`].
    fn worst(&self) -> usize {
        self.states().iter().position(|count| *count > 0).unwrap_or(STATES.len())
    }

    /// The number of endpoints of the frontend that has most, and how many of these are on this node.
    fn endpoints(&self) -> (usize, usize) {
        let local = |view: &FrontendView| view.endpoints.iter().filter(|endpoint| endpoint.local).count();
        self.frontends.iter().map(|view| (view.endpoints.len(), local(view))).max().unwrap_or_default()
    }

    fn rate(&self) -> f64 {
        self.numbers.rates.map_or(0.0, |rates| rates.connections_per_second)
    }

    fn byte_rate(&self) -> f64 {
        self.numbers.rates.and_then(|rates| rates.bytes_per_second).unwrap_or_default()
    }

    /// Whether its name or a frontend contains `text`, which is in small letters, or an endpoint has this address.
    fn has(&self, text: &str, address: Option<IpAddr>) -> bool {
        let is_endpoint = |view: &FrontendView| {
            address.is_some_and(|address| view.endpoints.iter().any(|endpoint| endpoint.address.ip() == address))
        };
        self.name.is_some_and(|name| name.to_lowercase().contains(text))
            || self.frontends.iter().any(|view| frontend(view).to_lowercase().contains(text) || is_endpoint(view))
    }
}

/// The rows that a query asks for, in its order.
pub(super) fn selected<'r, 'a>(rows: &'r [Row<'a>], query: &ListQuery) -> Vec<&'r Row<'a>> {
    let (text, address) = (query.search.to_lowercase(), query.search.parse().ok());
    let state = STATES.iter().position(|(_, word)| Some(*word) == query.state);
    let is_wanted = |row: &&Row<'_>| {
        state.is_none_or(|state| row.states()[state] > 0) && (text.is_empty() || row.has(&text, address))
    };
    let mut found: Vec<&Row<'_>> = rows.iter().filter(is_wanted).collect();
    // The sorts are stable: equal rows stay in the order of their names.
    match query.order {
        Order::Name => {}
        Order::State => found.sort_by_key(|row| row.worst()),
        Order::Endpoints => found.sort_by_key(|row| row.endpoints()),
        Order::Open => found.sort_by_key(|row| Reverse(row.numbers.open)),
        Order::New => found.sort_by(|a, b| b.rate().total_cmp(&a.rate())),
        Order::Bytes => found.sort_by(|a, b| b.byte_rate().total_cmp(&a.byte_rate())),
    }
    if query.reversed {
        found.reverse();
    }
    found
}

/// The page with the part of the list that the query asks for.
pub(super) fn page(reading: &Reading, query: &ListQuery) -> Page {
    let rows = rows(reading);
    let found = selected(&rows, query);
    let last = found.len().saturating_sub(1) / ROWS;
    let query = ListQuery { page: query.page.min(last), ..query.clone() };
    let shown: Vec<&Row<'_>> = found.iter().copied().skip(query.page * ROWS).take(ROWS).collect();
    Page::new(StatusCode::OK, ("Services", Tab::Services, true), |main| {
        main.leaf("h1", &[], "Services");
        notices(main, &sentences(&reading.listing));
        summary(main, &rows, &query);
        form(main, &query);
        if shown.is_empty() {
            main.leaf("p", &[("class", &"faint")], "No Service is like that.");
        } else {
            list(main, &shown, &query);
        }
        pages(main, found.len(), &query);
        main.leaf("p", &[("class", &"faint")], reading.age());
    })
}

/// How many Services have a frontend in each state, each number a link to these.
fn summary(main: &mut Markup, rows: &[Row<'_>], query: &ListQuery) {
    main.element("p", &[("class", &"summary")], |line| {
        let all = ListQuery { state: None, page: 0, ..query.clone() };
        link(line, &all.address(), query.state.is_none(), |link| {
            link.leaf("span", &[("class", &"chip")], format_args!("{} Services", rows.len()));
        });
        let mut counts = [0; STATES.len()];
        for row in rows {
            counts.iter_mut().zip(row.states()).for_each(|(count, frontends)| *count += usize::from(frontends > 0));
        }
        for ((of, word), count) in STATES.iter().zip(counts).rev() {
            if count > 0 {
                let only = ListQuery { state: Some(word), page: 0, ..query.clone() };
                link(line, &only.address(), query.state == Some(word), |link| chip(link, &state(*of), Some(count)));
            }
        }
    });
}

fn link(out: &mut Markup, address: &str, is_current: bool, fill: impl FnOnce(&mut Markup)) {
    let current: &[(&str, &dyn Display)] = if is_current { &[("aria-current", &"true")] } else { &[] };
    out.element("a", &[&[("href", &address as &dyn Display)], current].concat(), fill);
}

/// The form for search, state and order; it works without a script, and on narrow screens in place of the headings.
fn form(main: &mut Markup, query: &ListQuery) {
    main.element("form", &[("action", &"/"), ("class", &"filter"), ("role", &"search")], |form| {
        form.literal("<label for=\"q\">Search</label>");
        form.void(
            "input",
            &[
                ("id", &"q"),
                ("name", &"q"),
                ("type", &"search"),
                ("value", &query.search),
                ("placeholder", &"name, address or port"),
            ],
        );
        form.literal("<label for=\"state\">State</label>");
        form.element("select", &[("id", &"state"), ("name", &"state")], |select| {
            option(select, "", "any", query.state.is_none());
            STATES.iter().for_each(|(_, word)| option(select, word, word, query.state == Some(word)));
        });
        form.literal("<label for=\"sort\">Sort by</label>");
        form.element("select", &[("id", &"sort"), ("name", &"sort")], |select| {
            Order::ALL.iter().for_each(|(order, word, name)| option(select, word, name, *order == query.order));
        });
        form.literal("<button>Show</button>");
    });
}

/// Writes an option of a `select` element.
pub(super) fn option(select: &mut Markup, value: &str, text: &str, is_selected: bool) {
    let selected: &[(&str, &dyn Display)] = if is_selected { &[("selected", &"")] } else { &[] };
    select.leaf("option", &[&[("value", &value as &dyn Display)], selected].concat(), text);
}

/// The columns: the order that each stands for, its name, and whether it has numbers.
const COLUMNS: [(Option<Order>, &str, bool); 8] = [
    (Some(Order::Name), "Service", false),
    (Some(Order::State), "State", false),
    (None, "Frontends", false),
    (Some(Order::Endpoints), "Endpoints", true),
    (None, "Local", true),
    (Some(Order::Open), "Open", true),
    (Some(Order::New), "New/s", true),
    (Some(Order::Bytes), "Bytes/s", true),
];

fn list(main: &mut Markup, rows: &[&Row<'_>], query: &ListQuery) {
    let has_bytes = rows.iter().any(|row| row.numbers.bytes.is_some());
    scrolled(main, "Services of this node", |table| {
        table.element("thead", &[], |head| {
            head.element("tr", &[], |row| COLUMNS.iter().for_each(|column| sorted_heading(row, *column, query)));
        });
        table.element("tbody", &[("class", &"cards")], |body| {
            rows.iter().for_each(|row| write(body, row, has_bytes));
        });
    });
}

/// The heading of a column: a link that sorts by it, and in the other direction if the list is sorted by it.
fn sorted_heading(row: &mut Markup, (order, name, is_number): (Option<Order>, &str, bool), query: &ListQuery) {
    let side = side(is_number);
    let Some(order) = order else { return row.leaf("th", &[("scope", &"col"), ("class", &side)], name) };
    let is_current = order == query.order;
    let rises = matches!(order, Order::Name | Order::Endpoints | Order::State) != query.reversed;
    let direction = if rises { "ascending" } else { "descending" };
    let sort: &[(&str, &dyn Display)] = if is_current { &[("aria-sort", &direction)] } else { &[] };
    let to = ListQuery { order, reversed: is_current && !query.reversed, page: 0, ..query.clone() };
    row.element("th", &[&[("scope", &"col" as &dyn Display), ("class", &side)], sort].concat(), |th| {
        th.leaf("a", &[("href", &to.address())], name);
    });
}

fn write(body: &mut Markup, row: &Row<'_>, has_bytes: bool) {
    body.element("tr", &[], |tr| {
        data(tr, "Service", false, |td| match row.name.map(|name| (name, service_address(name))) {
            Some((name, Some(address))) => td.leaf("a", &[("href", &address), ("class", &"name")], name),
            Some((name, None)) => td.text(name),
            None => td.leaf("span", &[("class", &"faint")], "no name in the tables"),
        });
        data(tr, "State", false, |td| {
            let states = row.states();
            let is_mixed = states.iter().filter(|count| **count > 0).count() > 1;
            for ((of, _), count) in STATES.iter().zip(states).filter(|(_, count)| *count > 0) {
                chip(td, &state(*of), is_mixed.then_some(count));
            }
        });
        data(tr, "Frontends", false, |td| frontends(td, row.frontends));
        let (all, local) = row.endpoints();
        data(tr, "Endpoints", true, |td| td.text(all));
        data(tr, "Local", true, |td| td.text(local));
        numbers(tr, &row.numbers, has_bytes);
    });
}

/// The first frontend, and how many others there are.
fn frontends(td: &mut Markup, frontends: &[FrontendView]) {
    td.leaf("span", &[("class", &"address")], frontends.first().map(frontend).unwrap_or_default());
    if frontends.len() > 1 {
        td.leaf("span", &[("class", &"faint")], format_args!(" and {} more", frontends.len() - 1));
    }
}

/// Writes the cells for open connections, new connections per second and bytes per second. `has_bytes` says whether any Service on the page
/// has a byte count, which shows that the kernel counts bytes. Then a Service without connections has the rate 0; otherwise the byte rate of
/// each Service is a dash.
fn numbers(tr: &mut Markup, numbers: &Numbers, has_bytes: bool) {
    let open = Cell::from(short(numbers.open));
    let new = number(numbers.rates.map(|rates| rates.connections_per_second));
    let bytes = number(byte_rate(numbers, has_bytes));
    for (column, cell) in [("Open", open), ("New/s", new), ("Bytes/s", bytes)] {
        data(tr, column, true, |td| td.leaf("span", &[("class", &class(cell.tone))], &cell.text));
    }
}

/// The bytes a second; `None` when they are not known. `has_bytes` is as in [`numbers`].
pub(super) fn byte_rate(numbers: &Numbers, has_bytes: bool) -> Option<f64> {
    numbers.rates.filter(|_| has_bytes).map(|rates| rates.bytes_per_second.unwrap_or_default())
}

/// A rate in a few digits, or a dash when it is not known.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are not negative, and the cast has a limit"
)]
pub(super) fn number(rate: Option<f64>) -> Cell {
    match rate {
        None => crate::services::print::nothing(),
        Some(rate) if rate < 100.0 => Cell::from(format!("{rate:.1}")),
        Some(rate) => Cell::from(short(rate.round() as u64)),
    }
}

/// Which part of the list is shown, with links to the parts before and after it.
fn pages(main: &mut Markup, all: usize, query: &ListQuery) {
    let first = query.page * ROWS;
    let last = (first + ROWS).min(all);
    main.element("nav", &[("class", &"pages"), ("aria-label", &"Parts of the list")], |nav| {
        if query.page > 0 {
            let before = ListQuery { page: query.page - 1, ..query.clone() };
            nav.leaf("a", &[("href", &before.address()), ("rel", &"prev")], "Previous");
        }
        if all > 0 {
            nav.leaf("span", &[], format_args!("{} to {last} of {all}", first + 1));
        }
        if last < all {
            let after = ListQuery { page: query.page + 1, ..query.clone() };
            nav.leaf("a", &[("href", &after.address()), ("rel", &"next")], "Next");
        }
    });
}
