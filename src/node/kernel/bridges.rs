//! Whether a bridge gives the packets between its ports to the rules of IP (module `br_netfilter`).

use std::fs;
use std::path::Path;

use rules::model::Family;

/// The sysctl, with dots, by which all bridges of the calling thread's network namespace give packets of a family to the rules.
#[must_use]
pub const fn sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.bridge.bridge-nf-call-iptables",
        Family::V6 => "net.bridge.bridge-nf-call-ip6tables",
    }
}

/// Returns whether the interface is a bridge that does not give packets of a family to the rules.
#[must_use]
pub fn bypasses_rules(interface: &str, family: Family) -> bool {
    let bridge = Path::new("/sys/class/net").join(interface).join("bridge");
    let own = if family == Family::V4 { "nf_call_iptables" } else { "nf_call_ip6tables" };
    let value = |file: &Path| fs::read_to_string(file).map(|text| text.trim().to_owned()).ok();
    // Without the module there is no sysctl, and the file of the bridge has no effect.
    let of_all = value(&Path::new("/proc/sys").join(sysctl(family).replace('.', "/")));
    let is_met = of_all.is_some_and(|all| all == "1" || value(&bridge.join(own)).as_deref() == Some("1"));
    bridge.is_dir() && !is_met
}
