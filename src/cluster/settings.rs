//! Takes the options of this crate from the proxy's configuration, for the proxy and its subcommands.

use component::config::{Client, Config};

use crate::source::ConvertOptions;
use crate::source::api::ClientOptions;

/// Returns the options for connecting to the API server.
pub fn client(config: &Config) -> ClientOptions {
    let Client { kubeconfig, master, accept } = config.client.clone();
    ClientOptions { kubeconfig, master, accept }
}

/// Returns the options for converting objects.
pub fn options(config: &Config) -> ConvertOptions {
    ConvertOptions {
        allow_external_ips: config.allow_service_external_ips,
        drain_on: config.drain_on.clone(),
        ..ConvertOptions::default()
    }
}
