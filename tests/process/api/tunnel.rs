//! A proxy between a client and a server: HTTP, HTTP in TLS, or SOCKS 5, with a user and a password if it wants them.
//!
//! Takes connections in the network namespace of the thread that starts it. Dropping it closes all of them, as the end of a process does.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use data_encoding::BASE64;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What a proxy speaks.
#[derive(Clone)]
pub(super) enum Speaks {
    Http,
    Https(TlsAcceptor),
    Socks5,
}

/// User and password.
pub(super) type Credentials = Option<(&'static str, &'static str)>;

/// A running proxy.
pub(super) struct Tunnel {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Listens at this address; port 0 is one that the kernel picks.
    pub(super) fn start(address: SocketAddr, speaks: Speaks, credentials: Credentials) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let (sender, listening) = channel();
        let log = Arc::clone(&asked);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("the address is free");
                sender.send(listener.local_addr().expect("it listens")).expect("the starter waits");
                tokio::select! {
                    () = accept(listener, speaks, credentials, log) => {}
                    _ = stopped => {}
                }
            });
        });
        let address = listening.recv().expect("it listens");
        Self { address, asked, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked for: the first lines of requests, or `SOCKS` with the target.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no thread panicked").clone()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop = None;
        self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(listener: TcpListener, speaks: Speaks, credentials: Credentials, asked: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (speaks, asked) = (speaks.clone(), Arc::clone(&asked));
        // Both ends may close their connection at any time.
        connections.spawn(async move {
            match speaks {
                Speaks::Http => http(stream, credentials, &asked).await,
                Speaks::Https(acceptor) => http(acceptor.accept(stream).await?, credentials, &asked).await,
                Speaks::Socks5 => socks(stream, credentials, &asked).await,
            }
        });
    }
}

async fn http(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    credentials: Credentials,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    let first = text.lines().next().unwrap_or_default().to_owned();
    asked.lock().expect("no thread panicked").push(first.clone());
    let wanted = credentials.map(|(user, password)| {
        format!("proxy-authorization: basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()))
    });
    let has = |line: &str| text.lines().any(|other| other.eq_ignore_ascii_case(line));
    if wanted.is_some_and(|line| !has(&line)) {
        return client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n").await;
    }
    let target = first.split(' ').nth(1).unwrap_or_default();
    if first.starts_with("CONNECT ") {
        let mut server = TcpStream::connect(target).await?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        return copy_bidirectional(&mut client, &mut server).await.map(drop);
    }
    let authority = target.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    let mut server = TcpStream::connect(authority.ok_or(ErrorKind::InvalidData)?).await?;
    server.write_all(&head).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// RFC 1928, and RFC 1929 for user and password; targets are IPv4 addresses.
async fn socks(mut client: TcpStream, credentials: Credentials, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let [version, methods] = [client.read_u8().await?, client.read_u8().await?];
    let mut offered = vec![0; methods.into()];
    client.read_exact(&mut offered).await?;
    let method = if credentials.is_some() { 2 } else { 0 };
    if version != 5 || !offered.contains(&method) {
        return client.write_all(&[5, 0xff]).await;
    }
    client.write_all(&[5, method]).await?;
    if let Some((user, password)) = credentials {
        client.read_u8().await?;
        let mut given = [Vec::new(), Vec::new()];
        for text in &mut given {
            *text = vec![0; client.read_u8().await?.into()];
            client.read_exact(text).await?;
        }
        let is_right = given == [user.as_bytes(), password.as_bytes()];
        client.write_all(&[1, u8::from(!is_right)]).await?;
        if !is_right {
            return Ok(());
        }
    }
    let mut request = [0; 10];
    client.read_exact(&mut request).await?;
    let [5, 1, 0, 1, a, b, c, d, high, low] = request else { return Err(ErrorKind::InvalidData.into()) };
    let target = SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])));
    asked.lock().expect("no thread panicked").push(format!("SOCKS {target}"));
    let mut server = TcpStream::connect(target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
