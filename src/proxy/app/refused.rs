//! The threads that export how many packets were stopped by rules that belong to no Service: packets to node ports on loopback addresses
//! that were refused, and invalid packets of endpoints that were dropped.
//!
//! Takes the configuration; gives numbers to the metrics. A thread runs until the process ends, and only if the configuration asks for its
//! rules.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tracing::warn;

use crate::metrics::Metrics;
use component::config::Config;
use component::logging::once::Once;
use component::supervise::Supervisor;
use node::counters::Refused;
use rules::model::{Family, Protocol};
use rules::ruleset::names::chain;

/// The time between two readings of the counters.
const INTERVAL: Duration = Duration::from_secs(2);

/// Starts a thread for each of the two kinds of rules that the configuration asks for.
pub(super) fn spawn(config: &Config, metrics: &Metrics, supervisor: &Supervisor) -> Result<()> {
    if config.localhost_node_ports {
        let metrics = metrics.clone();
        spawn_one(supervisor, "localhost-count", chain::LOCALHOST, move |family, protocol, packets| {
            protocol.into_iter().for_each(|protocol| metrics.localhost_rejected(family, protocol, packets));
        })?;
    }
    if config.drop_invalid_from_endpoints {
        let metrics = metrics.clone();
        spawn_one(supervisor, "invalid-count", chain::INVALID, move |family, _, packets| {
            metrics.invalid_dropped(family, packets);
        })?;
    }
    Ok(())
}

fn spawn_one(
    supervisor: &Supervisor,
    thread: &'static str,
    chain: &'static str,
    add: impl Fn(Family, Option<Protocol>, u64) + Send + 'static,
) -> Result<()> {
    let body = move || {
        let mut refused =
            Refused::open(chain).with_context(|| format!("cannot open the netfilter netlink socket of {chain}"))?;
        let mut failed = Once::default();
        loop {
            let read = refused.read(&add);
            if let Some(error) = failed.new_error(&read) {
                warn!(err = error, chain, "Cannot read what a chain refused or dropped");
            }
            thread::sleep(INTERVAL);
        }
    };
    supervisor
        .thread(thread, body)
        .with_context(|| format!("cannot start the thread that reads the counters of {chain}"))?;
    Ok(())
}
