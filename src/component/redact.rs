//! Removes secrets from text that people copy, such as the log, errors of commands, command lines of processes, and the files of a bundle.
//! Pure.
//!
//! Hides what looks like user and password of a URL (also of a URL whose end was cut off), a bearer token, a JSON web token, a private key in
//! PEM, or the value of a key such as `token`: `token=VALUE`, `token: VALUE`, `"token": "VALUE"`, `--token VALUE`. All other text stays as it
//! is, byte for byte.

use std::ops::Range;

/// The text that replaces a secret.
pub const HIDDEN: &str = "***";
/// The ends of the names of secret values, in lower case: `token` is also the end of `access_token` and `idToken`.
const KEYS: [&str; 14] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "authorization",
    "key-data",
    "keydata",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "privatekey",
    "apikey",
];
/// The words before the secret itself in the value of an `Authorization`.
const SCHEMES: [&str; 2] = ["basic", "bearer"];
/// The shortest JSON web token that is hidden, in bytes. A shorter text that begins with `eyJ`, as these tokens do, is taken for ordinary
/// text.
const SHORTEST_TOKEN: usize = 40;

/// The text without secrets.
#[must_use]
pub fn redact(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut secrets: Vec<Range<usize>> = users(text);
    secrets.extend(values(text, &lower));
    secrets.extend(bearers(text, &lower));
    secrets.extend(web_tokens(text));
    secrets.extend(private_keys(text));
    secrets.sort_by_key(|secret| (secret.start, secret.end));
    let (mut clean, mut from) = (String::with_capacity(text.len()), 0);
    for secret in secrets {
        if secret.start >= from {
            clean.push_str(&text[from..secret.start]);
            clean.push_str(HIDDEN);
        }
        from = from.max(secret.end);
    }
    clean + &text[from..]
}

/// Whether this is the name of a secret, such as `AWS_SECRET_ACCESS_KEY`.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    KEYS.iter().any(|key| lower.ends_with(key))
}

/// Whether a character ends a word. No URL has these characters (RFC 3986), so a URL is never split.
fn is_end(character: char) -> bool {
    character.is_whitespace() || matches!(character, '"' | '<' | '>')
}

/// The place from `at` to the first character that matches.
fn until(text: &str, at: usize, is_end: impl Fn(char) -> bool) -> Range<usize> {
    at..text[at..].find(is_end).map_or(text.len(), |length| at + length)
}

/// The place after all characters that match, from `at` on.
fn skip(text: &str, at: usize, is_skipped: impl Fn(char) -> bool) -> usize {
    until(text, at, |character| !is_skipped(character)).end
}

/// Users and passwords of URLs.
fn users(text: &str) -> Vec<Range<usize>> {
    let starts: Vec<usize> = text.match_indices("://").map(|(at, mark)| at + mark.len()).collect();
    let user = |(number, start): (usize, &usize)| {
        let place = until(text, *start, |character| is_end(character) || matches!(character, '/' | '?' | '#'));
        // Where another URL follows without a space, the authority ends with its scheme.
        let next = starts.get(number + 1).map_or(text.len(), |next| next - "://".len());
        let place = place.start..place.end.min(next);
        let authority = &text[place.clone()];
        match authority.rfind('@') {
            Some(at) => Some(place.start..place.start + at),
            None => is_cut_user(authority).then_some(place),
        }
    };
    starts.iter().enumerate().filter_map(user).collect()
}

/// Whether this is a user and a password that was cut off before its `@`: the text after the colon is no port, or ends with `...`, which
/// stands for text that was cut off.
fn is_cut_user(authority: &str) -> bool {
    let Some((_, port)) = authority.split_once(':').filter(|_| !authority.starts_with('[')) else { return false };
    let port_alone = port.trim_end_matches([':', '.', ',', ';', ')', '\'']);
    port.ends_with("...") || port_alone.bytes().any(|byte| !byte.is_ascii_digit())
}

/// The values of [`KEYS`].
fn values(text: &str, lower: &str) -> Vec<Range<usize>> {
    let ends = KEYS.iter().flat_map(|key| lower.match_indices(key).map(|(at, key)| at + key.len()));
    ends.filter_map(|end| value(text, end)).filter(|value| !value.is_empty()).collect()
}

/// The value after a name that ends at `end`, with or without quotes around both, which may be escaped.
fn value(text: &str, end: usize) -> Option<Range<usize>> {
    let is_quote = |character: char| matches!(character, '"' | '\'' | '\\');
    let is_space = |character: char| matches!(character, ' ' | '\t');
    let before = text[..end].trim_end_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let separator = skip(text, skip(text, end, is_quote), is_space);
    let start = match text[separator..].chars().next()? {
        // A Service and the name of its port, such as `namespace/token:http`.
        ':' if before.ends_with('/') => return None,
        ':' => skip(text, separator + 1, is_space),
        '=' if separator > end => skip(text, separator + 1, is_space),
        '=' => separator + 1,
        // A flag and its value.
        _ if separator > end && text[before.len()..].starts_with("--") => separator,
        _ => return None,
    };
    let inner = skip(text, start, is_quote);
    let value = match text[start..inner].chars().last() {
        // An object or a list in JSON.
        None if text[start..].starts_with(['{', '[']) => return None,
        None => until(text, inner, |character| is_end(character) || matches!(character, '&' | '\'')),
        Some(quote) => until(text, inner, |character| character == quote),
    };
    let value = value.start..value.start + text[value.clone()].trim_end_matches('\\').len();
    if SCHEMES.iter().any(|scheme| text[value.clone()].eq_ignore_ascii_case(scheme)) {
        return Some(until(text, skip(text, value.end, is_space), is_end));
    }
    Some(value)
}

/// The words after `Bearer`.
fn bearers(text: &str, lower: &str) -> Vec<Range<usize>> {
    let ends = lower.match_indices("bearer").map(|(at, word)| at + word.len());
    let behind = ends.map(|end| (end, skip(text, end, is_end))).filter(|(end, start)| start > end);
    behind.map(|(_, start)| until(text, start, is_end)).filter(|token| !token.is_empty()).collect()
}

/// JSON web tokens.
fn web_tokens(text: &str) -> Vec<Range<usize>> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    let runs = text.match_indices("eyJ").map(|(at, _)| until(text, at, |character| !is_part(character)));
    runs.filter(|run| run.len() >= SHORTEST_TOKEN && text[run.clone()].contains('.')).collect()
}

/// What private keys in PEM have between their first and their last line.
fn private_keys(text: &str) -> Vec<Range<usize>> {
    let key = |(at, begin): (usize, &str)| {
        let label = until(text, at + begin.len(), |character| character == '-');
        let start = label.end + text[label.end..].starts_with("-----").then_some("-----".len())?;
        let end = text[start..].find("-----").map_or(text.len(), |length| start + length);
        text[label].ends_with("PRIVATE KEY").then_some(start..end)
    };
    text.match_indices("-----BEGIN ").filter_map(key).filter(|key| !key.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden() {
        let token = format!("eyJhbGciOiJSUzI1NiJ9.{}.sig-nature_0", "A1".repeat(20));
        for (text, clean) in [
            ("via http://user:pa$s,w@proxy:3128/x failed", "via http://***@proxy:3128/x failed"),
            ("--master=https://user@host \"ftp://a:b@c\"", "--master=https://***@host \"ftp://***@c\""),
            ("a,http://u:p@h,http://v:q@i", "a,http://***@h,http://***@i"),
            ("pid 7: kube-proxy --master=https://user:hunt...", "pid 7: kube-proxy --master=https://***"),
            ("Authorization: Bearer  abc.def\nnext", "Authorization: Bearer  ***\nnext"),
            ("GET /x?token=abc&a=1&Password=q", "GET /x?token=***&a=1&Password=***"),
            ("token: abc. {\"token\": \"abc\", 'idToken':'a b'}", "token: *** {\"token\": \"***\", 'idToken':'***'}"),
            (
                r#"{\"token\": \"abc\"} {\\\"password\\\":\\\"a b\\\"}"#,
                r#"{\"token\": \"***\"} {\\\"password\\\":\\\"***\\\"}"#,
            ),
            ("access_token = \"abc\" token:'abc' secret=\"a b", "access_token = \"***\" token:'***' secret=\"***"),
            (
                "--token abc --password=a,b AWS_SECRET_ACCESS_KEY=x",
                "--token *** --password=*** AWS_SECRET_ACCESS_KEY=***",
            ),
            ("Authorization: Basic abc== x", "Authorization: Basic *** x"),
            ("client-key-data: LS0t\n  tokenFile: /x", "client-key-data: ***\n  tokenFile: /x"),
            (
                "-----BEGIN EC PRIVATE KEY-----\nM=\n-----END EC PRIVATE KEY-----\nnext",
                "-----BEGIN EC PRIVATE KEY-----***-----END EC PRIVATE KEY-----\nnext",
            ),
            ("-----BEGIN PRIVATE KEY-----\\nM", "-----BEGIN PRIVATE KEY-----***"),
            (&format!("'{token}', {token}"), "'***', ***"),
            (&format!("eyJust,eyJ{},{token},b", "c".repeat(60)), &format!("eyJust,eyJ{},***,b", "c".repeat(60))),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn all_else_stays() {
        for text in [
            "https://10.9.0.1:6443: Connection refused\n\n\ttcp dport 80 goto chain-x",
            "https://[fd00::1]:443/api https://kubernetes.default:443, http://h:80) unix:///run/x",
            "answers of mail@example.org, eyJust-a-word.txt, token= and rest",
            "shop/my-token:http, shop/secret:443/tcp; secrets: {\"token\": {\"a\": 1}, \"secret\": []} --tokens 1, token",
            "-----BEGIN CERTIFICATE-----\nM=\n-----END CERTIFICATE-----\n",
            "cannot read token file /x: no such file; the password is wrong; tokenFile: /x",
            "up{a=\"b\"} 1 # \u{e9}\r\n",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
