//! The options of this crate, taken from the proxy's configuration. The proxy and its subcommands use the same ones.

use component::config::{Client, Config};

use crate::source::ConvertOptions;
use crate::source::api::ClientOptions;

/// The options for connecting to the API server.
pub fn client(config: &Config) -> ClientOptions {
    let Client { kubeconfig, master, accept } = config.client.clone();
    ClientOptions { kubeconfig, master, accept }
}

/// The options for converting objects.
pub fn options(config: &Config) -> ConvertOptions {
    ConvertOptions { allow_external_ips: config.allow_service_external_ips, ..ConvertOptions::default() }
}
