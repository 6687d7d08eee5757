//! Credentials that a program gives: the exec plugin of a kubeconfig.
//!
//! Takes the entry of a user; runs the plugin, if the entry says that it counts, and puts what it gives into the entry, where the
//! client finds a token or a certificate as from any kubeconfig. The protocol is that of client.authentication.k8s.io.
//!
//! Why not kube's own way to do it: that waits for the plugin on the thread that asks, for ever, and runs it several times for each
//! client.
//!
//! Invariants: a plugin runs for a bounded time, and whoever gives up on it ends it together with what it started; what it prints is
//! in no error text, because it may be a secret.

use std::fmt::Display;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use data_encoding::BASE64;
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long a plugin may take. The slow ones ask a server in the cloud, in a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much is repeated of what a plugin that fails wrote to its standard error, in characters.
const WORDS: usize = 300;

/// What a plugin prints.
#[derive(Deserialize)]
struct Credential {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Whether a user's credentials come from a plugin: those that are in the kubeconfig itself go before it.
pub(super) fn counts(user: &AuthInfo) -> bool {
    let has_password = user.username.is_some() && user.password.is_some();
    let has_other = user.auth_provider.is_some() || user.token.is_some() || user.token_file.is_some() || has_password;
    user.exec.is_some() && !has_other
}

/// Puts what the plugin gives into the user's entry, in the plugin's place. Gives until when it is good, if it does not last. A user
/// without a plugin stays as it is.
///
/// # Errors
/// The plugin cannot be run, fails, takes too long, or does not print credentials.
pub(super) async fn resolve(user: &mut AuthInfo) -> Result<Option<Timestamp>> {
    if !counts(user) {
        return Ok(None);
    }
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let name = exec.command.clone().unwrap_or_default();
    let status = ask(exec, PATIENCE).await.with_context(|| format!("credential plugin {name}"))?;
    match status {
        Status { client_certificate_data: Some(certificate), client_key_data: Some(key), .. } => {
            (user.client_certificate, user.client_key) = (None, None);
            user.client_certificate_data = Some(BASE64.encode(certificate.as_bytes()));
            user.client_key_data = Some(BASE64.encode(key.as_bytes()).into());
        }
        Status { token: Some(token), .. } => user.token = Some(token.into()),
        Status { .. } => {}
    }
    Ok(status.expiration_timestamp)
}

async fn ask(exec: ExecConfig, patience: Duration) -> Result<Status> {
    let running = Running::start(exec)?;
    let Output { status, stdout, stderr } = match timeout(patience, running.output()).await {
        Ok(output) => output?,
        Err(_) => bail!("it did not end within {} s and was killed", patience.as_secs()),
    };
    if !status.success() {
        let words: String = String::from_utf8_lossy(&stderr).trim().chars().take(WORDS).collect();
        bail!("it failed ({status}): {words}");
    }
    // The parser's own text would show what it read.
    let credential: Credential = serde_saphyr::from_slice(&stdout).ok().context("it printed no ExecCredential")?;
    credential.status.context("it printed an ExecCredential without status")
}

/// A plugin that runs; dropping it ends it, and what it started.
struct Running {
    child: Option<Child>,
    group: Option<Pid>,
}

impl Running {
    fn start(exec: ExecConfig) -> Result<Self> {
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            bail!("it wants to talk to a person (interactiveMode: Always), and here is none");
        }
        let program = exec.command.as_ref().context("the kubeconfig names no command")?;
        let mut command = Command::new(program);
        command.args(exec.args.iter().flatten());
        for variable in exec.env.iter().flatten() {
            if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                command.env(name, value);
            }
        }
        let cluster = exec.provide_cluster_info.then_some(&exec.cluster);
        let spec = cluster.map_or_else(|| json!({}), |cluster| json!({ "cluster": cluster }));
        let mut info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
        info["spec"]["interactive"] = json!(false);
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn().map_err(unable)?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Ok(Self { child: Some(child), group })
    }

    async fn output(mut self) -> Result<Output> {
        let child = self.child.take().context("it was waited for before")?;
        let output = child.wait_with_output().await.map_err(unable);
        // The number of the group may belong to another one from now on.
        self.group = None;
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // It may have ended in this moment.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn unable(error: impl Display) -> anyhow::Error {
    anyhow::anyhow!("it cannot be run: {error}")
}
