//! The listing as a table for people, and as JSON or YAML. Pure but for the output.

use std::net::IpAddr;

use anyhow::Result;
use serde::{Serialize, Serializer};

use super::causes::Cause;
use super::stats::{Numbers, Stats};
use super::{Args, Listing, frontend_name};
use crate::output::{Cell, Column, Format, Output, Table, Tone};
use crate::running::{Problem, ProblemKind};
use crate::tables::{Affinity, EndpointView, FrontendView, Kind, Policy, State};
use component::logging::escaped;
use rules::model::{Destination, Family};

/// Prints the listing; a table has the frontends at these positions, in this order.
///
/// # Errors
/// As [`Output::text`].
pub(super) fn print(
    args: &Args,
    listing: &Listing,
    stats: Option<&Stats>,
    positions: &[usize],
    out: &mut Output<'_>,
) -> Result<()> {
    match args.output.format {
        Format::Json | Format::Yaml => out.value(args.output.format, &Document { listing, stats }),
        Format::Table | Format::Wide => {
            let is_wide = args.output.format == Format::Wide;
            if !positions.is_empty() {
                out.table(&table(listing, stats, positions, is_wide))?;
            } else if args.not_served {
                out.text("Every frontend is served.\n")?;
            }
            notes(listing, out)
        }
    }
}

/// The number of source ranges in a cell, unless all are to be shown.
const FEW_SOURCES: usize = 2;

fn table(listing: &Listing, stats: Option<&Stats>, positions: &[usize], is_wide: bool) -> Table {
    let with_endpoints = is_wide || listing.is_one_service;
    let is_shown = |optional: &&Optional| {
        is_wide || positions.iter().any(|position| (optional.is_other)(&listing.view.frontends[*position]))
    };
    let shown: Vec<&Optional> = OPTIONAL.iter().filter(is_shown).collect();
    let mut columns =
        vec![Column::text("SERVICE"), Column::text("FRONTEND"), Column::text("KIND"), Column::text("STATE")];
    columns.extend(shown.iter().map(|optional| Column::text(optional.heading)));
    columns.push(Column::text("ENDPOINTS"));
    let texts = columns.len();
    if let Some(stats) = stats {
        columns.extend(["OPEN", "UNANSWERED", "TRACKED", "COUNTED", "PACKETS", "BYTES"].map(Column::number));
        if stats.has_rates() {
            columns.extend(["NEW/S", "PACKETS/S", "BYTES/S"].map(Column::number));
        }
    }
    let mut table = Table::new(columns);
    for (position, view) in positions.iter().map(|position| (*position, &listing.view.frontends[*position])) {
        // Kinds and policies are called as in Kubernetes.
        let mut row = vec![
            view.service.as_ref().map_or_else(nothing, Cell::from),
            Cell::from(frontend(view)),
            view.kind.map_or_else(unknown, Cell::from),
            state(view.state),
        ];
        row.extend(shown.iter().map(|optional| (optional.cell)(view, with_endpoints)));
        row.push(Cell::from(summary(view)));
        row.extend(
            stats.into_iter().flat_map(|stats| number_cells(stats.of_frontend(position, view), stats.has_rates())),
        );
        table.row(row);
        if with_endpoints {
            let cause = listing.causes.of(view);
            let sentences = cause.into_iter().flat_map(|cause| &cause.texts);
            sentences.for_each(|text| table.line(Tone::Plain, format_args!("  {text}")));
            endpoints(&mut table, texts, (position, view), cause, stats);
        }
    }
    table
}

/// A column that is shown when a frontend has a value other than the default in it, and with `-o wide`.
pub(crate) struct Optional {
    pub(crate) heading: &'static str,
    pub(crate) is_other: fn(&FrontendView) -> bool,
    /// The cell of a frontend; in full if the flag is set, else perhaps shortened.
    pub(crate) cell: fn(&FrontendView, bool) -> Cell,
}

/// The columns of policy, affinity and sources.
pub(crate) const OPTIONAL: [Optional; 3] = [
    Optional {
        heading: "POLICY",
        is_other: |view| view.policy == Some(Policy::Local),
        cell: |view, _| view.policy.map_or_else(nothing, Cell::from),
    },
    Optional {
        heading: "AFFINITY",
        is_other: |view| view.affinity.is_some(),
        cell: |view, _| view.affinity.map_or_else(nothing, |affinity| Cell::from(affinity_text(affinity))),
    },
    Optional { heading: "SOURCES", is_other: |view| view.sources.is_some(), cell: sources },
];

/// The shares of new connections that an endpoint gets, in words; none if all endpoints get the same share.
pub(crate) fn share_texts(endpoint: &EndpointView) -> impl Iterator<Item = String> {
    let share = |tenths: u16, from: &str| format!("{:.1}%{from}", percent(tenths));
    let all = endpoint.share.map(|tenths| share(tenths, ""));
    let outside = endpoint.share_outside.map(|tenths| share(tenths, " from outside"));
    all.into_iter().chain(outside)
}

/// Adds an indented row for each endpoint of a frontend. `texts` is the number of columns before the numbers.
fn endpoints(
    table: &mut Table,
    texts: usize,
    (position, view): (usize, &FrontendView),
    cause: Option<&Cause>,
    stats: Option<&Stats>,
) {
    for endpoint in &view.endpoints {
        let mut row = vec![Cell::from(""); texts];
        row[0] = Cell::from(format!("  {}", endpoint.address));
        let is_terminating = cause.is_some_and(|cause| cause.is_terminating(endpoint));
        let local = endpoint.local.then(|| "local".to_owned());
        let terminating = is_terminating.then(|| "(terminating)".to_owned());
        row[1] =
            Cell::from(local.into_iter().chain(share_texts(endpoint)).chain(terminating).collect::<Vec<_>>().join(" "));
        let numbers = |stats: &Stats| number_cells(stats.of_endpoint(position, endpoint), stats.has_rates());
        row.extend(stats.into_iter().flat_map(numbers));
        table.row(row);
    }
}

fn number_cells(numbers: Numbers, with_rates: bool) -> Vec<Cell> {
    let optional = |number: Option<u64>| number.map_or_else(nothing, Cell::from);
    let mut cells = vec![
        Cell::from(numbers.open),
        Cell::from(numbers.unanswered),
        Cell::from(numbers.connections),
        optional(numbers.counted),
        optional(numbers.packets),
        optional(numbers.bytes),
    ];
    if with_rates {
        let rates = numbers.rates.unwrap_or_default();
        let optional = |rate: Option<f64>| rate.map_or_else(nothing, |rate| Cell::from(format!("{rate:.1}")));
        cells.push(Cell::from(format!("{:.1}", rates.connections_per_second)));
        cells.extend([optional(rates.packets_per_second), optional(rates.bytes_per_second)]);
    }
    cells
}

pub(crate) fn nothing() -> Cell {
    Cell::new(Tone::Faint, "-")
}

pub(crate) fn unknown() -> Cell {
    Cell::new(Tone::Warning, "unknown")
}

/// The frontend as text. A node port has no address that shows its family, so `(IPv6)` is added to one of this family.
pub(crate) fn frontend(view: &FrontendView) -> String {
    let name = frontend_name(&view.frontend);
    match view.frontend.destination {
        Destination::NodePort(Family::V6) => format!("{name} (IPv6)"),
        _ => name.to_string(),
    }
}

pub(crate) fn state(state: Option<State>) -> Cell {
    let Some(state) = state else { return unknown() };
    let tone = match state {
        State::Served => Tone::Good,
        State::Refused => Tone::Warning,
        State::Dropped | State::Quarantined => Tone::Bad,
    };
    Cell::new(tone, state)
}

fn affinity_text(affinity: Affinity) -> String {
    let clients = if affinity.clients == 1 { "client" } else { "clients" };
    match affinity.seconds {
        Some(seconds) => format!("{seconds}s, {} {clients}", affinity.clients),
        None => format!("{} {clients}", affinity.clients),
    }
}

fn sources(view: &FrontendView, in_full: bool) -> Cell {
    let Some(sources) = &view.sources else { return Cell::from("any") };
    let shown = if in_full { sources.len() } else { FEW_SOURCES };
    let mut texts: Vec<String> = sources.iter().take(shown).map(ToString::to_string).collect();
    if sources.len() > shown {
        texts.push(format!("{} more", sources.len() - shown));
    }
    if texts.is_empty() { Cell::new(Tone::Warning, "none") } else { Cell::from(texts.join(", ")) }
}

pub(crate) fn summary(view: &FrontendView) -> String {
    let local = view.endpoints.iter().filter(|endpoint| endpoint.local).count();
    match view.endpoints.len() {
        0 => "none".to_owned(),
        all => format!("{all} ({local} local)"),
    }
}

/// Prints notes about what the table does not show, such as quarantined Services.
fn notes(listing: &Listing, out: &mut Output<'_>) -> Result<()> {
    sentences(listing).into_iter().try_for_each(|(tone, text)| out.line(out.styled(tone, escaped(&text)), 2))
}

/// Sentences about what the table does not show.
pub(crate) fn sentences(listing: &Listing) -> Vec<(Tone, String)> {
    let changing = listing.view.changing.iter().map(|family| {
        (Tone::Plain, format!("The {family} table changed while it was read: an endpoint may be missing or old"))
    });
    let problems = listing.problems.iter().map(|problem| (Tone::Bad, problem.text.clone()));
    let note = listing.causes.note.clone().map(|note| (Tone::Faint, note));
    let unreadable = Some(listing.view.unreadable).filter(|count| *count > 0).map(|count| {
        (Tone::Plain, format!("Objects in the tables that another program wrote and that cannot be read: {count}"))
    });
    changing.chain(problems).chain(note).chain(unreadable).collect()
}

/// The document of `-o json` and `-o yaml`.
struct Document<'a> {
    listing: &'a Listing,
    stats: Option<&'a Stats>,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields<'a> {
            services: Services<'a>,
            quarantined_services: Option<Vec<&'a str>>,
            oversized_services: Option<Vec<&'a str>>,
            problems: &'a [Problem],
            unreadable_objects: usize,
            dormant_families: Vec<String>,
            changing_families: Vec<String>,
        }
        let names = |kind| {
            let problems = self.listing.problems.iter().filter(move |problem| problem.kind == kind);
            self.listing.proxy_answers.then(|| problems.filter_map(|problem| problem.service.as_deref()).collect())
        };
        let fields = Fields {
            services: Services { listing: self.listing, stats: self.stats },
            quarantined_services: names(ProblemKind::Quarantined),
            oversized_services: names(ProblemKind::Oversized),
            problems: &self.listing.problems,
            unreadable_objects: self.listing.view.unreadable,
            dormant_families: self.listing.view.dormant.iter().map(ToString::to_string).collect(),
            changing_families: self.listing.view.changing.iter().map(ToString::to_string).collect(),
        };
        fields.serialize(serializer)
    }
}

/// Serializes the frontends one after the other, so that the fields of all frontends are never in memory at once.
struct Services<'a> {
    listing: &'a Listing,
    stats: Option<&'a Stats>,
}

impl Serialize for Services<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let frontends = self.listing.view.frontends.iter().enumerate();
        serializer.collect_seq(
            frontends.map(|(position, view)| service(position, view, self.listing.causes.of(view), self.stats)),
        )
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceFields<'a> {
    service: Option<&'a str>,
    #[serde(rename = "front")]
    frontend: FrontendFields,
    state: Option<State>,
    policy: Option<Policy>,
    affinity_seconds: Option<u64>,
    affinity_clients: Option<u64>,
    restricted: bool,
    source_ranges: Vec<String>,
    endpoints: Vec<EndpointFields>,
    cause: Option<&'a Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Numbers>,
}

#[derive(Serialize)]
struct FrontendFields {
    address: Option<IpAddr>,
    port: u16,
    protocol: &'static str,
    kind: Option<Kind>,
    family: String,
}

/// Tenths of a percent as a percentage.
fn percent(tenths: u16) -> f64 {
    f64::from(tenths) / 10.0
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointFields {
    address: IpAddr,
    port: u16,
    local: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_percent_outside: Option<f64>,
    terminating: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Numbers>,
}

fn service<'a>(
    position: usize,
    view: &'a FrontendView,
    cause: Option<&'a Cause>,
    stats: Option<&Stats>,
) -> ServiceFields<'a> {
    let name = frontend_name(&view.frontend);
    let endpoint = |endpoint: &EndpointView| EndpointFields {
        address: endpoint.address.ip(),
        port: endpoint.address.port(),
        local: endpoint.local,
        share_percent: endpoint.share.map(percent),
        share_percent_outside: endpoint.share_outside.map(percent),
        terminating: cause.map(|cause| cause.is_terminating(endpoint)),
        stats: stats.map(|stats| stats.of_endpoint(position, endpoint)),
    };
    ServiceFields {
        service: view.service.as_deref(),
        frontend: FrontendFields {
            address: name.address,
            port: name.port,
            protocol: view.frontend.protocol.api_name(),
            kind: view.kind,
            family: view.frontend.family().to_string(),
        },
        state: view.state,
        policy: view.policy,
        affinity_seconds: view.affinity.and_then(|affinity| affinity.seconds),
        affinity_clients: view.affinity.map(|affinity| affinity.clients),
        restricted: view.sources.is_some(),
        source_ranges: view.sources.iter().flatten().map(ToString::to_string).collect(),
        endpoints: view.endpoints.iter().map(endpoint).collect(),
        cause,
        stats: stats.map(|stats| stats.of_frontend(position, view)),
    }
}
