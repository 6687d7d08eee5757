//! Runs etcd and kube-apiserver in a network namespace, with a client for them.
//!
//! Takes a directory with the two programs; provides a server that has a Node `test-node` and a namespace `bench`, and a kubeconfig with
//! the rights of kube-proxy. The addresses that the cluster needs are on the namespace's `lo`. etcd keeps its data in memory. The server
//! can be restarted, and etcd compacted. Nodes in other namespaces reach it through a
//! [`Switch`]. Both programs are ended when the value is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::source::api::ClientOptions;
use hyper::http::{Method, Request};
use kube::{Client, Config};
use rcgen::KeyPair;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::support::netns::Namespace;
use crate::support::plan::NODE as NODE_NAME;

/// The node's address, which the API server also advertises as its own.
pub(crate) const NODE: &str = "192.0.2.10";
const SERVER: &str = "https://127.0.0.1:6443";
/// The server for nodes that are connected to its [`Switch`].
pub(crate) const SERVER_ON_SWITCH: &str = "https://10.255.0.1:6443";
const ETCD: &str = "http://127.0.0.1:2379";
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How many objects are created at the same time.
const WRITERS: usize = 8;

/// How often the Go runtimes of the API server and etcd collect garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// Go's default.
    Collected,
    /// Only when the program uses 4 GiB: for a machine on which all programs of the bench share the processors.
    CollectedSeldom,
}

/// A running API server with its etcd, and a client with all rights.
pub(crate) struct ControlPlane<'a> {
    node: &'a Namespace,
    programs: &'a Path,
    garbage: Garbage,
    server: Child,
    etcd: Child,
    directory: TempDir,
    /// etcd's data, in memory, so that the bench does not measure the disk.
    _data: TempDir,
    runtime: Runtime,
    client: Client,
}

impl<'a> ControlPlane<'a> {
    /// Starts both programs in `node`, and waits until the server is ready. The calling thread must be in that namespace.
    pub(crate) fn start(node: &'a Namespace, programs: &'a Path, garbage: Garbage) -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let data = TempDir::new_in("/dev/shm").expect("a directory in memory can be made");
        let key = KeyPair::generate().expect("a key can be made");
        let tokens = "admin,admin,1,\"system:masters\"\nproxy,system:kube-proxy,2,\"system:node-proxiers\"\n";
        for (name, text) in [
            ("proxy.kubeconfig", kubeconfig("proxy", SERVER).to_string()),
            ("tokens.csv", tokens.to_owned()),
            ("public.pem", key.public_key_pem()),
            ("private.pem", key.serialize_pem()),
        ] {
            fs::write(directory.path().join(name), text).expect("a file can be written");
        }
        let mut etcd = node.command(programs.join("etcd"));
        etcd.arg("--data-dir").arg(data.path()).arg("--unsafe-no-fsync");
        etcd.args([format!("--listen-client-urls={ETCD}"), format!("--advertise-client-urls={ETCD}")]);
        etcd.arg("--listen-peer-urls=http://127.0.0.1:2380");
        let etcd = spawn(directory.path(), garbage, etcd, "etcd.log");
        let server = spawn(directory.path(), garbage, server_command(node, programs), "apiserver.log");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let client = runtime.block_on(client());
        let plane = Self { node, programs, garbage, server, etcd, directory, _data: data, runtime, client };
        plane.wait_until_ready();
        plane.create(vec![
            json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": NODE_NAME } }),
            json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": "bench" } }),
        ]);
        let address = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": NODE }] } });
        plane.patch(&format!("/api/v1/nodes/{NODE_NAME}/status"), &address);
        plane
    }

    /// Returns the path of the proxies' kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("proxy.kubeconfig")
    }

    /// Writes a kubeconfig of the proxies for another URL of the server. Returns its path.
    pub(crate) fn kubeconfig_for(&self, server: &str) -> PathBuf {
        let path = self.directory.path().join("nodes.kubeconfig");
        fs::write(&path, kubeconfig("proxy", server).to_string()).expect("a file can be written");
        path
    }

    /// Returns the namespace of the server.
    pub(crate) fn namespace(&self) -> &'a Namespace {
        self.node
    }

    /// Returns the text that the server answers for a path.
    pub(crate) fn text(&self, path: &str) -> String {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        self.runtime.block_on(self.client.request_text(request)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the process id of the API server.
    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Ends the API server with a signal, compacts etcd meanwhile, and starts the server again. Returns the time from the signal until it
    /// is ready.
    pub(crate) fn restart_server(&mut self, signal: Signal) -> Duration {
        let start = Instant::now();
        let pid = Pid::from_raw(self.server.id().try_into().expect("a process id fits")).expect("it is not 0");
        kill_process(pid, signal).expect("a child can be signalled");
        self.server.wait().expect("a child can be waited for");
        self.compact();
        let command = server_command(self.node, self.programs);
        self.server = spawn(self.directory.path(), self.garbage, command, "apiserver.log");
        self.wait_until_ready();
        start.elapsed()
    }

    /// Compacts etcd, so that it has only the latest state.
    pub(crate) fn compact(&self) {
        self.runtime.block_on(async {
            let etcd = Client::try_from(Config::new(ETCD.parse().expect("an address"))).expect("a client");
            let ask = async |path, body| send(&etcd, Method::POST, path, "application/json", &body).await;
            // Writes a key first, so that there is a revision that was not compacted yet.
            let written = ask("/v3/kv/put", json!({ "key": "YmVuY2g=", "value": "" })).await;
            ask("/v3/kv/compaction", json!({ "revision": written["header"]["revision"] })).await;
        });
    }

    /// Creates objects, several at the same time.
    pub(crate) fn create(&self, objects: Vec<Value>) {
        self.runtime.block_on(self.send_all(objects));
    }

    /// As [`Self::create`], but gives up after `limit`; returns whether all objects were created.
    pub(crate) fn create_within(&self, objects: Vec<Value>, limit: Duration) -> bool {
        self.runtime.block_on(async { tokio::time::timeout(limit, self.send_all(objects)).await.is_ok() })
    }

    async fn send_all(&self, objects: Vec<Value>) {
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
    }

    /// Applies a merge patch to the object at a path. Returns after the server has answered.
    pub(crate) fn patch(&self, path: &str, change: &Value) {
        self.runtime.block_on(send(&self.client, Method::PATCH, path, "application/merge-patch+json", change));
    }

    /// Waits until the server is ready for requests: shortly after its start, it has no RBAC roles yet.
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

/// A bridge in the namespace of an API server, by which namespaces of nodes reach it at 10.255.0.1.
pub(crate) struct Switch<'a> {
    control: &'a Namespace,
    nodes: AtomicU16,
}

impl<'a> Switch<'a> {
    /// The name of the bridge's interface: what it sends goes to the nodes.
    pub(crate) const BRIDGE: &'static str = "nodes";

    /// Makes the bridge in this namespace.
    pub(crate) fn new(control: &'a Namespace) -> Self {
        let bridge = Self::BRIDGE;
        let lines = ["link add BRIDGE type bridge", "addr add 10.255.0.1/16 dev BRIDGE", "link set BRIDGE up"];
        control.ip(&lines.map(|line| line.replace("BRIDGE", bridge)));
        Self { control, nodes: AtomicU16::new(0) }
    }

    /// Connects a node, which gets an address of its own.
    pub(crate) fn connect(&self, node: &Namespace) {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        let [high, low] = number.to_be_bytes();
        self.control.ip(&[
            format!("link add n{number} type veth peer name api netns {}", node.name()),
            format!("link set n{number} master {} up", Self::BRIDGE),
        ]);
        node.ip(&[format!("addr add 10.255.{}.{low}/16 dev api", high + 1), "link set api up".to_owned()]);
    }
}

impl Drop for ControlPlane<'_> {
    fn drop(&mut self) {
        for program in [&mut self.server, &mut self.etcd] {
            // The program may have ended on its own; then there is nothing to kill.
            let _ended = program.kill().and_then(|()| program.wait());
        }
    }
}

/// Starts a program in this directory; its output goes to the file `log`.
fn spawn(directory: &Path, garbage: Garbage, mut command: Command, log: &str) -> Child {
    if garbage == Garbage::CollectedSeldom {
        command.envs([("GOGC", "off"), ("GOMEMLIMIT", "4GiB")]);
    }
    let log = fs::File::options().create(true).append(true).open(directory.join(log)).expect("a file can be made");
    let both = log.try_clone().expect("a file can be shared");
    let started = command.current_dir(directory).stdin(Stdio::null()).stdout(log).stderr(both).spawn();
    started.expect("`ip` can be run")
}

fn server_command(node: &Namespace, programs: &Path) -> Command {
    let mut command = node.command(programs.join("kube-apiserver"));
    command.args([
        "--secure-port=6443",
        "--cert-dir=certificates",
        "--authorization-mode=RBAC",
        "--token-auth-file=tokens.csv",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=public.pem",
        "--service-account-signing-key-file=private.pem",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--profiling=false",
        // By default, a server that gets SIGTERM waits a minute for its watches.
        "--shutdown-watch-termination-grace-period=2s",
    ]);
    command.args([format!("--etcd-servers={ETCD}"), format!("--advertise-address={NODE}")]);
    command
}

/// Returns a kubeconfig for this server with this token, which accepts the server's self-signed certificate.
fn kubeconfig(token: &str, server: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": { "server": server, "insecure-skip-tls-verify": true } }],
        "users": [{ "name": "bench", "user": { "token": token } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
}

/// Returns a client with all rights; it only works in the runtime in which it was made.
pub(crate) async fn client() -> Client {
    let file = NamedTempFile::new().expect("a temporary file can be made");
    fs::write(file.path(), kubeconfig("admin", SERVER).to_string()).expect("a temporary file can be written");
    let options = ClientOptions { kubeconfig: Some(file.path().to_owned()), ..ClientOptions::default() };
    let (client, _) = cluster::source::api::client(&options).await.expect("a client");
    client
}

/// Sends an object, and returns the answer; a refusal ends the benchmark.
async fn send(client: &Client, method: Method, path: &str, kind: &str, object: &Value) -> Value {
    let body = object.to_string().into_bytes();
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body);
    let answer = client.request(request.expect("a request")).await;
    answer.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the API path at which an object is created.
pub(crate) fn path_of(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    match object["kind"].as_str() {
        Some("Namespace") => "/api/v1/namespaces".to_owned(),
        Some("Node") => "/api/v1/nodes".to_owned(),
        Some("Service") => format!("/api/v1/namespaces/{namespace}/services"),
        Some("EndpointSlice") => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
        other => panic!("no path is known for {other:?}"),
    }
}
