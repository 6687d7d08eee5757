//! How commands reach the cluster's objects: as a proxy with the same configuration does.

use crate::config::Config;
use crate::source::ConvertOptions;
use crate::source::api::ClientOptions;

/// How the API server is reached.
pub(super) fn client(config: &Config) -> ClientOptions {
    ClientOptions { kubeconfig: config.client.kubeconfig.clone(), master: config.client.master.clone() }
}

/// How objects are converted.
pub(super) fn options(config: &Config) -> ConvertOptions {
    ConvertOptions { allow_external_ips: config.allow_service_external_ips }
}
