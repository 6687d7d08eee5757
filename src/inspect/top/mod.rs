//! `kube-proxy top`: shows the traffic of Services and endpoints now, on a screen, or once as a table, JSON or YAML.
//!
//! ```text
//! kernel::each_connection ──► crate::traffic ──────► Sample ──► View ──► Screen
//!        tables ──► names of frontends ──┘                 └──► table, JSON
//! ```
//!
//! Each sample takes one walk over the tracked connections, without storing them all. The tables are read again only when nf_tables
//! changed or the rules have counters, and so seldom that this takes at most a twentieth of the time. Invariant: memory is bounded by the
//! size of the tables and the limits of `crate::traffic`.

mod sample;
pub(crate) mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nft::Connection;

use super::CommandOutcome;
use super::output::{Cell, Column, Format, FormatArgs, Output, Table};
use super::running::RunningArgs;
use super::screen::{self, Key, Line, OnScreen};
use super::tables;
use crate::traffic::{Frontends, Walks, is_accounting};
use component::config::GoDuration;
use component::logging::escaped;
use sample::{Named, Row, Sample};
use view::{Order, View};

/// The shortest time between two samples.
const SHORTEST: Duration = Duration::from_millis(100);
/// The shortest time between two requests to the running proxy.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// After the tables were read, they are not read again for this many times as long as reading them took.
const READINGS_APART: u32 = 20;

const EXAMPLES: &str = "\
Examples:
  kube-proxy top                             a screen, by new connections
  kube-proxy top --sort bytes --filter shop  names with shop in it, by bytes
  kube-proxy top --once                      two looks, then a table
  kube-proxy top -o json --interval 5s       as JSON, rates of five seconds

Keys: ? shows all of them, q quits, / filters, arrows select, n o u p b s sort,
r reverses the order.
COUNTED is there while nftables.counters is on: connections since the counter
was made, those included that the kernel forgot.
Packets and bytes need the sysctl net.netfilter.nf_conntrack_acct=1, and count
connections that began after it.
Needs CAP_NET_ADMIN. Exit codes: 0 fine, 2 could not look.";

/// Show which Services and endpoints have how much traffic now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    format: FormatArgs,
    /// Look twice, print, and end; also what -o json and -o yaml do
    #[arg(long)]
    once: bool,
    /// The order: by new connections, open connections, those without an answer, packets, bytes, or name
    #[arg(long, value_enum, default_value_t, value_name = "ORDER", hide_possible_values = false)]
    sort: Order,
    /// Only Services with this text in NAMESPACE/NAME:PORT
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    filter: String,
    /// The time between two looks, 100ms or more
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    interval: GoDuration,
    #[command(flatten)]
    running: RunningArgs,
}

/// Runs the command.
///
/// # Errors
/// When the interval is too short, or the tables or the connections cannot be read.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let interval = args.interval.to_std().filter(|time| *time >= SHORTEST);
    let Some(interval) = interval else { bail!("--interval must be 100ms or more") };
    let view = View::new(args.sort, &args.filter);
    let as_value = matches!(args.format.format, Format::Json | Format::Yaml);
    if !args.once && !as_value {
        return watch(view, interval, args.running);
    }
    let mut sampler = Sampler::start(args.running).map_err(crate::explain_rights)?;
    sampler.look()?;
    std::thread::sleep(interval);
    let sample = sampler.look()?;
    if as_value {
        out.value(args.format.format, &sample.document(&view.rows(&sample)))?;
    } else {
        print(&view, &sample, args.format.format == Format::Wide, out)?;
    }
    Ok(if sample.problems.is_empty() { CommandOutcome::Fine } else { CommandOutcome::Found })
}

/// Prints the service ports, and with `wide` the endpoints below each.
fn print(view: &View, sample: &Sample, wide: bool, out: &mut Output<'_>) -> Result<()> {
    let columns = view::columns(sample, usize::MAX);
    let headings: Vec<Column> = columns.iter().map(|column| Column::number(column.heading)).collect();
    let texts = |row: &Row| -> Vec<Cell> { columns.iter().map(|column| Cell::from(column.text(row))).collect() };
    let mut table = Table::new([&[Column::text("SERVICE")][..], &headings, &[Column::text("")]].concat());
    for row in view.rows(sample) {
        table.row([&[Cell::from(&row.name)][..], &texts(&row)].concat());
        let endpoints = if wide { sample.endpoints(&row.name) } else { Vec::new() };
        for endpoint in &endpoints {
            let remark = Cell::from(endpoint.remark(&endpoints).unwrap_or_default());
            let name = Cell::from(format!("  {}", endpoint.address));
            table.row([&[name][..], &texts(&endpoint.row), &[remark]].concat());
        }
    }
    out.table(&table)?;
    view::notes(sample).iter().try_for_each(|note| out.line(note, 2))
}

/// The newest sample on the screen.
struct Watched {
    view: View,
    interval: Duration,
    sampler: Sampler,
    sample: Sample,
}

impl OnScreen for Watched {
    fn frame(&mut self, width: usize, height: usize) -> Result<Vec<Line>> {
        Ok(self.view.frame(&self.sample, self.interval, width, height))
    }

    fn key(&mut self, key: Key) -> bool {
        self.view.key(key, &self.sample)
    }

    fn look(&mut self) -> Result<()> {
        self.sample = self.sampler.look()?;
        Ok(())
    }
}

/// Shows the screen until a key or a signal ends it.
fn watch(view: View, interval: Duration, running: RunningArgs) -> Result<CommandOutcome> {
    let mut sampler = Sampler::start(running).map_err(crate::explain_rights)?;
    let sample = sampler.look()?;
    screen::show(&mut Watched { view, interval, sampler, sample }, interval)?;
    Ok(CommandOutcome::Fine)
}

/// Takes samples, each of which is compared with the previous one.
struct Sampler {
    connection: Connection,
    tables: Tables,
    /// The nf_tables generation at the last read of the tables.
    generation: u32,
    walks: Walks,
    /// The problems that the running proxy reported when it was last asked.
    reported: Vec<String>,
    asked: Option<Instant>,
    running: RunningArgs,
}

impl Sampler {
    fn start(running: RunningArgs) -> Result<Self> {
        let mut connection = Connection::open().context("cannot open a netlink socket")?;
        let generation = connection.generation()?;
        let (tables, walks, reported, asked) = (read()?, Walks::default(), Vec::new(), None);
        Ok(Self { connection, tables, generation, walks, reported, asked, running })
    }

    fn look(&mut self) -> Result<Sample> {
        let start = Instant::now();
        let generation = self.connection.generation()?;
        let counts = self.tables.names.iter().any(|named| named.counted.is_some());
        if (counts || generation != self.generation) && start >= self.tables.read_after {
            self.tables = read()?;
            self.generation = generation;
        }
        let (look, since) = self.walks.look(&self.tables.frontends)?;
        let mut sample = Sample::new(Arc::clone(&self.tables.names), look, since, is_accounting(), start.elapsed());
        sample.problems = self.problems(start);
        Ok(sample)
    }

    /// Returns the problems of the node. Asks the running proxy if the last request was at least [`ASKED_EVERY`] ago.
    fn problems(&mut self, now: Instant) -> Vec<String> {
        if self.asked.is_none_or(|asked| now.duration_since(asked) >= ASKED_EVERY) {
            let problems = self.running.problems().unwrap_or_default();
            self.reported = problems.iter().map(|problem| escaped(&problem.text)).collect();
            self.asked = Some(now);
        }
        self.tables.problems.iter().chain(&self.reported).cloned().collect()
    }
}

/// What the samples need from the kernel's tables.
struct Tables {
    names: Arc<[Named]>,
    frontends: Frontends,
    /// The problems that the tables show.
    problems: Vec<String>,
    /// The tables are not read again before this time.
    read_after: Instant,
}

fn read() -> Result<Tables> {
    let start = Instant::now();
    let view = tables::View::read()?;
    let problems = view.problems().map(|problem| problem.text).collect();
    let frontends = view.to_count();
    let names: Arc<[Named]> = view.frontends.into_iter().map(Named::from).collect();
    Ok(Tables { names, frontends, problems, read_after: Instant::now() + start.elapsed() * READINGS_APART })
}

impl From<tables::FrontendView> for Named {
    fn from(view: tables::FrontendView) -> Self {
        // Any program may have written the comment, so escape the name.
        let name = view.service.map_or_else(|| format!("({})", view.frontend), |name| escaped(&name));
        Self {
            service: name.into(),
            counted: view.counted,
            endpoints: view.endpoints.iter().map(|endpoint| (endpoint.address, endpoint.counted)).collect(),
            shares_counters: view.shares_counters,
        }
    }
}
