//! Decides which records are logged, by the same rules as klog. Does no I/O.
//!
//! Warnings and errors are always logged, informational records only if `-v` is at least their verbosity. An item of `vmodule` can raise
//! but not lower the verbosity for the files that its pattern matches; the first matching item counts. `RUST_LOG` decides about records of
//! libraries.

use std::str::Chars;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use super::record::{Place, rank};

/// Libraries whose records are not logged by default, because each failed request would be logged twice: by this program, and by the
/// library without the server's name. `RUST_LOG=kube_client=debug` shows the records of kube_client.
const LIBRARIES: [&str; 6] = ["kube_client", "hyper", "hyper_util", "rustls", "tower", "tower_http"];
/// The crates of this program. Records of all other crates are records of libraries.
const OURS: [&str; 7] = ["cluster", "component", "inspect", "kube_proxy", "nft", "node", "rules"];

/// Decides what is logged.
pub(super) struct Filter {
    pub(super) verbosity: u32,
    /// Patterns of file names, each with the verbosity of the files that match.
    vmodule: Vec<(String, u32)>,
    libraries: Targets,
}

impl Filter {
    /// Makes a filter. `from_environment` is the value of `RUST_LOG`, which is ignored if it cannot be parsed.
    pub(super) fn new(verbosity: u32, vmodule: Vec<(String, u32)>, from_environment: Option<&str>) -> Self {
        let libraries = from_environment.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
            let off = LIBRARIES.map(|library| (library, LevelFilter::OFF));
            Targets::new().with_default(LevelFilter::WARN).with_targets(off)
        });
        Self { verbosity, vmodule, libraries }
    }

    /// Returns whether the records of a call site (a place in the source code that logs) are logged.
    pub(super) fn shows(&self, metadata: &Metadata<'_>) -> bool {
        let path = metadata.module_path().unwrap_or_default();
        if !OURS.contains(&path.split("::").next().unwrap_or_default()) {
            return self.libraries.would_enable(metadata.target(), metadata.level());
        }
        let (_, verbosity) = rank(metadata);
        verbosity <= self.verbosity || verbosity <= self.of_file(metadata.file().unwrap_or_default())
    }

    /// Returns the verbosity that `vmodule` sets for a file; 0 if no pattern matches. For file `sync/mod.rs` a pattern may match `sync`,
    /// which is the file's name in the log, or `mod`.
    fn of_file(&self, file: &str) -> u32 {
        let module = Place { file, line: 0 }.module();
        let name = file.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or(file);
        let is_of_it = |pattern: &str| matches(pattern, name) || matches(pattern, module);
        self.vmodule.iter().find(|(pattern, _)| is_of_it(pattern)).map_or(0, |(_, verbosity)| *verbosity)
    }
}

/// Returns whether a pattern of Go's `filepath.Match` matches a whole name without slashes: `*` matches any text, `?` any character,
/// `[a-z]` a character in a class, `[^a-z]` a character outside of a class, and `\` the character after it. An incomplete pattern, such as
/// `[a`, matches nothing.
fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = pattern.chars();
    let Some(first) = rest.next() else { return name.is_empty() };
    let mut name_rest = name.chars();
    if first == '*' {
        let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
        return ends.into_iter().any(|at| matches(rest.as_str(), &name[at..]));
    }
    let Some(c) = name_rest.next() else { return false };
    let is_match = match first {
        '?' => true,
        '\\' => rest.next() == Some(c),
        '[' => class(&mut rest, c),
        first => first == c,
    };
    is_match && matches(rest.as_str(), name_rest.as_str())
}

/// Returns whether a character is in the class that begins after a `[`. Consumes the class from `text`. An incomplete class contains
/// nothing.
fn class(text: &mut Chars<'_>, c: char) -> bool {
    let negated = text.as_str().starts_with('^');
    if negated {
        text.next();
    }
    let (mut found, mut is_empty) = (false, true);
    while is_empty || !text.as_str().starts_with(']') {
        let Some(low) = member(text) else { return false };
        let mut high = low;
        if text.as_str().starts_with('-') {
            text.next();
            let Some(end) = member(text) else { return false };
            high = end;
        }
        found |= (low..=high).contains(&c);
        is_empty = false;
    }
    text.next();
    found != negated
}

/// Returns the next character of a class, without a backslash before it; `None` for `-` and `]` without a backslash, and at the end of
/// `text`.
fn member(text: &mut Chars<'_>) -> Option<char> {
    match text.next()? {
        '-' | ']' => None,
        '\\' => text.next(),
        c => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_go() {
        for (pattern, name, expected) in [
            ("mod", "mod", true),
            ("mod", "modx", false),
            ("mo", "mod", false),
            ("", "mod", false),
            ("*", "", true),
            ("*", "mod", true),
            ("s*", "sync", true),
            ("s*c", "sync", true),
            ("s*d", "sync", false),
            ("*_*", "list_watch", true),
            ("**h", "list_watch", true),
            ("?od", "mod", true),
            ("?mod", "mod", false),
            ("[a-m]od", "mod", true),
            ("[^a-m]od", "mod", false),
            ("[^a-l]od", "mod", true),
            ("[xm]od", "mod", true),
            ("[xy]od", "mod", false),
            ("[\\]m]od", "mod", true),
            ("\\m\\od", "mod", true),
            ("\\*", "mod", false),
            ("\\*", "*", true),
            ("[m", "mod", false),
            ("[m]od[", "mod", false),
            ("[]", "m", false),
            ("[]m]od", "mod", false),
            ("[a-]", "a", false),
            ("[-a]", "a", false),
            ("mod\\", "mod", false),
            ("ä?", "äö", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn vmodule_is_about_files_without_their_folders_and_the_first_item_that_matches_counts() {
        let items = [("list_*", 6), ("*", 2), ("sync", 9)].map(|(pattern, verbosity)| (pattern.to_owned(), verbosity));
        let filter = Filter::new(0, items.to_vec(), None);
        assert_eq!(filter.of_file("src/cluster/source/api/list_watch.rs"), 6);
        assert_eq!(filter.of_file("src/proxy/sync/mod.rs"), 2);
        let only = |pattern: &str| Filter::new(0, vec![(pattern.to_owned(), 5)], None);
        assert_eq!(
            [only("sync"), only("mod"), only("src")].map(|filter| filter.of_file("src/proxy/sync/mod.rs")),
            [5, 5, 0]
        );
        assert_eq!([only("sync"), only("flows")].map(|filter| filter.of_file("src/proxy/sync/flows.rs")), [0, 5]);
    }

    /// Lists whether the filter logs a record of this file with each of the given targets and levels.
    macro_rules! shown {
        ($filter:expr, $($target:expr, $level:ident);+) => {
            [$({
                static CALLSITE: tracing::callsite::DefaultCallsite = tracing::callsite::DefaultCallsite::new(&META);
                static META: Metadata<'static> = tracing::metadata! {
                    name: "a record", target: $target, level: tracing::Level::$level,
                    fields: &["message"], callsite: &CALLSITE, kind: tracing::metadata::Kind::EVENT,
                };
                $filter.shows(&META)
            }),+]
        };
    }

    #[test]
    fn records_are_logged_from_their_verbosity_on_and_warnings_and_errors_always() {
        use super::super::record::{V1, V2};
        let shown = |verbosity| {
            let filter = Filter::new(verbosity, Vec::new(), None);
            shown!(filter, "x", ERROR; "x", WARN; "x", INFO; V1, INFO; V2, INFO; "x", DEBUG; "x", TRACE).map(u8::from)
        };
        assert_eq!(shown(0), [1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(shown(1), [1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(shown(2), [1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(shown(3), shown(2));
        assert_eq!(shown(4), [1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(shown(5), shown(4));
        assert_eq!(shown(6), [1; 7]);
    }

    #[test]
    fn vmodule_shows_more_of_a_file_and_never_less() {
        let with = |verbosity, item: (&str, u32)| Filter::new(verbosity, vec![(item.0.to_owned(), item.1)], None);
        let shown = |filter: Filter| shown!(filter, "x", WARN; "x", DEBUG; "x", TRACE).map(u8::from);
        assert_eq!(shown(with(0, ("filter", 4))), [1, 1, 0]);
        assert_eq!(shown(with(0, ("other", 9))), [1, 0, 0]);
        assert_eq!(shown(with(9, ("filter", 0))), [1, 1, 1]);
    }

    #[test]
    fn libraries_follow_the_environment_and_the_client_library_is_silent_without_it() {
        let silent = Filter::new(10, Vec::new(), None).libraries;
        assert!(!silent.would_enable("kube_client::client::builder", &tracing::Level::ERROR));
        assert!(!silent.would_enable("hyper_util::client::legacy::pool", &tracing::Level::ERROR));
        assert!(silent.would_enable("another", &tracing::Level::WARN));
        let asked = Filter::new(0, Vec::new(), Some("kube_client=debug")).libraries;
        assert!(asked.would_enable("kube_client::client::builder", &tracing::Level::DEBUG));
        assert!(!asked.would_enable("hyper_util::client", &tracing::Level::ERROR));
    }
}
