//! Makes the client of the API server, and looks up the server's addresses.
//!
//! The module takes a kubeconfig, a URL or a pod's environment. It returns a [`Server`] with a [`kube::Client`]. It sends an
//! [`Event::ApiServerAt`] whenever it finds other addresses of the server, or of a proxy on the way to the server, so that no Service can
//! take over these addresses with an external IP (A17). `plugin` runs credential plugins, and `connector` makes the connections.

use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use hyper::header::HeaderValue;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{AuthInfo, Cluster, Config, ExecAuthCluster};
use secrecy::ExposeSecret as _;
use tokio::net::lookup_host;
use tokio::runtime::Builder;
use tokio::time::sleep;
use tower::{BoxError, ServiceExt as _};
use tracing::{debug, info, warn};

use super::certificate::base64;
use super::connector::{Connector, USER_AGENT};
use super::error::chain;
use super::format::{JSON, PROTOBUF};
use super::kubeconfig::{self, Current, NotYet, ServerUrl, server_url};
use super::proxy::{self, Kind, Proxy, Route, host_and_port, without_brackets};
use super::tls::Authorities;
use super::{EventSender, plugin};
use rules::model::Event;

/// The time between two look-ups of the server's name: a load balancer in front of the server may get new addresses.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(60);

/// How to reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// A kubeconfig file, whose current context is used. `None` for the configuration of a pod or, if `master` is set, for a server without
    /// credentials.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL (`--master`), which replaces the URL in the kubeconfig. With a URL and no kubeconfig, the client sends no
    /// credentials.
    pub master: Option<String>,
    /// The `Accept` header of lists and watches; the server picks one of its formats for each answer.
    pub accept: String,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { kubeconfig: None, master: None, accept: format!("{PROTOBUF},{JSON}") }
    }
}

/// Where a pod finds the files of its ServiceAccount.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(super) struct Configuration {
    /// The configuration for the kube library. Its `root_cert` has only certificates that can be used.
    pub(super) config: Config,
    /// The route to the server.
    pub(super) route: Route,
    /// The certificates of the CA file that cannot be used, each with the reason.
    pub(super) skipped: Vec<String>,
    /// Whether the user of the kubeconfig was left out, see [`withhold_credentials`].
    pub(super) withheld: bool,
}

/// The API server as the configuration describes it.
pub(super) struct Server {
    /// The client; `None` if the credentials come from a plugin that has not run yet, or cannot be used yet ([`NotYet`]).
    pub(super) client: Option<kube::Client>,
    /// The server's URL for messages, without user, password and query.
    pub(super) url: String,
    /// The files that hold the configuration and the credentials.
    pub(super) files: Files,
    /// Whether the credentials come from a plugin.
    pub(super) has_plugin: bool,
    /// Remarks for the log: the proxy on the way, and certificates of the CA file that cannot be used.
    pub(super) remarks: Remarks,
}

/// Remarks for the log about a usable configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remarks {
    /// The proxy on the way to the server, without user and password.
    pub(super) proxy: Option<String>,
    /// The certificates of the CA file that cannot be used, each with the reason.
    pub(super) skipped: Vec<String>,
    /// The URL of the server to which no credentials are sent, because the connection is not encrypted.
    pub(super) withheld: Option<String>,
}

impl Remarks {
    /// Logs the remarks that are not in `before`, which are the remarks about the former configuration.
    pub(super) fn log(&self, before: &Self) {
        if let Some(proxy) = self.proxy.as_ref().filter(|_| self.proxy != before.proxy) {
            info!(proxy, "Requests to the API server go through a proxy");
        }
        for err in self.skipped.iter().filter(|err| !before.skipped.contains(err)) {
            warn!(err, "Skips a certificate of the CA file of the API server, which cannot be used");
        }
        if let Some(url) = self.withheld.as_ref().filter(|_| self.withheld != before.withheld) {
            warn!(url, "Sends no credentials to the API server, because http does not encrypt them; use https");
        }
    }
}

/// Reads what a client needs, to report errors early: the kubeconfig and the files that it names, or a pod's environment and files. Sends
/// nothing and runs no credential plugin.
///
/// # Errors
/// Fails if something cannot be read or used, and waiting for other files would not change that.
pub fn check(options: &ClientOptions) -> Result<()> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start the runtime of the API client")?;
    let _entered = runtime.enter();
    Server::without_plugin(options).map(drop)
}

/// The files from which a client was made, to notice that one of them was replaced: in place, by a rename, or by a new target of a symlink.
///
/// A client reads its certificate and key only once, so a new client is needed before the old certificate expires.
#[derive(Debug)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

/// Identifies a version of a file: device, inode, length in bytes, time of the last modification.
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

    /// Returns whether one of the files was replaced since this value was made or [`Self::take_change`] was last called.
    pub(super) fn differ(&self) -> bool {
        self.0.iter().any(|(file, known)| stamp(file) != *known)
    }

    /// Returns whether one of the files was replaced since this value was made or this method was last called.
    pub(super) fn take_change(&mut self) -> bool {
        let changed = |(file, known): &mut (PathBuf, Option<Stamp>)| {
            let now = stamp(file);
            std::mem::replace(known, now) != now
        };
        // Visit all files even after a change, so that several replacements at once count as one.
        self.0.iter_mut().map(changed).fold(false, |any, changed| any | changed)
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.len(), metadata.modified().ok()))
}

impl Server {
    /// Reads the configuration and makes a client. Does not connect, but runs a credential plugin, for a bounded time. Has to be called in
    /// a tokio runtime. Credentials from the plugin are valid until the client's `valid_until`.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read or used, if there is none (neither a file nor a URL nor a pod's environment), or if the
    /// plugin fails.
    pub(super) async fn new(options: &ClientOptions) -> Result<Self> {
        let mut configuration = configuration(options)?;
        let server = Self::described(options, &configuration);
        let valid_until = plugin::resolve(&mut configuration.config.auth_info).await?;
        let client = build(configuration, &server.url)?.with_valid_until(valid_until);
        Ok(Self { client: Some(client), ..server })
    }

    /// Does the same as [`Server::new`], but runs no plugin: `client` is `None` if the credentials come from a plugin, or cannot be used
    /// yet. Has to be called in a tokio runtime.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Server::new`], except for the plugin and for [`NotYet`].
    pub(super) fn without_plugin(options: &ClientOptions) -> Result<Self> {
        let configuration = configuration(options)?;
        let server = Self::described(options, &configuration);
        if server.has_plugin {
            return Ok(server);
        }
        match build(configuration, &server.url) {
            Err(error) if error.is::<NotYet>() => Ok(server),
            built => Ok(Self { client: Some(built?), ..server }),
        }
    }

    fn described(options: &ClientOptions, configuration: &Configuration) -> Self {
        let Configuration { config, route, skipped, withheld } = configuration;
        let proxy = if let Route::Through(proxy) = route { Some(proxy.to_string()) } else { None };
        let url = without_secrets(&config.cluster_url.to_string());
        let withheld = withheld.then(|| url.clone());
        Self {
            client: None,
            url,
            files: Files::of(options.kubeconfig.as_deref(), config),
            has_plugin: plugin::is_used(&config.auth_info),
            remarks: Remarks { proxy, skipped: skipped.clone(), withheld },
        }
    }
}

fn build(Configuration { mut config, route, .. }: Configuration, url: &str) -> Result<kube::Client> {
    choose_token(&mut config)?;
    config.headers.push(("user-agent".parse()?, USER_AGENT.parse()?));
    if let (Route::Through(proxy), Some("http")) = (&route, config.cluster_url.scheme_str())
        && proxy.kind != Kind::Socks5
        && let Some(authorization) = proxy.authorization()
    {
        // Without TLS to the server, an HTTP proxy receives the requests themselves, so each request has to carry the credentials for the
        // proxy.
        config.headers.push(("proxy-authorization".parse()?, authorization.parse()?));
    }
    let connector = Connector::new(&config, route).with_context(|| format!("cannot make a client of {url}"))?;
    let explained = |error: kube::Error| anyhow!("client of {url}: {}", chain(&error));
    let pool: Pool<Connector, Body> = Pool::builder(TokioExecutor::new()).build(connector);
    let layers = ClientBuilder::new(pool.map_err(BoxError::from), &*config.default_namespace);
    let layers = layers.with_layer(&config.extra_headers_layer().map_err(explained)?);
    // The layer that is added last sees a request first.
    Ok(match config.auth_layer().map_err(explained)? {
        Some(auth) => layers.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
        None => layers.with_layer(&config.base_uri_layer()).build(),
    })
}

/// Makes a client, and returns it with the server's URL for messages. Does not connect, but runs a credential plugin, for a bounded time.
/// Has to be called in a tokio runtime.
///
/// # Errors
/// Fails if the configuration cannot be read or used, if there is none (neither a file nor a URL nor a pod's environment), or if the plugin
/// fails.
pub async fn client(options: &ClientOptions) -> Result<(kube::Client, String)> {
    let Server { client, url, .. } = Server::new(options).await?;
    Ok((client.context("the credential plugin has not run yet")?, url))
}

/// Returns a URL without user, password and query, for messages.
pub(super) fn without_secrets(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default().trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Reads the configuration of a client.
///
/// # Errors
/// Fails if it cannot be read or used, or if there is none (neither a file nor a URL nor a pod's environment).
pub(super) fn configuration(options: &ClientOptions) -> Result<Configuration> {
    let master = options.master.as_deref().filter(|url| !url.is_empty());
    let url = master.map(|url| server_url(url).context("--master")).transpose()?;
    let (mut config, proxy, skipped) = match (&options.kubeconfig, url) {
        (Some(file), url) => {
            from_file(file, master.zip(url)).with_context(|| format!("cannot use kubeconfig {}", file.display()))?
        }
        (None, Some((url, user))) => {
            let mut config = Config::new(url);
            add_user(&mut config.auth_info, user);
            (config, None, Vec::new())
        }
        (None, None) => in_cluster().context(
            "no API server: give a kubeconfig (--kubeconfig, or clientConnection.kubeconfig in --config), a URL \
             (--master) or a directory (--manifests), or run in a pod with a ServiceAccount",
        )?,
    };
    let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let route = proxy.map_or_else(|| proxy::by_environment(&config.cluster_url, variable), Route::Through);
    let withheld = withhold_credentials(&mut config);
    Ok(Configuration { config, route, skipped, withheld })
}

/// Removes the user from a configuration whose URL is not encrypted, so that nobody on the way reads a token or password. Returns whether
/// there was one. Upstream sends no credentials over http either (`clientcmd` of client-go adds the user only for https). A loopback address
/// is an exception, because its packets leave no host.
fn withhold_credentials(config: &mut Config) -> bool {
    let host = without_brackets(config.cluster_url.host().unwrap_or_default());
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if config.cluster_url.scheme_str() != Some("http") || is_local {
        return false;
    }
    let AuthInfo { username, token, token_file, client_certificate, client_certificate_data, exec, .. } =
        std::mem::take(&mut config.auth_info);
    [username, token_file, client_certificate, client_certificate_data].iter().any(Option::is_some)
        || token.is_some()
        || exec.is_some()
}

/// The configuration for the kube library, the proxy of `proxy-url` if there is one, and a message for each certificate of the CA file that
/// cannot be used.
type Read = (Config, Option<Proxy>, Vec<String>);

/// Reads the configuration from a kubeconfig. `master` takes the place of the server in the kubeconfig; it has the server's URL as text and
/// parsed.
///
/// Without a server, and without a cluster of the current context, the configuration is that of a pod, as in client-go.
fn from_file(file: &Path, master: Option<(&str, ServerUrl)>) -> Result<Read> {
    let Current { cluster, user } = kubeconfig::read(file)?;
    let (is_empty, mut cluster) = (cluster.is_none(), cluster.unwrap_or_default());
    let url = if let Some((text, url)) = master {
        // `tls-server-name` is a name of the server that the kubeconfig names.
        (cluster.server, cluster.tls_server_name) = (Some(text.to_owned()), None);
        Some(url)
    } else {
        cluster.server.as_deref().map(|url| server_url(url).context("server")).transpose()?
    };
    let Some((url, url_user)) = url else {
        let nothing = "it names no server; give --master, or set current-context and the server of its cluster";
        return if is_empty { in_cluster().context(nothing) } else { bail!("{nothing}") };
    };
    let mut config = Config::new(url);
    config.auth_info = user;
    add_user(&mut config.auth_info, url_user);
    config.tls_server_name.clone_from(&cluster.tls_server_name);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    let has_tls = config.cluster_url.scheme_str() == Some("https");
    if let Some(provider) = config.auth_info.auth_provider.take().filter(|_| has_tls) {
        bail!("the user has auth-provider {}, which is not supported; use an exec plugin", provider.name);
    }
    // As in client-go, a server without TLS needs no CA.
    let (authority, skipped) = if has_tls { trust_cluster(&mut config, &cluster)? } else { (None, Vec::new()) };
    if let Some(exec) = config.auth_info.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        let cluster = Cluster { certificate_authority: None, certificate_authority_data: None, ..cluster.clone() };
        let told = ExecAuthCluster::try_from(&cluster)?;
        exec.cluster = Some(ExecAuthCluster { certificate_authority_data: authority, ..told });
    }
    let proxy = cluster.proxy_url.map(|url| Proxy::of_url("proxy-url of the kubeconfig", &url)).transpose()?;
    Ok((config, proxy, skipped))
}

/// Adds user and password from a server's URL. As in Go, they replace all other credentials except a certificate.
fn add_user(auth: &mut AuthInfo, user: Option<(String, String)>) {
    if let Some((user, password)) = user {
        *auth = AuthInfo {
            username: Some(user),
            password: Some(password.into()),
            token: None,
            token_file: None,
            auth_provider: None,
            exec: None,
            ..std::mem::take(auth)
        };
    }
}

/// Makes the configuration trust the CA of the cluster. Returns the text of the CA's certificates, and a message for each certificate that
/// cannot be used.
fn trust_cluster(config: &mut Config, cluster: &Cluster) -> Result<(Option<Vec<u8>>, Vec<String>)> {
    let (name, text) = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => {
            let name = "certificate-authority-data".to_owned();
            let text = base64(data).with_context(|| format!("{name} is not base64"))?;
            (name, text)
        }
        (None, Some(file)) => {
            let text = fs::read(file).with_context(|| format!("cannot read certificate-authority {file}"))?;
            config.root_cert_file = Some(PathBuf::from(file));
            if text.is_empty() {
                // No server is trusted until the file has its content.
                config.root_cert = Some(Vec::new());
                return Ok((None, Vec::new()));
            }
            (format!("certificate-authority {file}"), text)
        }
        (None, None) => return Ok((None, Vec::new())),
    };
    let skipped = trust(config, &text).context(name)?;
    Ok((Some(text), skipped))
}

/// Returns the configuration of a pod with a ServiceAccount.
fn in_cluster() -> Result<Read> {
    let variable = |name| env::var(name).with_context(|| format!("variable {name}"));
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{}]", without_brackets(&host)) } else { host };
    let url = format!("https://{host}:{port}").parse().context("KUBERNETES_SERVICE_HOST and _PORT make no URL")?;
    let mut config = Config::new(url);
    let file = PathBuf::from(SERVICE_ACCOUNT).join("ca.crt");
    let name = || format!("CA file {}", file.display());
    let text = fs::read(&file).with_context(name)?;
    let skipped = trust(&mut config, &text).with_context(name)?;
    config.root_cert_file = Some(file);
    config.auth_info.token_file = Some(format!("{SERVICE_ACCOUNT}/token"));
    Ok((config, None, skipped))
}

/// Puts the usable certificates of a CA file into the configuration. Returns a message for each certificate that cannot be used.
fn trust(config: &mut Config, text: &[u8]) -> Result<Vec<String>> {
    let Authorities { trusted, skipped } = Authorities::read(text)?;
    config.root_cert = Some(trusted.iter().map(|certificate| certificate.to_vec()).collect());
    Ok(skipped)
}

/// Chooses the token as client-go does: the content of the token file if it can be read and is not empty, or else `token`.
///
/// Removes white space around the token; kube would put it into the HTTP header, where it is not valid. If the file has such white space,
/// kube no longer reads it again by itself; the proxy reads it again when the file changes or the server refuses the token.
///
/// # Errors
/// Returns [`NotYet`] if the server has TLS and there is only a file, which cannot be read or is empty. Fails also if a token cannot be sent.
fn choose_token(config: &mut Config) -> Result<()> {
    let has_tls = config.cluster_url.scheme_str() == Some("https");
    let auth = &mut config.auth_info;
    if let Some(file) = &auth.token_file {
        match (fs::read_to_string(file), &auth.token) {
            (Ok(text), _) if !text.trim().is_empty() => {
                auth.token = (text.trim() != text).then(|| text.trim().to_owned().into());
            }
            (_, Some(_)) => {}
            (read, None) if has_tls => {
                let reason = read.map_or_else(|error| error.to_string(), |_| "it is empty".to_owned());
                return Err(NotYet(format!("cannot use token file {file}: {reason}")).into());
            }
            (_, None) => auth.token_file = None,
        }
    }
    if let Some(token) = &mut auth.token {
        *token = token.expose_secret().trim().to_owned().into();
        let is_sent = HeaderValue::from_str(token.expose_secret()).is_ok();
        return is_sent.then_some(()).context("the token has characters that no HTTP header may have");
    }
    Ok(())
}

/// Looks up the addresses of the server again and again and sends them when they differ, until the receiver is dropped.
///
/// Until a look-up succeeds, `rules::model` knows only the API server's addresses in the endpoints of Service `default/kubernetes`.
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

/// Returns the addresses of the server and of the proxy on the way, sorted. Leaves out loopback addresses, because no Service can take them
/// over (A17).
async fn addresses(options: &ClientOptions) -> anyhow::Result<Vec<SocketAddr>> {
    let Configuration { config, route, .. } = configuration(options)?;
    let Some(server) = host_and_port(&config.cluster_url) else { return Ok(Vec::new()) };
    let mut found: Vec<SocketAddr> = Vec::new();
    if let Route::Through(proxy) = &route {
        found.extend(lookup_host((without_brackets(&proxy.host), proxy.port)).await?);
        // Ignore an error of this look-up, because perhaps only the proxy can resolve the server's name.
        found.extend(lookup_host(server).await.into_iter().flatten());
    } else {
        found.extend(lookup_host(server).await?);
    }
    found.retain(|at| !at.ip().is_loopback());
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use serde_json::json;

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
    async fn the_address_of_a_proxy_counts_too() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("kubeconfig");
        let cluster = json!({"server": "https://192.0.2.7:6443", "proxy-url": "http://me:secret@192.0.2.9:3128"});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
        });
        fs::write(&file, config.to_string()).unwrap();
        let options = ClientOptions { kubeconfig: Some(file.clone()), ..ClientOptions::default() };
        let found: Vec<String> = addresses(&options).await.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.7:6443", "192.0.2.9:3128"]);
        // client-go also refuses a kubeconfig whose proxy has an unknown scheme.
        fs::write(&file, config.to_string().replace("http://me", "ftp://me")).unwrap();
        let error = format!("{:#}", configuration(&options).err().unwrap());
        assert!(error.contains("cannot use the proxy of proxy-url of the kubeconfig"), "{error}");
        assert!(!error.contains("secret"), "{error}");
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
