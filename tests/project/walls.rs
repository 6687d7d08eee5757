//! The walls within the crates, and what Cargo cannot say of one: which module may name which module of its crate, and which parts of the
//! standard library.
//!
//! Reads the sources as tokens, without comments, literals and what is only there for tests. Each name that a `use` brings in counts
//! with its whole path. A new module has to be added to the table here, a new crate also to the table of `src/README.md`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The crates whose sources are in `src`, each a folder of its name, from the lowest to the highest. The last is the root package.
const CRATES: [&str; 6] = ["rules", "component", "cluster", "node", "inspect", "proxy"];

/// What a module may name.
struct Wall {
    /// The crate and the module; the crate alone stands for all of its modules, which may name each other.
    module: &'static str,
    /// Other modules of its crate.
    modules: &'static [&'static str],
    /// Guarded words (see [`GUARDED`]).
    words: &'static [&'static str],
}

/// Words that only the modules that say so may use.
///
/// Threads are started through `component::supervise`, which gives each a name and lets tests see what becomes of a panic in it.
const GUARDED: &[&str] = &[
    "std::fs",
    "std::env",
    "std::thread",
    "thread::Builder",
    "thread::spawn(",
    "std::process",
    "Instant::now",
    "SystemTime::now",
    "unsafe",
];

const WALLS: &[Wall] = &[
    Wall { module: "rules/model", modules: &[], words: &[] },
    Wall { module: "rules/endpoints", modules: &["model"], words: &[] },
    Wall { module: "rules/ruleset", modules: &["endpoints", "model", "table"], words: &[] },
    Wall { module: "rules/table", modules: &[], words: &[] },
    Wall { module: "rules/diff", modules: &["table"], words: &[] },
    Wall { module: "rules/conntrack", modules: &["model", "endpoints"], words: &[] },
    Wall { module: "component/addresses", modules: &[], words: &[] },
    Wall { module: "component/dns_names", modules: &[], words: &[] },
    Wall { module: "component/excerpt", modules: &[], words: &[] },
    Wall { module: "component/files", modules: &[], words: &["std::fs"] },
    Wall { module: "component/rates", modules: &[], words: &[] },
    Wall {
        module: "component/config",
        modules: &["addresses", "dns_names", "excerpt", "files", "redact"],
        words: &["std::fs", "std::thread"],
    },
    Wall { module: "component/http", modules: &["supervise"], words: &["Instant::now"] },
    Wall {
        module: "component/log_runner",
        modules: &["config", "supervise"],
        // It runs another program, which is all that it does.
        words: &["std::fs", "std::process", "Instant::now", "SystemTime::now"],
    },
    Wall {
        module: "component/logging",
        modules: &["config", "excerpt", "rates", "redact", "supervise", "terminal"],
        words: &["std::env", "std::fs", "std::process", "std::thread", "Instant::now", "SystemTime::now"],
    },
    Wall { module: "component/pages", modules: &[], words: &["std::env", "std::fs"] },
    Wall { module: "component/privileges", modules: &[], words: &["std::env"] },
    Wall { module: "component/redact", modules: &[], words: &[] },
    Wall { module: "component/terminal", modules: &[], words: &[] },
    Wall {
        module: "component/supervise",
        modules: &[],
        // The name of a thread that is to panic, in debug builds.
        words: &["std::env", "std::thread", "thread::Builder"],
    },
    Wall {
        module: "cluster/source",
        modules: &[],
        // HTTPS_PROXY and its relatives, and what a pod knows of its API server.
        words: &["std::env", "std::fs", "std::process", "std::thread", "Instant::now", "SystemTime::now"],
    },
    Wall { module: "cluster/settings", modules: &["source"], words: &[] },
    Wall { module: "cluster/events", modules: &[], words: &["Instant::now", "SystemTime::now"] },
    Wall { module: "node/configured", modules: &["kernel"], words: &["std::fs"] },
    Wall { module: "node/kernel", modules: &[], words: &["std::fs", "std::thread"] },
    Wall { module: "node/flowtable", modules: &["kernel"], words: &[] },
    Wall { module: "node/counters", modules: &[], words: &[] },
    Wall {
        module: "inspect",
        modules: &[],
        words: &["std::env", "std::fs", "std::process", "std::thread", "Instant::now", "SystemTime::now"],
    },
    Wall {
        module: "proxy/sync",
        modules: &["health", "history", "localhost", "metrics"],
        // A second thread for the records of many Services, which ends before the sync goes on.
        words: &["Instant::now", "SystemTime::now", "std::thread"],
    },
    Wall { module: "proxy/history", modules: &[], words: &[] },
    Wall { module: "proxy/metrics", modules: &["history"], words: &["std::fs", "Instant::now", "SystemTime::now"] },
    Wall { module: "proxy/health", modules: &[], words: &["Instant::now", "SystemTime::now"] },
    Wall { module: "proxy/localhost", modules: &["metrics"], words: &["Instant::now"] },
    Wall { module: "proxy/verify", modules: &["sync"], words: &["Instant::now", "std::thread"] },
    Wall {
        module: "proxy/app",
        modules: &["health", "history", "localhost", "metrics", "sync", "verify"],
        words: &["std::fs", "std::env", "std::process", "std::thread", "Instant::now", "SystemTime::now"],
    },
];

pub(crate) fn sources(dir: &Path) -> Vec<PathBuf> {
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
pub(crate) fn is_unit_test(file: &Path) -> bool {
    file.components().any(|part| ["tests", "tests.rs"].iter().any(|tests| part.as_os_str() == *tests))
}

/// The code of a file as tokens, words with spaces between them, everything else without; a `use` of several names as one of each.
fn code(text: &str) -> String {
    let mut code = String::new();
    write(&mut code, text.parse().unwrap_or_else(|error| panic!("{error} in {text}")));
    code
}

fn write(code: &mut String, tokens: TokenStream) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let attribute = tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                if attribute.is_some_and(|attribute| attribute.to_string().replace(' ', "") == "[cfg(test)]") {
                    skip_item(&mut tokens);
                }
            }
            TokenTree::Punct(mark) => code.push(mark.as_char()),
            TokenTree::Ident(word) if word == "use" => {
                let names: Vec<_> = tokens.by_ref().take_while(|token| !is_mark(token, ';')).collect();
                write_use(code, "", &names);
            }
            TokenTree::Ident(word) => {
                if code.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                    code.push(' ');
                }
                *code += &word.to_string();
            }
            TokenTree::Group(group) => {
                code.push('(');
                write(code, group.stream());
                code.push(')');
            }
            TokenTree::Literal(_) => code.push('_'),
        }
    }
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == mark)
}

fn is_braces(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Passes over an item: to its body, or to its semicolon where braces may stand before that.
pub(crate) fn skip_item(tokens: &mut impl Iterator<Item = TokenTree>) {
    let mut ends_with_mark = false;
    for token in tokens {
        ends_with_mark |= ["use", "const", "static", "type"].iter().any(|word| token.to_string() == *word);
        if is_mark(&token, ';') || (is_braces(&token) && !ends_with_mark) {
            return;
        }
    }
}

/// Writes what comes after `use` as one path a name.
fn write_use(code: &mut String, path: &str, names: &[TokenTree]) {
    for name in names.split(|token| is_mark(token, ',')).filter(|name| !name.is_empty()) {
        let several: Option<&Group> = name.last().and_then(|last| match last {
            TokenTree::Group(group) => Some(group),
            _ => None,
        });
        let single = &name[..name.len() - usize::from(several.is_some())];
        let path = single.iter().fold(path.to_owned(), |path, token| match token {
            TokenTree::Ident(word) if word == "as" => path + " as ",
            token => path + &token.to_string(),
        });
        match several {
            Some(group) => write_use(code, &path, &group.stream().into_iter().collect::<Vec<_>>()),
            None => *code += &format!("use {path};"),
        }
    }
}

/// The module of a file: its first folder, or its own name.
fn module_of(file: &Path, src: &Path) -> String {
    let relative = file.strip_prefix(src).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// How deep in the crate the module of a file is: 1 for the modules of the table, whose parent is the crate.
fn depth_of(file: &Path, src: &Path) -> usize {
    let relative = file.strip_prefix(src).unwrap();
    relative.components().count() - usize::from(relative.ends_with("mod.rs"))
}

/// The modules named after `crate::`, or after as many `super::` as lead to the crate from this depth.
fn crate_edges(code: &str, depth: usize) -> Vec<String> {
    let climb = "super::".repeat(depth);
    let starts = ["crate::", &climb].into_iter().flat_map(|start| code.split(start).skip(1));
    starts
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

fn violations(wall: &Wall, code: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((_, own)) = wall.module.split_once('/') {
        let edges = crate_edges(code, depth).into_iter().filter(|edge| edge != own);
        let others = edges.filter(|edge| !wall.modules.contains(&edge.as_str()));
        found.extend(others.map(|edge| format!("names crate::{edge}")));
    }
    let words = GUARDED.iter().filter(|word| !wall.words.contains(word) && names(code, word));
    found.extend(words.map(|word| format!("names {word}")));
    found
}

/// Whether code has the word, not as a part of a longer one.
fn names(code: &str, word: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let goes_on = |at: usize| !word.ends_with([':', '(']) && is_word(code[at + word.len()..].chars().next());
    code.match_indices(word).any(|(at, _)| !is_word(code[..at].chars().next_back()) && !goes_on(at))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_module_stays_behind_its_wall() {
    let mut found = Vec::new();
    let mut modules = BTreeSet::new();
    for name in CRATES {
        let src = root().join("src").join(name);
        for file in sources(&src) {
            let module = module_of(&file, &src);
            if module == "main" || module == "lib" || is_unit_test(&file) {
                continue;
            }
            let full = format!("{name}/{module}");
            let Some(wall) = WALLS.iter().find(|wall| wall.module == full || wall.module == name) else {
                found.push(format!("{}: module {full} has no wall in this test", file.display()));
                continue;
            };
            let code = code(&fs::read_to_string(&file).unwrap());
            modules.insert(wall.module);
            let violations = violations(wall, &code, depth_of(&file, &src)).into_iter();
            found.extend(violations.map(|what| format!("{}: {what}", file.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(modules, WALLS.iter().map(|wall| wall.module).collect(), "the modules that there are, and the walls");
}

/// The crates of this workspace that a manifest names as dependencies; those of tests are not among them.
fn own_dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let (_, rest) = text.split_once("\n[dependencies]\n").unwrap();
    let names = rest.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split(['.', ' ']).next());
    names.filter(|name| *name == "nft" || CRATES.contains(name)).map(str::to_owned).collect()
}

#[test]
fn the_page_of_the_sources_has_the_dependencies_of_the_crates() {
    let page = fs::read_to_string(root().join("src/README.md")).unwrap();
    let rows = page.lines().skip_while(|line| !line.starts_with("| crate ")).skip(2);
    let mut found = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_matches(['`', '/']);
        let names: BTreeSet<String> = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let folder = match name {
            "proxy" => root().to_owned(),
            "../nft" => root().join("nft"),
            name => root().join("src").join(name),
        };
        assert_eq!(
            names,
            own_dependencies(&folder.join("Cargo.toml")),
            "what {name} depends on: on the page, and in Cargo.toml"
        );
        found.push(name.to_owned());
    }
    let mut expected: Vec<&str> = CRATES.to_vec();
    expected.insert(0, "../nft");
    assert_eq!(found, expected, "the crates of the page, and of this test");
}

#[test]
fn the_pure_crate_depends_on_nothing_that_runs() {
    let manifest = fs::read_to_string(root().join("src/rules/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let names = dependencies.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split('.').next());
    assert_eq!(names.collect::<Vec<_>>(), ["data-encoding", "foldhash", "ipnet", "nft", "sha2", "smol_str"]);
}

#[test]
fn only_the_nft_crate_names_the_netlink_crates_and_it_knows_nothing_of_kubernetes() {
    let manifest = fs::read_to_string(root().join("nft/Cargo.toml")).unwrap();
    for foreign in ["k8s", "kube", "tokio", "serde"] {
        assert!(!manifest.lines().any(|line| line.starts_with(foreign)), "nft depends on {foreign}");
    }
    for manifest in CRATES.map(|name| root().join("src").join(name)).into_iter().chain([root().to_owned()]) {
        let Ok(text) = fs::read_to_string(manifest.join("Cargo.toml")) else { continue };
        for word in ["nftnl.workspace", "mnl.workspace"] {
            assert!(!text.lines().any(|line| line.starts_with(word)), "{} names {word}", manifest.display());
        }
    }
}

#[test]
fn unsafe_code_is_in_few_places_of_the_nft_crate() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("nft/src");
    let mut places: Vec<String> = sources(&src)
        .iter()
        .filter(|file| names(&code(&fs::read_to_string(file).unwrap()), "unsafe"))
        .map(|file| module_of(file, &src))
        .collect();
    places.sort();
    places.dedup();
    assert_eq!(places, ["encode", "memory", "signals", "socket", "xtables"]);
}

#[test]
fn the_nft_crate_starts_one_thread_which_ends_before_its_caller_goes_on() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("nft/src");
    for file in sources(&src) {
        let code = code(&fs::read_to_string(&file).unwrap());
        assert!(!names(&code, "thread::spawn("), "{} names thread::spawn", file.display());
        let (started, scoped) = (code.matches("thread::Builder").count(), code.matches(".spawn_scoped(").count());
        assert_eq!(started, usize::from(file.ends_with("connection/mod.rs")), "{}", file.display());
        assert_eq!(started, scoped, "{}", file.display());
    }
}

/// The modules of the crate `nft`, from the lowest to the highest, each with the modules that it may name. Those are lower, so there is no
/// circle.
const NFT: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("memory", &[]),
    ("signals", &[]),
    ("socket", &["wire"]),
    ("table", &[]),
    ("data", &["wire"]),
    ("datatype", &[]),
    ("jhash", &[]),
    ("xtables", &["table"]),
    ("expr", &["data", "table"]),
    ("field", &["datatype", "expr", "wire"]),
    ("statement", &["data", "expr", "field", "table"]),
    ("object", &["data", "datatype", "expr", "field", "statement", "table"]),
    ("raise", &["data", "expr", "field", "object", "statement", "table"]),
    ("packed", &["data", "object", "wire"]),
    ("command", &["object", "packed", "table"]),
    ("userdata", &["datatype", "expr", "field", "object", "wire"]),
    (
        "text",
        &[
            "command",
            "data",
            "datatype",
            "expr",
            "field",
            "object",
            "packed",
            "raise",
            "statement",
            "table",
            "userdata",
        ],
    ),
    ("decode", &["data", "datatype", "expr", "field", "object", "packed", "statement", "table", "userdata", "wire"]),
    ("encode", &["command", "data", "datatype", "expr", "object", "packed", "table", "userdata", "wire"]),
    ("batch", &["command", "decode", "encode", "wire"]),
    ("monitor", &["decode", "socket", "table"]),
    (
        "connection",
        &["batch", "command", "data", "decode", "monitor", "object", "packed", "socket", "table", "text", "wire"],
    ),
    ("iptables", &["connection", "data", "decode", "expr", "field", "object", "statement", "table", "xtables"]),
    ("machine", &["connection", "data", "decode", "expr", "jhash", "object", "packed", "table"]),
];

#[test]
fn each_module_of_the_nft_crate_names_only_modules_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("nft/src");
    let mut modules = BTreeSet::new();
    for file in sources(&src) {
        let module = module_of(&file, &src);
        if module == "lib" {
            continue;
        }
        let place = NFT.iter().position(|(name, _)| *name == module);
        let place = place.unwrap_or_else(|| panic!("module {module} of nft has no place in this test"));
        let (name, below) = NFT[place];
        assert!(
            below.iter().all(|below| NFT[..place].iter().any(|(name, _)| name == below)),
            "{name} is not higher than each of {below:?}"
        );
        let code = code(&fs::read_to_string(&file).unwrap());
        for edge in crate_edges(&code, depth_of(&file, &src)) {
            assert!(edge == module || below.contains(&&*edge), "{} names {edge}", file.display());
        }
        modules.insert(name);
    }
    assert_eq!(modules, NFT.iter().map(|(name, _)| *name).collect(), "the modules of nft, and those of this test");
}

/// For each file and folder in a folder, the other ones that it names. `module` is the path of the folder within its crate, such as
/// `source::api`; empty for the crate's own folder. A folder names what any of its files names; `mod.rs` and `lib.rs` are not looked at,
/// because they name all others.
fn siblings(folder: &Path, module: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut nodes: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in sources(folder).into_iter().filter(|file| !is_unit_test(file)) {
        let path = file.strip_prefix(folder).unwrap();
        let node = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        if !["mod", "lib", "main"].contains(&&*node) {
            nodes.entry(node).or_default().push(file);
        }
    }
    let absolute = if module.is_empty() { "crate::".to_owned() } else { format!("crate::{module}::") };
    let word = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut graph = BTreeMap::new();
    for (node, files) in &nodes {
        let mut named = BTreeSet::new();
        for file in files {
            let code = code(&fs::read_to_string(file).unwrap());
            // A file in a folder climbs to the siblings of that folder with one `super` more for each step.
            let depth = file.strip_prefix(folder).unwrap().iter().count() - usize::from(file.ends_with("mod.rs"));
            let relative = "super::".repeat(depth);
            for start in [&absolute, &relative] {
                for (at, _) in code.match_indices(&**start) {
                    let is_longer =
                        code[..at].ends_with("super::") || code[..at].ends_with(|c: char| c.is_alphanumeric());
                    let name = word(&code[at + start.len()..]);
                    if !is_longer && name != *node && nodes.contains_key(&name) {
                        named.insert(name);
                    }
                }
            }
        }
        graph.insert(node.clone(), named);
    }
    graph
}

/// The circles of a graph and the nodes that lead to them: removes nodes without edges until there are none.
fn circles(mut graph: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let ends: BTreeSet<String> =
            graph.iter().filter(|(_, named)| named.is_empty()).map(|(name, _)| name.clone()).collect();
        if ends.is_empty() {
            return graph;
        }
        graph.retain(|name, _| !ends.contains(name));
        graph.values_mut().for_each(|named| named.retain(|name| !ends.contains(name)));
    }
}

#[test]
fn no_files_of_a_module_of_the_nft_crate_name_each_other_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("nft/src");
    for (module, _) in NFT.iter().filter(|(module, _)| src.join(module).is_dir()) {
        let left = circles(siblings(&src.join(module), module));
        assert!(left.is_empty(), "a circle in nft/src/{module}: {left:?}");
    }
}

/// A folder of sources and all folders in it, without those of unit tests.
fn folders(folder: PathBuf) -> Vec<PathBuf> {
    let inner = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let inner: Vec<PathBuf> = inner.filter(|path| path.is_dir() && !is_unit_test(path)).collect();
    inner.into_iter().flat_map(folders).chain([folder]).collect()
}

#[test]
fn no_files_of_a_folder_name_each_other_in_a_circle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for folder in CRATES.iter().flat_map(|name| folders(src.join(name))) {
        let path = folder.strip_prefix(&src).unwrap();
        let module = path.iter().skip(1).map(|part| part.to_str().unwrap()).collect::<Vec<_>>().join("::");
        let left = circles(siblings(&folder, &module));
        if !left.is_empty() {
            found.push(format!("{}: {left:?}", folder.display()));
        }
    }
    assert!(found.is_empty(), "circles in\n{}", found.join("\n"));
}

#[test]
fn a_circle_is_found() {
    let graph = |edges: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
        edges.iter().map(|(name, to)| ((*name).to_owned(), to.iter().map(ToString::to_string).collect())).collect()
    };
    assert_eq!(circles(graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])), BTreeMap::new());
    let circle = graph(&[("a", &["b"]), ("b", &["a"])]);
    assert_eq!(circles(graph(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &[])])), circle);
}

#[test]
fn what_files_and_folders_name_of_each_other_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("mod.rs", "mod a; mod b; mod c;");
    write("a.rs", "use super::b::B; use super::super::c::Outside;");
    write("b/mod.rs", "use self::d::D;");
    write("b/d.rs", "use super::super::a::A; use super::c::Inside;");
    write("c.rs", "use crate::source::api::a::A; #[cfg(test)] mod tests { use super::b::B; }");
    write("b/tests.rs", "use crate::source::api::c::C;");
    let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let expected = [("a", named(&["b"])), ("b", named(&["a"])), ("c", named(&["a"]))];
    assert_eq!(siblings(folder.path(), "source::api"), expected.map(|(name, named)| (name.to_owned(), named)).into());
}

/// The variants of error types whose text has the text of the error that they also give as their cause: who prints the whole chain
/// prints it twice.
fn doubled(text: &str) -> Vec<&str> {
    let variants = text.split("#[error(").skip(1).filter_map(|rest| rest.split_once(")]\n"));
    let names = ["{0}", "{source}"];
    let is_cause = |body: &str| {
        let line = body.lines().map(str::trim).find(|line| !line.starts_with("//")).unwrap_or_default();
        let fields: String =
            if line.ends_with('{') { body.lines().take_while(|l| l.trim() != "},").collect() } else { line.to_owned() };
        ["#[from]", "#[source]", " source:"].iter().any(|mark| fields.contains(mark))
    };
    let found = variants.filter(|(text, body)| names.iter().any(|name| text.contains(name)) && is_cause(body));
    found.map(|(text, _)| text).collect()
}

#[test]
fn no_error_prints_its_cause_twice() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for file in [sources(&root.join("src")), sources(&root.join("nft/src"))].concat() {
        let text = fs::read_to_string(&file).unwrap();
        found.extend(doubled(&text).into_iter().map(|text| format!("{}: {text}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_error_that_prints_its_cause_twice_is_found() {
    let twice =
        "#[error(\"a: {0}\")]\n    A(#[from] io::Error),\n#[error(\"b: {source}\")]\n B {\n source: io::Error,\n },\n";
    assert_eq!(doubled(twice), ["\"a: {0}\"", "\"b: {source}\""]);
    let once = "#[error(\"a\")]\n A(#[from] io::Error),\n#[error(\"b: {0}\")]\n B(String),\n#[error(transparent)]\n C(#[from] D),\n";
    assert_eq!(doubled(once), [""; 0]);
}

#[test]
fn a_breach_is_found() {
    let model = WALLS.iter().find(|wall| wall.module == "rules/model").unwrap();
    assert_eq!(violations(model, "use crate::sync::Engine;", 2), ["names crate::sync"]);
    assert_eq!(violations(model, "let x = std::fs::read(p);", 2), ["names std::fs"]);
    assert_eq!(violations(model, &code("let x = 1; // unsafe\nlet y = \"std::fs\";"), 2), [""; 0]);
    assert_eq!(violations(model, &code("#![forbid(unsafe_code)]\nfn a(c: char) { c == '\"' }"), 2), [""; 0]);
}

#[test]
fn a_breach_is_found_wherever_it_stands() {
    let model = WALLS.iter().find(|wall| wall.module == "rules/model").unwrap();
    for (text, expected) in [
        // Below unit tests, as the roots of modules have them in the middle.
        ("#[cfg(test)]\nmod testing;\nuse crate::sync::Engine;", &["names crate::sync"][..]),
        ("#[cfg(test)]\nmod tests { fn a() { std::fs::read(p); } }\nfn b() { std::env::args(); }", &["names std::env"]),
        (
            "#[cfg(test)]\nuse std::fs::{self, File};\nuse crate::{\n    model::State,\n    sync::{self, Engine},\n};",
            &["names crate::sync", "names crate::sync"],
        ),
        // `super` reaches the crate's root without the word `crate`.
        ("use super::super::kernel::Kernel;", &["names crate::kernel"]),
        ("use super::State;", &[]),
        // A `use` of several names, and names behind what looks like the start of a string or comment.
        ("use std::{env, io};", &["names std::env"]),
        ("fn a(c: char) { if c == '\"' { unsafe { b() } } }", &["names unsafe"]),
        ("const A: &str = \"http://a\"; fn b() { std::process::exit(1) }", &["names std::process"]),
        ("const A: &str = \"one\n two\"; use std::thread;", &["names std::thread"]),
        // Code that is only compiled for tests may name anything.
        ("#[cfg(test)]\n#[allow(dead_code)]\nconst A: [u8; 1] = { unsafe { b() } };\nuse crate::model::State;", &[]),
        ("#[cfg(test)]\nuse crate::sync::{Engine, Sync};", &[]),
        ("fn a() { let _ = thread::Builder::new().spawn(b); }", &["names thread::Builder"]),
        ("fn a() { std::thread::spawn(b); }", &["names std::thread", "names thread::spawn("]),
    ] {
        assert_eq!(violations(model, &code(text), 2), expected, "{text}");
    }
}
