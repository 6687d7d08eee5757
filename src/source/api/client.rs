//! The client of the API server, and the server's address.
//!
//! Takes a kubeconfig, a URL or a pod's environment; gives a [`Server`] with a [`kube::Client`], which reads token files and a CA bundle
//! again by itself, and an [`Event::ApiServerAt`] whenever the server's addresses change: no Service may take the connections to them
//! by an external IP. `plugin` runs credential plugins.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::net::lookup_host;
use tokio::runtime::Builder;
use tokio::time::sleep;
use tracing::debug;

use super::decode::{JSON, PROTOBUF};
use super::error::{chain, explain};
use super::{EventSender, plugin};
use crate::model::Event;

/// How long a connection may take to be made, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the name of the server is looked up: a load balancer in front of it may get other addresses.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(60);
/// The header of all requests.
const USER_AGENT: &str = concat!("kube-proxy-nft/", env!("CARGO_PKG_VERSION"));

/// How to reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientOptions {
    /// A kubeconfig file; its current context counts.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The server's URL, in place of the kubeconfig's (`--master`). Without a kubeconfig no credentials are used.
    pub(crate) master: Option<String>,
    /// The `Accept` header of lists and watches; of the formats in it the server picks one for each answer.
    pub(crate) accept: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { kubeconfig: None, master: None, accept: format!("{PROTOBUF},{JSON}") }
    }
}

/// The API server as the configuration describes it.
pub(super) struct Server {
    /// `None` until a credential plugin has run.
    pub(super) client: Option<kube::Client>,
    /// Its URL, for messages; holds no credentials.
    pub(super) url: String,
    /// The files that hold the configuration and the credentials.
    pub(super) files: Files,
}

/// Reads everything that a client is made of, to report errors early: the kubeconfig and the files that it names, or a pod's
/// environment. Sends nothing, runs no credential plugin and leaves no thread behind.
///
/// # Errors
/// What cannot be read, or used; see [`client`].
pub(crate) fn check(options: &ClientOptions) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime of the API client")?;
    runtime.block_on(Server::without_plugin(options)).map(drop)
}

/// The files that a client was made from, to notice that one of them was replaced: in place, by a rename, or behind a link.
///
/// A client reads a certificate and its key once, and a new one has to be in use before the old one expires.
#[derive(Debug)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// What differs between a file and the one that replaces it: device, inode, length in bytes, time of the last change.
type Stamp = (u64, u64, u64, Option<SystemTime>);

impl Files {
    fn of(kubeconfig: Option<&Path>, config: &Config) -> Self {
        let auth = &config.auth_info;
        let named =
            [&auth.client_certificate, &auth.client_key, &auth.token_file].into_iter().flatten().map(PathBuf::from);
        let files = kubeconfig.map(Path::to_owned).into_iter().chain(config.root_cert_file.clone()).chain(named);
        Self(
            files
                .map(|file| {
                    let known = stamp(&file);
                    (file, known)
                })
                .collect(),
        )
    }

    /// Whether one of them was replaced since [`Self::take_change`] was called last.
    pub(super) fn differ(&self) -> bool {
        self.0.iter().any(|(file, known)| stamp(file) != *known)
    }

    /// Whether one of them was replaced since this was called last.
    pub(super) fn take_change(&mut self) -> bool {
        let changed = |(file, known): &mut (PathBuf, Option<Stamp>)| {
            let now = stamp(file);
            std::mem::replace(known, now) != now
        };
        // No short-circuit: several replacements at once count as one.
        self.0.iter_mut().map(changed).fold(false, |any, changed| any | changed)
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.len(), metadata.modified().ok()))
}

impl Server {
    /// Connects to nothing yet, but a credential plugin runs, for a bounded time. Needs to be called in a tokio runtime. What the
    /// plugin gave is good until the client's `valid_until`.
    ///
    /// # Errors
    /// The configuration cannot be read, or there is none: neither a file nor a URL nor a pod's environment; or the plugin fails.
    pub(super) async fn new(options: &ClientOptions) -> Result<Self> {
        let mut config = configuration(options).await?;
        let (url, files) = url_and_files(options, &config);
        let valid_until = plugin::resolve(&mut config.auth_info).await?;
        let client = build(config, &url)?.with_valid_until(valid_until);
        Ok(Self { client: Some(client), url, files })
    }

    /// As [`Server::new`], but without waiting: there is no client yet if the credentials come from a plugin.
    ///
    /// # Errors
    /// As for [`Server::new`].
    pub(super) async fn without_plugin(options: &ClientOptions) -> Result<Self> {
        let config = configuration(options).await?;
        let (url, files) = url_and_files(options, &config);
        let client = if plugin::is_used(&config.auth_info) { None } else { Some(build(config, &url)?) };
        Ok(Self { client, url, files })
    }
}

fn url_and_files(options: &ClientOptions, config: &Config) -> (String, Files) {
    (without_secrets(&config.cluster_url.to_string()), Files::of(options.kubeconfig.as_deref(), config))
}

fn build(mut config: Config, url: &str) -> Result<kube::Client> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    trim_token(&mut config)?;
    // The reflectors have a back-off of their own.
    config.default_retry = false;
    config.headers.push(("user-agent".parse()?, USER_AGENT.parse()?));
    kube::Client::try_from(config).map_err(|error| anyhow!("client of {url}: {}", explain(&error)))
}

/// A client, and the server's URL for messages. Connects to nothing yet, but a credential plugin runs, for a bounded time. Needs to
/// be called in a tokio runtime.
///
/// # Errors
/// The configuration cannot be read, or there is none: neither a file nor a URL nor a pod's environment; or the plugin fails.
pub(crate) async fn client(options: &ClientOptions) -> Result<(kube::Client, String)> {
    let Server { client, url, .. } = Server::new(options).await?;
    Ok((client.context("no client")?, url))
}

/// A URL without user, password and query, for messages.
pub(super) fn without_secrets(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default().trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// The configuration of a client.
///
/// # Errors
/// As for [`client`].
pub(super) async fn configuration(options: &ClientOptions) -> Result<Config> {
    let master = options.master.as_deref().filter(|url| !url.is_empty());
    let url = master.map(|url| {
        // A URL without a scheme means http, as for kubectl.
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        full.parse().with_context(|| format!("--master: {url:?} is not a URL"))
    });
    match (&options.kubeconfig, url.transpose()?) {
        (Some(file), url) => {
            let mut config = from_file(file).await.with_context(|| format!("kubeconfig {}", file.display()))?;
            config.cluster_url = url.unwrap_or(config.cluster_url);
            Ok(config)
        }
        (None, Some(url)) => Ok(Config::new(url)),
        (None, None) => Config::incluster().context(
            "no API server: give a kubeconfig (--kubeconfig, or clientConnection.kubeconfig in --config), a URL \
             (--master) or a directory (--manifests), or run in a pod with a ServiceAccount",
        ),
    }
}

async fn from_file(file: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(file).map_err(once)?;
    let authority = authority_file(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(once)?;
    // kube reads a file again when it changes; content that is passed to it is used for ever.
    config.root_cert_file = authority;
    Ok(config)
}

/// The error with each of its causes once: kube's texts contain them already. The caller adds the name of the file.
fn once(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(cause, _) => cause.into(),
        other => anyhow!(chain(&other)),
    }
}

/// Takes the white space off a token from a file, as client-go does; kube sends it as it is, which HTTP refuses.
///
/// kube then no longer reads the file by itself; the proxy does when the server refuses the token.
fn trim_token(config: &mut Config) -> Result<()> {
    let auth = &mut config.auth_info;
    let Some(file) = auth.token_file.as_ref().filter(|_| auth.token.is_none()) else { return Ok(()) };
    let text = fs::read_to_string(file).with_context(|| format!("token file {file}"))?;
    if text.trim() != text {
        auth.token = Some(text.trim().to_owned().into());
    }
    Ok(())
}

/// Whether a kubeconfig may have programs run: then some user has an exec plugin. One that cannot be read has none.
#[must_use]
pub(crate) fn runs_programs(kubeconfig: Option<&Path>) -> bool {
    let users = kubeconfig.and_then(|file| Kubeconfig::read_from(file).ok()).map(|config| config.auth_infos);
    users.into_iter().flatten().any(|user| user.auth_info.is_some_and(|auth| auth.exec.is_some()))
}

/// The file of the certificate authority, if the current context names one and does not carry the data itself.
fn authority_file(kubeconfig: &Kubeconfig) -> Option<PathBuf> {
    let context = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    let file = cluster.certificate_authority.as_ref().filter(|_| cluster.certificate_authority_data.is_none())?;
    Some(file.into())
}

/// Sends the addresses of the server whenever they change, until the receiver is gone.
///
/// When they cannot be found, the model knows those of the Service `default/kubernetes` only.
pub(super) async fn announce_address(options: &ClientOptions, events: &EventSender) {
    let mut sent = Vec::new();
    loop {
        match addresses(options).await {
            Ok(addresses) if addresses != sent => {
                sent.clone_from(&addresses);
                if events.send(Event::ApiServerAt(addresses)).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => debug!(err = format!("{error:#}"), "Cannot find the address of the API server"),
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}

/// The addresses of the server, sorted. Those of loopback are left out: no Service can have them.
async fn addresses(options: &ClientOptions) -> anyhow::Result<Vec<SocketAddr>> {
    let config = configuration(options).await?;
    let Some((host, port)) = host_and_port(&config) else { return Ok(Vec::new()) };
    let mut found: Vec<SocketAddr> = lookup_host((host, port)).await?.filter(|at| !at.ip().is_loopback()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

pub(super) fn host_and_port(config: &Config) -> Option<(&str, u16)> {
    let url = &config.cluster_url;
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    // An IPv6 address stands in brackets.
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host, url.port_u16().unwrap_or(default)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    async fn found(url: &str) -> Vec<String> {
        let options = ClientOptions { master: Some(url.to_owned()), ..ClientOptions::default() };
        addresses(&options).await.unwrap().iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn the_address_is_that_of_the_configuration() {
        assert_eq!(found("https://192.0.2.7:6443").await, ["192.0.2.7:6443"]);
        assert_eq!(found("https://192.0.2.7").await, ["192.0.2.7:443"]);
        assert_eq!(found("192.0.2.7").await, ["192.0.2.7:80"]);
        assert_eq!(found("https://[2001:db8::7]:6443").await, ["[2001:db8::7]:6443"]);
        assert_eq!(found("https://127.0.0.1:6443").await, [""; 0]);
    }

    #[tokio::test]
    async fn an_address_is_sent_once() {
        let (sender, events) = sync_channel(2);
        let options = ClientOptions { master: Some("https://192.0.2.7:6443".to_owned()), ..ClientOptions::default() };
        let sender = EventSender(sender);
        tokio::select! {
            () = announce_address(&options, &sender) => panic!("the receiver is there"),
            () = sleep(Duration::from_millis(100)) => {}
        }
        let sent: Vec<Event> = events.try_iter().collect();
        assert_eq!(sent, [Event::ApiServerAt(vec!["192.0.2.7:6443".parse().unwrap()])]);
    }
}
