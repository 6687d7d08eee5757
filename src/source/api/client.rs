//! The way to the API server.
//!
//! Takes a kubeconfig, a URL or what a pod finds in its environment; gives a [`Server`] with a [`kube::Client`], which reads
//! token files and a CA bundle again by itself. `plugin` runs credential plugins for it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::runtime::Builder;

use super::explain::{self, chain};
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

/// A server that can be asked.
#[derive(Clone)]
pub(super) struct Server {
    /// Sends requests; none before a credential plugin has run.
    pub(super) client: Option<kube::Client>,
    /// Its URL, for messages; holds no credentials.
    pub(super) url: String,
    files: Files,
}

/// Reads everything that a client is made of, and forgets it: the kubeconfig and the files that it names, or what a pod finds. Asks
/// nobody, runs no credential plugin and leaves no thread behind.
///
/// # Errors
/// What cannot be read, or used; see [`client`].
pub fn check(options: &ClientOptions) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime of the API client")?;
    runtime.block_on(Server::without_plugin(options)).map(drop)
}

/// The files that a client was made from, to notice that one of them was replaced: in place, by a rename, or behind a link.
///
/// A client reads a certificate and its key once, and a new one has to be in use before the old one expires.
#[derive(Clone, Debug, Default)]
struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// What tells a file from another one under its name: device, inode, length in bytes, time of the last change.
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

    /// Whether one of them is another one than it was.
    fn differ(&self) -> bool {
        self.0.iter().any(|(file, known)| stamp(file) != *known)
    }

    /// Whether one of them changed since this was last asked.
    fn have_changed(&mut self) -> bool {
        let look = |(file, known): &mut (PathBuf, Option<Stamp>)| {
            let now = stamp(file);
            std::mem::replace(known, now) != now
        };
        // All of them, so that several changes are one.
        self.0.iter_mut().map(look).fold(false, |any, changed| any | changed)
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
        let (url, files) = facts(options, &config);
        let valid_until = plugin::resolve(&mut config.auth_info).await?;
        let client = build(config, &url)?.with_valid_until(valid_until);
        Ok(Self { client: Some(client), url, files })
    }

    /// As far as it can be had without waiting: without a client if that takes a plugin.
    ///
    /// # Errors
    /// As for [`Server::new`].
    pub(super) async fn without_plugin(options: &ClientOptions) -> Result<Self> {
        let config = configuration(options).await?;
        let (url, files) = facts(options, &config);
        let client = if plugin::counts(&config.auth_info) { None } else { Some(build(config, &url)?) };
        Ok(Self { client, url, files })
    }

    /// Whether one of the files that hold the configuration and the credentials is another one than it was.
    pub(super) fn is_outdated(&self) -> bool {
        self.files.differ()
    }

    /// Whether one of these files changed since this was last asked.
    pub(super) fn take_change(&mut self) -> bool {
        self.files.have_changed()
    }
}

fn facts(options: &ClientOptions, config: &Config) -> (String, Files) {
    (location(&config.cluster_url.to_string()), Files::of(options.kubeconfig.as_deref(), config))
}

fn build(mut config: Config, url: &str) -> Result<kube::Client> {
    config.connect_timeout = Some(CONNECT);
    trim_token(&mut config)?;
    // Our own back-off is the only one.
    config.default_retry = false;
    config.headers.push(("user-agent".parse()?, USER_AGENT.parse()?));
    kube::Client::try_from(config).map_err(|error| anyhow!("client of {url}: {}", explain::request(&error)))
}

/// A client, and the server's URL for messages. Connects to nothing yet, but a credential plugin runs, for a bounded time. Needs to
/// be called in a tokio runtime.
///
/// # Errors
/// The configuration cannot be read, or there is none: neither a file nor a URL nor a pod's environment; or the plugin fails.
pub async fn client(options: &ClientOptions) -> Result<(kube::Client, String)> {
    let Server { client, url, .. } = Server::new(options).await?;
    Ok((client.context("no client")?, url))
}

/// A URL without user, password and query.
pub(super) fn location(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default().trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
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
    let kubeconfig = Kubeconfig::read_from(file).map_err(once)?;
    let authority = authority_file(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(once)?;
    // A file is read again when it changes, its content as of now would not be.
    config.root_cert_file = authority;
    Ok(config)
}

/// The error with each of its causes once; kube's texts hold them already, and who calls names the file.
fn once(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(cause, _) => cause.into(),
        other => anyhow!(chain(&other)),
    }
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
