//! Keeps the capabilities that programming the network takes.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// What is kept, if it is there: nf_tables and conntrack, and health-check node ports below 1024.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);
/// One more than the number of any capability that a kernel has.
const LAST: u32 = 64;

/// Whether this thread may program the network. A kernel that cannot be asked is asked again by what needs it.
pub(super) fn has_net_admin() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Drops every other capability from all sets of this thread. Gives the names of those that are left.
pub(super) fn keep_network() -> Result<Vec<&'static str>, Errno> {
    let held = capabilities(None)?.permitted;
    // The bounding set takes CAP_SETPCAP, so it comes first; without that capability it stays, which no_new_privs makes harmless.
    if held.contains(CapabilitySet::SETPCAP) {
        bound()?;
    }
    // Kernels without ambient capabilities have none to clear.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let left = held & KEPT;
    set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() })?;
    Ok(names(left))
}

fn bound() -> Result<(), Errno> {
    for capability in (0..LAST).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if KEPT.contains(capability) {
            continue;
        }
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The first number that this kernel does not know.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn names(set: CapabilitySet) -> Vec<&'static str> {
    let names = [(CapabilitySet::NET_ADMIN, "NET_ADMIN"), (CapabilitySet::NET_BIND_SERVICE, "NET_BIND_SERVICE")];
    names.into_iter().filter(|(capability, _)| set.contains(*capability)).map(|(_, name)| name).collect()
}
