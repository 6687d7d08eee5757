//! Releases of Kubernetes: which ones this program works with, and which one it reports in a cluster.
//!
//! The module takes texts such as `v1.36.2+k3s1` and gives numbers, a text to report, or a sentence. It does no I/O.
//!
//! The alert KubeVersionMismatch of kubernetes-mixin compares the releases that all components report. This program works with every
//! release from [`OLDEST_KUBERNETES_MINOR`] to [`KUBERNETES_MINOR`] in the same way, so it reports the release of the cluster that it
//! serves. For any other cluster it reports [`KUBERNETES_MINOR`], and the alert is right.

use super::Config;
use super::cli::VERSION;

/// The minor release of Kubernetes 1 whose behaviour this program follows, and the newest that it is made for.
pub const KUBERNETES_MINOR: u32 = 37;

/// The oldest minor release of Kubernetes 1 whose API server this program is made for.
pub const OLDEST_KUBERNETES_MINOR: u32 = 25;

/// Returns the major and the minor version in a text such as `v1.36.2+kube-proxy-nft.0.1.0`; alerts about version skew may compare each of
/// the two. A number that is missing is empty.
pub fn major_and_minor(version: &str) -> (String, String) {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit()).map(str::to_owned);
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Returns whether this program is made for API servers of this version.
fn is_in_range(version: &str) -> bool {
    let (major, minor) = major_and_minor(version);
    let minor = minor.parse().is_ok_and(|minor: u32| (OLDEST_KUBERNETES_MINOR..=KUBERNETES_MINOR).contains(&minor));
    major == "1" && minor
}

/// Returns a sentence for a version of the API server that this program is not made for; `None` for another version, and for a text that
/// does not begin with `v`.
pub fn outside(server: &str) -> Option<String> {
    let range = format!("1.{OLDEST_KUBERNETES_MINOR} to 1.{KUBERNETES_MINOR}");
    let is_known = server.starts_with('v') && !is_in_range(server);
    is_known.then(|| format!("the API server has version {server}; this kube-proxy is made for Kubernetes {range}"))
}

impl Config {
    /// Returns the version to report while the API server has version `server`: the server's numbers, followed by `+` and the version of
    /// this program. `None` if the version stays as it is, because `--version=v...` was given or the server's is no version in the range.
    pub fn version_for(&self, server: &str) -> Option<String> {
        let numbers = server.strip_prefix('v')?.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let is_ours = self.version == VERSION && is_in_range(server);
        is_ours.then(|| format!("v{numbers}+kube-proxy-nft.{}", env!("CARGO_PKG_VERSION")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_and_minor_are_those_of_the_reported_version() {
        for (version, numbers) in
            [("v1.36.2+kube-proxy-nft.0.1.0", ("1", "36")), ("v1.35.9-custom", ("1", "35")), ("v2", ("2", ""))]
        {
            assert_eq!(major_and_minor(version), (numbers.0.to_owned(), numbers.1.to_owned()), "{version}");
        }
    }

    #[test]
    fn a_release_out_of_range_is_named() {
        for (version, is_outside) in [
            ("v1.25.0", false),
            ("v1.37.9-eks-1a2b", false),
            ("v1.24.17", true),
            ("v1.38.0-alpha.1", true),
            ("v2.30.0", true),
            ("", false),
        ] {
            assert_eq!(outside(version).is_some(), is_outside, "{version}");
        }
    }
}
