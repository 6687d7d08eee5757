//! Chooses the endpoint of a connection.
//!
//! Takes the endpoints of a node port as they change; for each connection, returns one endpoint after the other until the connection
//! succeeds. Does no I/O: the caller passes in the time and the source of random numbers.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::NodePort;

/// The endpoints of a node port, shared by its listener and its connections.
#[derive(Debug)]
pub(super) struct Target(Mutex<State>);

#[derive(Debug)]
struct State {
    endpoints: Vec<SocketAddr>,
    affinity: Option<Duration>,
    /// The endpoint of all clients, and when it was last chosen. All clients count as one, because all connect from the loopback address
    /// (R4).
    pin: Option<(SocketAddr, Instant)>,
}

/// An endpoint to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) endpoint: SocketAddr,
    /// Whether there are other endpoints that were not tried.
    pub(super) has_others: bool,
}

impl Target {
    pub(super) fn new(port: &NodePort) -> Self {
        Self(Mutex::new(State { endpoints: port.endpoints.clone(), affinity: port.affinity, pin: None }))
    }

    /// Replaces the endpoints. The pin stays, and has an effect if its endpoint is one of the new ones.
    pub(super) fn update(&self, port: &NodePort) {
        let mut state = self.lock();
        state.endpoints.clone_from(&port.endpoints);
        state.affinity = port.affinity;
    }

    /// Returns the next endpoint for a connection that could not be made to the endpoints in `tried`; `None` when all were tried. With
    /// session affinity, returns the pinned endpoint unless it was tried, was removed, or its time-out has passed; the returned endpoint is
    /// pinned from `now` on (R4). `random` returns a number below its argument.
    pub(super) fn choose(
        &self,
        tried: &[SocketAddr],
        now: Instant,
        random: impl FnOnce(usize) -> usize,
    ) -> Option<Choice> {
        let mut state = self.lock();
        let untried: Vec<SocketAddr> =
            state.endpoints.iter().copied().filter(|endpoint| !tried.contains(endpoint)).collect();
        let pinned = state.pin.filter(|(endpoint, at)| {
            untried.contains(endpoint)
                && state.affinity.is_some_and(|time_out| now.saturating_duration_since(*at) < time_out)
        });
        let endpoint = match pinned {
            Some((endpoint, _)) => endpoint,
            None if untried.is_empty() => return None,
            None => untried[random(untried.len())],
        };
        state.pin = state.affinity.map(|_| (endpoint, now));
        // With weights an endpoint may be several times in the list.
        Some(Choice { endpoint, has_others: untried.iter().any(|other| *other != endpoint) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
