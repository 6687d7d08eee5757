//! Whole numbers as Go's source has them, which is also how flags and YAML 1.1 have them: `10`, `0x1F`, `0o17` or `017`, `0b11`, `1_000`.

/// The prefixes of other bases than 10. A lone `0` is decimal.
const PREFIXES: [(&str, u32); 4] = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)];

/// Parses a whole number as Go's `strconv.ParseInt` does with base 0. Returns `None` for a text that is none. The caller checks the range.
pub(super) fn whole(text: &str) -> Option<i128> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = PREFIXES.iter().find_map(|(prefix, base)| {
        let (start, digits) = unsigned.split_at_checked(prefix.len())?;
        (start.eq_ignore_ascii_case(prefix) && *prefix != unsigned).then_some((digits, *base))
    });
    // An underscore stands between two digits, or between a prefix and a digit.
    let (digits, base) = match prefixed {
        Some((digits, base)) => (digits.strip_prefix('_').unwrap_or(digits), base),
        None => (unsigned, 10),
    };
    let is_group = |group: &str| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !digits.split('_').all(is_group) {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), base).ok().map(|number| sign * number)
}
