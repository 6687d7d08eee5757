//! Writes declarations of chains.

use std::fmt;

use crate::object::{BaseChain, Chain, ChainType, Hook};
use crate::text::words::quoted;

/// The lines of a chain's declaration.
pub(super) fn properties(chain: &Chain) -> Vec<String> {
    let comment = chain.comment.as_deref().map(|text| format!("comment {}", quoted(text)));
    let base = chain.base.as_ref().map(ToString::to_string);
    comment.into_iter().chain(base).collect()
}

/// Writes the hook of a base chain: `type nat hook prerouting priority dstnat; policy accept;`
impl fmt::Display for BaseChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, hook, priority } = self;
        write!(f, "type {kind} hook {hook} priority {}; policy accept;", priority_name(*priority, *hook))
    }
}

impl fmt::Display for ChainType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

/// A priority as nft writes it: by the name of the nearest standard priority of the hook, if that is at most ten away.
pub(super) fn priority_name(priority: i32, hook: Hook) -> String {
    const STANDARD: [(&str, i32, Option<Hook>); 6] = [
        ("raw", -300, None),
        ("mangle", -150, None),
        ("dstnat", -100, Some(Hook::Prerouting)),
        ("filter", 0, None),
        ("security", 50, None),
        ("srcnat", 100, Some(Hook::Postrouting)),
    ];
    let near = STANDARD
        .into_iter()
        .filter(|(_, _, only)| only.is_none_or(|only| only == hook))
        .map(|(name, standard, _)| (name, i64::from(priority) - i64::from(standard)))
        .find(|(_, offset)| offset.abs() <= 10);
    match near {
        Some((name, 0)) => name.to_owned(),
        Some((name, offset)) => {
            let sign = if offset < 0 { '-' } else { '+' };
            format!("{name} {sign} {}", offset.abs())
        }
        None => priority.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_written_as_nft_1_0_6_lists_them() {
        assert_eq!(priority_name(-100, Hook::Prerouting), "dstnat");
        assert_eq!(priority_name(-100, Hook::Output), "-100");
        assert_eq!(priority_name(-90, Hook::Prerouting), "dstnat + 10");
        assert_eq!(priority_name(99, Hook::Postrouting), "srcnat - 1");
        assert_eq!(priority_name(111, Hook::Postrouting), "111");
        assert_eq!(priority_name(-110, Hook::Forward), "-110");
        assert_eq!(priority_name(1, Hook::Forward), "filter + 1");
        assert_eq!(priority_name(i32::MIN, Hook::Forward), "-2147483648");
    }
}
