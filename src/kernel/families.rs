//! Which IP families this node can serve (M9).

use std::fs;
use std::path::Path;

use crate::model::Family;

/// IPv4 always; IPv6 when the kernel has it and it is not disabled for all interfaces.
#[must_use]
pub fn supported() -> Vec<Family> {
    let mut families = vec![Family::V4];
    families.extend(has_ipv6(Path::new("/proc")).then_some(Family::V6));
    families
}

fn has_ipv6(proc: &Path) -> bool {
    let disabled = fs::read_to_string(proc.join("sys/net/ipv6/conf/all/disable_ipv6"));
    proc.join("net/if_inet6").exists() && disabled.map_or(true, |text| text.trim() != "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    // M9
    #[test]
    fn ipv6_needs_the_kernel_and_must_not_be_disabled() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_ipv6(dir.path()), "no if_inet6");
        fs::create_dir_all(dir.path().join("net")).unwrap();
        fs::write(dir.path().join("net/if_inet6"), "").unwrap();
        assert!(has_ipv6(dir.path()));
        let conf = dir.path().join("sys/net/ipv6/conf/all");
        fs::create_dir_all(&conf).unwrap();
        fs::write(conf.join("disable_ipv6"), "0\n").unwrap();
        assert!(has_ipv6(dir.path()));
        fs::write(conf.join("disable_ipv6"), "1\n").unwrap();
        assert!(!has_ipv6(dir.path()));
    }
}
