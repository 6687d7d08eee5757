//! The server's thread: accepts connections and hands their requests on.
//!
//! The thread's runtime lives in the network namespace of the thread that starts it. A closed server has no listener and no connection, as
//! if its process had been killed; it opens again on the same port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::answer::{Peer, answer};
use super::state::Shared;

/// An order of a test to the server, with a channel on which the server says that it has carried out the order.
#[derive(Debug)]
pub(crate) enum Control {
    /// Close the listener and all connections.
    Close(std::sync::mpsc::Sender<()>),
    /// Listen again.
    Open(std::sync::mpsc::Sender<()>),
}

/// Serves until its handle is dropped.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    tls: Option<TlsAcceptor>,
    listener: TcpListener,
    mut controls: UnboundedReceiver<Control>,
) {
    let address = listener.local_addr().expect("a listener has an address");
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accept(listener.as_ref()) => {
                connections.spawn(connection(Arc::clone(&shared), tls.clone(), accepted));
            }
            control = controls.recv() => match control {
                None => return,
                Some(Control::Close(done)) => {
                    listener = None;
                    connections.shutdown().await;
                    let _ = done.send(());
                }
                Some(Control::Open(done)) => {
                    listener = Some(listen(address).await);
                    let _ = done.send(());
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Listens on an address; tries for two seconds, because a port that was just closed may stay busy for a moment.
pub(crate) async fn listen(address: SocketAddr) -> TcpListener {
    for _ in 0..200 {
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("cannot listen on {address}");
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    loop {
        match listener {
            // A client may close its connection before it is accepted: then the next one is accepted.
            Some(listener) => {
                if let Ok((stream, _)) = listener.accept().await {
                    return stream;
                }
            }
            None => std::future::pending().await,
        }
    }
}

async fn connection(shared: Arc<Shared>, tls: Option<TlsAcceptor>, stream: TcpStream) {
    // Sends each chunk when it is written.
    stream.set_nodelay(true).expect("a connected socket takes options");
    let stream = stream.into_std().expect("a socket of tokio is one of std");
    let spare = stream.try_clone().expect("a socket can be shared");
    let stream = TcpStream::from_std(stream).expect("it was tokio's before");
    let killed = match tls {
        None => http(shared, stream, None).await,
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => {
                let shown =
                    stream.get_ref().1.peer_certificates().and_then(|chain| Some(Arc::from(chain.first()?.as_ref())));
                http(shared, stream, shown).await
            }
            // The client refused this server's certificate, or this server refused the client's.
            Err(_) => false,
        },
    };
    if killed {
        // With this option, closing the socket's last descriptor sends a reset.
        socket2::SockRef::from(&spare).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
    }
}

/// Speaks HTTP until the connection ends. Returns whether it has to end with a reset.
async fn http(
    shared: Arc<Shared>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: Option<Arc<[u8]>>,
) -> bool {
    let peer = Peer { certificate, ..Peer::default() };
    let killer = peer.killer.clone();
    let service = service_fn(move |request| {
        let (shared, peer) = (Arc::clone(&shared), peer.clone());
        async move { Ok::<_, Infallible>(answer(shared, peer, request).await) }
    });
    let served = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = killer.killed() => true,
        // Clients may close the connection at any time.
        _ = served => false,
    }
}
