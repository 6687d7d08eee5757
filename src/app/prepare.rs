//! The check of a start, its privileged steps, and the giving up of the privileges.

use std::env;

use anyhow::Result;
use tracing::{info, warn};

use super::source;
use crate::config::{Config, Conntrack};
use crate::kernel::probe::probe;
use crate::kernel::process::{SKIP_VERSION_CHECK, check_kernel, set_oom_score};
use crate::kernel::sysctl::{ConntrackSettings, apply};
use crate::kernel::{families, load_conntrack};
use crate::privileges::{self, Needs};
use crate::source::api;

/// An environment variable of ours: `off` leaves the privileges as they are, for those who have to look into a running process.
const SANDBOX: &str = "KUBE_PROXY_NFT_SANDBOX";

/// Checks all that a start needs and that can be checked without a change to the node: the privilege, the kernel's version, whether it
/// takes our rules (O4, O3), and whether the credentials or the manifest directory can be read.
///
/// # Errors
/// The first thing that is missing, why it is needed, and what to do.
pub(super) fn check(config: &Config) -> Result<()> {
    privileges::check()?;
    check_kernel(env::var_os(SKIP_VERSION_CHECK).as_deref())?;
    families::supported().into_iter().try_for_each(probe)?;
    source::check(config)
}

/// Sets the connection-tracking sysctls and the OOM score (N, O6).
///
/// # Errors
/// When a value cannot be set; then none was.
pub(super) fn prepare(config: &Config) -> Result<()> {
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

/// Keeps what a running proxy needs and gives up the rest, for this thread and all that it starts.
///
/// # Errors
/// When something cannot be given up that the kernel says can be.
pub(super) fn give_up_privileges(config: &Config) -> Result<()> {
    if env::var_os(SANDBOX).is_some_and(|value| value == "off") {
        warn!("{SANDBOX}=off: privileges are kept");
        return Ok(());
    }
    let programs = config.manifests.is_none() && api::runs_programs(config.client.kubeconfig.as_deref());
    let dropped = privileges::drop_all(Needs { programs })?;
    info!(
        capabilities = dropped.capabilities.join(","),
        "privileges given up; writing files is {}, other system calls are {}", dropped.files, dropped.syscalls
    );
    Ok(())
}
