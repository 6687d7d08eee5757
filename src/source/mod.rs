//! Where the cluster's objects come from: the only place that names a k8s-openapi type.
//!
//! Takes Kubernetes objects (today from a manifest directory) and gives [`crate::model::Event`]s, with a [`Notice`] or a
//! [`manifests::Problem`] for everything that had to be left out.
//!
//! Invariants: bad input loses only itself, and never in silence; an object whose meaning did not change gives no event.

pub mod api;
pub mod convert;
mod key;
pub mod manifests;
mod notice;
pub mod objects;

pub use convert::ConvertOptions;
pub use notice::Notice;
