//! A server that answers each request as the test defines.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A request that the server received.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The last part of the path, such as `services`.
    pub(super) resource: String,
    /// The decoded query.
    pub(super) query: HashMap<String, String>,
    pub(super) headers: HashMap<String, String>,
    /// The number of earlier requests for the resource.
    pub(super) nth: usize,
    pub(super) at: Instant,
}

impl Request {
    pub(super) fn query(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }
}

/// One step of the server while it answers.
pub(super) enum Act {
    /// Sends the status and further header lines.
    Head(u16, &'static str),
    /// Sends bytes as one chunk of the body.
    Chunk(Vec<u8>),
    /// Sends nothing for this time.
    Wait(Duration),
    /// Sends nothing more until the client closes the connection.
    Hold,
    /// Ends the body. Without this step, the server closes the connection before the end of the body.
    End,
}

pub(super) struct Server {
    pub(super) url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Returns the requests for a resource so far.
    pub(super) fn requests(&self, resource: &str) -> Vec<Request> {
        self.log.lock().unwrap().iter().filter(|request| request.resource == resource).cloned().collect()
    }
}

/// Starts a server. Its threads end with the test process.
pub(super) fn serve(answer: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let log = Arc::new(Mutex::new(Vec::<Request>::new()));
    let (answer, shared) = (Arc::new(answer), Arc::clone(&log));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, log) = (Arc::clone(&answer), Arc::clone(&shared));
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let Some(mut request) = read(&stream) else { return };
                {
                    let mut log = log.lock().unwrap();
                    request.nth = log.iter().filter(|other| other.resource == request.resource).count();
                    log.push(request.clone());
                }
                // Ignore the error, because the client may close the connection at any time.
                let _ = answer(&request).into_iter().try_for_each(|act| perform(&mut stream, act));
            });
        }
    });
    Server { url, log }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let target = first.split(' ').nth(1)?.to_owned();
    let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let headers = headers
        .filter_map(|line| Some((line.split_once(':')?.0.to_lowercase(), line.split_once(':')?.1.trim().to_owned())));
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    Some(Request {
        resource: path.rsplit('/').next()?.to_owned(),
        query: pairs.map(|(key, value)| (decode(key), decode(value))).collect(),
        headers: headers.collect(),
        nth: 0,
        at: Instant::now(),
    })
}

/// Decodes a part of a URL's query.
fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    String::from_utf8(out).unwrap()
}

fn perform(stream: &mut TcpStream, act: Act) -> std::io::Result<()> {
    match act {
        Act::Head(status, more) => {
            let fixed = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close";
            write!(stream, "HTTP/1.1 {status} Status\r\n{fixed}\r\n{more}\r\n")
        }
        Act::Chunk(bytes) => {
            write!(stream, "{:x}\r\n", bytes.len())?;
            stream.write_all(&bytes)?;
            stream.write_all(b"\r\n")
        }
        Act::Wait(time) => {
            thread::sleep(time);
            Ok(())
        }
        Act::Hold => stream.read_to_end(&mut Vec::new()).map(|_| ()),
        Act::End => stream.write_all(b"0\r\n\r\n"),
    }
}
