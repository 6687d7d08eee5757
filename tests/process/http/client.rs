//! A node with a proxy on it, and a client that shows the bytes of the answers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::netns::Namespace;
use crate::support::objects::{node, service_cidr};
use crate::support::plan::Family;
use crate::support::proxy;

/// How long the proxy may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An answer, taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Such as `HTTP/1.1 200 OK`.
    pub(crate) status: String,
    /// Names and values in the order of the wire, without `Date` and `Connection`.
    pub(crate) headers: Vec<(String, String)>,
    /// What comes after the empty line.
    pub(crate) body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default().to_owned();
        let headers = lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no header: {line}")));
        let headers = headers.filter(|(name, _)| !["Date", "Connection"].contains(name));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { status, headers, body: body.to_owned() }
    }

    /// Holds an answer to the status, the headers (but for the length, which has to be right) and the body.
    pub(crate) fn assert(&self, status: &str, headers: &[(&str, &str)], body: &str) {
        assert_eq!(self.status, format!("HTTP/1.1 {status}"), "{self:?}");
        assert_eq!(self.body, body);
        let length = body.len().to_string();
        let mut expected = headers.to_vec();
        expected.push(("Content-Length", &length));
        let found: Vec<_> = self.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(found, expected);
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A namespace with the node's addresses.
pub(crate) fn node_namespace() -> Namespace {
    let namespace = Namespace::new("http");
    let add = |family: Family, length| format!("address add {}/{length} dev lo", family.node());
    namespace.ip(&[add(Family::V4, 32), add(Family::V6, 128)]);
    namespace
}

/// The objects that every cluster has.
pub(crate) fn cluster() -> Vec<Value> {
    vec![node(), service_cidr()]
}

/// The usual configuration, with the servers on all addresses.
pub(crate) fn config() -> Value {
    let mut config = proxy::config();
    config["metricsBindAddress"] = json!("0.0.0.0:10249");
    config["healthzBindAddress"] = json!("0.0.0.0:10256");
    config
}

/// The answer to a request on a connection of its own; `head` is the request line and header lines without line ends.
pub(crate) fn ask(namespace: &Namespace, address: &str, head: &[&str], body: &str) -> Answer {
    try_ask(namespace, address, head, body).unwrap_or_else(|error| panic!("{address} {head:?}: {error}"))
}

/// Like [`ask`], for a server that may not be there.
pub(crate) fn try_ask(namespace: &Namespace, address: &str, head: &[&str], body: &str) -> std::io::Result<Answer> {
    let mut text = format!("{} HTTP/1.1\r\n", head[0]);
    let length = format!("Content-Length: {}", body.len());
    for line in head[1..].iter().chain(&["Host: node", "Connection: close", &length]) {
        text += &format!("{line}\r\n");
    }
    let text = format!("{text}\r\n{body}");
    let address: SocketAddr = address.parse().expect("tests know their addresses");
    namespace.enter(|| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(Answer::parse(&answer))
    })
}

/// The answer to a GET.
pub(crate) fn get(namespace: &Namespace, address: &str, path: &str) -> Answer {
    ask(namespace, address, &[&format!("GET {path}")], "")
}

/// Asks until the answer is as wanted, and gives it.
pub(crate) fn get_until(namespace: &Namespace, address: &str, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = try_ask(namespace, address, &[&format!("GET {path}")], "");
        match answer {
            Ok(answer) if wanted(&answer) => return answer,
            answer => assert!(Instant::now() < end, "{address} {path}: {answer:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}
