//! The test API server itself, asked by a client that knows no Kubernetes: what other tests rely on is known to be right.

mod client;
mod entry;
mod faults;
mod lists;
mod watches;
