//! A test API server: lists and watches as kube-apiserver 1.36 does, and fails as networks and servers do.
//!
//! Takes objects from a test ([`ApiServer::apply`]), serves them to a proxy over real HTTP/1.1, and records the requests for the test
//! ([`ApiServer::requests`]). A server that is started in a network namespace (`namespace.enter(|| ApiServer::start(..))`) listens in that
//! namespace. It answers requests that the role `system:node-proxier` allows, and all others with 403.
//!
//! `resource`, `query`, `selector`, `store`, `list` and `status` are pure; `watch` follows the store; `answer` puts a request through all
//! of them; `writer` and `fault` make answers fail; `serve` has the sockets, `tls` the certificates, `state` the state that the test and
//! the server share.
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

/// The longest time that any wait of a test may take; on a busy machine, too, the server needs less.
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

    /// Encodes an object or a list.
    fn object(self, object: &Value) -> Vec<u8> {
        match self {
            Self::Json => object.to_string().into_bytes(),
            Self::Protobuf => protobuf::enveloped(object),
        }
    }

    /// Encodes an event of a watch.
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

/// `test_in_each_format!(NAME)` above `fn NAME(format: Format)` makes the tests `NAME::json` and `NAME::protobuf`, which call that
/// function.
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

    /// Like [`ApiServer::start`], with the format for clients that accept it.
    pub(crate) fn start_with(scheme: Scheme, format: Format) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, scheme, format)
    }

    /// Like [`ApiServer::start_with`], on another address of the namespace.
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

    /// Returns the address on which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL for clients.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Adds or replaces objects. An object that is equal to the present one is no change.
    pub(crate) fn apply(&self, objects: &[Value]) {
        self.shared.change(|store| objects.iter().for_each(|object| store.apply(object)));
    }

    /// Keeps the streaming lists that are sent from now on, and sends them again while no object changes, as a real server keeps encoded
    /// objects in its cache. Without this, the measured time of a start would include the time in which this server encodes the lists.
    pub(crate) fn keep_lists(&self) {
        self.shared.lock().lists = Some(Vec::new());
    }

    /// Removes an object.
    pub(crate) fn delete(&self, resource: Resource, namespace: &str, name: &str) {
        self.shared.change(|store| store.delete(resource, namespace, name));
    }

    /// Returns the version of the latest change.
    pub(crate) fn version(&self) -> u64 {
        self.shared.lock().store.version()
    }

    /// Forgets the history: a client that asks for changes after an older version has to list again.
    pub(crate) fn compact(&self) {
        // Watches notice the compaction at the next change, as with a real server.
        self.shared.lock().store.compact();
    }

    /// Returns a copy of the present objects and their version, for [`ApiServer::restore`].
    pub(crate) fn backup(&self) -> Store {
        self.shared.lock().store.clone()
    }

    /// Raises the version without a change of an object, as changes of kinds do that the proxy does not watch.
    pub(crate) fn pass_versions(&self, versions: u64) {
        self.shared.change(|store| store.pass(versions));
    }

    /// Goes back to a backup, as etcd does when it is restored and the server starts again: versions go back, and the history of changes is
    /// forgotten. A watch from a version in the future is served, and gets nothing until the store reaches that version.
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

    /// Cancels all faults that have not happened. Returns how many there were.
    pub(crate) fn clear_faults(&self) -> usize {
        std::mem::take(&mut self.settings().plans).len()
    }

    /// Orders the open watches of a kind, or of all kinds, to do something.
    pub(crate) fn order(&self, resource: impl Into<Option<Resource>>, command: Command) {
        self.shared.order(resource.into(), command);
    }

    /// Waits until watches of a kind are open, and returns how many.
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

    /// Returns how many watches of a kind are open.
    pub(crate) fn open_watches(&self, resource: Resource) -> usize {
        self.shared.open_watches(resource)
    }

    /// Closes the listener and all connections, as if the process had been killed.
    pub(crate) fn close(&self) {
        self.control(Control::Close);
    }

    /// Listens again after [`ApiServer::close`], on the same port.
    pub(crate) fn open(&self) {
        self.control(Control::Open);
    }

    /// Returns the settings: how to treat streaming lists, which kinds are missing or forbidden, which tokens are valid.
    pub(crate) fn settings(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<Record> {
        self.shared.lock().requests.clone()
    }

    /// Returns the lists and watches of a kind so far.
    pub(crate) fn requests_for(&self, resource: Resource) -> Vec<Record> {
        self.requests().into_iter().filter(|request| request.path == resource.path()).collect()
    }

    /// Waits for a request of a kind that satisfies a condition.
    pub(crate) fn wait_for_request(&self, resource: Resource, is_it: impl Fn(&Record) -> bool) -> Record {
        wait_for(&format!("a request for {resource:?}"), || self.requests_for(resource).into_iter().find(|r| is_it(r)))
    }

    /// Returns the Events that were created so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.shared.lock().events.clone()
    }

    /// Writes a kubeconfig for this server with the given entry of a user, such as `{"token": "t"}`. Returns its path.
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

    /// Returns a user's entry for a kubeconfig, with a certificate of this server's authority.
    pub(crate) fn certified_user(&self, name: &str) -> Value {
        let Signed { certificate, key } = self.authority.user(name);
        let (certificate, key) = (self.file("user.crt", &certificate), self.file("user.key", &key));
        json!({ "client-certificate": certificate, "client-key": key })
    }

    /// Returns the TLS settings of another server at these names, with a certificate of the authority that the kubeconfig names.
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

/// Calls `look` until it returns a value.
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
