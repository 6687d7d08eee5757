//! Objects from the API server.
//!
//! Takes Services, EndpointSlices, ServiceCIDRs and the own Node as the server lists and streams them; gives [`Event`]s,
//! [`Event::InitialListDone`] once everything was listed, then changes as they happen.
//!
//! The stages: `connection` asks, `lines` and `frame` cut the answer, `resource` reads an object, `known` keeps the books,
//! `outlet` sends. `watcher` ties these together for one kind, with `follow` for the conversation, `listing`
//! for the way to list, `backoff` for the time between tries, `outage` for what is logged meanwhile and `explain` for its
//! words; `readiness` knows when start-up is done, `location` where the server is, `task` runs it all on a thread. `client` finds
//! the server, with credentials that `plugin` may provide.
//!
//! Why not `kube::runtime::watcher`: there an object that does not decode fails its whole page, a server that refuses or
//! ignores streaming lists is asked in the same way for ever, Retry-After is not seen, a line may have any length, and a
//! dead connection is noticed after the life of a watch only. The client, its TLS, its credentials and its requests
//! are kube's.
//!
//! Invariants: what the server sends loses at most the object it is about; a listing deletes only what it lacks and only
//! once it is complete; memory is bounded by one page or line plus the names of the objects; all times are monotonic.

mod backoff;
mod client;
mod connection;
#[doc(hidden)]
pub mod decoders;
mod explain;
mod failure;
mod follow;
mod frame;
mod known;
mod lines;
mod listing;
mod location;
mod outage;
mod outlet;
mod plugin;
mod readiness;
mod resource;
mod task;
mod watcher;

#[cfg(test)]
mod tests;

use std::time::SystemTime;

use super::convert::ConvertOptions;

#[cfg(doc)]
use crate::model::Event;

pub use client::{ClientOptions, check, client, runs_programs};
pub use task::{Handle, spawn};

/// What to follow, and where.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Where the server is.
    pub client: ClientOptions,
    /// Name of the own Node (M1).
    pub node_name: String,
    /// How objects are read.
    pub convert: ConvertOptions,
    /// Whether start-up has to fail without pod CIDRs of the Node: detectLocalMode NodeCIDR (M3).
    pub needs_pod_cidrs: bool,
    /// A list that takes away a larger share of a kind's objects, in percent, is confirmed by a second one.
    pub removal_limit: u8,
}

/// Hears what is worth counting.
pub trait Observer: Send + 'static {
    /// Whether the server lets us follow a kind at present: `false` at the start and from a failure on.
    fn connected(&self, kind: &'static str, is: bool);
    /// The server sent something about a kind: objects, changes or a bookmark. Called for each piece of an answer.
    fn heard(&self, kind: &'static str, at: SystemTime);
    /// The watch of a kind goes on after a failure.
    fn reconnected(&self, kind: &'static str);
    /// An object of a kind could not be used, or not all of it, for a reason that was not there before.
    fn rejected(&self, kind: &'static str);
    /// What start-up waits for, in words, whenever that changes; nothing, once, just before [`Event::InitialListDone`] is sent.
    fn waiting_for(&self, missing: &[&str]);
}

/// Counts nothing.
impl Observer for () {
    fn connected(&self, _: &'static str, _: bool) {}
    fn heard(&self, _: &'static str, _: SystemTime) {}
    fn reconnected(&self, _: &'static str) {}
    fn rejected(&self, _: &'static str) {}
    fn waiting_for(&self, _: &[&str]) {}
}
