//! The problems of this node that the kernel's tables do not show. All commands get them here.
//!
//! The running proxy lists [`Problem`]s on its health pages, each with a sentence, which the commands print. The commands find a dormant
//! table themselves. It is no error when no proxy listens, because the commands work without one; a proxy that takes the connection and
//! does not answer within three seconds is a problem.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::names::{ServiceName, split_port};
use super::output::{Output, Tone};
use component::config::{self, Invocation};
use component::logging::escaped;
use node::configured;
use rules::model::Family;

/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(3);

/// A problem in words, with the Service and the addresses that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What kind of problem it is.
    pub kind: ProblemKind,
    /// The Service, `namespace/name`; `None` when it is about the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The Service's addresses that are concerned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The Service's node ports that are concerned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ports: Vec<u16>,
    /// One sentence without a full stop.
    pub text: String,
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProblemKind {
    /// A Service is not programmed, because it is too large.
    Oversized,
    /// The kernel refuses the rules of a Service; its previous rules stay.
    Quarantined,
    /// A Service does not get a frontend that it claims, because the frontend belongs to another Service or to the node.
    LostFrontend,
    /// The API server does not answer.
    ApiServerLost,
    /// The API server has no Node of the proxy's name.
    NodeUnknown,
    /// Another program has switched a table off.
    TableDormant,
    /// There is no table for an IP family that this node has.
    TableMissing,
    /// The running proxy takes connections and does not answer.
    ProxySilent,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// What to do when the API server has no Node of the proxy's name.
pub const NODE_REMEDY: &str = "give the name of this node with --hostname-override or hostnameOverride";

/// Returns the sentence that the API server has no Node of this name.
#[must_use]
pub fn no_such_node(name: &str) -> String {
    format!("there is no Node {name}: node ports listen nowhere by default, and no endpoint is local")
}

impl Problem {
    /// A problem of the whole node.
    #[must_use]
    pub fn of_node(kind: ProblemKind, text: String) -> Self {
        Self { kind, service: None, addresses: Vec::new(), node_ports: Vec::new(), text }
    }

    /// The problem of a dormant table.
    pub(crate) fn dormant(family: Family) -> Self {
        let text = format!("The {family} table is dormant: another program has switched its rules off");
        Self::of_node(ProblemKind::TableDormant, text)
    }

    /// The problem of a table that is missing beside that of the other family.
    pub(crate) fn missing(family: Family) -> Self {
        let text = format!(
            "There is no {family} table: no {family} frontend of a Service is served; start the proxy, which writes it again"
        );
        Self::of_node(ProblemKind::TableMissing, text)
    }

    /// Whether it is about a Service of this name.
    pub(crate) fn is_about(&self, name: &ServiceName) -> bool {
        self.service.as_deref() == Some(split_port(&name.service).0)
    }

    /// Whether it is about this address of a Service, or this node port when there is no address.
    pub(crate) fn is_at(&self, address: Option<IpAddr>, port: Option<u16>) -> bool {
        match address {
            Some(address) => self.addresses.contains(&address),
            None => port.is_some_and(|port| self.node_ports.contains(&port)),
        }
    }

    /// Whether it is about the whole node, and not about Services, named or counted.
    pub(crate) fn is_of_node(&self) -> bool {
        use ProblemKind::{LostFrontend, Oversized, Quarantined};
        self.service.is_none() && !matches!(self.kind, Oversized | Quarantined | LostFrontend)
    }
}

/// Prints problems, each on a line.
///
/// # Errors
/// As [`Output::text`].
pub(crate) fn print(problems: &[Problem], out: &mut Output<'_>) -> Result<()> {
    problems.iter().try_for_each(|problem| {
        let text = out.styled(Tone::Bad, escaped(&problem.text));
        out.text(format_args!("{text}\n"))
    })
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
    /// What the running proxy reports; `None` when none runs, or it has no health server.
    pub(crate) fn problems(self) -> Option<Vec<Problem>> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            problems: Vec<Problem>,
        }
        let running = if self.healthz_address.is_some() { None } else { configured::running() };
        let known = match running {
            Some(config) => Some(config.healthz_bind_address?),
            None => self.healthz_address,
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

/// The problem of a proxy that does not answer.
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

/// The address that the user gave, else that of the running proxy, else the default one.
pub(crate) fn metrics_address(given: Option<SocketAddr>) -> SocketAddr {
    given.or_else(|| Some(configured::running()?.metrics_bind_address)).unwrap_or(METRICS)
}

impl MetricsArgs {
    /// Returns the address of the metrics server: from the configuration file if one was given, else from [`metrics_address`].
    ///
    /// # Errors
    /// When the configuration file cannot be used.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let Some(file) = &self.config else { return Ok(metrics_address(self.metrics_bind_address)) };
        let mut flag = OsString::from("--config=");
        flag.push(file);
        match config::load([OsString::from("kube-proxy"), flag]).context("cannot tell the proxy's address")? {
            Invocation::Run(config) => Ok(config.metrics_bind_address),
            _ => bail!("the configuration names no metrics server"),
        }
    }
}
