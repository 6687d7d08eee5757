//! Sets of ports, written as in the sysctl `net.ipv4.ip_local_reserved_ports`: `8080,30000-32767`. Pure.
//!
//! Invariant: the ranges are sorted, and neither overlap nor touch, so that equal sets are equal values with one text.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::quoted;

/// The node ports that an API server assigns unless its flag `--service-node-port-range` says otherwise.
pub const DEFAULT_NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// A set of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRanges(Vec<(u16, u16)>);

impl PortRanges {
    /// Returns the set of the ports in these ranges, first and last port included. A range whose first port is greater than its last has no
    /// port.
    pub fn of(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut sorted: Vec<(u16, u16)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// Returns whether the set has no port.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ranges in the set's text.
    pub fn ranges(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set has this port.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Returns the ports of either set.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        Self::of(self.0.iter().chain(&others.0).copied())
    }

    /// Returns the ports that both sets have.
    #[must_use]
    pub fn common(&self, others: &Self) -> Self {
        let pairs = self.0.iter().flat_map(|one| others.0.iter().map(move |other| (one, other)));
        Self::of(pairs.map(|(one, other)| (one.0.max(other.0), one.1.min(other.1))))
    }

    /// Returns the ports of this set that the other one does not have.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        let (mut gaps, mut next) = (Vec::new(), Some(0));
        for (first, last) in &others.0 {
            gaps.extend(next.zip(first.checked_sub(1)));
            next = last.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u16::MAX)));
        self.common(&Self::of(gaps))
    }
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for PortRanges {
    type Err = String;

    /// Parses ports and ranges with commas between them; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("must be ports from 1 to 65535 such as 30000-32767 or 30000-32767,40000, not {}", quoted(text));
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last)
        };
        let items = Some(text.trim()).filter(|text| !text.is_empty()).into_iter().flat_map(|text| text.split(','));
        items.map(|item| range(item).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>().map(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PortRanges {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_sorted_and_joined_and_print_as_the_kernel_prints_them() {
        let texts =
            [("", ""), ("\n", ""), ("80", "80"), ("3-4,1-2,9", "1-4,9"), ("5-9,6-7", "5-9"), ("1-65535", "1-65535")];
        for (text, shown) in texts {
            assert_eq!(set(text).to_string(), shown, "{text}");
        }
        for wrong in ["0", "http", "5-4", "65536", "1,,2", "-5", "1-2-3"] {
            let error = wrong.parse::<PortRanges>().unwrap_err();
            assert!(error.contains("30000-32767") && error.ends_with(&format!("not {}", quoted(wrong))), "{error}");
        }
    }

    // For ports at both ends of the range of ports, the union, the common ports and the difference are what the two sets say about the
    // port.
    #[test]
    fn sets_are_joined_and_subtracted_port_by_port() {
        let sets = ["", "1", "1-10", "5-15,20", "1-65535", "65535", "3,5,7-9,11-65535"].map(set);
        for (one, other) in sets.iter().flat_map(|one| sets.iter().map(move |other| (one, other))) {
            let (with, common, without) = (one.with(other), one.common(other), one.without(other));
            for port in (1..40).chain(65_530..=u16::MAX) {
                let (in_one, in_other) = (one.contains(port), other.contains(port));
                let found = [with.contains(port), common.contains(port), without.contains(port)];
                assert_eq!(
                    found,
                    [in_one || in_other, in_one && in_other, in_one && !in_other],
                    "{one}; {other}; {port}"
                );
            }
        }
    }
}
