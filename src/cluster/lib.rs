//! The connection to the cluster. Reads its objects from the API server or a folder of manifests and turns them into events of
//! `rules::model`. Sends Kubernetes Events about this node and its Services to the API server.
//!
//! The only crate that uses types of the Kubernetes API. It does not know how the proxy uses the objects.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod events;
pub mod settings;
pub mod source;
