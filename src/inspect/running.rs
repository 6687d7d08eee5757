//! The running proxy, and the problems of this node that it reports.
//!
//! The proxy lists [`Problem`]s on its health pages, each with a sentence, which the commands print. The commands find a dormant or missing
//! table themselves, and a proxy that has not written its rules yet. A proxy that does not answer within three seconds is a problem, and so
//! is an address from the proxy's configuration or from the user at which nothing listens. If neither gives an address, and nothing listens
//! at the default one, that is no problem: perhaps no proxy runs.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use nft::{ReadError, TableName};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::names::ServiceName;
use component::config::{self, Config, Invocation};
use node::configured::{self, RunningProxy};
use rules::model::{Family, Protocol};
use rules::ruleset::names::TABLE;

/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(3);

/// A problem in words, with the Service and the addresses that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The kind, for programs; `text` is for people.
    pub kind: ProblemKind,
    /// The Service, `namespace/name`; `None` when it is about the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The Service's addresses that are concerned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The ports of these addresses, such as `80/TCP`. `*/TCP` stands for any TCP port: a Service with too many ports to list has such
    /// entries. An empty list stands for all ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// The Service's node ports that are concerned, such as `30080/TCP`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ports: Vec<String>,
    /// One sentence without a full stop.
    pub text: String,
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProblemKind {
    /// A Service is not programmed, because it is too large.
    Oversized,
    /// The kernel refuses the rules of a Service. Its previous rules stay in force, if it has some.
    Quarantined,
    /// A Service does not get a frontend that it claims, because the frontend belongs to another Service or to the node.
    LostFrontend,
    /// The API server does not answer.
    ApiServerLost,
    /// There is no Node of the proxy's name.
    NodeUnknown,
    /// The proxy has not written its rules yet, because it waits for its first objects.
    Waiting,
    /// Another program has switched a table off.
    TableDormant,
    /// One IP family has no table, and the other has one.
    TableMissing,
    /// Another program owns the table of an IP family, so that the proxy programs nothing for it.
    TableOwned,
    /// A kube-proxy does not answer at the address of its health pages.
    ProxySilent,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

impl Problem {
    /// A problem of the whole node.
    #[must_use]
    pub fn of_node(kind: ProblemKind, text: String) -> Self {
        Self { kind, service: None, addresses: Vec::new(), ports: Vec::new(), node_ports: Vec::new(), text }
    }

    /// The problem of a dormant table.
    pub(crate) fn dormant(family: Family) -> Self {
        let text = format!("The {family} table is dormant: another program has switched its rules off");
        Self::of_node(ProblemKind::TableDormant, text)
    }

    /// The problem that a family has no table, although the other family has one.
    pub(crate) fn missing(family: Family) -> Self {
        let text = format!(
            "There is no {family} table: no {family} frontend of a Service is served; start the proxy, which writes it again"
        );
        Self::of_node(ProblemKind::TableMissing, text)
    }

    /// The problem that another program, which `program` describes, owns the table of a family.
    #[must_use]
    pub fn owned(family: Family, program: &str) -> Self {
        let table = TableName::new(family.into(), TABLE);
        let text = format!(
            "No {family} frontend of a Service is served: another program owns table {table}, and the kernel lets no other one change it \
             until it ends ({program})"
        );
        Self::of_node(ProblemKind::TableOwned, text)
    }

    /// Whether it says that the proxy waits for its first objects.
    fn is_waiting(&self) -> bool {
        self.kind == ProblemKind::Waiting
    }

    /// Whether it is about a Service that the name includes.
    pub(crate) fn is_about(&self, name: &ServiceName) -> bool {
        self.service.as_deref().is_some_and(|service| name.is_of(service))
    }

    /// Whether it is about this address of a Service or, without an address, about a node port. `None` as port or protocol stands for all.
    pub(crate) fn is_at(&self, address: Option<IpAddr>, port: Option<u16>, protocol: Option<Protocol>) -> bool {
        let is_it = |name: &String| {
            name.split_once('/').is_some_and(|(its_port, its_protocol)| {
                port.is_none_or(|port| its_port == "*" || its_port.parse() == Ok(port))
                    && protocol.is_none_or(|protocol| its_protocol == protocol.api_name())
            })
        };
        match address {
            Some(ip) => self.addresses.contains(&ip) && (self.ports.is_empty() || self.ports.iter().any(is_it)),
            None => self.node_ports.iter().any(is_it),
        }
    }

    /// Whether the problem concerns the whole node. A problem about Services does not, even if it only counts them and names none.
    pub(crate) fn is_of_node(&self) -> bool {
        use ProblemKind::{LostFrontend, Oversized, Quarantined};
        self.service.is_none() && !matches!(self.kind, Oversized | Quarantined | LostFrontend)
    }
}

/// Where the health pages of a proxy with the default configuration are.
pub const HEALTHZ: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
/// Where the metrics server of a proxy with the default configuration is.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// Where the running proxy is asked for problems.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct RunningArgs {
    /// Where the health pages of the running proxy are, which say what the tables do not show [default: where it listens, else
    /// 127.0.0.1:10256]
    #[arg(long, alias = "healthz-bind-address", value_name = "IP[:PORT]", value_parser = healthz)]
    healthz_address: Option<SocketAddr>,
}

fn healthz(text: &str) -> Result<SocketAddr, String> {
    configured::address(text, HEALTHZ.port())
}

impl RunningArgs {
    /// As [`Running::problems`].
    pub(crate) fn problems(self) -> Option<Vec<Problem>> {
        Running::find().problems(self)
    }
}

/// The running proxy, looked for once.
pub struct Running {
    /// The proxy, or why it cannot be looked for.
    pub proxy: Result<Option<RunningProxy>, ReadError>,
    /// Its configuration, if it can be read.
    pub(crate) config: Option<Config>,
}

impl Running {
    /// Looks for the proxy that runs in this network namespace.
    #[must_use]
    pub fn find() -> Self {
        let proxy = RunningProxy::find();
        let config = proxy.as_ref().ok().and_then(Option::as_ref).and_then(RunningProxy::config);
        Self { proxy, config }
    }

    /// The problems that the proxy reports, and the problem that it waits for its first objects. `None` when the problems are not known: the
    /// proxy has no health server, no other address than the default one is known and nothing listens there, or the page has another form.
    pub(crate) fn problems(&self, args: RunningArgs) -> Option<Vec<Problem>> {
        let mut problems = self.reported(args);
        let waits = self.proxy.as_ref().ok().and_then(|proxy| proxy.as_ref()?.waits());
        if let Some(text) = waits.filter(|_| !problems.iter().flatten().any(Problem::is_waiting)) {
            problems.get_or_insert_default().push(Problem::of_node(ProblemKind::Waiting, text));
        }
        problems
    }

    /// In one sentence, what the proxy waits for before it writes its rules; `None` when it does not wait, or no proxy is found.
    #[must_use]
    pub fn waits(&self) -> Option<String> {
        self.problems(RunningArgs::default())?.into_iter().find(Problem::is_waiting).map(|problem| problem.text)
    }

    /// Where its metrics server is, or that of a proxy with the default configuration.
    pub(crate) fn metrics(&self) -> SocketAddr {
        self.config.as_ref().map_or(METRICS, |config| config.metrics_bind_address)
    }

    fn reported(&self, args: RunningArgs) -> Option<Vec<Problem>> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            problems: Vec<Problem>,
        }
        let known = match &self.config {
            Some(config) if args.healthz_address.is_none() => Some(config.healthz_bind_address?),
            _ => args.healthz_address,
        };
        let address = known.unwrap_or(HEALTHZ);
        // The page has the same body whatever its status is.
        match Client::new(address, PATIENCE).ok()?.answer("/livez") {
            Ok((_, body)) => serde_json::from_slice::<Page>(&body).ok().map(|page| page.problems),
            Err(error) if error.downcast_ref::<std::io::Error>().is_none() => {
                let text = format!("The kube-proxy at {address} gives {error}: it may be stopped or stuck");
                Some(vec![silent(&text)])
            }
            Err(error) => known.map(|address| vec![silent(&format!("No kube-proxy answers at {address}: {error}"))]),
        }
    }
}

/// The error that a table is not there, with what the running proxy waits for, or else the command that says whether a proxy can start.
#[must_use]
pub fn no_rules(table: &str) -> Error {
    let why = Running::find().waits().unwrap_or_else(|| "`kube-proxy check` says whether one can start".to_owned());
    anyhow!("no {table} in this network namespace: no kube-proxy of this program has written its rules here; {why}")
}

/// The problem of a proxy that does not answer. `text` is a sentence without a full stop.
fn silent(text: &str) -> Problem {
    Problem::of_node(ProblemKind::ProxySilent, format!("{text}, and what it leaves out is not known"))
}

/// Where the metrics server of the running proxy is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MetricsArgs {
    /// The configuration file of the proxy, for the address of its metrics server
    #[arg(long, value_name = "FILE", conflicts_with = "metrics_bind_address")]
    config: Option<OsString>,
    /// The address of the proxy's metrics server [default: that of the running proxy, else 127.0.0.1:10249]
    #[arg(long, value_name = "IP[:PORT]", value_parser = metrics)]
    metrics_bind_address: Option<SocketAddr>,
}

/// Parses the address of a metrics server.
pub(crate) fn metrics(text: &str) -> Result<SocketAddr, String> {
    configured::address(text, METRICS.port())
}

impl MetricsArgs {
    /// Returns the address of the metrics server: that of the configuration file or of the user, else that of
    /// the running proxy, else the default one.
    ///
    /// # Errors
    /// When the configuration file cannot be used.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let given = self.metrics_bind_address;
        let Some(file) = &self.config else { return Ok(given.unwrap_or_else(|| Running::find().metrics())) };
        let mut flag = OsString::from("--config=");
        flag.push(file);
        match config::load([OsString::from("kube-proxy"), flag]).context("cannot tell the proxy's address")? {
            Invocation::Run(config) => Ok(config.metrics_bind_address),
            _ => bail!("the configuration names no metrics server"),
        }
    }
}
