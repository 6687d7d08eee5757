//! The Debian source package: what is in it, that its copyright file names every crate that is compiled, lintian's answer, and that its .deb has the
//! files of `deploy/package`.
//!
//! Runs `deploy/source-package` around a small archive and two small crates; `make deb-source` takes the repository and all crates. No root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::packages::{TIME, assert_same_files, listed, packages, project, with_end};
use crate::support::netns::run;
use crate::support::proxy::binary;

/// A crate that is compiled for Linux, and one that only Windows needs.
const COMPILED: &str = "anyhow";
const EMPTIED: &str = "windows-sys";

/// The version of the crate in Cargo.lock; the last one if there are several.
fn locked(name: &str) -> String {
    let lock = fs::read_to_string(project().join("Cargo.lock")).expect("a lock file");
    let (_, rest) = lock.rsplit_once(&format!("\nname = \"{name}\"\nversion = \"")).expect("the crate is locked");
    rest.split('"').next().expect("a version").to_owned()
}

/// A crate as `cargo vendor` leaves it, with an object that is compiled already.
fn put_crate(folder: &Path, name: &str) {
    let version = locked(name);
    let folder = folder.join(format!("{name}-{version}"));
    fs::create_dir_all(folder.join("src")).expect("a folder can be made");
    let manifest = format!(
        "# A comment.\n[package]\nname = \"{name}\"\nversion = \"{version}\"\nauthors = [\n    \"a\",\n]\nbuild = \"build.rs\"\n\n[lib]\n\
         path = \"src/other.rs\"\n\n[dependencies.serde]\nversion = \"1\"\n\n[dev-dependencies.b]\nversion = \"1\"\n\n\
         [target.\"cfg(windows)\".dependencies.c]\nversion = \"1\"\n"
    );
    let sums = r#"{"files":{"Cargo.toml":"0","Cargo.toml.orig":"0","src/other.rs":"0","src/x.o":"0"},"package":"abc"}"#;
    for (file, content) in [
        ("Cargo.toml", &*manifest),
        ("Cargo.toml.orig", ""),
        ("src/other.rs", "// code\n"),
        ("src/x.o", "\u{7f}ELF"),
        (".cargo-checksum.json", sums),
    ] {
        fs::write(folder.join(file), content).expect("a file can be written");
    }
}

/// A source package of a small archive in the place of the repository's.
fn source_package() -> TempDir {
    let inputs = TempDir::new().expect("a temporary directory can be made");
    let name = format!("kube-proxy-nft-{}", env!("CARGO_PKG_VERSION"));
    fs::create_dir(inputs.path().join(&name)).expect("a folder can be made");
    fs::create_dir(inputs.path().join(&name).join(".cargo")).expect("a folder can be made");
    for file in ["README.md", ".cargo/config.toml"] {
        fs::copy(project().join(file), inputs.path().join(&name).join(file)).expect("a file can be copied");
    }
    let archive = inputs.path().join("sources.tar.gz");
    run(Command::new("tar")
        .args(["--create", "--gzip", "--file"])
        .arg(&archive)
        .args(["--mtime", "@0", "-C"])
        .args([inputs.path(), Path::new(&name)]));
    let crates = inputs.path().join("crates");
    put_crate(&crates, COMPILED);
    put_crate(&crates, EMPTIED);

    let out = TempDir::new().expect("a temporary directory can be made");
    let mut script = Command::new(project().join("deploy/source-package"));
    script.arg("--sources").arg(&archive).arg("--crates").arg(&crates).arg("--out").arg(out.path());
    run(script.env("SOURCE_DATE_EPOCH", TIME));
    out
}

/// Unpacks it as anybody would, and gives the folder with its top folder.
fn unpacked(package: &Path) -> TempDir {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let mut source = Command::new("dpkg-source");
    source.arg("--extract").arg(with_end(package, ".dsc")).arg(folder.path().join("tree"));
    run(source.current_dir(folder.path()));
    folder
}

/// The paragraphs of a control file, each with its fields; further lines belong to their field.
fn paragraphs(text: &str) -> Vec<BTreeMap<String, String>> {
    let field = |fields: &mut BTreeMap<String, String>, line: &str, last: &mut String| {
        if let Some(more) = line.strip_prefix(' ') {
            let value = fields.get_mut(last).unwrap_or_else(|| panic!("{line} has no field"));
            value.push('\n');
            value.push_str(more);
        } else {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line} is no field"));
            name.clone_into(last);
            fields.insert(name.to_owned(), value.trim().to_owned());
        }
    };
    let paragraph = |text: &str| {
        let (mut fields, mut last) = (BTreeMap::new(), String::new());
        text.lines().for_each(|line| field(&mut fields, line, &mut last));
        fields
    };
    text.trim().split("\n\n").map(paragraph).collect()
}

#[test]
fn the_source_package_is_the_same_twice_and_unpacks_to_sources_crates_and_what_debian_wants() {
    let package = source_package();
    assert_same_files(package.path(), source_package().path(), 5);

    let folder = unpacked(package.path());
    let tree = folder.path().join("tree");
    let read = |path: &str| fs::read_to_string(tree.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(read("README.md").contains("kube-proxy") && read(".cargo/config.toml").contains("[env]"));
    assert_eq!(read("debian/source/format"), "3.0 (quilt)\n");
    let changelog = read("debian/changelog");
    let start = format!("kube-proxy-nft ({}-1) unstable; ", env!("CARGO_PKG_VERSION"));
    assert!(changelog.starts_with(&start) && changelog.contains("  Thu, 01 Jan 2026 00:00:00 +0000\n"), "{changelog}");
    for script in ["postinst", "prerm", "postrm"] {
        let own = fs::read_to_string(project().join("deploy/node").join(script)).expect("a script");
        assert_eq!(read(&format!("debian/kube-proxy-nft.{script}")), own, "one source for both packages");
    }
    let listing = run(Command::new("make").arg("--dry-run").arg("--file=debian/rules").arg("build").current_dir(&tree));
    assert!(listing.contains("dh build"), "{listing}");

    let control = paragraphs(&read("debian/control"));
    assert_eq!((control.len(), control[0]["Source"].as_str()), (2, "kube-proxy-nft"));
    let needed = &control[0]["Build-Depends"];
    for tool in ["cargo", "rustc"] {
        let oldest = env!("CARGO_PKG_RUST_VERSION");
        assert!(needed.contains(&format!("{tool} (>= {oldest}) | {tool}-web (>= {oldest})")), "{needed}");
    }
    for package in ["libmnl-dev", "libnftnl-dev (>= 1.2.4)", "pkgconf", "debhelper-compat (= 13)"] {
        assert!(needed.split(", ").any(|word| word == package), "no {package} in {needed}");
    }
    assert!(control[0].contains_key("Standards-Version") && control[0].contains_key("Maintainer"));
}

#[test]
fn crates_that_are_not_compiled_are_emptied_and_no_object_without_sources_is_left() {
    let package = source_package();
    let folder = unpacked(package.path());
    let vendor = folder.path().join("tree/vendor");
    let inside = |name: &str| vendor.join(format!("{name}-{}", locked(name)));
    let found = |name: &str| -> BTreeSet<String> {
        let list = run(Command::new("find").arg(inside(name)).args(["-type", "f", "-printf", "%P\n"]));
        list.lines().map(str::to_owned).collect()
    };
    let names = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&name| name.to_owned()).collect() };
    let sums = |name: &str| -> Value {
        let text = fs::read(inside(name).join(".cargo-checksum.json")).expect("checksums");
        serde_json::from_slice(&text).expect("JSON")
    };
    assert_eq!(found(COMPILED), names(&[".cargo-checksum.json", "Cargo.toml", "src/other.rs"]));
    assert_eq!(
        sums(COMPILED),
        serde_json::json!({"files": {"Cargo.toml": "0", "src/other.rs": "0"}, "package": "abc"})
    );
    assert_eq!(found(EMPTIED), names(&[".cargo-checksum.json", "Cargo.toml", "src/lib.rs"]));
    assert_eq!(sums(EMPTIED), serde_json::json!({"files": {}, "package": "abc"}));
    let manifest = fs::read_to_string(inside(EMPTIED).join("Cargo.toml")).expect("a manifest");
    let version = locked(EMPTIED);
    let wanted = format!(
        "[package]\nname = \"{EMPTIED}\"\nversion = \"{version}\"\n[dependencies.serde]\nversion = \"1\"\n\
         [target.\"cfg(windows)\".dependencies.c]\nversion = \"1\"\n"
    );
    assert_eq!(manifest, wanted, "what cargo asks when it chooses versions");
}

/// The crates that are compiled for the architectures of a release, as the folders in vendor/.
fn compiled() -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--offline", "--workspace", "--prefix", "none", "--format", "{p}"]);
    for architecture in ["x86_64", "aarch64"] {
        tree.arg("--target").arg(format!("{architecture}-unknown-linux-gnu"));
    }
    let lines = run(tree.current_dir(project()));
    // Those of the repository have their path behind the version.
    let crates = lines.lines().filter(|line| !line.contains("(/"));
    let words = crates.map(|line| line.split_whitespace().collect()).filter(|words: &Vec<&str>| words.len() > 1);
    words.map(|words| format!("{}-{}", words[0], words[1].trim_start_matches('v'))).collect()
}

#[test]
fn the_copyright_file_names_each_crate_that_is_compiled_and_has_the_text_of_each_licence() {
    let text = run(&mut Command::new(project().join("deploy/copyright")));
    let paragraphs = paragraphs(&text);
    assert_eq!(paragraphs[0]["Format"], "https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/");
    assert!(paragraphs[0]["License"].starts_with("GPL-3+\n"), "the package as a whole: {:?}", paragraphs[0]);
    let about: BTreeMap<&str, &BTreeMap<String, String>> =
        paragraphs.iter().filter_map(|fields| Some((fields.get("Files")?.as_str(), fields))).collect();
    assert_eq!(about["*"]["License"], "Apache-2.0");
    let compiled = compiled();
    assert!(compiled.len() > 100, "{compiled:?}");
    let named: BTreeSet<String> =
        about.keys().filter_map(|files| files.strip_prefix("vendor/")?.strip_suffix("/*")).map(str::to_owned).collect();
    assert_eq!(compiled.difference(&named).collect::<Vec<_>>(), [""; 0], "crates that the file does not name");
    assert!(!named.iter().any(|name| name.starts_with("windows")), "{named:?}");

    let texts: BTreeSet<&str> = paragraphs
        .iter()
        .filter(|fields| !fields.contains_key("Files") && !fields.contains_key("Format"))
        .map(|fields| fields["License"].split_once('\n').expect("a text").0)
        .collect();
    for (files, fields) in &about {
        assert!(fields["Copyright"].chars().any(char::is_alphabetic), "{files} has no holder");
        for licence in fields["License"].split(" and ").flat_map(|part| part.split(" or ")) {
            let licence = licence.trim_end_matches(',');
            assert!(texts.contains(licence), "{files} is under {licence}, which has no text");
        }
    }
}

#[test]
fn lintian_finds_neither_error_nor_warning_in_the_source_package() {
    let package = source_package();
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    // The crates that the copyright file names are not in this small one.
    lintian.args(["--suppress-tags", "superfluous-file-pattern"]);
    let output = lintian.arg(with_end(package.path(), ".changes")).output().expect("lintian: run `make deps`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_package_that_is_built_from_source_has_the_files_of_the_released_one() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let stand_in = root.path().join("binary");
    // The man page is printed by the binary itself, and its libraries are looked up.
    fs::copy(binary(), &stand_in).expect("a file can be copied");
    let tree = root.path().join("tree");
    let mut package = Command::new(project().join("deploy/package"));
    run(package.arg("--binary").arg(&stand_in).arg("--root").arg(&tree));
    let list = run(Command::new("find").arg(&tree).args(["-type", "f", "-printf", "%P\n"]));
    // dh adds what it makes of debian/changelog and debian/copyright, and calls CHANGELOG.md as Debian does.
    let added = ["changelog.gz", "copyright"].map(|name| format!("usr/share/doc/kube-proxy-nft/{name}"));
    let laid_out: BTreeSet<String> = list.lines().map(str::to_owned).chain(added).collect();
    let released = packages();
    let deb = with_end(released.path(), ".deb");
    let of_deb = listed(&run(Command::new("dpkg-deb").arg("--contents").arg(&deb)), "./");
    assert_eq!(laid_out, of_deb.into_keys().collect());
    let rules = fs::read_to_string(project().join("deploy/node/debian/rules")).expect("a file");
    let call = "\tdeploy/package --binary $(CARGO_TARGET_DIR)/release/kube-proxy --root debian/kube-proxy-nft\n";
    assert!(rules.contains(call), "{rules}");
}
