//! The checks of a start, its privileged steps, and the drop of privileges.

use std::env;

use anyhow::Result;
use tracing::{info, warn};

use super::source;
use cluster::source::api;
use component::config::Config;
use component::logging::list;
use component::privileges::{self, Needs};
use node::kernel::probe::probe;
use node::kernel::process::{SKIP_VERSION_CHECK, check_kernel, set_oom_score};
use node::kernel::{families, load_conntrack, local_ports, sysctl};

/// An environment variable of this program: the value `off` keeps the privileges, to debug a running process.
const SANDBOX: &str = "KUBE_PROXY_NFT_SANDBOX";

/// Checks without a change to the node: the privilege, the kernel's version (O4), whether the kernel accepts the kinds of rules that this
/// program writes (O3), and whether the credentials or the manifest directory can be read.
///
/// # Errors
/// The first requirement that is not met.
pub(super) fn check(config: &Config) -> Result<()> {
    privileges::check()?;
    check_kernel(env::var_os(SKIP_VERSION_CHECK).as_deref())?;
    probe(&families::supported(), config.hashes_clients())?;
    source::check(config)
}

/// Has the kernel load connection tracking, sets its sysctls (N1 to N4), reserves node ports if that is configured (N5), and sets the OOM
/// score (O6).
///
/// # Errors
/// When a sysctl cannot be set. With `--manifests`, a sysctl of connection tracking that cannot be set is a warning instead.
pub(super) fn prepare(config: &Config) -> Result<()> {
    load_conntrack();
    match sysctl::apply(&config.conntrack) {
        Ok(written) => written.iter().for_each(|(path, value)| {
            let entry = path.strip_prefix("/proc/sys").unwrap_or(path);
            info!(entry = %entry.display(), value, "Set sysctl");
        }),
        // Only a warning with `--manifests` (N4): a proxy with this flag may run in a container in which sysctls cannot be set.
        Err(error) if config.manifests.is_some() => warn!(err = %error, "Connection tracking stays as it is"),
        Err(error) => return Err(error.into()),
    }
    if let Some(value) = local_ports::reserve(&config.reserve_node_ports)? {
        info!(entry = "net/ipv4/ip_local_reserved_ports", %value, "Set sysctl");
    }
    set_oom_score(config.oom_score_adj);
    Ok(())
}

/// Drops the privileges that a running proxy does not need, for this thread and all that it starts, unless [`SANDBOX`] keeps them.
///
/// # Errors
/// When a privilege cannot be dropped although the kernel can drop it.
pub(super) fn drop_privileges(config: &Config) -> Result<()> {
    if env::var_os(SANDBOX).is_some_and(|value| value == "off") {
        warn!(variable = SANDBOX, "Privileges are kept, because the environment says so");
        return Ok(());
    }
    let programs = config.manifests.is_none() && api::runs_programs(config.client.kubeconfig.as_deref());
    let dropped = privileges::drop_all(Needs { programs, low_ports: true, splice: config.serves_localhost() })?;
    let capabilities = list(&dropped.capabilities);
    info!(capabilities, writingFiles = %dropped.files, otherSyscalls = %dropped.syscalls, "Privileges given up");
    Ok(())
}
