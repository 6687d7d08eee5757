//! Detects whether a kube-proxy runs on this node: this program or upstream's. Upstream's holds no lock, so only signs of it can be found.
//!
//! Takes the addresses of kube-proxy's servers, returns a text for each sign of a running proxy. Signs are a process whose program is
//! `kube-proxy`, which is in this network namespace or does not show its namespace; a metrics server that answers `/proxyMode` with a known
//! mode; and a health page in kube-proxy's format. In a container whose /proc hides the node's processes, a proxy whose servers listen on
//! other addresses is not found.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::client::Client;
use component::config::Config;
use node::configured::RunningProxy;
use node::kernel::process::proxies;

/// The answers of `/proxyMode` on Linux.
const MODES: [&str; 3] = ["iptables", "ipvs", "nftables"];
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running kube-proxy, other than the one that [`RunningProxy::find`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherProxy {
    /// Whether it is this program or upstream's, as far as its servers tell.
    pub(crate) program: Program,
    /// Each sign of it, in words; not empty.
    pub(crate) signs: Vec<String>,
}

/// Which program a kube-proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Upstream's, in this mode.
    Upstream(&'static str),
    /// This program.
    Own,
    /// Unknown: its servers were not asked, or their answers do not tell.
    Unknown,
}

/// Describes each sign of a kube-proxy that runs in the calling thread's network namespace; empty when there is none.
pub fn signs(config: &Config) -> Vec<String> {
    let mut signs = proxies(Path::new("/proc"), None);
    signs.extend(
        mode(config.metrics_bind_address)
            .map(|mode| format!("http://{}/proxyMode answers {mode}", config.metrics_bind_address)),
    );
    signs.extend(config.healthz_bind_address.and_then(health));
    signs
}

/// Finds a running kube-proxy other than `known`, the running proxy of this program. With such a proxy only processes count as signs, because
/// it may itself answer at the addresses of `config`. Without `config` only processes count too.
pub(crate) fn beside(known: Option<&RunningProxy>, config: Option<&Config>) -> Option<OtherProxy> {
    let signs = match (known, config) {
        (None, Some(config)) => signs(config),
        _ => proxies(Path::new("/proc"), known.and_then(RunningProxy::process)),
    };
    let config = config.filter(|_| known.is_none());
    let program = config.map_or(Program::Unknown, |config| program(config.metrics_bind_address));
    (!signs.is_empty()).then_some(OtherProxy { program, signs })
}

/// Tells which program answers at this address. The field `nftables.rulesetLayout` in the answer of `/configz` is one of this program,
/// which upstream's kube-proxy does not have.
fn program(address: SocketAddr) -> Program {
    let page = || Client::new(address, PATIENCE).ok()?.get("/configz").ok();
    let page = page().and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok());
    let nftables = page.as_ref().and_then(|page| page.pointer("/kubeproxy.config.k8s.io/nftables"));
    match nftables {
        Some(section) if section.get("rulesetLayout").is_some() => Program::Own,
        Some(_) => mode(address).map_or(Program::Unknown, Program::Upstream),
        None => Program::Unknown,
    }
}

/// The mode that a metrics server answers, if it is kube-proxy's.
fn mode(address: SocketAddr) -> Option<&'static str> {
    let body = Client::new(address, PATIENCE).ok()?.get("/proxyMode").ok()?;
    MODES.into_iter().find(|mode| body.trim_ascii() == mode.as_bytes())
}

/// Describes the answer of a health server, if it is kube-proxy's: a JSON object with the field `nodeEligible`.
fn health(address: SocketAddr) -> Option<String> {
    let (_, body) = Client::new(address, PATIENCE).ok()?.answer("/healthz").ok()?;
    let page: serde_json::Value = serde_json::from_slice(&body).ok()?;
    page.get("nodeEligible").map(|_| format!("http://{address}/healthz answers as kube-proxy does"))
}
