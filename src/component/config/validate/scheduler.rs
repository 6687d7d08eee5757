//! Finds the scheduler, which chooses an endpoint for each connection: `nftables.scheduler`, or a replacement for `ipvs.scheduler` in a
//! configuration for ipvs mode.

use super::Diagnostics;
use crate::config::Scheduler;
use crate::config::file::KubeProxyConfiguration;
use crate::excerpt::quoted;

/// The range of `maglevTableSize`. A smaller table would have room for only a few endpoints. The upper end, which bounds the size of a
/// table, is the largest prime below 2^16.
const TABLE_SIZES: std::ops::RangeInclusive<u32> = 67..=65_521;

/// Returns the scheduler of Services without an annotation that names one; never [`Scheduler::Unset`]. As in upstream, `ipvs.scheduler`
/// has no effect in mode iptables, nor without a mode.
pub(super) fn scheduler(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Scheduler {
    match file.nftables.scheduler {
        Scheduler::Unset if file.section() == "iptables" => Scheduler::Random,
        Scheduler::Unset => of_ipvs(&file.ipvs.scheduler, diagnostics),
        set => set,
    }
}

/// Returns the replacement for a scheduler of ipvs mode. Warns if `name` is not empty, because the replacement does not choose endpoints
/// exactly as IPVS does.
fn of_ipvs(name: &str, diagnostics: &mut Diagnostics) -> Scheduler {
    let (scheduler, why) = match name {
        "" => return Scheduler::Random,
        "sh" => (Scheduler::SourceHash, "stands for it"),
        "mh" => (Scheduler::Maglev, "stands for it"),
        "rr" | "wrr" => (Scheduler::Random, "is used instead: over many connections each endpoint gets as many"),
        "lc" | "wlc" | "sed" | "nq" | "lblc" | "lblcr" | "ovf" => {
            (Scheduler::Random, "is used instead: nf_tables cannot count the connections of an endpoint")
        }
        "dh" => (Scheduler::Random, "is used instead: nothing chooses by the destination here"),
        _ => (Scheduler::Random, "is used instead: that is no scheduler that this kube-proxy knows"),
    };
    diagnostics.warn(format!(
        "ipvs.scheduler is {}, and nftables.scheduler is not set: {scheduler} {why}; set nftables.scheduler (--scheduler) to say so",
        quoted(name)
    ));
    scheduler
}

/// Checks and returns the number of positions in a Maglev table: a prime number in [`TABLE_SIZES`].
pub(super) fn maglev_table_size(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<u32> {
    let size = u32::try_from(file.nftables.maglev_table_size).ok().filter(|size| TABLE_SIZES.contains(size));
    let is_prime = |size: u32| (2..).take_while(|d| d * d <= size).all(|divisor| !size.is_multiple_of(divisor));
    let size = size.filter(|size| is_prime(*size));
    if size.is_none() {
        let (least, most) = (TABLE_SIZES.start(), TABLE_SIZES.end());
        let text = format!("must be a prime number from {least} to {most}, such as 251, 1021 or 4093");
        diagnostics.error("nftables.maglevTableSize", text);
    }
    size
}
