//! The connection to the cluster. The crate reads Kubernetes objects from the API server or a directory of manifests, and converts them to
//! events of `rules::model`. It also sends Kubernetes Events about this node and its Services to the API server.
//!
//! This is the only crate that uses types of the Kubernetes API. It does not know how the proxy uses the objects.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may panic at an unexpected value"))]

pub mod events;
pub mod settings;
pub mod source;
