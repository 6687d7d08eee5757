//! Where the API server is, for the model: no Service may take the connections to it by an external IP.
//!
//! Takes the configuration, gives an [`Event::ApiServerAt`] whenever the addresses are others than before. Nothing is lost when
//! they cannot be found: then the endpoints of the Service `default/kubernetes` are all that is known.

use std::net::SocketAddr;
use std::time::Duration;

use kube::config::Config;
use tokio::net::lookup_host;
use tokio::time::sleep;
use tracing::debug;

use super::client::{ClientOptions, configuration};
use super::outlet::Outlet;
use crate::model::Event;

/// How often the name of the server is looked up: a load balancer in front of it may get other addresses.
const AGAIN: Duration = Duration::from_secs(60);

/// Tells the model where the server is, for as long as somebody listens.
pub(super) async fn announce(options: &ClientOptions, outlet: &Outlet) {
    let mut told = Vec::new();
    loop {
        match addresses(options).await {
            Ok(addresses) if addresses != told => {
                told.clone_from(&addresses);
                if outlet.send(Event::ApiServerAt(addresses)).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => debug!("cannot find the address of the API server: {error:#}"),
        }
        sleep(AGAIN).await;
    }
}

/// The addresses of the server, sorted. Those of loopback are left out: no Service can have them.
async fn addresses(options: &ClientOptions) -> anyhow::Result<Vec<SocketAddr>> {
    let config = configuration(options).await?;
    let Some((host, port)) = host_and_port(&config) else { return Ok(Vec::new()) };
    let mut found: Vec<SocketAddr> = lookup_host((host, port)).await?.filter(|at| !at.ip().is_loopback()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn host_and_port(config: &Config) -> Option<(&str, u16)> {
    let url = &config.cluster_url;
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    // An IPv6 address stands in brackets.
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host, url.port_u16().unwrap_or(default)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    async fn found(url: &str) -> Vec<String> {
        let options = ClientOptions { kubeconfig: None, master: Some(url.to_owned()) };
        addresses(&options).await.unwrap().iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn the_address_is_that_of_the_configuration() {
        assert_eq!(found("https://192.0.2.7:6443").await, ["192.0.2.7:6443"]);
        assert_eq!(found("https://192.0.2.7").await, ["192.0.2.7:443"]);
        assert_eq!(found("192.0.2.7").await, ["192.0.2.7:80"]);
        assert_eq!(found("https://[2001:db8::7]:6443").await, ["[2001:db8::7]:6443"]);
        assert_eq!(found("https://127.0.0.1:6443").await, [""; 0]);
    }

    #[tokio::test]
    async fn the_model_is_told_once() {
        let (sender, events) = sync_channel(2);
        let options = ClientOptions { kubeconfig: None, master: Some("https://192.0.2.7:6443".to_owned()) };
        let outlet = Outlet(sender);
        tokio::select! {
            () = announce(&options, &outlet) => panic!("somebody listens"),
            () = sleep(Duration::from_millis(100)) => {}
        }
        let told: Vec<Event> = events.try_iter().collect();
        assert_eq!(told, [Event::ApiServerAt(vec!["192.0.2.7:6443".parse().unwrap()])]);
    }
}
