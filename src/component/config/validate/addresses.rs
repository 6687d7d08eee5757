//! Validates IPs, sockets and CIDRs.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Diagnostics;
use crate::addresses::{parse_cidr, parse_ip, parse_socket};
use crate::config::NodePortAddresses;
use crate::config::file::KubeProxyConfiguration;
use crate::excerpt::quoted;

/// Parses a CIDR and clears its host bits.
pub(super) fn cidr(text: &str) -> Result<IpNet, String> {
    parse_cidr(text).ok_or_else(|| format!("must be a CIDR such as 10.244.0.0/16, not {}", quoted(text)))
}

pub(super) fn ip(field: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<IpAddr> {
    diagnostics.take(field, parse_ip(text).ok_or_else(|| format!("must be an IP address, not {}", quoted(text))))
}

/// Parses an `IP:port` with a port other than 0.
pub(super) fn socket(field: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<SocketAddr> {
    let parsed = parse_socket(text).filter(|address| address.port() != 0);
    diagnostics
        .take(field, parsed.ok_or_else(|| format!("must be IP:port with a port from 1 to 65535, not {}", quoted(text))))
}

/// Parses like [`socket`], but returns `Some(None)` for an empty text. Returns `None` for a wrong text.
#[expect(clippy::option_option, reason = "an empty address is valid and a wrong address is not")]
pub(super) fn optional_socket(field: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<Option<SocketAddr>> {
    if text.is_empty() { Some(None) } else { socket(field, text, diagnostics).map(Some) }
}

/// Parses `nodePortAddresses`: CIDRs and keywords in any combination (H6). An empty list means `primary` (H1).
pub(super) fn node_ports(list: &[String], diagnostics: &mut Diagnostics) -> Option<NodePortAddresses> {
    if list.is_empty() {
        return Some(NodePortAddresses::PRIMARY);
    }
    let mut addresses = NodePortAddresses { primary: false, ranges: Vec::new() };
    let mut is_valid = true;
    for (index, text) in list.iter().enumerate() {
        match entry(text) {
            Ok(Entry::Primary) => addresses.primary = true,
            Ok(Entry::Ranges(ranges)) => addresses.ranges.extend(ranges),
            Err(message) => {
                diagnostics.error(format!("nodePortAddresses[{index}]"), message);
                is_valid = false;
            }
        }
    }
    is_valid.then_some(addresses)
}

/// A parsed item of `nodePortAddresses`.
enum Entry {
    Primary,
    Ranges(Vec<IpNet>),
}

/// Parses an item of `nodePortAddresses`. Keywords `localhost` and `all` stand for one range of each family, even if the node has only one
/// family.
fn entry(text: &str) -> Result<Entry, String> {
    let ranges = |texts: [&str; 2]| texts.into_iter().map(cidr).collect::<Result<_, _>>().map(Entry::Ranges);
    match text {
        "primary" => Ok(Entry::Primary),
        "localhost" => ranges(["127.0.0.0/8", "::1/128"]),
        "all" => ranges(["0.0.0.0/0", "::/0"]),
        _ => cidr(text).map(|range| Entry::Ranges(vec![range])).map_err(|_| {
            format!("must be \"primary\", \"localhost\", \"all\" or a CIDR such as 192.0.2.0/24, not {}", quoted(text))
        }),
    }
}

/// Parses `ipvs.excludeCIDRs`, which only mode ipvs uses.
pub(super) fn exclude_cidrs(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Vec<IpNet> {
    let list = if file.section() == "ipvs" { &file.ipvs.exclude_cidrs[..] } else { &[] };
    let parsed = |(index, text): (usize, &String)| diagnostics.take(&format!("ipvs.excludeCIDRs[{index}]"), cidr(text));
    list.iter().enumerate().filter_map(parsed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_ignored() {
        assert_eq!(parse_ip("010.001.000.009"), "10.1.0.9".parse().ok());
        assert_eq!(parse_ip("0.0.0.0"), "0.0.0.0".parse().ok());
        assert_eq!(parse_ip("fd00::1"), "fd00::1".parse().ok());
        for text in ["", "10.0.0", "10.0.0.", "10.0.0.256", "10.0.0.0.0", "fd00:::1", "host", " 10.0.0.1"] {
            assert_eq!(parse_ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn host_bits_are_cleared() {
        assert_eq!(cidr("10.244.1.5/16"), Ok("10.244.0.0/16".parse().unwrap()));
        assert_eq!(cidr("fd00::5/64"), Ok("fd00::/64".parse().unwrap()));
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", " fd00::/8", "fd00::/129"] {
            assert!(cidr(text).is_err(), "{text:?}");
        }
    }
}
