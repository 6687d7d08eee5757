//! The convention of log calls (`deploy/TROUBLESHOOTING.md`, "The log"): a fixed message that begins with a capital and has no full stop, and fields with
//! lowerCamelCase keys, so that a search for a message or a field finds every record of it. No value is printed with `?`, because `Debug`
//! escapes text that the log escapes, too.
//!
//! Reads the sources as tokens.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::walls::sources;

const MACROS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
/// Keys that the formats have themselves, and one whose name upstream writes in another way.
const TAKEN: [&str; 7] = ["ts", "caller", "msg", "v", "message", "error", "family"];
/// Upstream writes the values of flags into the message, and saved searches look for them there.
const AS_UPSTREAM: &str = "FLAG: --{name}={value:?}";

/// The arguments of each log call of a source.
fn calls(tokens: TokenStream, found: &mut Vec<Vec<Vec<TokenTree>>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let is_call = at >= 2
            && tokens[at - 1].to_string() == "!"
            && MACROS.contains(&tokens[at - 2].to_string().as_str())
            && (at == 2 || tokens[at - 3].to_string() != "macro_rules");
        if is_call {
            let arguments: Vec<TokenTree> = group.stream().into_iter().collect();
            let arguments = arguments.split(|token| token.to_string() == ",").map(<[TokenTree]>::to_vec);
            found.push(arguments.filter(|argument| !argument.is_empty()).collect());
        }
        calls(group.stream(), found);
    }
}

/// What is wrong with a call.
fn fault(arguments: &[Vec<TokenTree>]) -> Option<String> {
    let (message, fields) = arguments.split_last()?;
    let [TokenTree::Literal(message)] = &message[..] else {
        return Some("the last argument is no fixed message".to_owned());
    };
    let text = message.to_string();
    let text = text.trim_matches('"');
    if text != AS_UPSTREAM
        && (text.contains('{') || text.ends_with('.') || !text.starts_with(|c: char| c.is_uppercase()))
    {
        return Some(format!("the message {text:?} has a value or a full stop, or does not begin with a capital"));
    }
    fields.iter().find_map(|field| {
        let words: Vec<String> = field.iter().map(ToString::to_string).collect();
        if words.len() > 1 && words[0] == "target" && words[1] == ":" {
            return None;
        }
        if words.iter().any(|word| word == "?") {
            return Some(format!("a value of {text:?} is printed with `?`, so that its text is escaped twice"));
        }
        let key = words.iter().find(|word| *word != "%")?.trim_matches('"').to_owned();
        let is_camel =
            key.starts_with(|c: char| c.is_ascii_lowercase()) && key.chars().all(|c| c.is_ascii_alphabetic());
        (!is_camel || TAKEN.contains(&key.as_str())).then(|| format!("the key {key:?} of {text:?}"))
    })
}

#[test]
fn log_calls_follow_the_convention() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut faults, mut count) = (Vec::new(), 0);
    for file in sources(&src) {
        let mut found = Vec::new();
        calls(fs::read_to_string(&file).unwrap().parse().unwrap(), &mut found);
        count += found.len();
        faults.extend(found.iter().filter_map(|call| fault(call)).map(|fault| format!("{}: {fault}", file.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 80, "only {count} calls were found");
}

#[test]
fn faults_are_found() {
    let is_good = |text: &str| {
        let mut found = Vec::new();
        calls(format!("fn f() {{ {text} }}").parse().unwrap(), &mut found);
        assert_eq!(found.len(), 1, "{text}");
        fault(&found[0]).is_none()
    };
    for good in [
        r#"info!("Synced")"#,
        r#"info!(target: V2, %service, err = %error, numServices = a.len(), "type" = kind, "Synced",)"#,
    ] {
        assert!(is_good(good), "{good}");
    }
    for bad in [
        r#"info!("synced")"#,
        r#"info!("Synced.")"#,
        r#"info!("Synced {count}")"#,
        r#"info!(text)"#,
        r#"info!(num_services = 1, "Synced")"#,
        r#"info!(%error, "Synced")"#,
        r#"info!("Num" = 1, "Synced")"#,
        r#"info!(name = ?name, "Synced")"#,
        r#"info!(?name, "Synced")"#,
    ] {
        assert!(!is_good(bad), "{bad}");
    }
}
