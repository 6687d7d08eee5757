//! Chooses the endpoint of a connection.
//!
//! Pure except for the random choice. Takes the endpoints of a node port as they change; returns one after the other until a connection
//! succeeds.

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

    /// Replaces the endpoints. A pinned endpoint stays pinned if it is still there.
    pub(super) fn update(&self, port: &NodePort) {
        let mut state = self.lock();
        state.endpoints.clone_from(&port.endpoints);
        state.affinity = port.affinity;
    }

    /// The next endpoint for a connection that has tried some already; `None` when all were tried. With session affinity it is the pinned
    /// endpoint, and the pin lasts for the time-out from now; any other choice moves the pin (R4). `random` returns a number below its
    /// argument.
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
        Some(Choice { endpoint, has_others: untried.len() > 1 })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
