//! The whole binary against an API server: its requests, the use of the answers, and what it does without answers.
//!
//! Needs root, iproute2 and nft (`make deps`). The server is that of `support/apiserver`, in the node's namespace.

mod access;
mod chaos;
pub(crate) mod cluster;
mod dashboards;
mod following;
mod hangs;
mod kubeadm;
mod listings;
mod long_texts;
mod mistakes;
mod node;
mod outages;
mod proxies;
mod restored;
mod silence;
mod trouble;
mod tunnel;
mod watches;
