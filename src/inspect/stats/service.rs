//! The page of one Service: its frontends, why it has its endpoints, their traffic, and what the proxy changed. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use hyper::StatusCode;

use super::history::changes_of;
use super::list::{byte_rate, number};
use super::page::{Page, Tab, chip, notices, table};
use super::query::encoded;
use super::reading::Reading;
use crate::history::Entry;
use crate::markup::Markup;
use crate::names;
use crate::output::{Cell, Column, Table, Tone};
use crate::services::causes::Causes;
use crate::services::print::{OPTIONAL, Optional, frontend, nothing, share_texts, state, summary, unknown};
use crate::services::stats::Numbers;
use crate::tables::{EndpointView, FrontendView};
use crate::top::view::short;
use rules::model::Family;

/// The most entries of the history on the page.
pub(super) const CHANGES: usize = 20;
/// The most endpoints of a port on the page.
const MOST_ENDPOINTS: usize = 500;

/// What a reading has of a Service.
#[derive(Debug)]
pub(super) struct Content {
    ports: Vec<Port>,
    /// Sentences about its problems.
    problems: Vec<(Tone, String)>,
    node_addresses: Vec<IpAddr>,
    age: String,
}

/// A service port: its frontends in both families, and the endpoints that they lead to.
#[derive(Debug)]
struct Port {
    /// `namespace/name[:port]`.
    name: String,
    frontends: Vec<(FrontendView, Numbers)>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug)]
struct Endpoint {
    view: EndpointView,
    /// The sums over the frontends.
    numbers: Numbers,
    /// The number of frontends that lead to it.
    leading: usize,
}

impl Content {
    /// What a reading has of the Service `namespace/name`.
    ///
    /// # Errors
    /// When it has nothing of this name, with near names.
    pub(super) fn of(reading: &Reading, name: &str) -> Result<Self> {
        let view = &reading.listing.view;
        let is_of =
            |view: &FrontendView| view.service.as_deref().is_some_and(|service| names::is_port_of(service, name));
        let mine: Vec<(usize, &FrontendView)> =
            view.frontends.iter().enumerate().filter(|(_, view)| is_of(view)).collect();
        let problems = reading.listing.problems.iter().filter(|problem| problem.service.as_deref() == Some(name));
        let problems: Vec<_> = problems.map(|problem| (Tone::Bad, problem.text.clone())).collect();
        if mine.is_empty() && problems.is_empty() {
            let known = view.frontends.iter().filter_map(|view| view.service.as_deref());
            return Err(names::unknown(&names::no_service(name), name, known));
        }
        let ports =
            mine.chunk_by(|(_, a), (_, b)| a.service == b.service).map(|frontends| Port::of(frontends, reading));
        let node_addresses = view.node_addresses.clone();
        Ok(Self { ports: ports.collect(), problems, node_addresses, age: reading.age() })
    }

    /// The frontends of all ports.
    pub(super) fn frontends(&self) -> Vec<FrontendView> {
        self.ports.iter().flat_map(|port| &port.frontends).map(|(view, _)| view.clone()).collect()
    }
}

impl Port {
    fn of(frontends: &[(usize, &FrontendView)], reading: &Reading) -> Self {
        let mut endpoints: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
        for (position, view) in frontends {
            for endpoint in &view.endpoints {
                let numbers = reading.stats.of_endpoint(*position, endpoint);
                let known = endpoints.entry(endpoint.address).or_insert_with(|| {
                    let numbers = Numbers { counted: endpoint.counted.map(|_| 0), ..Numbers::default() };
                    Endpoint { view: *endpoint, numbers, leading: 0 }
                });
                known.numbers.add(numbers);
                if view.shares_counters {
                    known.numbers.counted = endpoint.counted;
                }
                known.leading += 1;
            }
        }
        let numbers =
            |(position, view): &(usize, &FrontendView)| ((*view).clone(), reading.stats.of_frontend(*position, view));
        Self {
            name: frontends.first().and_then(|(_, view)| view.service.as_deref()).unwrap_or_default().to_owned(),
            frontends: frontends.iter().map(numbers).collect(),
            endpoints: endpoints.into_values().collect(),
        }
    }
}

/// The page of a Service.
pub(super) fn page(
    name: &str,
    content: &Content,
    causes: &Causes,
    changes: &Result<Vec<Entry>, (Tone, String)>,
) -> Page {
    Page::new(StatusCode::OK, (name, Tab::Services, true), |main| {
        main.literal("<p class=\"trail\"><a href=\"/\">Services</a></p>");
        main.leaf("h1", &[], name);
        notices(main, &content.problems);
        content.ports.iter().for_each(|port| write_port(main, port, content, causes));
        if let Some(note) = &causes.note {
            main.leaf("p", &[("class", &"faint")], note);
        }
        main.leaf("h2", &[], "History");
        changes_of(main, "What the proxy changed for this Service, the newest first", changes);
        main.leaf("p", &[("class", &"faint")], &content.age);
    })
}

fn write_port(main: &mut Markup, port: &Port, content: &Content, causes: &Causes) {
    let first = port.frontends.first().map(|(view, _)| view);
    let protocol = first.map_or("", |view| view.frontend.protocol.api_name());
    let name = names::split_port(&port.name).1;
    main.element("h2", &[], |heading| {
        heading.text(name.map_or_else(|| protocol.to_owned(), |name| format!("{name} {protocol}")));
        heading.literal(" ");
        for state in states(port) {
            chip(heading, &state, None);
        }
    });
    let mut sentences: Vec<&str> = Vec::new();
    let of_frontends = port.frontends.iter().filter_map(|(view, _)| causes.of(view)).flat_map(|cause| &cause.texts);
    for text in of_frontends {
        if !sentences.contains(&text.as_str()) {
            sentences.push(text);
        }
    }
    sentences.iter().for_each(|text| main.leaf("p", &[], text));
    let address = |column: &str, cell: &Cell| (column == "FRONTEND").then(|| explained(&cell.text, content)).flatten();
    table(main, "Frontends; each leads to the form that explains a packet to it", &frontends(port), address);
    if port.endpoints.is_empty() {
        return;
    }
    let (cells, more) = (endpoints(port, causes), port.endpoints.len().saturating_sub(MOST_ENDPOINTS));
    table(main, "Endpoints", &cells, |_, _| None);
    if more > 0 {
        main.leaf(
            "p",
            &[("class", &"faint")],
            format_args!("{more} more endpoints: kube-proxy services {} -o wide", port.name),
        );
    }
}

/// The states of the frontends of a port, each once.
fn states(port: &Port) -> Vec<Cell> {
    let mut found: Vec<Cell> = Vec::new();
    for cell in port.frontends.iter().map(|(view, _)| state(view.state)) {
        if found.iter().all(|known| known.text != cell.text) {
            found.push(cell);
        }
    }
    found
}

/// The address of the form that explains a packet to a frontend. A node port is asked at an address of this node; `None` when no address of
/// the family accepts node ports.
fn explained(frontend: &str, content: &Content) -> Option<String> {
    let (address, rest) = frontend.split_once(' ').unwrap_or((frontend, ""));
    let Some(port) = address.strip_prefix("*:") else { return Some(format!("/explain?to={}", encoded(address))) };
    let is_of_family = |address: &&IpAddr| address.is_ipv6() != rest.is_empty();
    let node = content.node_addresses.iter().find(is_of_family)?;
    let node = if node.is_ipv6() { format!("[{node}]") } else { node.to_string() };
    Some(format!("/explain?to={}", encoded(&format!("{node}:{port}"))))
}

fn frontends(port: &Port) -> Table {
    let views = || port.frontends.iter().map(|(view, _)| view);
    let shown: Vec<&Optional> = OPTIONAL.iter().filter(|optional| views().any(optional.is_other)).collect();
    let numbers = has_numbers(port.frontends.iter().map(|(_, numbers)| numbers));
    let mut columns = ["FRONTEND", "KIND", "STATE"].map(Column::text).to_vec();
    columns.extend(shown.iter().map(|optional| Column::text(optional.heading)));
    columns.push(Column::text("ENDPOINTS"));
    columns.extend(number_columns(numbers));
    let mut table = Table::new(columns);
    for (view, its) in &port.frontends {
        let mut cells = vec![Cell::from(frontend(view)), view.kind.map_or_else(unknown, Cell::from), state(view.state)];
        cells.extend(shown.iter().map(|optional| (optional.cell)(view, true)));
        cells.push(Cell::from(summary(view)));
        cells.extend(number_cells(its, numbers));
        table.row(cells);
    }
    table
}

fn endpoints(port: &Port, causes: &Causes) -> Table {
    let numbers = has_numbers(port.endpoints.iter().map(|endpoint| &endpoint.numbers));
    let has_shares =
        port.endpoints.iter().any(|endpoint| endpoint.view.share.or(endpoint.view.share_outside).is_some());
    let shares = has_shares.then_some(Column::number("SHARE"));
    let texts = [Column::text("ENDPOINT"), Column::text("PLACE")];
    let shown = &port.endpoints[..port.endpoints.len().min(MOST_ENDPOINTS)];
    let remarks: Vec<Cell> = shown.iter().map(|endpoint| remark(endpoint, port, causes)).collect();
    let has_remarks = remarks.iter().any(|remark| !remark.text.is_empty());
    let last = has_remarks.then_some(Column::text("REMARK"));
    let mut table = Table::new([&texts[..], shares.as_slice(), &number_columns(numbers), last.as_slice()].concat());
    for (endpoint, remark) in shown.iter().zip(remarks) {
        let place = if endpoint.view.local { Cell::from("this node") } else { Cell::new(Tone::Faint, "elsewhere") };
        let cells = [Cell::from(endpoint.view.address), place];
        let share = has_shares.then(|| share(&endpoint.view));
        let remark = has_remarks.then_some(remark);
        let numbers = number_cells(&endpoint.numbers, numbers);
        table.row([&cells[..], share.as_slice(), &numbers, remark.as_slice()].concat());
    }
    table
}

/// The share of new connections that an endpoint gets.
fn share(endpoint: &EndpointView) -> Cell {
    let parts: Vec<String> = share_texts(endpoint).collect();
    if parts.is_empty() { nothing() } else { Cell::from(parts.join(", ")) }
}

/// What is unusual about an endpoint; empty if nothing is.
fn remark(endpoint: &Endpoint, port: &Port, causes: &Causes) -> Cell {
    let is_ipv6 = endpoint.view.address.is_ipv6();
    let is_of_family = |view: &&FrontendView| (view.frontend.family() == Family::V6) == is_ipv6;
    let frontends: Vec<&FrontendView> = port.frontends.iter().map(|(view, _)| view).filter(is_of_family).collect();
    let is_terminating = || {
        let cause = frontends.iter().find_map(|view| causes.of(view));
        cause.is_some_and(|cause| cause.is_terminating(&endpoint.view))
    };
    if endpoint.numbers.unanswered > 0 && endpoint.numbers.open == 0 {
        Cell::new(Tone::Warning, "does not answer")
    } else if is_terminating() {
        Cell::new(Tone::Warning, "terminating")
    } else if endpoint.leading < frontends.len() {
        Cell::new(Tone::Faint, format!("of {} of {} frontends", endpoint.leading, frontends.len()))
    } else {
        Cell::from("")
    }
}

/// Whether any of the numbers has counted connections, and whether any has bytes.
fn has_numbers<'a>(mut numbers: impl Iterator<Item = &'a Numbers> + Clone) -> (bool, bool) {
    (numbers.clone().any(|numbers| numbers.counted.is_some()), numbers.any(|numbers| numbers.bytes.is_some()))
}

fn number_columns((is_counted, has_bytes): (bool, bool)) -> Vec<Column> {
    let mut columns = ["OPEN", "UNANSWERED", "TRACKED", "NEW/S"].map(Column::number).to_vec();
    columns.extend(is_counted.then_some(Column::number("COUNTED")));
    columns.extend(has_bytes.then_some(Column::number("BYTES/S")));
    columns
}

fn number_cells(numbers: &Numbers, (is_counted, has_bytes): (bool, bool)) -> Vec<Cell> {
    let counts = [numbers.open, numbers.unanswered, numbers.connections].map(|number| Cell::from(short(number)));
    let rates = numbers.rates;
    let mut cells = [&counts[..], &[number(rates.map(|rates| rates.connections_per_second))]].concat();
    cells.extend(is_counted.then(|| numbers.counted.map_or_else(nothing, |count| Cell::from(short(count)))));
    cells.extend(has_bytes.then(|| number(byte_rate(numbers, true))));
    cells
}
