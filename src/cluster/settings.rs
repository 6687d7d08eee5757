//! How the cluster's objects are reached with a configuration: the same for a proxy and for the commands.

use component::config::{Client, Config};

use crate::source::ConvertOptions;
use crate::source::api::ClientOptions;

/// How the API server is reached.
pub fn client(config: &Config) -> ClientOptions {
    let Client { kubeconfig, master, accept } = config.client.clone();
    ClientOptions { kubeconfig, master, accept }
}

/// How objects are converted.
pub fn options(config: &Config) -> ConvertOptions {
    ConvertOptions { allow_external_ips: config.allow_service_external_ips }
}
