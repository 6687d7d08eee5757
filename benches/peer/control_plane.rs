//! etcd and kube-apiserver in a network namespace, and a client of theirs.
//!
//! Takes a directory with the two programs, gives a server that has a Node `test-node`, and a kubeconfig of the proxy's own rights. The
//! addresses that the cluster needs are on the namespace's `lo`. Both programs end when the value is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hyper::http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::support::netns::Namespace;

/// The node's address, which is also the API server's for the cluster.
pub(super) const NODE: &str = "192.0.2.10";
const SERVER: &str = "https://127.0.0.1:6443";
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How many objects are written at once.
const WRITERS: usize = 8;

/// A running API server, with the client that administers it.
pub(super) struct ControlPlane {
    programs: Vec<Child>,
    directory: TempDir,
    runtime: Runtime,
    client: Client,
}

impl ControlPlane {
    /// Starts both programs in `node`, and waits until the server is ready. The calling thread must be in that namespace.
    pub(super) fn start(node: &Namespace, programs: &Path) -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("a file can be written");
            path
        };
        file("proxy.kubeconfig", &kubeconfig("proxy").to_string());
        let tokens = "admin,admin,1,\"system:masters\"\nproxy,system:kube-proxy,2,\"system:node-proxiers\"\n";
        let tokens = file("tokens.csv", tokens);
        let key = KeyPair::generate().expect("a key can be made");
        let keys = [("public.pem", key.public_key_pem()), ("private.pem", key.serialize_pem())];
        let [public, private] = keys.map(|(name, text)| file(name, &text));
        let start = |mut command: Command, log: &str| {
            let log = fs::File::create(directory.path().join(log)).expect("a file can be made");
            let both = log.try_clone().expect("a file can be shared");
            let started = command.current_dir(directory.path()).stdin(Stdio::null()).stdout(log).stderr(both).spawn();
            started.expect("`ip` can be run")
        };
        let mut etcd = node.command(programs.join("etcd"));
        etcd.arg("--data-dir").arg(directory.path().join("etcd"));
        etcd.args(["--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379"]);
        etcd.arg("--listen-peer-urls=http://127.0.0.1:2380");
        let etcd = start(etcd, "etcd.log");
        let server = start(server_command(node, programs, [&tokens, &public, &private]), "apiserver.log");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let client = runtime.block_on(client());
        let plane = Self { programs: vec![server, etcd], directory, runtime, client };
        plane.wait_until_ready();
        plane
    }

    /// The kubeconfig of the proxies.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("proxy.kubeconfig")
    }

    /// The process id of the API server.
    pub(super) fn server(&self) -> u32 {
        self.programs[0].id()
    }

    /// Creates objects, several at once.
    pub(super) fn create(&self, objects: Vec<Value>) {
        self.runtime.block_on(async {
            let mut writers = JoinSet::new();
            for object in objects {
                if writers.len() == WRITERS {
                    writers.join_next().await.expect("some are there").expect("a writer does not panic");
                }
                let (client, path) = (self.client.clone(), path_of(&object));
                writers.spawn(async move { send(&client, Method::POST, &path, "application/json", &object).await });
            }
            while let Some(written) = writers.join_next().await {
                written.expect("a writer does not panic");
            }
        });
    }

    /// Merges a change into the object at a path. When this returns, the server has answered.
    pub(super) fn patch(&self, path: &str, change: &Value) {
        self.runtime.block_on(send(&self.client, Method::PATCH, path, "application/merge-patch+json", change));
    }

    /// Until the server can do what it is asked for: it has no roles at first.
    fn wait_until_ready(&self) {
        let end = Instant::now() + READY_WITHIN;
        let ready = || Request::get("/readyz").body(Vec::new()).expect("a request");
        while let Err(error) = self.runtime.block_on(self.client.request_text(ready())) {
            let log = fs::read_to_string(self.directory.path().join("apiserver.log")).unwrap_or_default();
            assert!(Instant::now() < end, "the API server is not ready after {READY_WITHIN:?}: {error}\n{log}");
            sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for program in &mut self.programs {
            // It may have ended on its own; then there is nothing to kill.
            let _ended = program.kill().and_then(|()| program.wait());
        }
    }
}

fn server_command(node: &Namespace, programs: &Path, [tokens, public, private]: [&Path; 3]) -> Command {
    let mut command = node.command(programs.join("kube-apiserver"));
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        "--bind-address=127.0.0.1",
        "--cert-dir=certificates",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--profiling=false",
    ]);
    let of_file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    command.arg(format!("--advertise-address={NODE}")).arg(of_file("token-auth-file", tokens));
    command.arg(of_file("service-account-key-file", public));
    command.arg(of_file("service-account-signing-key-file", private));
    command
}

/// The server's certificate is signed by itself.
fn kubeconfig(token: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": { "server": SERVER, "insecure-skip-tls-verify": true } }],
        "users": [{ "name": "bench", "user": { "token": token } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
}

async fn client() -> Client {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig("admin")).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// Sends an object; a refusal ends the benchmark.
async fn send(client: &Client, method: Method, path: &str, kind: &str, object: &Value) {
    let body = object.to_string().into_bytes();
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body);
    let answer: Result<Value, _> = client.request(request.expect("a request")).await;
    answer.unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Where an object is created.
fn path_of(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    match object["kind"].as_str() {
        Some("Namespace") => "/api/v1/namespaces".to_owned(),
        Some("Node") => "/api/v1/nodes".to_owned(),
        Some("Service") => format!("/api/v1/namespaces/{namespace}/services"),
        Some("EndpointSlice") => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
        other => panic!("no path is known for {other:?}"),
    }
}
