//! interim
use super::Metrics;
use tokio::io::AsyncWriteExt;
pub async fn run(a: std::net::SocketAddr, _h: bool, m: Metrics) -> std::io::Result<()> {
    let l = tokio::net::TcpListener::bind(a).await?;
    loop {
        let (mut s, _) = l.accept().await?;
        let b: String = m.0.lock().unwrap().iter().map(|(k, v)| format!("{k} {v}\n")).collect();
        let _ = s.write_all(format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{b}", b.len()).as_bytes()).await;
    }
}
