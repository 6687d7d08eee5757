//! What the running proxy says about Services that are not in the tables as they should be.
//!
//! Takes the address of its health pages, gives the names of these Services; `None` when no proxy answers there, which is no error: the
//! commands work without one. Waits at most a second, and reads at most [`MAX_ANSWER`] bytes.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Deserialize;

/// How long each step of the request may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest answer that is read.
const MAX_ANSWER: u64 = 4 << 20;

/// The Services that the proxy has left out of the tables or keeps as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeftOut {
    /// The kernel refused them.
    #[serde(default)]
    pub(crate) quarantined_services: Vec<String>,
    /// They need too many elements.
    #[serde(default)]
    pub(crate) oversized_services: Vec<String>,
}

/// Asks the health pages at an address.
pub(crate) fn left_out(health: SocketAddr) -> Option<LeftOut> {
    let answer = get(health, "/livez").ok()?;
    // The page has the same body whatever its status is.
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}
