//! Reads a kubeconfig, and the URL of a server, with the meaning that client-go gives them (`tools/clientcmd` and `rest`).
//!
//! The module takes a file and returns the cluster and the user of its current context. It reads none of the files that these name.
//!
//! The rules: the first YAML document counts, and of a repeated field the last value. A field that is missing, null or an empty string is
//! not set. A relative path begins at the directory of the kubeconfig. The context may name a cluster or a user that the kubeconfig lacks.
//!
//! Invariants: no input causes a panic. No error text contains a secret, so none shows the text around the error.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path};

use anyhow::{Result, anyhow, bail};
use hyper::Uri;
use kube::config::{AuthInfo, Cluster};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_saphyr::DuplicateKeyPolicy;

use super::proxy::user_and_password;

/// Credentials that the kubeconfig names and that cannot be used yet: a certificate and a key of which only one has been replaced so far, or
/// a token file that does not exist yet. The proxy waits for them, as client-go reads such files again for each connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotYet(pub(super) String);

/// How many characters of a URL that cannot be used an error text has at most.
const MAX_SHOWN: usize = 100;

/// The URL of a server without a user, and the user and password that the URL had.
pub(super) type ServerUrl = (Uri, Option<(String, String)>);

/// The current context of a kubeconfig.
#[derive(Debug, Default)]
pub(super) struct Current {
    /// The cluster of the context; `None` if the kubeconfig has no such cluster.
    pub(super) cluster: Option<Cluster>,
    /// The user of the context; a user without credentials if the kubeconfig has no such user.
    pub(super) user: AuthInfo,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: Option<String>,
    context: Option<ContextOf>,
}

#[derive(Default, Deserialize)]
struct ContextOf {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: Option<String>,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: Option<String>,
    user: Option<AuthInfo>,
}

/// Reads the current context of a kubeconfig. Both fields of the result are empty if the kubeconfig has no current context.
///
/// # Errors
/// Fails if the file cannot be read, is not YAML, has a field of the wrong type, or lacks the context that `current-context` names.
pub(super) fn read(file: &Path) -> Result<Current> {
    let Kubeconfig { current_context, contexts, clusters, users } = parse(file)?;
    let name = current_context.unwrap_or_default();
    let contexts = contexts.into_iter().flatten();
    let context = contexts.into_iter().find(|named| named.name.as_ref() == Some(&name));
    if context.is_none() && !name.is_empty() {
        bail!("there is no context {name:?}, which current-context names");
    }
    let ContextOf { cluster, user } = context.and_then(|named| named.context).unwrap_or_default();
    let cluster = clusters.into_iter().flatten().find(|named| cluster.is_some() && named.name == cluster);
    let user = users.into_iter().flatten().find(|named| user.is_some() && named.name == user);
    let mut cluster = cluster.map(|named| named.cluster.unwrap_or_default());
    let mut user = user.and_then(|named| named.user).unwrap_or_default();
    if let Some(cluster) = &mut cluster {
        unset_empty(cluster_fields(cluster));
    }
    clean(&mut user);
    let directory = file.parent().unwrap_or(Path::new(""));
    let authority = cluster.as_mut().map(|cluster| &mut cluster.certificate_authority);
    let command = user.exec.as_mut().map(|exec| &mut exec.command);
    let command = command.filter(|command| command.as_ref().is_some_and(|command| command.contains(MAIN_SEPARATOR)));
    let files = [&mut user.client_certificate, &mut user.client_key, &mut user.token_file];
    for path in files.into_iter().chain(authority).chain(command).flatten() {
        // The path stays as it is if it is absolute, and if its directory has a name that is not UTF-8.
        if let Some(whole) = directory.join(&*path).to_str() {
            *path = whole.to_owned();
        }
    }
    Ok(Current { cluster, user })
}

fn parse(file: &Path) -> Result<Kubeconfig> {
    let text = fs::read(file)?;
    first_document(&text).or_else(|error| {
        // Of a repeated field the last one counts, but serde reads no structure with one.
        let value: serde_json::Value = first_document(&text).map_err(|_| anyhow!("{error:#}"))?;
        Kubeconfig::deserialize(value).map_err(|_| error)
    })
}

/// Decodes the first document of a YAML text. A text without a document has the default value.
fn first_document<T: DeserializeOwned + Default>(mut text: &[u8]) -> Result<T> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    let first = serde_saphyr::read_with_options(&mut text, options).next().transpose();
    let message = |error: serde_saphyr::Error| {
        let options = serde_saphyr::render_options! { formatter: &serde_saphyr::UserMessageFormatter };
        anyhow!("{}", error.render_with_options(options))
    };
    Ok(first.map_err(message)?.unwrap_or_default())
}

fn cluster_fields(cluster: &mut Cluster) -> [&mut Option<String>; 5] {
    let Cluster { server, certificate_authority, certificate_authority_data, proxy_url, tls_server_name, .. } = cluster;
    [server, certificate_authority, certificate_authority_data, proxy_url, tls_server_name]
}

fn unset_empty<'a>(fields: impl IntoIterator<Item = &'a mut Option<String>>) {
    for field in fields {
        field.take_if(|text| text.is_empty());
    }
}

/// Removes the fields of a user that are empty strings.
fn clean(user: &mut AuthInfo) {
    let AuthInfo { username, token_file, client_certificate, client_certificate_data, client_key, .. } = user;
    unset_empty([username, token_file, client_certificate, client_certificate_data, client_key]);
    unset_empty([&mut user.impersonate, &mut user.impersonate_uid]);
    for secret in [&mut user.token, &mut user.password, &mut user.client_key_data] {
        secret.take_if(|text| text.expose_secret().is_empty());
    }
    if user.username.is_some() {
        // A user may have no password, but kube sends a user only with one.
        user.password.get_or_insert_default();
    }
}

/// Returns whether a kubeconfig can make this process run programs, because one of its users has an exec plugin. Returns `false` if there
/// is no file or it cannot be read.
#[must_use]
pub fn runs_programs(kubeconfig: Option<&Path>) -> bool {
    let users = kubeconfig.and_then(|file| parse(file).ok()).and_then(|config| config.users);
    users.into_iter().flatten().any(|named| named.user.is_some_and(|user| user.exec.is_some()))
}

/// Returns the URL of a server.
///
/// A URL without a scheme means http, even if the kubeconfig has settings for TLS: `clientcmd` decides that before it reads them.
///
/// # Errors
/// Fails if the text is not a URL of http or https with a host and a port that exist.
pub(super) fn server_url(text: &str) -> Result<ServerUrl> {
    let unusable = || {
        // A password comes before the last `@`.
        let shown: String = text.rsplit('@').next().unwrap_or_default().chars().take(MAX_SHOWN).collect();
        anyhow!("{shown:?} is not a URL of http or https; it has to be like https://192.0.2.1:6443")
    };
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, address) = authority.rsplit_once('@').map_or((None, authority), |(user, address)| (Some(user), address));
    let url: Uri = format!("{scheme}://{address}{path}").parse().map_err(|_| unusable())?;
    let port = url.authority().and_then(|authority| authority.as_str().strip_prefix(url.host()?));
    let has_port = port.is_some_and(|port| matches!(port, "" | ":") || url.port_u16().is_some());
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) || !has_port {
        return Err(unusable());
    }
    let user = user.map(|user| user_and_password(user).ok_or_else(unusable));
    Ok((url, user.transpose()?))
}
