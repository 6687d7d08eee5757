//! An HTTP/1.1 client of a few lines: it shows the answer as it came, chunk by chunk.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::apiserver::ApiServer;

/// The deadline of every wait: longer than an answer takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer whose head came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    stream: BufReader<TcpStream>,
    rest: Vec<u8>,
}

/// Sends a request; `Err` is how the connection ended before a head came.
pub(crate) fn send(server: &ApiServer, head: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(stream, "{head} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut stream = BufReader::new(stream);
    let first = line(&mut stream)?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or(ErrorKind::UnexpectedEof)?;
    let mut headers = Vec::new();
    loop {
        let text = line(&mut stream)?;
        let Some((name, value)) = text.split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    Ok(Answer { status, headers, stream, rest: Vec::new() })
}

/// A GET that is answered.
pub(crate) fn get(server: &ApiServer, target: &str) -> Answer {
    send(server, &format!("GET {target}"), "").unwrap_or_else(|error| panic!("{target}: {error}"))
}

impl Answer {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// The next chunk; `Ok(None)` at the proper end of the body.
    pub(crate) fn chunk(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let size = line(&mut self.stream)?;
        let size = usize::from_str_radix(&size, 16).map_err(|_| ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(size);
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// The whole body, chunked or not.
    pub(crate) fn body(mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().expect("the body is whole") {
            all.extend(chunk);
        }
        all
    }

    /// The whole body as JSON.
    pub(crate) fn json(self) -> Value {
        serde_json::from_slice(&self.body()).expect("the body is JSON")
    }

    /// The next event of a watch; `None` at its proper end.
    pub(crate) fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event is JSON"));
            }
            let chunk = self.chunk().expect("the watch goes on")?;
            self.rest.extend(chunk);
        }
    }

    /// The next event in short, such as `ADDED web 101`.
    pub(crate) fn short(&mut self) -> String {
        self.event().map_or_else(|| "end".to_owned(), |event| short(&event))
    }

    /// Whether the connection stays open for so long without a byte.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.get_ref().set_read_timeout(Some(time)).expect("a socket takes options");
        self.chunk().is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Closes the connection.
    pub(crate) fn close(self) {
        drop(self);
    }
}

/// An event in short: its type, the object's name or the Status' code, its version.
pub(crate) fn short(event: &Value) -> String {
    let object = &event["object"];
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    let what = name.or_else(|| object["code"].as_u64().map(|code| code.to_string())).unwrap_or_default();
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    [event["type"].as_str().unwrap_or_default(), &what, version].join(" ").replace("  ", " ").trim().to_owned()
}

/// A Service with a cluster IP and labels.
pub(crate) fn service(name: &str, cluster_ip: &str, labels: &Value) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": "shop", "labels": labels },
        "spec": { "clusterIP": cluster_ip },
    })
}

/// A Service that matches every selector of the proxy.
pub(crate) fn plain(name: &str) -> Value {
    service(name, "10.96.0.1", &json!({}))
}

fn line(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_line(&mut text)?;
    Ok(text.trim_end().to_owned())
}
