//! A mark of a Node: a taint, a label or an annotation, with which an operator asks this node to be drained (L10). Pure.

use std::fmt;
use std::str::FromStr;

use crate::dns_names::is_dns_subdomain;
use crate::excerpt::quoted;

/// The longest name and the longest value that the API server accepts in labels and taints, in bytes.
const NAME_MAX: usize = 63;

/// A taint, a label or an annotation of a Node, written `taint:KEY`, `label:KEY=VALUE` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMark {
    /// Where the mark is.
    pub kind: MarkKind,
    /// The key.
    pub key: String,
    /// The value that the key must have; `None` if every value counts.
    pub value: Option<String>,
}

/// The kinds of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A taint with any effect.
    Taint,
    /// A label.
    Label,
    /// An annotation.
    Annotation,
}

const KINDS: [(&str, MarkKind); 3] =
    [("taint", MarkKind::Taint), ("label", MarkKind::Label), ("annotation", MarkKind::Annotation)];

impl NodeMark {
    /// Returns whether a pair of key and value is this mark.
    pub fn is(&self, key: &str, value: &str) -> bool {
        self.key == key && self.value.as_ref().is_none_or(|wanted| wanted == value)
    }
}

impl fmt::Display for NodeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(name, _)| name);
        write!(f, "{kind}:{}", self.key)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

impl FromStr for NodeMark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "must be taint:KEY, label:KEY or annotation:KEY, with =VALUE behind it if only one value counts";
        let wrong = |why: &str| format!("{FORM}; {} {why}", quoted(text));
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong("has no colon"))?;
        let kind = KINDS.iter().find(|(name, _)| *name == kind).map(|(_, kind)| *kind);
        let kind = kind.ok_or_else(|| wrong("begins with another word"))?;
        let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
        // Of keys of annotations Kubernetes also takes prefixes with capital letters (`ValidateAnnotations`).
        let is_valid = if kind == MarkKind::Annotation { is_key(&key.to_ascii_lowercase()) } else { is_key(key) };
        if !is_valid {
            return Err(wrong("has a key that no Node can have"));
        }
        if kind == MarkKind::Taint && rest.contains(':') {
            return Err(wrong("has an effect, and a taint counts whatever its effect is"));
        }
        if kind != MarkKind::Annotation && !value.is_none_or(|value| value.is_empty() || is_name(value)) {
            return Err(wrong("has a value that no Node can have"));
        }
        Ok(Self { kind, key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

/// Returns whether a text has the form of a key: a name, or a DNS subdomain, a slash and a name.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_dns_subdomain) && is_name(name)
}

/// Returns whether a text is a name: letters and digits, with dots, dashes and underscores between them.
fn is_name(text: &str) -> bool {
    let is_ended = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_plain = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
    is_plain && bytes.len() <= NAME_MAX && is_ended(bytes.first()) && is_ended(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A mark is printed as an operator writes it. It matches its value only, or every value if it has none (L10).
    #[test]
    fn a_mark_is_a_kind_a_key_and_perhaps_a_value() {
        for text in [
            "taint:node.kubernetes.io/unschedulable",
            "label:drain=yes",
            "label:drain=",
            "label:1.a--b.c-1/drain",
            "annotation:example.com/drain=since noon: all, also = and :",
            "annotation:Example.com/Drain",
        ] {
            assert_eq!(text.parse::<NodeMark>().unwrap().to_string(), text);
        }
        let any: NodeMark = "label:drain".parse().unwrap();
        assert!(any.is("drain", "") && any.is("drain", "no") && !any.is("drained", ""));
        let one: NodeMark = "label:drain=yes".parse().unwrap();
        assert!(one.is("drain", "yes") && !one.is("drain", "no") && !one.is("drain", ""));
    }

    #[test]
    fn what_no_node_can_have_is_refused_with_the_form() {
        let long = format!("label:{}", "a".repeat(64));
        for (text, why) in [
            ("drain", "has no colon"),
            ("field:spec.unschedulable", "begins with another word"),
            ("label:", "has a key"),
            ("label:a b", "has a key"),
            ("label:/a", "has a key"),
            ("label:Example.com/a", "has a key"),
            ("label:-.a/b", "has a key"),
            ("annotation:-.A/b", "has a key"),
            ("label:a-/b", "has a key"),
            ("label:a..b/c", "has a key"),
            ("label:a./b", "has a key"),
            (&*long, "has a key"),
            ("taint:drain=true:NoSchedule", "has an effect"),
            ("taint:drain:NoSchedule", "has a key"),
            ("label:drain=not so", "has a value"),
        ] {
            let error = text.parse::<NodeMark>().unwrap_err();
            assert!(error.starts_with("must be taint:KEY") && error.contains(why), "{error}");
        }
    }
}
