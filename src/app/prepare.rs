//! The privileged steps of a start, and the giving up of the privileges.

use std::env;

use anyhow::{Result, ensure};
use tracing::{info, warn};

use crate::config::{Config, Conntrack};
use crate::kernel::process::{SKIP_VERSION_CHECK, check_kernel, set_oom_score};
use crate::kernel::sysctl::{ConntrackSettings, apply};
use crate::kernel::{families, load_conntrack, probe as kernel_probe};
use crate::privileges::{self, Needs};
use crate::source::api;

/// An environment variable of ours: `off` leaves the privileges as they are, for those who have to look into a running process.
const SANDBOX: &str = "KUBE_PROXY_NFT_SANDBOX";

/// Checks the kernel, sets the connection-tracking sysctls and the OOM score (O4, N, O6).
///
/// # Errors
/// When the kernel is too old, or a value cannot be set.
pub(super) fn prepare(config: &Config) -> Result<()> {
    check_kernel(env::var_os(SKIP_VERSION_CHECK).as_deref())?;
    load_conntrack();
    match apply(&settings(&config.conntrack)) {
        Ok(written) => written.iter().for_each(|(path, value)| info!(path = %path.display(), value, "set")),
        // Upstream has no manifests; who runs from them may well run in a network namespace, where the limit cannot be set.
        Err(error) if config.manifests.is_some() => warn!(%error, "connection tracking stays as it is"),
        Err(error) => return Err(error.into()),
    }
    set_oom_score(config.oom_score_adj);
    Ok(())
}

fn settings(conntrack: &Conntrack) -> ConntrackSettings {
    ConntrackSettings {
        max_per_core: conntrack.max_per_core,
        min: conntrack.min,
        tcp_established: conntrack.tcp_established,
        tcp_close_wait: conntrack.tcp_close_wait,
        udp: conntrack.udp,
        udp_stream: conntrack.udp_stream,
        tcp_be_liberal: conntrack.tcp_be_liberal,
    }
}

/// Asks the kernel whether it would take our rules; nothing stays behind.
///
/// # Errors
/// When it would not.
pub(super) fn probe() -> Result<()> {
    families::supported().into_iter().try_for_each(|family| Ok(kernel_probe::probe(family)?))
}

/// Keeps what a running proxy needs and gives up the rest, for this thread and all that it starts.
///
/// # Errors
/// When something cannot be given up that the kernel says can be, or when too little was there to begin with.
pub(super) fn give_up_privileges(config: &Config) -> Result<()> {
    if env::var_os(SANDBOX).is_some_and(|value| value == "off") {
        warn!("{SANDBOX}=off: privileges are kept");
        return Ok(());
    }
    let programs = config.manifests.is_none() && api::runs_programs(config.client.kubeconfig.as_deref());
    let dropped = privileges::drop_all(Needs { programs })?;
    ensure!(
        dropped.capabilities.contains(&"NET_ADMIN"),
        "not allowed to program nf_tables: kube-proxy needs capability CAP_NET_ADMIN and the host's network namespace"
    );
    info!(
        capabilities = dropped.capabilities.join(","),
        "privileges given up; writing files is {}, other system calls are {}", dropped.files, dropped.syscalls
    );
    Ok(())
}
