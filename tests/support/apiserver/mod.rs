//! A test API server: lists and watches as kube-apiserver 1.36 does, and fails as networks and servers do.
//!
//! Takes objects from a test ([`ApiServer::apply`]), gives them to a proxy over real HTTP/1.1, and gives the test what was
//! asked for ([`ApiServer::requests`]). Started in a network namespace (`namespace.enter(|| ApiServer::start(..))`) it listens
//! there. It serves what the role `system:node-proxier` allows, and 403 for the rest.
//!
//! `resource`, `query`, `selector`, `store`, `list` and `status` are pure; `watch` follows the store; `answer` puts a request
//! through all of them; `writer` and `fault` spoil it; `serve` has the sockets, `tls` the certificates, `state` what the test
//! and the server share.
//!
//! Left out, because the proxy does not use it: other encodings than JSON and protobuf, selectors with sets, writing of objects.

mod answer;
pub(crate) mod fault;
mod list;
pub(crate) mod protobuf;
pub(crate) mod query;
pub(crate) mod resource;
pub(crate) mod selector;
mod serve;
pub(crate) mod state;
mod status;
pub(crate) mod store;
mod tls;
mod watch;
mod writer;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use fault::{Command, Fault, On};
use resource::Resource;
use serve::Control;
use state::{Record, Shared, State};
use store::Store;
use tls::{Authority, Signed};

/// The deadline of every wait: longer than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a server encodes objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// As JSON, also for clients that accept protobuf.
    Json,
    /// As Kubernetes' protobuf for clients that accept it, as a real server does.
    Protobuf,
}

impl Format {
    /// The media type.
    const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// An object or a list.
    fn object(self, object: &Value) -> Vec<u8> {
        match self {
            Self::Json => object.to_string().into_bytes(),
            Self::Protobuf => protobuf::enveloped(object),
        }
    }

    /// An event of a watch.
    pub(crate) fn event(self, kind: &str, object: &Value) -> Vec<u8> {
        match self {
            Self::Json => format!("{}\n", json!({ "type": kind, "object": object })).into_bytes(),
            Self::Protobuf => protobuf::event(kind, object),
        }
    }
}

#[allow(unused_macros, reason = "not every test binary has tests of both formats")]
macro_rules! test_in_each_format {
    ($name:ident) => {
        mod $name {
            use crate::support::apiserver::Format;

            #[test]
            fn json() {
                super::$name(Format::Json);
            }

            #[test]
            fn protobuf() {
                super::$name(Format::Protobuf);
            }
        }
    };
}

/// `test_in_each_format!(NAME)` above `fn NAME(format: Format)` makes the tests `NAME::json` and `NAME::protobuf` of it.
#[allow(unused_imports, reason = "not every test binary has tests of both formats")]
pub(crate) use test_in_each_format;

/// How a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Plain HTTP.
    Http,
    /// With a certificate of its own authority for 127.0.0.1, ::1 and localhost.
    Https,
}

/// A running server; its thread and connections end when it is dropped.
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    scheme: Scheme,
    address: SocketAddr,
    authority: Authority,
    directory: TempDir,
    controls: Option<UnboundedSender<Control>>,
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Listens on 127.0.0.1, on a port the kernel picks, in the network namespace of the calling thread.
    pub(crate) fn start(scheme: Scheme) -> Self {
        Self::start_with(scheme, Format::Protobuf)
    }

    /// The same, with the format for clients that accept it.
    pub(crate) fn start_with(scheme: Scheme, format: Format) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, scheme, format)
    }

    /// The same, on another address of the namespace.
    pub(crate) fn start_at(at: Ipv4Addr, scheme: Scheme, format: Format) -> Self {
        let (shared, authority) = (Arc::new(Shared::new(format)), Authority::new());
        let names = [&*at.to_string(), "127.0.0.1", "::1", "localhost"];
        let tls = (scheme == Scheme::Https).then(|| authority.server(&names));
        let (controls, orders) = unbounded_channel();
        let (sender, receiver) = sync_channel(1);
        let state = Arc::clone(&shared);
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                let listener = serve::listen(SocketAddr::from((at, 0))).await;
                sender.send(listener.local_addr().expect("a listener has an address")).expect("the starter waits");
                serve::serve(state, tls, listener, orders).await;
            });
        };
        let thread = thread::Builder::new().name("apiserver".into()).spawn(body).expect("a thread can be started");
        let address = receiver.recv().expect("the server starts");
        let directory = TempDir::new().expect("a temporary directory can be made");
        Self { shared, scheme, address, authority, directory, controls: Some(controls), thread: Some(thread) }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Adds or replaces objects. What is already like this is no change.
    pub(crate) fn apply(&self, objects: &[Value]) {
        self.shared.change(|store| objects.iter().for_each(|object| store.apply(object)));
    }

    /// Keeps what streaming lists send from now on, and sends it again while no object changes, as a real server has its objects encoded
    /// in its cache: then a start that is measured is not the time that this server takes.
    pub(crate) fn keep_lists(&self) {
        self.shared.lock().lists = Some(Vec::new());
    }

    /// Removes an object.
    pub(crate) fn delete(&self, resource: Resource, namespace: &str, name: &str) {
        self.shared.change(|store| store.delete(resource, namespace, name));
    }

    /// The version of the latest change.
    pub(crate) fn version(&self) -> u64 {
        self.shared.lock().store.version()
    }

    /// Forgets the history: a client that asks for changes after an older version has to list again.
    pub(crate) fn compact(&self) {
        // Watches notice it with the next change, as at a real server.
        self.shared.lock().store.compact();
    }

    /// What the objects and their version are now, for [`ApiServer::restore`].
    pub(crate) fn backup(&self) -> Store {
        self.shared.lock().store.clone()
    }

    /// Lets versions pass, as the changes of kinds do that the proxy does not watch.
    pub(crate) fn pass_versions(&self, versions: u64) {
        self.shared.change(|store| store.pass(versions));
    }

    /// Goes back to a backup, as etcd does when it is restored and the server starts again: versions go back, and of what was before nothing
    /// is known. Watches from a version of the future are served, and silent until the version is reached.
    pub(crate) fn restore(&self, backup: Store) {
        self.shared.change(|store| {
            *store = backup;
            store.compact();
        });
    }

    /// Lets a fault meet the next `times` requests.
    pub(crate) fn fault(&self, on: On, times: u32, fault: Fault) {
        assert!(times > 0, "a fault that never happens");
        self.settings().plans.push(fault::Planned { on, times: Some(times), fault });
    }

    /// Lets a fault meet all requests until [`ApiServer::clear_faults`].
    pub(crate) fn lasting_fault(&self, on: On, fault: Fault) {
        self.settings().plans.push(fault::Planned { on, times: None, fault });
    }

    /// Takes all faults back that have not happened. Gives how many there were.
    pub(crate) fn clear_faults(&self) -> usize {
        std::mem::take(&mut self.settings().plans).len()
    }

    /// Orders the open watches of a kind, or of all kinds, to do something.
    pub(crate) fn order(&self, resource: impl Into<Option<Resource>>, command: Command) {
        self.shared.order(resource.into(), command);
    }

    /// Waits until watches of a kind are open, and gives how many.
    pub(crate) fn wait_for_watch(&self, resource: Resource) -> usize {
        wait_for(&format!("a watch of {resource:?}"), || {
            Some(self.shared.open_watches(resource)).filter(|count| *count > 0)
        })
    }

    /// Waits until every kind is watched.
    pub(crate) fn wait_for_watches(&self) {
        for resource in Resource::ALL {
            self.wait_for_watch(resource);
        }
    }

    /// How many watches of a kind are open.
    pub(crate) fn open_watches(&self, resource: Resource) -> usize {
        self.shared.open_watches(resource)
    }

    /// Closes the listener and all connections, as the death of a process would.
    pub(crate) fn close(&self) {
        self.control(Control::Close);
    }

    /// Listens again after [`ApiServer::close`], on the same port.
    pub(crate) fn open(&self) {
        self.control(Control::Open);
    }

    /// The settings: what to make of streaming lists, which kinds are missing or forbidden, whose tokens are good.
    pub(crate) fn settings(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Record> {
        self.shared.lock().requests.clone()
    }

    /// The lists and watches of a kind so far.
    pub(crate) fn requests_for(&self, resource: Resource) -> Vec<Record> {
        self.requests().into_iter().filter(|request| request.path == resource.path()).collect()
    }

    /// Waits for a request of a kind that satisfies a condition.
    pub(crate) fn wait_for_request(&self, resource: Resource, is_it: impl Fn(&Record) -> bool) -> Record {
        wait_for(&format!("a request for {resource:?}"), || self.requests_for(resource).into_iter().find(|r| is_it(r)))
    }

    /// The Events that were created so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.shared.lock().events.clone()
    }

    /// A kubeconfig for this server with the given entry of a user, such as `{"token": "t"}`.
    pub(crate) fn kubeconfig(&self, user: &Value) -> PathBuf {
        let mut cluster = json!({ "server": self.url() });
        if self.scheme == Scheme::Https {
            let authority = self.file("ca.crt", self.authority.pem());
            cluster["certificate-authority"] = json!(authority);
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "test", "user": user }],
        });
        self.file("kubeconfig", &config.to_string())
    }

    /// A user's entry with a certificate that the server knows.
    pub(crate) fn certified_user(&self, name: &str) -> Value {
        let Signed { certificate, key } = self.authority.user(name);
        let (certificate, key) = (self.file("user.crt", &certificate), self.file("user.key", &key));
        json!({ "client-certificate": certificate, "client-key": key })
    }

    /// TLS of another server at these names, whose certificate the kubeconfig's authority signed.
    pub(crate) fn acceptor(&self, names: &[&str]) -> TlsAcceptor {
        self.authority.server(names)
    }

    /// A directory for a test's own files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }

    fn control(&self, control: impl FnOnce(Sender<()>) -> Control) {
        let (done, is_done) = channel();
        let controls = self.controls.as_ref().expect("the server runs until it is dropped");
        controls.send(control(done)).expect("the server's thread runs");
        is_done.recv_timeout(PATIENCE).expect("the server carries out the order");
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.controls = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the API server's thread panicked");
        }
    }
}

/// Calls `look` until it gives something.
pub(crate) fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} did not come within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
