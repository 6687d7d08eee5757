//! `kube-proxy verify`: checks whether the kernel's tables hold what they should.
//!
//! Takes the cluster's objects, from the API server or a directory, and the node's own configuration; returns how both tables differ from
//! what a proxy with these objects and this configuration would write. Reads the kernel and never writes.
//!
//! A proxy may be writing meanwhile: a difference counts only if a second look finds it too. That look comes a second more than
//! `minSyncPeriod` after the first, and the objects are followed until then.

mod objects;
pub(crate) mod report;
pub(crate) mod words;

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nft::{Connection, TableDump};

use self::objects::Objects;
use self::report::DescribedDifference;
use self::words::Tense;
use crate::sync::{self, Engine, NoKernel};
use component::config::{AUTOMATIC_LIMIT, Config, ProxyArgs};
use inspect::CommandOutcome;
use inspect::output::{FormatArgs, Output};
use node::kernel::{self, families};

const EXAMPLES: &str = "\
Examples:
  kube-proxy verify --config /var/lib/kube-proxy/config.conf
  kube-proxy verify --kubeconfig /etc/kubernetes/kube-proxy.conf -o json
  kube-proxy verify --manifests /etc/kubernetes/services

Give it the flags of the proxy itself. Exit codes: 0 everything is as it should be, 1 something differs, 2 could not look.";

/// How much longer than `minSyncPeriod` the second look waits.
const MOMENT: Duration = Duration::from_secs(1);

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

/// Looks, a second time if necessary, and prints what it found.
///
/// # Errors
/// When the objects or the tables cannot be read.
pub(crate) fn run(args: &Args, out: &mut Output<'_>) -> Result<CommandOutcome> {
    let mut config = args.proxy.config()?;
    // Table ownership does not change what the rules do, so it is not compared.
    config.own_tables = false;
    let settle = config.min_sync_period.unwrap_or(AUTOMATIC_LIMIT) + MOMENT;
    let mut look = Verification::begin(config, Duration::from_secs(args.timeout))?;
    let mut told = look.look()?;
    if !told.is_empty() {
        look.follow(settle)?;
        let before: HashSet<DescribedDifference> = told.into_iter().collect();
        told = look.look()?;
        told.retain(|told| before.contains(told));
    }
    let tables = look.tables();
    let equal = format!("{tables} hold what they should: {}", look.counts());
    let differs = format!("{tables} differ in {} from what they should hold", things(told.len()));
    report::print(out, args.format.format, &told, &equal, &differs)?;
    Ok(if told.is_empty() { CommandOutcome::Fine } else { CommandOutcome::Found })
}

fn things(count: usize) -> String {
    if count == 1 { "1 thing".to_owned() } else { format!("{count} things") }
}

/// Everything that one look at the tables needs.
struct Verification {
    engine: Engine<NoKernel>,
    connection: Connection,
    objects: Objects,
}

impl Verification {
    /// Opens the sockets and the source of objects, and waits until all objects have arrived.
    fn begin(config: Config, patience: Duration) -> Result<Self> {
        let connection = Connection::open().context("cannot open a netfilter netlink socket")?;
        let mut objects = Objects::follow(&config)?;
        let addresses = addresses()?;
        let layout = sync::layout(&config);
        let mut engine = Engine::new(config, layout, &families::supported(), NoKernel { addresses });
        objects.wait_for_all(patience, |event| {
            engine.apply(event);
        })?;
        Ok(Self { engine, connection, objects })
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

    fn look(&mut self) -> Result<Vec<DescribedDifference>> {
        // The table may change while it is read: a difference that comes from that is gone at the second look.
        let read =
            |table| self.connection.read_changing_table(&table).with_context(|| format!("cannot read table {table}"));
        let dumps: Vec<Option<TableDump>> =
            self.engine.table_names().into_iter().map(read).collect::<Result<_>>().map_err(inspect::explain_rights)?;
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

fn addresses() -> Result<Vec<std::net::IpAddr>> {
    kernel::addresses().context("cannot list the addresses of this node")
}

#[cfg(test)]
mod tests;
