//! Destroys the ipsets of mode ipvs, over netlink (`linux/netfilter/ipset/ip_set.h`).
//!
//! Only sets with kube-proxy's own names are touched. A set that a rule uses cannot be destroyed, so the rules must be removed first.

use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::Writer;

use super::{Report, counted};
use crate::kernel::errno::ENOENT;

mod number {
    /// `NFNL_SUBSYS_IPSET`: the upper byte of the type of each message.
    pub(super) const SUBSYSTEM: u16 = 6;
    pub(super) const DESTROY: u16 = 3;
    pub(super) const HEADER: u16 = 12;
    pub(super) const ATTR_PROTOCOL: u16 = 1;
    pub(super) const ATTR_SETNAME: u16 = 2;
    /// The oldest protocol version that kernels accept (`IPSET_PROTOCOL_MIN`).
    pub(super) const PROTOCOL: u8 = 6;
    /// `NLM_F_REQUEST | NLM_F_ACK`.
    pub(super) const REQUEST_ACK: u16 = 5;
    /// The set is in use (`IPSET_ERR_BUSY`).
    pub(super) const BUSY: i32 = 4100;
}

/// The sets of upstream's `pkg/proxy/ipvs/ipset.go`, without the prefix for the IP family.
const NAMES: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];
/// The prefixes of the names of sets, for IPv4 and for IPv6.
const PREFIXES: [&str; 2] = ["KUBE-", "KUBE-6-"];
/// How long to try again while the set is in use: the kernel releases a set some time after the rules that used it are removed.
const RELEASE: Duration = Duration::from_millis(200);
/// The time between two attempts to destroy a set that is in use.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest name of a set that the kernel accepts, in bytes; upstream cuts longer names.
const LONGEST: usize = 31;

fn names() -> impl Iterator<Item = String> {
    let cut = |prefix, name| format!("{prefix}{name}").chars().take(LONGEST).collect();
    PREFIXES.into_iter().flat_map(move |prefix| NAMES.map(|name| cut(prefix, name)))
}

/// Returns the names of kube-proxy's sets that exist.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn left() -> io::Result<Vec<String>> {
    if !is_loaded(Path::new("/sys/module")) {
        return Ok(Vec::new());
    }
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut found = Vec::new();
    for name in names() {
        match ask(&mut socket, number::HEADER, &name)? {
            0 => found.push(name),
            ENOENT => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
    Ok(found)
}

/// Destroys kube-proxy's sets.
///
/// # Errors
/// Returns the error that the kernel reports; the report still names the sets that were destroyed before the error.
pub(super) fn destroy(report: &mut Report) -> io::Result<()> {
    let mut removed = 0;
    let sets = left()?;
    let outcome = sets.iter().try_for_each(|name| {
        let mut socket = Socket::open(Bus::Netfilter)?;
        match when_released(|| ask(&mut socket, number::DESTROY, name))? {
            0 => removed += 1,
            ENOENT => {}
            number::BUSY => report
                .warnings
                .push(format!("ipset {name} of mode ipvs stays: rules of other programs use it; delete them first")),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        Ok(())
    });
    report.removed.extend((removed > 0).then(|| format!("{} of mode ipvs", counted(removed, "ipset"))));
    outcome
}

/// Returns the result of `call`; repeats the call for at most [`RELEASE`] while it returns that the set is in use.
fn when_released(mut call: impl FnMut() -> io::Result<i32>) -> io::Result<i32> {
    let mut waited = Duration::ZERO;
    loop {
        let errno = call()?;
        if errno != number::BUSY || waited >= RELEASE {
            return Ok(errno);
        }
        thread::sleep(PAUSE);
        waited += PAUSE;
    }
}

/// Returns whether kernel module ip_set is loaded. A netlink request would load the module, also on nodes that never ran mode ipvs, so this
/// function looks into `/sys/module`.
fn is_loaded(modules: &Path) -> bool {
    // If `/sys/module` does not exist, assume that the module is loaded.
    modules.join("ip_set").exists() || !modules.exists()
}

/// Sends a request about a set. Returns the error number of the answer, or 0 for success.
fn ask(socket: &mut Socket, kind: u16, name: &str) -> io::Result<i32> {
    socket.send(&request(kind, name))?;
    loop {
        if let Some(ack) = Messages::new(socket.receive()?).find_map(decode::ack) {
            return Ok(ack.errno);
        }
    }
}

fn request(kind: u16, name: &str) -> Vec<u8> {
    let mut attrs = Writer::default();
    attrs.attr(number::ATTR_PROTOCOL, &[number::PROTOCOL]);
    attrs.str(number::ATTR_SETNAME, name);
    let len = u32::try_from(20 + attrs.bytes().len()).unwrap_or_default();
    let kind = number::SUBSYSTEM << 8 | kind;
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &number::REQUEST_ACK.to_ne_bytes(), &[0; 12], attrs.bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_mode_ipvs_in_both_families() {
        let names: Vec<String> = names().collect();
        assert_eq!(names.len(), 34);
        assert!(names.contains(&"KUBE-CLUSTER-IP".to_owned()) && names.contains(&"KUBE-6-IPVS-IPS".to_owned()));
        assert!(names.contains(&"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS".to_owned()), "cut as upstream cuts it");
    }

    #[test]
    fn a_kernel_without_ipsets_is_not_made_to_load_them() {
        let modules = tempfile::tempdir().unwrap();
        assert!(!is_loaded(modules.path()));
        std::fs::create_dir(modules.path().join("ip_set")).unwrap();
        assert!(is_loaded(modules.path()));
        assert!(is_loaded(Path::new("/nowhere")), "no list of modules");
    }
}
