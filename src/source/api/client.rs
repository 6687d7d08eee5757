//! The way to the API server.
//!
//! Takes a kubeconfig, a URL or what a pod finds in its environment; gives a [`kube::Client`], which reads token files and
//! a CA bundle again by itself. `plugin` runs credential plugins for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tokio::runtime::Builder;

use super::plugin;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// What we call ourselves.
const USER_AGENT: &str = concat!("kube-proxy-nft/", env!("CARGO_PKG_VERSION"));

/// Where the API server is and who we are to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// A kubeconfig file; its current context counts.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL, in place of the kubeconfig's (`--master`). Without a kubeconfig no credentials are used.
    pub master: Option<String>,
}

/// A client. Connects to nothing yet, but a credential plugin runs, for a bounded time. Needs to be called in a tokio runtime. What
/// the plugin gave is good until the client's `valid_until`.
///
/// # Errors
/// The configuration cannot be read, or there is none: neither a file nor a URL nor a pod's environment; or the plugin fails.
pub async fn client(options: &ClientOptions) -> Result<kube::Client> {
    let mut config = configuration(options).await?;
    let valid_until = plugin::resolve(&mut config.auth_info).await?;
    Ok(build(config)?.with_valid_until(valid_until))
}

/// Reads everything that a client is made of, and forgets it: the kubeconfig and the files that it names, or what a pod finds. Asks
/// nobody, runs no credential plugin and leaves no thread behind.
///
/// # Errors
/// What cannot be read, or used; see [`client`].
pub fn check(options: &ClientOptions) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime of the API client")?;
    runtime.block_on(client_without_plugin(options)).map(drop)
}

/// A client as far as it can be had without waiting: none if it takes a plugin.
///
/// # Errors
/// As for [`client`].
pub(super) async fn client_without_plugin(options: &ClientOptions) -> Result<Option<kube::Client>> {
    let config = configuration(options).await?;
    if plugin::counts(&config.auth_info) { Ok(None) } else { build(config).map(Some) }
}

fn build(mut config: Config) -> Result<kube::Client> {
    config.connect_timeout = Some(CONNECT);
    trim_token(&mut config)?;
    // Our own back-off is the only one.
    config.default_retry = false;
    config.headers.push(("user-agent".parse()?, USER_AGENT.parse()?));
    kube::Client::try_from(config).context("API client")
}

/// What a client is made of.
///
/// # Errors
/// As for [`client`].
pub(super) async fn configuration(options: &ClientOptions) -> Result<Config> {
    let master = options.master.as_deref().filter(|url| !url.is_empty());
    let url = master.map(|url| {
        // As kubectl has it.
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
    let kubeconfig = Kubeconfig::read_from(file)?;
    let authority = authority_file(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A file is read again when it changes, its content as of now would not be.
    config.root_cert_file = authority;
    Ok(config)
}

/// Takes the white space off a token from a file, as client-go does; kube sends it as it is, which HTTP refuses.
///
/// kube then no longer reads the file by itself; it is read again when the server refuses the token.
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
pub fn runs_programs(kubeconfig: Option<&Path>) -> bool {
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
