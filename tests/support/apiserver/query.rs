//! The query of a request, as decoded pairs of key and value.

/// A decoded query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes the part of a URL after the question mark.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(key, value)| (decode(key), decode(value))).collect())
    }

    /// Returns the query with one more pair.
    pub(crate) fn with(mut self, key: &str, value: String) -> Self {
        self.0.push((key.to_owned(), value));
        self
    }

    /// Returns the first value of a key; an empty text if there is none.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(found, _)| found == key).map_or("", |(_, value)| value)
    }

    /// Returns whether the key has a value that Go's `strconv.ParseBool` reads as true.
    pub(crate) fn is_true(&self, key: &str) -> bool {
        matches!(self.get(key), "1" | "t" | "T" | "true" | "TRUE" | "True")
    }

    /// The keys, in the order in which they came.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| &**key)
    }
}

/// Undoes the encoding of a part of a query. What is not properly encoded stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, hex) {
            (b'+', _) => out.push(b' '),
            (b'%', Some(decoded)) => {
                out.push(decoded);
                at += 2;
            }
            _ => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}
