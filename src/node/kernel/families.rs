//! The IP families that this node can serve (M9).

use std::fs;
use std::path::Path;

use rules::model::Family;

/// Returns IPv4 always, and IPv6 if the kernel has it and it is not disabled for all interfaces.
#[must_use]
pub fn supported() -> Vec<Family> {
    let mut families = vec![Family::V4];
    families.extend(has_ipv6(Path::new("/proc")).then_some(Family::V6));
    families
}

/// The error that the kernel lacks the IP family of the node's primary address. It ends the start of the proxy (M9).
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the node's primary IP family is {0}, which this kernel does not support or has switched off (disable_ipv6)")]
pub struct Unsupported(pub Family);

/// Returns the families to serve: all that are supported, if the primary one is among them (M9, M10).
///
/// # Errors
/// See [`Unsupported`].
pub fn served(primary: Family, supported: &[Family]) -> Result<Vec<Family>, Unsupported> {
    if supported.contains(&primary) { Ok(supported.to_vec()) } else { Err(Unsupported(primary)) }
}

fn has_ipv6(proc: &Path) -> bool {
    let disabled = fs::read_to_string(proc.join("sys/net/ipv6/conf/all/disable_ipv6"));
    proc.join("net/if_inet6").exists() && disabled.map_or(true, |text| text.trim() != "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    // The primary family must be among the served families (M9, M10).
    #[test]
    fn the_primary_family_must_be_among_those_served() {
        assert_eq!(served(Family::V6, &Family::BOTH), Ok(Family::BOTH.to_vec()));
        assert_eq!(served(Family::V4, &[Family::V4]), Ok(vec![Family::V4]), "single-stack: the primary family only");
        let error = served(Family::V6, &[Family::V4]).unwrap_err();
        assert!(error.to_string().contains("IPv6"), "{error}");
    }

    // IPv6 is served only if the kernel supports it and it is not disabled (M9).
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
