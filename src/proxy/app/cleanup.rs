//! `--cleanup`: removes what any kube-proxy left on this node (O1), but only with `--cleanup-force` while one runs.

use anyhow::{Result, bail};
use tracing::warn;

use component::config::Config;
use component::logging::list;
use inspect::other_proxy;
use node::kernel::{Lock, WriterLockState, leftovers};

/// Removes the rules. While a kube-proxy runs, removes nothing unless `force` is set: clients could not reach any Service until that
/// kube-proxy writes its rules again. Upstream's kube-proxy in mode iptables looks for removed rules only once in `syncPeriod`, which is
/// 30 s by default.
///
/// # Errors
/// When a kube-proxy runs and `force` is not set, and when something could not be removed.
pub(super) fn clean_up(config: &Config, lock: &mut Lock, force: bool) -> Result<()> {
    let mut signs = Vec::new();
    // If this process gets the lock, it holds it until its end, so that no kube-proxy of this program starts to write during the clean-up.
    match lock.take() {
        Ok(WriterLockState::HeldBy(holder)) => signs.push(holder.to_string()),
        Ok(WriterLockState::Ours) => {}
        Err(error) => warn!(err = %error, "Cannot find out whether a kube-proxy of this program runs on this node"),
    }
    if signs.is_empty() {
        signs = other_proxy::signs(config);
    }
    if !signs.is_empty() {
        if !force {
            bail!(
                "nothing was removed: a kube-proxy runs on this node and would write its rules again ({}); end it first, then repeat \
                 --cleanup; to remove its rules while it runs, add --cleanup-force",
                signs.join("; ")
            );
        }
        warn!(signs = list(&signs), "Removing the rules of a kube-proxy that runs");
    }
    let report = leftovers::remove_all();
    report.log(None);
    if report.errors.is_empty() { Ok(()) } else { bail!("the clean-up is not complete") }
}
