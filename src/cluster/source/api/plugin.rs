//! Runs the exec plugin of a kubeconfig, which is a program that prints credentials.
//!
//! The module takes a user of the kubeconfig. If the user has a plugin, the module runs it and puts the token or certificate into the
//! user's settings, where the client finds them as in any kubeconfig. The plugin's protocol is client.authentication.k8s.io.
//!
//! The module replaces the implementation of the kube library (5.0.0, `auth_exec`), which blocks the thread without a time limit until the
//! plugin ends.
//!
//! Invariants: a plugin runs for a bounded time, and is then killed with its process group; no error text contains the plugin's standard
//! output, because it may be a secret, or what looks like a secret in its standard error.

use std::collections::HashMap;
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

use component::redact::{HIDDEN, is_secret, redact};

/// How long a plugin may run.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of characters of a failed plugin's standard error that the error text contains at most.
const MAX_STDERR: usize = 300;

/// The ExecCredential that a plugin prints.
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

/// Returns whether a user's credentials come from a plugin. A token, a password or an auth provider in the kubeconfig takes precedence.
pub(super) fn is_used(user: &AuthInfo) -> bool {
    let has_password = user.username.is_some() && user.password.is_some();
    let has_other = user.auth_provider.is_some() || user.token.is_some() || user.token_file.is_some() || has_password;
    user.exec.is_some() && !has_other
}

/// Runs the plugin of a user, and replaces it by the credentials that it printed. Returns when the credentials expire, if they do. Does not
/// change a user without a plugin.
///
/// # Errors
/// Fails if the plugin cannot be started, fails, runs too long, or prints no ExecCredential with a status.
pub(super) async fn resolve(user: &mut AuthInfo) -> Result<Option<Timestamp>> {
    if !is_used(user) {
        return Ok(None);
    }
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let name = exec.command.clone().unwrap_or_default();
    let status = ask(exec, PATIENCE).await.with_context(|| format!("cannot get credentials from plugin {name}"))?;
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
    let secrets: Vec<String> = exec.env.iter().flatten().filter_map(secret).collect();
    let running = Running::start(exec)?;
    let Output { status, stdout, stderr } = match timeout(patience, running.output()).await {
        Ok(output) => output?,
        Err(_) => bail!("it did not end within {} s and was killed", patience.as_secs()),
    };
    if !status.success() {
        let text = redact(String::from_utf8_lossy(&stderr).trim());
        let text = secrets.iter().fold(text, |text, secret| text.replace(secret, HIDDEN));
        bail!("it failed ({status}): {}", text.chars().take(MAX_STDERR).collect::<String>());
    }
    // Ignore the parser's error, because its text would contain the output.
    let credential: Credential = serde_saphyr::from_slice(&stdout).ok().context("it printed no ExecCredential")?;
    credential.status.context("it printed an ExecCredential without status")
}

/// The value of a variable that the kubeconfig gives to a plugin, if its name is that of a secret.
fn secret(variable: &HashMap<String, String>) -> Option<String> {
    let value = variable.get("name").filter(|name| is_secret(name)).and(variable.get("value"));
    value.filter(|value| !value.is_empty()).cloned()
}

/// A running plugin. When this value is dropped before the plugin has ended, the plugin's process group is killed.
struct Running {
    child: Option<Child>,
    group: Option<Pid>,
}

impl Running {
    fn start(exec: ExecConfig) -> Result<Self> {
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            bail!("it is interactive (interactiveMode: Always), and there is no terminal");
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
        let child = self.child.take().context("its end was waited for before")?;
        let output = child.wait_with_output().await.map_err(unable);
        // The process was reaped, so from now on its number may belong to another process group.
        self.group = None;
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // An error means that the process group has already ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn unable(error: impl Display) -> anyhow::Error {
    anyhow::anyhow!("it cannot be run: {error}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::Value;
    use tempfile::TempDir;

    use super::*;

    /// Returns a user of a kubeconfig whose plugin is this shell command.
    fn user(script: &str, more: &Value) -> AuthInfo {
        let mut exec = json!({ "apiVersion": "v1", "command": "/bin/sh", "args": ["-c", script] });
        exec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({ "exec": exec })).unwrap()
    }

    fn prints(status: &Value) -> AuthInfo {
        user(&format!("echo '{}'", json!({ "kind": "ExecCredential", "status": status })), &json!({}))
    }

    #[tokio::test]
    async fn a_token_and_its_expiry_are_used() {
        let mut user = prints(&json!({ "token": "t", "expirationTimestamp": "2030-01-02T03:04:05Z" }));
        assert_eq!(resolve(&mut user).await.unwrap(), Some("2030-01-02T03:04:05Z".parse().unwrap()));
        assert!(user.token.is_some() && user.exec.is_none());
        assert_eq!(resolve(&mut prints(&json!({ "token": "t" }))).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_certificate_replaces_that_of_the_kubeconfig() {
        let mut user = prints(&json!({ "clientCertificateData": "certificate", "clientKeyData": "key" }));
        user.client_certificate = Some("/old".to_owned());
        resolve(&mut user).await.unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some(&*BASE64.encode(b"certificate")));
        assert!(user.client_key_data.is_some() && user.client_certificate.is_none() && user.token.is_none());
    }

    #[tokio::test]
    async fn credentials_in_the_kubeconfig_take_precedence_over_the_plugin() {
        let mut user = user("exit 1", &json!({}));
        user.token = Some("t".to_owned().into());
        assert_eq!(resolve(&mut user).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_plugin_gets_the_request_in_its_environment() {
        let dir = TempDir::new().unwrap();
        let script = format!("echo \"$NAME $KUBERNETES_EXEC_INFO\" > {}/environment; exit 1", dir.path().display());
        let env = json!({ "env": [{ "name": "NAME", "value": "value" }] });
        assert!(resolve(&mut user(&script, &env)).await.is_err());
        let environment = fs::read_to_string(dir.path().join("environment")).unwrap();
        let info = environment.strip_prefix("value ").unwrap();
        let expected = json!({ "apiVersion": "v1", "kind": "ExecCredential", "spec": { "interactive": false } });
        assert_eq!(serde_json::from_str::<Value>(info).unwrap(), expected);
    }

    #[tokio::test]
    async fn failures_name_the_plugin_and_its_standard_error_but_not_its_output() {
        let never = json!({});
        for (script, more, expected) in [
            ("echo secret; echo no ticket >&2; exit 3", &never, "it failed (exit status: 3): no ticket"),
            ("echo secret: [", &never, "it printed no ExecCredential"),
            ("echo '{}'", &never, "it printed an ExecCredential without status"),
            ("", &json!({ "command": "/nowhere/plugin" }), "it cannot be run: No such file"),
            ("", &json!({ "interactiveMode": "Always" }), "it is interactive"),
        ] {
            let error = format!("{:#}", resolve(&mut user(script, more)).await.unwrap_err());
            assert!(error.starts_with("cannot get credentials from plugin /") && error.contains(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_does_not_end_is_killed_with_what_it_started() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let waiting = ask(user(&script, &json!({})).exec.unwrap(), Duration::from_secs(2));
        let error = waiting.await.err().unwrap().to_string();
        assert_eq!(error, "it did not end within 2 s and was killed");
        let pid = fs::read_to_string(file).unwrap();
        let process = Path::new("/proc").join(pid.trim()).join("cmdline");
        let mut looks = 0..500;
        // The command line of a zombie is empty.
        while fs::read(&process).is_ok_and(|command| !command.is_empty()) && looks.next().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(looks.next().is_some(), "it goes on");
    }
}
