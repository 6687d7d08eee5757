//! `kube-proxy verify`: checks whether the kernel's tables hold what they should.
//!
//! Takes the cluster's objects, from the API server or a directory, and the configuration of the running proxy or of flags; prints how
//! the tables `ip kube-proxy` and `ip6 kube-proxy` differ from what a proxy with these objects and this configuration would write. Reads
//! the kernel's tables and never writes to them.
//!
//! A proxy may be writing meanwhile: a difference counts only if a second comparison finds it too. Between the two comparisons pass
//! `minSyncPeriod` (1 s if it is not set) and one more second. The second comparison takes the changes of objects until then into account.
//! Of many differences only the first ones are listed, the same ones each time, and the others are counted.

mod objects;
pub(crate) mod report;
pub(crate) mod words;
mod written;

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nft::{Connection, TableDump, TableName};

use self::objects::Objects;
use self::report::{DescribedDifference, Told};
use self::words::Tense;
use crate::sync::{self, Engine, NoKernel};
use cluster::source::{NODE_REMEDY, no_such_node};
use component::config::{AUTOMATIC_LIMIT, Config, ProxyArgs, RulesetLayout};
use inspect::CommandOutcome;
use inspect::output::{FormatArgs, Output};
use inspect::running::Running;
use node::configured::{Origin, Settings};
use node::kernel::{self, families};
use rules::ruleset::names::TABLE;

const EXAMPLES: &str = "\
Examples:
  kube-proxy verify                                        as the running proxy is configured
  kube-proxy verify --config /var/lib/kube-proxy/config.conf -o json
  kube-proxy verify --manifests /etc/kubernetes/services

Without --config it uses the configuration of the running proxy, in which each
flag that is given wins; without a running proxy, the flags, and layout and
number of maps of the tables.
Exit codes: 0 everything is as it should be, 1 something differs, 2 could not
look.";

/// How much longer than `minSyncPeriod`, or than [`AUTOMATIC_LIMIT`] without it, the second comparison waits.
const MOMENT: Duration = Duration::from_secs(1);
/// The most comparisons. Two are enough, unless only one of them lists all differences: see [`Told::retain_in`]. If no two in a row can be
/// compared, the differences of the last one count.
const LOOKS: usize = 4;
const SOCKET: &str = "cannot open a netfilter netlink socket";

/// Compare the kernel's tables with what they should hold: equal, or the differences by Service, in words and as nft commands
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    format: FormatArgs,
    /// Give up when not all objects have arrived after so many seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    proxy: ProxyArgs,
}

/// Compares the tables, a second time if they differ, and prints the differences.
///
/// # Errors
/// When the configuration, the objects or the tables cannot be read, or a flag has no effect.
pub(crate) fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    if let Some(ignored) = args.proxy.ignored() {
        bail!("{ignored}");
    }
    let Settings { mut config, origin, elsewhere } = Settings::of(&args.proxy)?;
    // Table ownership does not change what the rules do, so it is not compared.
    config.own_tables = false;
    let settle = config.min_sync_period.unwrap_or(AUTOMATIC_LIMIT) + MOMENT;
    let says = |flag: &str| says(&args.proxy, &origin, flag);
    let found = form(&mut config, says, settle)?;
    if let Some(found) = found {
        report::print(out, args.format.format, &found.into(), "", "")?;
        return Ok(CommandOutcome::Found);
    }
    if args.proxy.has("endpoint-chains") && config.ruleset_layout == RulesetLayout::Maps {
        bail!(
            "cannot use --endpoint-chains: in layout maps no endpoint has a chain; leave it out, or give --ruleset-layout=chains"
        );
    }
    if let Some(elsewhere) = elsewhere {
        bail!("{elsewhere}");
    }
    let mut look = Verification::begin(config, Duration::from_secs(args.timeout)).with_context(|| match origin {
        Origin::Flags if !args.proxy.are_given() => {
            "no kube-proxy of this program runs in this network namespace, and no flag says how one is configured"
                .to_owned()
        }
        _ => {
            let waits = Running::find().waits().map_or_else(String::new, |text| format!("{text}; "));
            format!("{waits}the configuration is {origin}")
        }
    })?;
    let mut told = look.look()?;
    for _ in 1..LOOKS {
        if told.count() == 0 {
            break;
        }
        look.follow(settle)?;
        let before = std::mem::replace(&mut told, look.look()?);
        if told.retain_in(&before) {
            break;
        }
    }
    let tables = look.tables();
    let equal = format!("{tables} hold what they should: {}", look.counts());
    let differs = format!("{tables} differ in {} from what they should hold", things(told.count()));
    report::print(out, args.format.format, &told, &equal, &differs)?;
    Ok(if told.count() == 0 { CommandOutcome::Fine } else { CommandOutcome::Found })
}

/// Names where the value of a flag comes from: the flag, the file of `--config`, or the running proxy; `None` if there is none of these.
fn says(args: &ProxyArgs, origin: &Origin, flag: &str) -> Option<String> {
    match origin {
        _ if args.has(flag) => Some(format!("--{flag}")),
        Origin::Flags => None,
        Origin::File(file) => Some(file.clone()),
        Origin::Running(_) | Origin::Changed(_) => Some("the running kube-proxy's configuration".to_owned()),
    }
}

/// Copies the layout of the tables, and whether each endpoint has a chain, to `config`, except values for which `says` names a source.
/// Returns a difference if there are no tables, if upstream's kube-proxy wrote them, or if they contradict `config`. Tables that contradict
/// `config` are read again after `settle`, because a proxy may be about to write them again.
fn form(
    config: &mut Config,
    says: impl Fn(&str) -> Option<String>,
    settle: Duration,
) -> Result<Option<DescribedDifference>> {
    let mut connection = Connection::open().context(SOCKET).map_err(inspect::explain_rights)?;
    let tables = families::supported().into_iter().map(|family| TableName::new(family.into(), TABLE));
    let tables: Vec<TableName> = tables.collect();
    if let Some(missing) = written::none(&mut connection, &tables)? {
        return Ok(Some(missing));
    }
    let mut written = written::read(&mut connection, &tables)?;
    if written::contradiction(&written, config, |flag| says(flag)).is_some() {
        thread::sleep(settle);
        written = written::read(&mut connection, &tables)?;
    }
    written::adopt(&written, config, |flag| says(flag));
    Ok(written::contradiction(&written, config, says))
}

fn things(count: usize) -> String {
    if count == 1 { "1 thing".to_owned() } else { format!("{count} things") }
}

/// What a comparison of the tables needs.
struct Verification {
    engine: Engine<NoKernel>,
    connection: Connection,
    objects: Objects,
    /// The tables as they were read while the objects arrived, for the first comparison.
    read: Option<Result<Vec<Option<TableDump>>>>,
}

impl Verification {
    /// Opens the socket and the source of objects, and waits until all objects have arrived. Reads the tables meanwhile, because reading
    /// large tables takes time. If they change after that, only the first of the two comparisons finds a difference, so it does not count.
    fn begin(config: Config, patience: Duration) -> Result<Self> {
        let mut connection = Connection::open().context(SOCKET)?;
        let mut objects = Objects::follow(&config)?;
        let addresses = addresses()?;
        let layout = sync::layout(&config);
        let mut engine = Engine::new(config, layout, &families::supported(), NoKernel { addresses });
        let tables = engine.table_names();
        let (arrived, read) = thread::scope(|scope| {
            let reading = scope.spawn(|| read(&mut connection, tables));
            let arrived = objects.wait_for_all(patience, |event| {
                engine.apply(event);
            });
            (arrived, reading.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        arrived?;
        if let Some(node) = engine.missing_node() {
            // The differences would be those of a node without addresses.
            bail!("{}; {NODE_REMEDY}", no_such_node(node));
        }
        Ok(Self { engine, connection, objects, read: Some(read) })
    }

    /// Applies the changes of objects that arrive during this time, and then reads the node's addresses.
    fn follow(&mut self, time: Duration) -> Result<()> {
        let engine = &mut self.engine;
        self.objects.follow_for(time, |event| {
            engine.apply(event);
        })?;
        self.engine.set_addresses(addresses()?);
        Ok(())
    }

    fn look(&mut self) -> Result<Told> {
        let dumps = match self.read.take() {
            Some(read) => read?,
            None => read(&mut self.connection, self.engine.table_names())?,
        };
        Ok(report::told(&self.engine.differences(dumps, None), Tense::Wrong))
    }

    fn tables(&self) -> String {
        let names: Vec<String> = self.engine.table_names().iter().map(ToString::to_string).collect();
        names.join(" and ")
    }

    fn counts(&self) -> String {
        let services = self.engine.service_count();
        format!("{services} {}", if services == 1 { "Service" } else { "Services" })
    }
}

/// Reads the tables. A table may change while it is read: the second comparison does not find a difference that comes from that.
fn read(connection: &mut Connection, tables: Vec<TableName>) -> Result<Vec<Option<TableDump>>> {
    let read = |table| connection.read_changing_table(&table).with_context(|| format!("cannot read table {table}"));
    tables.into_iter().map(read).collect::<Result<_>>().map_err(inspect::explain_rights)
}

fn addresses() -> Result<Vec<std::net::IpAddr>> {
    kernel::addresses().context("cannot list the addresses of this node")
}

#[cfg(test)]
mod tests;
