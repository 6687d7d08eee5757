//! Names by the rules of DNS, as Kubernetes demands them of objects and of keys. Pure.

/// The longest DNS label, in bytes.
const MAX_LABEL: usize = 63;
/// The longest DNS subdomain, in bytes.
const MAX_SUBDOMAIN: usize = 253;

/// Returns whether text is a DNS-1123 label: 1 to 63 of a-z, 0-9 and `-`, with no `-` at either end.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_dns_part(text)
}

/// Returns whether text is a DNS-1123 subdomain: at most 253 characters, parts as in labels (but of any length), joined by dots.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains_have_their_limits() {
        assert!(is_dns_label("a") && is_dns_label(&"a".repeat(63)) && is_dns_label("0-0"));
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad:?}");
        }
        assert!(is_dns_subdomain("a.b-c.9") && is_dns_subdomain(&"a".repeat(253)));
        for bad in ["", ".", "a..b", "a.", ".a", "a.-b", "a/b", &"a".repeat(254)] {
            assert!(!is_dns_subdomain(bad), "{bad:?}");
        }
    }
}
