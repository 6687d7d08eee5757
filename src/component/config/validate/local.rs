//! Validates the settings that recognise traffic of local pods, and the interface names of the flowtable.

use ipnet::IpNet;

use super::Diagnostics;
use super::addresses::cidr;
use crate::config::DetectLocal;
use crate::config::file::{Flowtable, KubeProxyConfiguration};
use crate::excerpt::quoted;

/// The longest name of a network interface in bytes: IFNAMSIZ without the final zero.
const INTERFACE_NAME_MAX: usize = 15;

/// Checks the settings of `detectLocalMode`: how traffic of local pods is recognised (I1 to I3).
pub(super) fn detect_local(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<DetectLocal> {
    let section = &file.detect_local;
    match file.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => cluster_cidr(&file.cluster_cidr, diagnostics),
        "NodeCIDR" => Some(DetectLocal::NodeCidr),
        "BridgeInterface" => {
            let (field, name) = ("detectLocal.bridgeInterface", &section.bridge_interface);
            interface(field, name, not_an_interface, diagnostics).map(DetectLocal::BridgeInterface)
        }
        "InterfaceNamePrefix" => {
            let (field, prefix) = ("detectLocal.interfaceNamePrefix", &section.interface_name_prefix);
            interface(field, prefix, not_a_beginning, diagnostics).map(DetectLocal::InterfaceNamePrefix)
        }
        other => {
            let known = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
            diagnostics.error("detectLocalMode", format!("must be {known}, not {}", quoted(other)));
            None
        }
    }
}

/// Parses `clusterCIDR`: no CIDR, one CIDR, or one of each family.
fn cluster_cidr(list: &str, diagnostics: &mut Diagnostics) -> Option<DetectLocal> {
    const FIELD: &str = "clusterCIDR";
    let (mut v4, mut v6) = (None, None);
    if list.is_empty() {
        return Some(DetectLocal::ClusterCidr { v4, v6 });
    }
    // Do not trim the texts: upstream refuses blanks around a CIDR, too.
    let texts: Vec<_> = list.split(',').collect();
    let cidrs: Vec<_> = texts.iter().map(|text| diagnostics.take(FIELD, cidr(text))).collect();
    for cidr in cidrs.into_iter().collect::<Option<Vec<_>>>()? {
        let twice = match cidr {
            IpNet::V4(cidr) => v4.replace(cidr).is_some(),
            IpNet::V6(cidr) => v6.replace(cidr).is_some(),
        };
        if twice {
            diagnostics.error(FIELD, format!("must be one CIDR, or one of each IP family, not {}", quoted(list)));
            return None;
        }
    }
    Some(DetectLocal::ClusterCidr { v4, v6 })
}

/// Checks the interface names of `nftables.flowtable`.
pub(super) fn flowtable(flowtable: &Flowtable, diagnostics: &mut Diagnostics) {
    const FIELD: &str = "nftables.flowtable";
    let Flowtable::Interfaces(names) = flowtable else { return };
    for name in names {
        match name.as_str() {
            "" => diagnostics.error(
                FIELD,
                format!("must be off, auto or names of interfaces, not {}", quoted(&flowtable.to_string())),
            ),
            "off" | "auto" => {
                diagnostics.error(FIELD, format!("must be {} alone, or names of interfaces without it", quoted(name)))
            }
            "lo" => diagnostics.error(FIELD, "must not name lo: nothing is forwarded through it"),
            name => {
                if let Some(wrong) = not_an_interface(name) {
                    diagnostics.error(FIELD, wrong);
                }
            }
        }
    }
}

/// Checks that `name` is not empty, and has no fault that `find_fault` finds.
fn interface(
    field: &str,
    name: &str,
    find_fault: fn(&str) -> Option<String>,
    diagnostics: &mut Diagnostics,
) -> Option<String> {
    let wrong =
        if name.is_empty() { Some("must not be empty in this detectLocalMode".to_owned()) } else { find_fault(name) };
    let Some(wrong) = wrong else { return Some(name.to_owned()) };
    diagnostics.error(field, wrong);
    None
}

/// Returns why the kernel would refuse a name for an interface (`dev_valid_name` in `net/core/dev.c`); `None` if it would not.
fn not_an_interface(name: &str) -> Option<String> {
    if matches!(name, "." | "..") {
        return Some(format!("must be the name of an interface, which {} cannot be", quoted(name)));
    }
    not_a_beginning(name)
}

/// Returns why the kernel would refuse all names for interfaces that begin so; `None` if it would not.
fn not_a_beginning(name: &str) -> Option<String> {
    if name.len() > INTERFACE_NAME_MAX {
        Some(format!(
            "must be at most {INTERFACE_NAME_MAX} bytes long, as interface names are, but {} is longer",
            quoted(name)
        ))
    } else if name.contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace()) {
        Some(format!(
            "must not have a slash, a colon or whitespace, as interface names have none, but is {}",
            quoted(name)
        ))
    } else {
        None
    }
}
