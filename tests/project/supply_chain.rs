//! What the program is built from: a lock file that is kept and true, licences that `deny.toml` allows, one registry, nothing banned,
//! and no binary file that nothing uses.
//!
//! Asks cargo and git and reads files; needs no network. `make audit` has cargo-deny look as well, also at advisories.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Where the image runs.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Everything cargo knows of the packages, as the lock file has them.
fn metadata() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["metadata", "--format-version=1", "--locked", "--offline"]);
    let output = command.args(["--filter-platform", PLATFORM]).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

/// The words in quotes of the list that a line of deny.toml starts, or of what follows up to the list's end.
fn listed(deny: &str, start: &str) -> Vec<String> {
    let (_, rest) = deny.split_once(&format!("\n{start} = [")).unwrap_or_else(|| panic!("deny.toml has no {start}"));
    let (list, _) = rest.split_once("\n]").unwrap_or_else(|| panic!("the list {start} of deny.toml has no end"));
    list.lines().flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Licences, and the crates that may have one that is allowed for them only.
struct Allowed {
    everywhere: Vec<String>,
    exceptions: Vec<(String, String)>,
}

impl Allowed {
    fn read() -> Self {
        let deny = read("deny.toml");
        let pairs = listed(&deny, "exceptions");
        let exceptions = pairs.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Self { everywhere: listed(&deny, "allow"), exceptions }
    }

    fn has(&self, package: &str, licence: &str) -> bool {
        let excepted = (package.to_owned(), licence.to_owned());
        self.everywhere.iter().any(|allowed| allowed == licence) || self.exceptions.contains(&excepted)
    }

    /// Whether an SPDX expression can be met with allowed licences.
    fn meet(&self, package: &str, expression: &str) -> bool {
        // Before SPDX, a slash stood for a choice.
        let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "+WITH+");
        let mut words = text.split_whitespace().peekable();
        let met = self.choice(package, &mut words);
        assert_eq!(words.next(), None, "{expression} has an end");
        met
    }

    fn choice<'a>(&self, package: &str, words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut met = self.all(package, words);
        while words.next_if_eq(&"OR").is_some() {
            met |= self.all(package, words);
        }
        met
    }

    fn all<'a>(&self, package: &str, words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut met = self.one(package, words);
        while words.next_if_eq(&"AND").is_some() {
            met &= self.one(package, words);
        }
        met
    }

    fn one<'a>(&self, package: &str, words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        match words.next() {
            Some("(") => {
                let met = self.choice(package, words);
                assert_eq!(words.next(), Some(")"), "{package}: a parenthesis is closed");
                met
            }
            Some(word) => self.has(package, &word.replace("+WITH+", " WITH ")),
            None => panic!("{package}: a licence is missing"),
        }
    }
}

/// Name, version and, if it is not of this repository, source of each package of a lock file.
fn locked(path: &str) -> BTreeSet<(String, String, Option<String>)> {
    let text = read(path);
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let packages = text.split("[[package]]").skip(1);
    let packages: BTreeSet<_> = packages
        .map(|package| {
            let known = |name| field(package, name).unwrap_or_else(|| panic!("{path}: a package without {name}"));
            (known("name"), known("version"), field(package, "source"))
        })
        .collect();
    assert!(packages.len() > 50, "{path} has {} packages", packages.len());
    packages
}

/// The files of the repository: what git keeps, or, in an unpacked archive of the sources, everything but what was built.
fn kept() -> BTreeSet<String> {
    let mut command = if root().join(".git").exists() {
        let mut git = Command::new("git");
        // The tests may run as another user than the one who checked the sources out.
        git.arg("-c").arg(format!("safe.directory={}", root().display())).args(["ls-files", "-z"]);
        git
    } else {
        let mut find = Command::new("find");
        find.args([".", "-path", "./target", "-prune", "-o", "-type", "f", "-printf", "%P\\0"]);
        find
    };
    let output = command.current_dir(root()).output().expect("git or find can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names are text");
    // git still lists a file that was removed and not yet committed, and a link to a folder.
    names.split_terminator('\0').filter(|name| root().join(name).is_file()).map(str::to_owned).collect()
}

/// Whether a text has the name of a file as a whole, not as the end of a longer one.
fn names(text: &str, name: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let ends = |at: usize| text[at + name.len()..].chars().next().is_none_or(|after| !part_of_name(after));
    let begins = |at: usize| text[..at].chars().next_back().is_none_or(|before| !part_of_name(before));
    text.match_indices(name).any(|(at, _)| begins(at) && ends(at))
}

/// Whether a file is one of the inputs that `tests/project/corpora.rs` and `tests/fuzz/run` take by their folder, not by their names:
/// directly in `corpus/TARGET` or `crashes/TARGET`, where TARGET is one of the fuzzers' targets.
fn is_input_of(path: &str, targets: &str) -> bool {
    let folder =
        ["corpus/", "crashes/"].into_iter().find_map(|kept| path.strip_prefix("tests/fuzz/")?.strip_prefix(kept));
    let target = folder.and_then(|rest| rest.split_once('/')).filter(|(_, file)| !file.contains('/'));
    target.is_some_and(|(target, _)| targets.contains(&format!("\n    (\"{target}\", ")))
}

/// Whether a file is there for tests to read.
fn is_fixture(path: &str) -> bool {
    path.starts_with("tests/data/") || path.contains("/testdata/")
}

/// The folders of a fixture below the folder of all fixtures, such as `data/golden` and `data/golden/empty`.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    let start = path.find("data/").unwrap_or_default();
    path.match_indices('/')
        .map(|(end, _)| end)
        .filter(move |end| *end > start + "data/".len())
        .map(move |end| &path[start..end])
}

/// The fixtures and the binary files (not UTF-8, or with a NUL) that nothing uses: no source names the file or, for a fixture, a folder
/// that it is in. A page that mentions a file does not use it.
fn unused_files<'a>(files: &'a [(String, Vec<u8>)], targets: &str) -> Vec<&'a str> {
    let text = |bytes: &'a [u8]| str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let is_user = |path: &str| !path.ends_with(".md") && !is_fixture(path);
    let users: Vec<&str> =
        files.iter().filter(|(path, _)| is_user(path)).filter_map(|(_, bytes)| text(bytes)).collect();
    let named = |name: &str| users.iter().any(|text| names(text, name));
    let used = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        is_input_of(path, targets) || named(name) || is_fixture(path) && folders(path).any(named)
    };
    let candidates = files.iter().filter(|(path, bytes)| is_fixture(path) || text(bytes).is_none());
    candidates.map(|(path, _)| path.as_str()).filter(|path| !used(path)).collect()
}

#[test]
fn no_fixture_and_no_binary_is_kept_that_nothing_uses() {
    let targets = read("tests/fuzz/targets/mod.rs");
    let load = |path: String| {
        let bytes = fs::read(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        (path, bytes)
    };
    let files: Vec<_> = kept().into_iter().map(load).collect();
    let binaries = files.iter().filter(|(_, bytes)| bytes.contains(&0)).count();
    assert!(binaries > 30, "only {binaries} binaries among {} files: the fuzzers' inputs are missing", files.len());
    let fixtures = files.iter().filter(|(path, _)| is_fixture(path)).count();
    assert!(fixtures > 30, "only {fixtures} fixtures among {} files", files.len());
    assert_eq!(unused_files(&files, &targets), [""; 0]);
}

#[test]
fn a_file_is_used_where_a_source_names_it_or_its_folder_or_the_fuzzers_take_its_folder() {
    let targets = "TARGETS = [\n    (\"yaml\", run),\n];";
    let file = |path: &str, bytes: &[u8]| (path.to_owned(), bytes.to_vec());
    let files = [
        file("a/used.bin", b"\0"),
        file("a/latin1.txt", b"\xe9"),
        file("a/page-only.whl", b"\0"),
        file("a/sed.bin", b"\0"),
        file("src/testdata/named.yaml", b""),
        file("src/testdata/idle.yaml", b""),
        file("tests/data/folder/deeper/a.yaml", b""),
        file("tests/data/idle/a.yaml", b"idle/a.yaml"),
        file("tests/fuzz/corpus/yaml/0a1b", b"\0"),
        file("tests/fuzz/corpus/yaml/deeper/0a1b", b"\0"),
        file("tests/fuzz/corpus/gone/0a1b", b"\0"),
        file("tests/fuzz/0a1b", b"\0"),
        file("src/a.rs", b"include_bytes!(\"../a/used.bin\") \"tests/data\" \"tests/data/folder\" named.yaml"),
        file("README.md", b"page-only.whl tests/data/idle"),
    ];
    let unused = [
        "a/latin1.txt",
        "a/page-only.whl",
        "a/sed.bin",
        "src/testdata/idle.yaml",
        "tests/data/idle/a.yaml",
        "tests/fuzz/corpus/yaml/deeper/0a1b",
        "tests/fuzz/corpus/gone/0a1b",
        "tests/fuzz/0a1b",
    ];
    assert_eq!(unused_files(&files, targets), unused);
}

#[test]
fn the_lock_file_is_kept_and_up_to_date() {
    let packages = metadata()["packages"].as_array().map_or(0, Vec::len);
    assert!(packages > 50, "cargo knows {packages} packages");
    let kept = kept();
    for lock in ["Cargo.lock", "tests/fuzz/Cargo.lock"] {
        assert!(kept.contains(lock), "{lock} is not kept");
    }
}

#[test]
fn every_licence_is_one_that_is_allowed() {
    let allowed = Allowed::read();
    for package in metadata()["packages"].as_array().expect("a list of packages") {
        let name = package["name"].as_str().expect("a package has a name");
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} says nothing of its licence"));
        assert!(allowed.meet(name, licence), "{name} is under {licence}, which deny.toml does not allow");
    }
}

#[test]
fn licences_are_judged_as_spdx_means_them() {
    let allowed = Allowed {
        everywhere: vec!["MIT".to_owned(), "ISC".to_owned()],
        exceptions: vec![("odd".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned())],
    };
    for met in
        ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(GPL-3.0-only OR MIT) AND ISC", "GPL-3.0-only OR MIT AND ISC"]
    {
        assert!(allowed.meet("any", met), "{met}");
    }
    for unmet in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR ISC) AND Zlib", "Apache-2.0 WITH LLVM-exception"] {
        assert!(!allowed.meet("any", unmet), "{unmet}");
    }
    assert!(allowed.meet("odd", "Apache-2.0 WITH LLVM-exception"));
}

#[test]
fn every_package_comes_from_one_registry_and_none_is_banned() {
    let banned: BTreeSet<String> = listed(&read("deny.toml"), "deny").into_iter().step_by(2).collect();
    assert!(banned.contains("openssl"), "{banned:?}");
    for (name, version, source) in locked("Cargo.lock") {
        assert!(source.is_none_or(|source| source == REGISTRY), "{name} {version} is from elsewhere");
        assert!(!banned.contains(&name), "{name} is banned");
    }
}

/// What is fuzzed is what is shipped.
#[test]
fn the_fuzzer_has_the_same_versions() {
    let own: BTreeSet<&str> = ["kube-proxy-nft-fuzz", "libfuzzer-sys", "arbitrary", "jobserver"].into();
    let shipped = locked("Cargo.lock");
    let other: Vec<_> = locked("tests/fuzz/Cargo.lock")
        .into_iter()
        .filter(|package| !own.contains(&*package.0) && !shipped.contains(package))
        .collect();
    assert!(other.is_empty(), "copy Cargo.lock to tests/fuzz and run `cargo metadata` there: {other:?}");
}

/// Otherwise cargo refuses to build it.
#[test]
fn the_fuzzers_lock_file_is_the_one_that_cargo_would_write() {
    // What only libFuzzer needs is left out on both sides: it is downloaded by the first `make fuzz`, and this needs no network.
    let own = ["kube-proxy-nft-fuzz", "libfuzzer-sys", "arbitrary", "jobserver", "cc"];
    let copy = TempDir::new().expect("a temporary directory can be made");
    let manifest = read("tests/fuzz/Cargo.toml").replace("\"../..", &format!("\"{}", root().display()));
    let lines = manifest.lines().take_while(|line| *line != "[[bin]]" && !line.starts_with("[profile"));
    let lines = lines.filter(|line| !line.starts_with("libfuzzer-sys = "));
    let without: String = lines.map(|line| format!("{line}\n")).collect();
    let write = |name: &str, text: &str| {
        let path = copy.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).and_then(|()| fs::write(&path, text)).expect("written");
    };
    write("Cargo.toml", &without);
    write("Cargo.lock", &read("tests/fuzz/Cargo.lock"));
    write("src/lib.rs", "");
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.current_dir(copy.path()).args(["update", "--workspace", "--offline"]).output();
    let output = output.expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = fs::read_to_string(copy.path().join("Cargo.lock")).expect("cargo writes a lock file");
    let packages = |text: &str| -> BTreeSet<String> {
        let packages = text.split("[[package]]\n").skip(1).map(|package| package.trim_end().to_owned());
        packages.filter(|text| !own.iter().any(|own| text.starts_with(&format!("name = \"{own}\"\n")))).collect()
    };
    let (kept, written) = (packages(&read("tests/fuzz/Cargo.lock")), packages(&written));
    assert!(kept.len() > 50, "the lock file has {} packages", kept.len());
    let differ: Vec<_> = kept.symmetric_difference(&written).collect();
    assert!(differ.is_empty(), "run `cargo update --workspace` in tests/fuzz: {differ:#?}");
}

// The TLS library would measure the jitter of the processor's clock before the first random number of each process: a quarter of the processor
// time of a start.
#[test]
fn no_build_takes_entropy_from_the_jitter_of_the_clock() {
    let binary = fs::read(env!("CARGO_BIN_EXE_kube-proxy")).expect("cargo has built it");
    let has = |symbol: &str| {
        let (first, rest) = symbol.as_bytes().split_first().expect("a name");
        binary.split(|byte| byte == first).any(|text| text.starts_with(rest))
    };
    assert!(has("aws_lc_") || !cfg!(debug_assertions), "a debug build has the names of its functions");
    assert!(!has("jent_"), "see .cargo/config.toml; if it is as it was, remove target");

    // Each build is started in a copy of the repository, which cargo reads; only the image's has a layer before that copy.
    const SETTING: &str = ".cargo/config.toml";
    assert!(kept().contains(SETTING) && read(SETTING).contains("\nAWS_LC_SYS_NO_JITTER_ENTROPY = \"1\"\n"));
    let image = read("deploy/Dockerfile");
    let first = image.find("deploy/release --arch").expect("the image builds the program");
    assert!(image.find(SETTING).is_some_and(|copied| copied < first), "the layer of the dependencies has {SETTING}");
}
