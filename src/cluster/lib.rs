//! The cluster: its objects as events of the model, from the API server or a folder of manifests; and events about this node, which
//! go back to it.
//!
//! The only crate that names types of Kubernetes. Knows nothing of what becomes of the objects.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod events;
pub mod settings;
pub mod source;
