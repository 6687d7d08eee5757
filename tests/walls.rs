//! The walls between the modules (README, "The picture"): which module may name which module, crate or part of the standard library.
//!
//! Reads the sources as text, without comments, strings and unit tests. A new module has to be added to the table here.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs;
use std::path::{Path, PathBuf};

/// What a module may name.
struct Wall {
    module: &'static str,
    /// Modules of this crate.
    modules: &'static [&'static str],
    /// Guarded words (see [`GUARDED`]).
    words: &'static [&'static str],
}

/// Words that only the modules that say so may use.
const GUARDED: &[&str] = &[
    "k8s_openapi",
    "kube::",
    "nft::",
    "tokio",
    "hyper",
    "clap",
    "prometheus_client",
    "rustix",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "libc::",
    "unsafe",
];

const WALLS: &[Wall] = &[
    Wall {
        module: "source",
        modules: &["source", "model"],
        words: &[
            "k8s_openapi",
            "kube::",
            "tokio",
            "rustix",
            "std::fs",
            "std::thread",
            "Instant::now",
            "SystemTime::now",
        ],
    },
    Wall { module: "model", modules: &["model"], words: &[] },
    Wall { module: "select", modules: &["select", "model"], words: &[] },
    Wall { module: "ruleset", modules: &["ruleset", "select", "model", "diff"], words: &["nft::"] },
    Wall { module: "diff", modules: &["diff"], words: &["nft::"] },
    Wall {
        module: "kernel",
        modules: &["kernel", "model", "conntrack"],
        words: &["rustix", "nft::", "std::fs", "std::thread"],
    },
    Wall {
        module: "sync",
        modules: &["sync", "kernel", "diff", "ruleset", "select", "model", "config", "metrics", "conntrack", "health"],
        words: &["nft::", "Instant::now", "SystemTime::now"],
    },
    Wall { module: "conntrack", modules: &["conntrack", "model"], words: &[] },
    Wall { module: "config", modules: &["config"], words: &["clap", "rustix", "std::fs"] },
    Wall { module: "http", modules: &["http"], words: &["tokio", "hyper", "rustix"] },
    Wall {
        module: "metrics",
        modules: &["metrics", "model", "http"],
        words: &["hyper", "prometheus_client", "std::fs", "Instant::now", "SystemTime::now"],
    },
    Wall {
        module: "health",
        modules: &["health", "model", "http"],
        words: &["tokio", "hyper", "Instant::now", "SystemTime::now"],
    },
    Wall {
        module: "events",
        modules: &["events", "model"],
        words: &["k8s_openapi", "kube::", "tokio", "Instant::now", "SystemTime::now"],
    },
    Wall {
        module: "app",
        modules: &[
            "app",
            "config",
            "events",
            "fastpath",
            "health",
            "kernel",
            "logging",
            "metrics",
            "model",
            "privileges",
            "ruleset",
            "serving",
            "source",
            "sync",
        ],
        words: &["tokio", "std::fs", "std::env", "std::thread"],
    },
    Wall { module: "fastpath", modules: &["fastpath", "config", "kernel", "ruleset"], words: &["nft::"] },
    Wall { module: "privileges", modules: &["privileges"], words: &["rustix", "libc::", "std::env"] },
    Wall { module: "serving", modules: &["serving", "config", "events", "health", "logging", "metrics"], words: &[] },
    Wall { module: "logging", modules: &["logging", "config"], words: &["std::env"] },
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            files.push(path);
        }
    }
    files
}

/// Whether all of a file is unit tests.
fn is_unit_test(file: &Path) -> bool {
    file.components().any(|part| ["tests", "tests.rs"].iter().any(|tests| part.as_os_str() == *tests))
}

/// The code of a file without comments, text in quotes, and unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    text.lines().map(|line| without_strings(line).split("//").next().unwrap_or_default().to_owned() + "\n").collect()
}

fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

/// The module of a file: its first folder, or its own name.
fn module_of(file: &Path, src: &Path) -> String {
    let relative = file.strip_prefix(src).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules named after `crate::`.
fn crate_edges(code: &str) -> Vec<String> {
    code.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

fn violations(wall: &Wall, code: &str) -> Vec<String> {
    let edges = crate_edges(code).into_iter().filter(|edge| !wall.modules.contains(&edge.as_str()));
    let edges = edges.map(|edge| format!("names crate::{edge}"));
    let words = GUARDED.iter().filter(|word| !wall.words.contains(word) && names(code, word));
    edges.chain(words.map(|word| format!("names {word}"))).collect()
}

/// Whether code has the word, not as the end of a longer one.
fn names(code: &str, word: &str) -> bool {
    code.match_indices(word)
        .any(|(at, _)| !code[..at].chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == '_'))
}

#[test]
fn every_module_stays_behind_its_wall() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for file in sources(&src) {
        let module = module_of(&file, &src);
        if module == "main" || module == "lib" || is_unit_test(&file) {
            continue;
        }
        let Some(wall) = WALLS.iter().find(|wall| wall.module == module) else {
            found.push(format!("{}: module {module} has no wall in this test", file.display()));
            continue;
        };
        let code = code(&fs::read_to_string(&file).unwrap());
        found.extend(violations(wall, &code).into_iter().map(|what| format!("{}: {what}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn only_the_nft_crate_names_the_netlink_crates_and_it_knows_nothing_of_kubernetes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("nft/Cargo.toml")).unwrap();
    for foreign in ["k8s", "kube", "tokio", "serde"] {
        assert!(!manifest.lines().any(|line| line.starts_with(foreign)), "nft depends on {foreign}");
    }
    for file in sources(&root.join("src")) {
        let code = code(&fs::read_to_string(&file).unwrap());
        for word in ["nftnl", "mnl::"] {
            assert!(!names(&code, word), "{} names {word}", file.display());
        }
    }
}

#[test]
fn unsafe_code_is_in_three_places_of_the_nft_crate() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("nft/src");
    let mut places: Vec<String> = sources(&src)
        .iter()
        .filter(|file| names(&code(&fs::read_to_string(file).unwrap()), "unsafe"))
        .map(|file| module_of(file, &src))
        .collect();
    places.sort();
    places.dedup();
    assert_eq!(places, ["batch", "encode", "socket"]);
}

#[test]
fn a_breach_is_found() {
    let model = WALLS.iter().find(|wall| wall.module == "model").unwrap();
    assert_eq!(violations(model, "use crate::sync::Engine;"), ["names crate::sync"]);
    assert_eq!(violations(model, "let x = std::fs::read(p);"), ["names std::fs"]);
    assert_eq!(violations(model, &code("let x = 1; // unsafe\nlet y = \"tokio\";")), [""; 0]);
}
