//! Parses IP addresses and CIDRs in the spellings that Kubernetes accepts in flags, files and objects. Does no I/O.
//!
//! Leading zeros are accepted, because old Kubernetes objects may have them (A10). They do not make a number octal.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Parses an IP address in any spelling. An IPv4-mapped IPv6 address becomes IPv4, as in Go's `net.ParseIP`.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    // Parse the unchanged text first: few addresses have leading zeros, and their removal copies the text.
    let ip: Option<IpAddr> = text.parse().or_else(|_| without_padding(text).parse()).ok();
    ip.map(|ip| ip.to_canonical())
}

/// Parses an IP address with a port: `192.0.2.1:80` or `[2001:db8::1]:80`.
pub fn parse_socket(text: &str) -> Option<SocketAddr> {
    text.parse().or_else(|_| without_padding(text).parse()).ok()
}

/// Parses a CIDR and clears its host bits.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let address: IpAddr = without_padding(address).parse().ok()?;
    let length = without_padding(length).parse().ok()?;
    Some(IpNet::new(address, length).ok()?.trunc())
}

/// Removes the leading zeros of each group of an address: `172.030.0.041` becomes `172.30.0.41`.
fn without_padding(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for group in text.split_inclusive(['.', ':']) {
        let end = group.trim_end_matches(['.', ':']).len();
        let (group, separator) = group.split_at(end);
        let digits = group.trim_start_matches('0');
        // A group that consists of zeros becomes one zero. An empty group is part of "::" in IPv6 and stays empty.
        out.push_str(if digits.is_empty() && !group.is_empty() { "0" } else { digits });
        out.push_str(separator);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<String> {
        parse_ip(text).map(|ip| ip.to_string())
    }

    fn cidr(text: &str) -> Option<String> {
        parse_cidr(text).map(|cidr| cidr.to_string())
    }

    #[test]
    fn leading_zeros_of_addresses_are_padding() {
        assert_eq!(ip("172.30.0.041").as_deref(), Some("172.30.0.41"));
        assert_eq!(ip("192.000.002.008").as_deref(), Some("192.0.2.8"));
        assert_eq!(ip("0.0.0.0").as_deref(), Some("0.0.0.0"));
        assert_eq!(ip("2001:0db8:00000::0A").as_deref(), Some("2001:db8::a"));
        assert_eq!(ip("2001:DB8:0:0:0:0:0:1").as_deref(), Some("2001:db8::1"));
        assert_eq!(ip("64:ff9b::010.001.0.9").as_deref(), Some("64:ff9b::a01:9"));
        assert_eq!(ip("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(ip("::").as_deref(), Some("::"));
    }

    #[test]
    fn text_that_is_no_address_is_refused() {
        for text in [
            "",
            "300.1.1.1",
            "1.2.3",
            "1.2.3.4.5",
            "1..2.3",
            " 1.2.3.4",
            "1.2.3.4/32",
            "fe80::1%eth0",
            "a.b.c.d",
            ":::",
        ] {
            assert_eq!(ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn cidrs_lose_padding_and_host_bits() {
        assert_eq!(cidr("203.0.113.000/025").as_deref(), Some("203.0.113.0/25"));
        assert_eq!(cidr("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(cidr("0.0.0.0/0").as_deref(), Some("0.0.0.0/0"));
        assert_eq!(cidr("2001:0db8::1/032").as_deref(), Some("2001:db8::/32"));
    }

    #[test]
    fn text_that_is_no_cidr_is_refused() {
        for text in
            ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "::/129", "10.0.0.0/8/8", "/8"]
        {
            assert_eq!(cidr(text), None, "{text:?}");
        }
    }
}
