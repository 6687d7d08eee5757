//! Removes secrets from text that people copy, such as errors of commands, command lines of processes, and the files of a bundle. Pure.
//!
//! Hides what looks like user and password of a URL (also of a URL whose end was cut off), a bearer token, a JSON web token, or the value
//! after a word such as `token=`. All other text stays as it is, byte for byte.

/// The text that replaces a secret.
const HIDDEN: &str = "***";
/// The words before a secret value.
const KEYS: [&str; 4] = ["token=", "password=", "passwd=", "secret="];
/// The shortest JSON web token that is hidden, in bytes. A shorter text that begins with `eyJ`, as these tokens do, is taken for ordinary
/// text.
const SHORTEST_TOKEN: usize = 40;

/// The text without secrets.
#[must_use]
pub fn redact(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut is_behind_bearer = false;
    for word in text.split_inclusive(is_end) {
        let inner = word.strip_suffix(is_end).unwrap_or(word);
        if is_behind_bearer && !inner.is_empty() {
            clean.push_str(HIDDEN);
        } else {
            clean.push_str(&without_tokens(&without_values(&without_users(inner))));
        }
        clean.push_str(&word[inner.len()..]);
        is_behind_bearer = inner.to_ascii_lowercase().ends_with("bearer") || is_behind_bearer && inner.is_empty();
    }
    clean
}

/// Whether a character ends a word. No URL has these characters (RFC 3986), so a URL is never split.
fn is_end(character: char) -> bool {
    character.is_whitespace() || matches!(character, '"' | '<' | '>')
}

/// A word without the user and the password of its URLs.
fn without_users(word: &str) -> String {
    let mut parts = word.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (authority, path) = part.split_at(part.find(['/', '?', '#']).unwrap_or(part.len()));
        clean.push_str("://");
        match authority.rsplit_once('@') {
            Some((_, host)) => clean.push_str(&format!("{HIDDEN}@{host}")),
            None if is_cut_user(authority) => clean.push_str(HIDDEN),
            None => clean.push_str(authority),
        }
        clean.push_str(path);
    }
    clean
}

/// Whether this is a user and a password that was cut off before its `@`: the text after the colon is no port, or ends with `...`, which
/// stands for text that was cut off.
fn is_cut_user(authority: &str) -> bool {
    let Some((_, port)) = authority.split_once(':').filter(|_| !authority.starts_with('[')) else { return false };
    let port_alone = port.trim_end_matches([':', '.', ',', ';', ')', '\'']);
    port.ends_with("...") || port_alone.bytes().any(|byte| !byte.is_ascii_digit())
}

/// A word without the values of [`KEYS`].
fn without_values(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let first = KEYS.iter().filter_map(|key| Some(lower.find(key)? + key.len())).min();
    let Some(at) = first.filter(|at| *at < word.len()) else { return word.to_owned() };
    let end = word[at..].find('&').map_or(word.len(), |len| at + len);
    format!("{}{HIDDEN}{}", &word[..at], without_values(&word[end..]))
}

/// A word without its JSON web tokens.
fn without_tokens(word: &str) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    let (mut clean, mut rest) = (String::with_capacity(word.len()), word);
    while let Some(at) = rest.find("eyJ") {
        let (before, from) = rest.split_at(at);
        let (run, behind) = from.split_at(from.find(|character| !is_part(character)).unwrap_or(from.len()));
        let is_token = run.len() >= SHORTEST_TOKEN && run.contains('.');
        clean.push_str(before);
        clean.push_str(if is_token { HIDDEN } else { run });
        rest = behind;
    }
    clean + rest
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
            "up{a=\"b\"} 1 # \u{e9}\r\n",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
