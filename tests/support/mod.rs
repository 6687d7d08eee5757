//! A small cluster in network namespaces, and everything a packet test needs around it.
//!
//! Needs root, iproute2 and nft. Has namespaces ([`netns`]), a cluster of them ([`world`], addresses in [`plan`], links in [`wiring`]),
//! servers that answer with the source that they saw ([`server`]), probes that return the outcome of a packet ([`probe`]), the proxy under
//! test ([`proxy`], in each [`layout`] of the rules), its objects ([`objects`]), the rules that it wrote ([`nft`], [`strace`]), and the
//! receivers of nf_tables notifications ([`notifications`]); a long test prints [`figures`]. Tests that call the library instead of the
//! binary use objects of the model ([`cluster`]) and a kernel in memory ([`kernel`]). A missing tool or privilege fails the test with a
//! sentence; nothing is ever skipped. Everything that a test made is deleted when its values are dropped, also after a panic.

#![allow(dead_code, reason = "every test binary compiles all of it and uses a part")]

pub(crate) mod apiserver;
pub(crate) mod cluster;
pub(crate) mod faulty;
pub(crate) mod figures;
pub(crate) mod kernel;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod manifests;
pub(crate) mod mixed;
pub(crate) mod netns;
pub(crate) mod nft;
pub(crate) mod notifications;
pub(crate) mod objects;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod strace;
pub(crate) mod terminal;
pub(crate) mod upstream;
pub(crate) mod wire;
pub(crate) mod wiring;
pub(crate) mod world;
