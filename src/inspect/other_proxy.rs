//! Detects whether a kube-proxy runs on this node: this program or upstream's. Upstream's holds no lock, so only signs of it can be found.
//!
//! Takes the addresses of kube-proxy's servers, returns a text for each sign of a running proxy. Signs are a process named `kube-proxy`
//! in this network namespace (if /proc shows the node's processes), a metrics server that answers `/proxyMode` with a known mode, and a
//! health page in kube-proxy's format. A process in a container that hides other processes does not find a proxy whose servers have other
//! addresses.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::client::Client;
use component::config::Config;
use component::redact::redact;
use node::configured::RunningProxy;

const NAME: &str = "kube-proxy";
/// The possible answers of `/proxyMode`.
const MODES: [&str; 3] = ["iptables", "ipvs", "nftables"];
/// Flags with which kube-proxy does one job and exits.
const ENDS: [&str; 6] = ["--cleanup", "--init-only", "--write-config-to", "--version", "--help", "-h"];
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most this many characters of a command line are shown.
const SHOWN: usize = 100;

/// A running kube-proxy that does not hold the lock of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherProxy {
    /// Which program it is.
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
    /// Unknown, because its servers do not answer or were not asked.
    Unknown,
}

/// Describes each sign of a kube-proxy that runs in the calling thread's network namespace; empty when there is none.
pub fn signs(config: &Config) -> Vec<String> {
    let mut signs = processes(Path::new("/proc"), None);
    signs.extend(mode(config.metrics_bind_address).map(|mode| mode_sign(config.metrics_bind_address, mode)));
    signs.extend(config.healthz_bind_address.and_then(health));
    signs
}

/// Finds a running kube-proxy other than `known`, the running proxy of this program. With such a proxy only processes count as signs, because
/// it may itself answer at the addresses of `config`.
pub(crate) fn beside(known: Option<&RunningProxy>, config: Option<&Config>) -> Option<OtherProxy> {
    let signs = match (known, config) {
        (None, Some(config)) => signs(config),
        _ => processes(Path::new("/proc"), known.and_then(RunningProxy::process)),
    };
    let config = config.filter(|_| known.is_none());
    let program = config.map_or(Program::Unknown, |config| program(config.metrics_bind_address));
    (!signs.is_empty()).then_some(OtherProxy { program, signs })
}

/// Tells which program answers at this address: only the configuration of this program has the field `rulesetLayout`.
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

/// Describes the kube-proxy processes in this network namespace, except this process, the process whose /proc directory is `known`,
/// subcommands, and processes that exit by themselves.
fn processes(proc: &Path, known: Option<&Path>) -> Vec<String> {
    let own = fs::read_link(proc.join("self")).unwrap_or_default();
    let namespace = fs::read_link(proc.join("thread-self/ns/net")).ok();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_name() != own.as_os_str() && Some(&*entry.path()) != known);
    let mut found: Vec<String> = others.filter_map(|entry| process(&entry.path(), namespace.as_ref())).collect();
    found.sort();
    found
}

/// Describes the process of this /proc directory, if it is a long-running kube-proxy in this network namespace.
fn process(directory: &Path, namespace: Option<&PathBuf>) -> Option<String> {
    let pid = directory.file_name()?.to_str()?.parse::<u32>().ok()?;
    let bytes = fs::read(directory.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&bytes).into_owned();
    let mut words = line.split_terminator('\0');
    let is_named = Path::new(words.next()?).file_name()? == NAME;
    // Upstream's kube-proxy takes flags only: a first argument without a dash is a subcommand of this program.
    let goes_on = words.clone().next().is_none_or(|first| first.starts_with('-'))
        && !words.any(|word| ENDS.contains(&word.split('=').next().unwrap_or(word)));
    // A network namespace that cannot be read counts as this one.
    let elsewhere = fs::read_link(directory.join("ns/net")).is_ok_and(|other| Some(&other) != namespace);
    let shown: String = redact(&line.trim_end_matches('\0').replace('\0', " ")).chars().take(SHOWN).collect();
    (is_named && goes_on && !elsewhere).then(|| format!("process {pid}: {shown}"))
}

/// The mode that a metrics server answers, if it is kube-proxy's.
fn mode(address: SocketAddr) -> Option<&'static str> {
    let body = Client::new(address, PATIENCE).ok()?.get("/proxyMode").ok()?;
    MODES.into_iter().find(|mode| body.trim_ascii() == mode.as_bytes())
}

fn mode_sign(address: SocketAddr, mode: &str) -> String {
    format!("http://{address}/proxyMode answers {mode}")
}

/// Describes the answer of a health server, if it is kube-proxy's: replacements of kube-proxy have no field `nodeEligible`.
fn health(address: SocketAddr) -> Option<String> {
    let (_, body) = Client::new(address, PATIENCE).ok()?.answer("/healthz").ok()?;
    let page: serde_json::Value = serde_json::from_slice(&body).ok()?;
    page.get("nodeEligible").map(|_| format!("http://{address}/healthz answers as kube-proxy does"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_proxy_in_this_network_namespace_is_found_and_what_only_looks_is_not() {
        let proc = tempfile::tempdir().unwrap();
        let add = |pid: &str, namespace: &str, line: &str| {
            let directory = proc.path().join(pid);
            fs::create_dir_all(directory.join("ns")).unwrap();
            fs::write(directory.join("cmdline"), line.replace(' ', "\0") + "\0").unwrap();
            symlink(namespace, directory.join("ns/net")).unwrap();
        };
        let here = "net:[1]";
        add("thread-self", here, "kube-proxy --cleanup");
        add("7", here, "/usr/local/bin/kube-proxy");
        symlink("7", proc.path().join("self")).unwrap();
        assert_eq!(processes(proc.path(), None), [""; 0], "this process");
        for (pid, line) in [
            ("11", "kube-proxy top"),
            ("12", "kube-proxy --init-only --v=2"),
            ("13", "kube-proxy --write-config-to=f"),
            ("14", "grep kube-proxy"),
            ("15", ""),
        ] {
            add(pid, here, line);
        }
        add("16", "net:[2]", "kube-proxy --v=2");
        assert_eq!(processes(proc.path(), None), [""; 0], "none of these goes on here");
        add("17", here, "/usr/local/bin/kube-proxy --config=/c --cleanup-timeout=1");
        fs::create_dir_all(proc.path().join("18")).unwrap();
        fs::write(proc.path().join("18/cmdline"), "kube-proxy\0").unwrap();
        let found = processes(proc.path(), None);
        assert_eq!(
            found,
            ["process 17: /usr/local/bin/kube-proxy --config=/c --cleanup-timeout=1", "process 18: kube-proxy"]
        );
        let holder = proc.path().join("17");
        assert_eq!(
            processes(proc.path(), Some(&holder)),
            ["process 18: kube-proxy"],
            "the one that is known is left out"
        );
        assert_eq!(processes(Path::new("/nowhere"), None), [""; 0]);
    }
}
