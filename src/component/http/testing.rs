//! An HTTP client for tests, which returns the response as text.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends a request and returns the complete response; an empty text if no server listens within a second.
pub async fn exchange(address: SocketAddr, request: &str) -> String {
    for _ in 0..100 {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    String::new()
}

/// Sends a GET on a new connection and returns the response.
pub async fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, &format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")).await
}

/// Returns the response without the headers `Date` and `Connection`, which are not part of the page.
pub fn without_date(answer: &str) -> String {
    let lines = answer.split_inclusive("\r\n");
    lines.filter(|line| !line.starts_with("Date: ") && !line.starts_with("Connection: ")).collect()
}

/// Returns whether a server listens on the address.
pub async fn is_open(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_ok()
}

/// Returns a free port, a different one at each call in this process. The ports begin at 20,000, below the range from which the kernel
/// takes ports for clients by default.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}
