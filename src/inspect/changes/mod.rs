//! `kube-proxy changes`: shows what the running proxy did, from its page `/debug/changes`.
//!
//! Asks the running proxy, or the one that flags name; prints the entries of the proxy's ring buffer of changes ([`crate::history`]).
//! Needs a running proxy, but no privilege.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::CommandOutcome;
use super::client::Client;
use super::names::{self, ServiceName};
use super::output::{Cell, Column, Format, FormatArgs, Output, Table, Tone};
use super::running::MetricsArgs;
use super::tables::View;
use crate::history::{self, Entry, EntryKind, Page, Query};
use component::config::GoDuration;

/// The polling interval of `--follow`.
const EVERY: Duration = Duration::from_millis(500);
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  kube-proxy changes --since 5m                  of the last five minutes
  kube-proxy changes --service shop/web --follow   of a Service, as they happen
  kube-proxy changes -o json                     for programs

The proxy keeps the last 4096 entries, at most 2 MiB, and none over a restart.
From other hosts its page needs enableProfiling.

Exit codes: 0 all listed changes are in the kernel; 1 the kernel refused one,
or a Service was left out; 2 no proxy answers, or no such Service.";

/// Arguments of the command.
#[derive(Debug, clap::Args)]
#[command(about = "Show what the running proxy changed, why, and how fast", after_help = EXAMPLES)]
pub struct Args {
    /// Only what happened within this time, such as 30s, 5m or 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Duration>,
    /// Only what is about this Service
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = service)]
    service: Option<ServiceName>,
    /// Go on with what happens from now on, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    output: FormatArgs,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<GoDuration>().map_err(|error| error.to_string())?;
    time.to_std().ok_or_else(|| format!("{text:?} is less than nothing"))
}

fn service(text: &str) -> Result<ServiceName, String> {
    let name: ServiceName = text.parse().map_err(|error: super::names::NameError| error.to_string())?;
    match &name.port {
        Some(port) => Err(format!("a change is one of a whole Service: give {} without :{port}", name.service)),
        None => Ok(name),
    }
}

/// Prints the changes.
///
/// # Errors
/// When the proxy does not answer, or the Service is unknown and `--follow` does not wait for it.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let client = Client::new(args.metrics.address()?, PATIENCE)?;
    let service = args.service.as_ref().map(|name| name.service.clone());
    let unknown = service.as_deref().map(|name| unknown(&client, name)).transpose()?.flatten();
    let mut query = Query { since: args.since, service, after: 0 };
    if args.follow {
        if let Some(unknown) = unknown {
            notice(&format!("{unknown:#}; waiting for it"), args.output.format, out)?;
        }
        return follow(&client, &mut query, args.output.format, out);
    }
    if let Some(unknown) = unknown {
        return Err(unknown);
    }
    let page = all(&client, &mut query)?;
    match args.output.format {
        Format::Json | Format::Yaml => out.value(args.output.format, &page)?,
        Format::Table | Format::Wide if page.changes.is_empty() => out.text("No changes.\n")?,
        format @ (Format::Table | Format::Wide) => out.table(&table(&page.changes, format == Format::Wide))?,
    }
    Ok(outcome(&page.changes))
}

/// The error for an unknown Service: the tables of this node do not have this name, and none of the entries that the proxy keeps is, or may
/// be, about it. `None` when it is known, and when the tables cannot be read, since this command needs no privilege.
fn unknown(client: &Client, name: &str) -> Result<Option<anyhow::Error>> {
    let kept = all(client, &mut Query::default())?.changes;
    if kept.iter().any(|entry| entry.is_about(name)) {
        return Ok(None);
    }
    let Ok(tables) = View::read() else { return Ok(None) };
    let in_tables = || tables.frontends.iter().filter_map(|frontend| frontend.service.as_deref());
    // A long name is cut in the comments of elements, and ends with `...` there.
    let is_it = |known: &str| known.strip_suffix("...").map_or(known == name, |start| name.starts_with(start));
    if in_tables().any(|service| is_it(names::split_port(service).0)) {
        return Ok(None);
    }
    let in_changes = kept.iter().filter_map(|entry| match &entry.what {
        EntryKind::Service(change) => Some(change.service.to_string()),
        _ => None,
    });
    let in_changes: Vec<String> = in_changes.collect();
    let known = in_tables().map(|service| names::split_port(service).0).chain(in_changes.iter().map(String::as_str));
    let what = format!("{}, and no change of one is kept", names::no_service(name));
    Ok(Some(names::unknown(&what, name, known)))
}

/// Reads the next page of entries, and sets `query.after` for the page after it.
pub(crate) fn page(client: &Client, query: &mut Query) -> Result<Page> {
    let body = client.get(&format!("/debug/changes?{}", query.to_text()))?;
    let page: Page = serde_json::from_slice(&body).context("the proxy's answer is none of /debug/changes")?;
    query.after = page.last;
    Ok(page)
}

/// Reads all pages and joins them.
pub(crate) fn all(client: &Client, query: &mut Query) -> Result<Page> {
    let mut all = page(client, query)?;
    while all.more {
        let next = page(client, query)?;
        (all.last, all.more) = (next.last, next.more && next.started == all.started);
        all.changes.extend(next.changes);
    }
    Ok(all)
}

/// Prints the kept entries and then new ones as they come, until the user ends the command or the output is closed. Waits for a proxy that
/// restarts.
fn follow(client: &Client, query: &mut Query, format: Format, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let (mut seen, mut is_gone) = (page(client, query)?, false);
    let since = query.since;
    let mut widths = None;
    loop {
        print(&seen.changes, format, &mut widths, out)?;
        out.flush()?;
        if !seen.more {
            client.wait(EVERY);
        }
        let before = query.after;
        let next = match page(client, query) {
            Ok(next) => next,
            Err(error) => {
                if !std::mem::replace(&mut is_gone, true) {
                    notice(&format!("the proxy does not answer any more ({error:#}); waiting for it"), format, out)?;
                }
                seen = Page { changes: Vec::new(), more: false, ..seen };
                continue;
            }
        };
        is_gone = false;
        // A restarted proxy numbers its entries from 1 again.
        if next.started != seen.started {
            notice("the proxy was started again", format, out)?;
            *query = Query { after: 0, ..query.clone() };
            seen = page(client, query)?;
            continue;
        }
        if next.first > before + 1 {
            notice(&format!("{} changes are missing: too many came at once", next.first - before - 1), format, out)?;
        }
        // Once the kept entries are printed, all further entries are new: `--since` must not hide them.
        query.since = if next.more { since } else { None };
        seen = next;
    }
}

/// The least widths of the first columns with `--follow`: longer names may come later.
const FOLLOWED: [usize; 4] = [24, 4, 20, 24];

/// Prints entries as rows, as lines of JSON, or as YAML documents. The first call prints the headings of the rows; the widths of the
/// columns are then kept.
fn print(entries: &[Entry], format: Format, widths: &mut Option<Vec<usize>>, out: &mut Output<'_>) -> Result<()> {
    match format {
        Format::Json => entries.iter().try_for_each(|entry| out.text(serde_json::to_string(entry)? + "\n")),
        Format::Yaml => entries.iter().try_for_each(|entry| {
            out.text("---\n")?;
            out.value(format, entry)
        }),
        Format::Table | Format::Wide => {
            let table = table(entries, format == Format::Wide);
            if let Some(widths) = widths {
                return out.rows(&table, widths);
            }
            let mut own = table.widths();
            own.iter_mut().zip(FOLLOWED).for_each(|(width, least)| *width = (*width).max(least));
            out.headings(&table, widths.insert(own))?;
            out.rows(&table, widths.as_deref().unwrap_or_default())
        }
    }
}

/// Prints a note that is not an entry, in the formats for people only.
fn notice(text: &str, format: Format, out: &mut Output<'_>) -> Result<()> {
    match format {
        Format::Table | Format::Wide => {
            out.text(format!("({text})\n"))?;
            out.flush()
        }
        Format::Json | Format::Yaml => Ok(()),
    }
}

/// The entries as a table.
pub(crate) fn table(entries: &[Entry], is_wide: bool) -> Table {
    let mut columns = vec![Column::text("TIME"), Column::number("SYNC"), Column::text("SERVICE")];
    columns.extend([Column::text("TRIGGER"), Column::number("LATENCY")]);
    if is_wide {
        columns.extend([Column::number("SINCE-CLUSTER"), Column::number("NUMBER")]);
    }
    columns.extend([Column::text("RESULT"), Column::text("CHANGE")]);
    let mut table = Table::new(columns);
    entries.iter().for_each(|entry| table.row(cells(entry, is_wide)));
    table
}

fn cells(entry: &Entry, is_wide: bool) -> Vec<Cell> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let (service, latency, in_cluster) = match &entry.what {
        EntryKind::Service(change) => (Some(change.service.to_string()), change.latency, change.cluster_latency),
        EntryKind::Sync(run) => (None, run.latency, None),
        EntryKind::Repair(_) | EntryKind::ApiServer(_) => (None, None, None),
    };
    let result = entry.result();
    let tone = match (&entry.what, result) {
        (EntryKind::Service(_) | EntryKind::Sync(_), Some(history::CommitOutcome::Committed)) => Tone::Plain,
        (EntryKind::ApiServer(server), _) if server.state == history::Connection::Found => Tone::Plain,
        (EntryKind::Repair(_), _) => Tone::Warning,
        _ => Tone::Bad,
    };
    let mut cells = vec![
        Cell::from(format!("{:.3}", entry.time)),
        Cell::from(or_dash(entry.sync.map(|sync| sync.to_string()))),
        Cell::from(or_dash(service)),
        Cell::from(or_dash(entry.trigger().map(|trigger| trigger.to_string()))),
        Cell::from(or_dash(latency.map(in_words))),
    ];
    if is_wide {
        cells.extend([Cell::from(or_dash(in_cluster.map(in_words))), Cell::from(entry.number)]);
    }
    cells.extend([Cell::new(tone, or_dash(result.map(|result| result.to_string()))), Cell::new(tone, &entry.what)]);
    cells
}

/// A time with a unit: `412 us`, `1.2 ms`, `3.0 s`.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds < 1e-3 => format!("{} us", time.as_micros()),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// `Found` when an entry has a result other than committed.
fn outcome(entries: &[Entry]) -> CommandOutcome {
    let is_committed = |entry: &Entry| entry.result().is_none_or(|result| result == history::CommitOutcome::Committed);
    if entries.iter().all(is_committed) { CommandOutcome::Fine } else { CommandOutcome::Found }
}

#[cfg(test)]
mod tests;
