//! What can be installed on a node without a cluster's help, and the archives of images: their content, owners, modes and scripts, and that the same
//! inputs give the same bytes.
//!
//! Runs `deploy/package` and `deploy/oci-archive.py` around small files; `make release` runs them around the release binaries. No root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use component::config;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::netns::run;
use crate::support::proxy::binary;

/// 2026-01-01, the time of all files.
pub(crate) const TIME: &str = "1767225600";

pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Packages around a small program, which stands in for the binary: what is tested is what is around it.
pub(crate) fn packages() -> TempDir {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let mut package = Command::new(project().join("deploy/package"));
    package.args(["--binary", "/usr/sbin/nft", "--words-of"]).arg(binary()).arg("--out").arg(folder.path());
    run(package.env("SOURCE_DATE_EPOCH", TIME));
    folder
}

pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read(&path).expect("a file"))).collect()
}

/// Asserts that two folders have the same files, so many.
pub(crate) fn assert_same_files(first: &Path, second: &Path, count: usize) {
    let (first, second) = (files(first), files(second));
    assert_eq!(first.len(), count, "{:?}", first.keys());
    for (name, bytes) in &first {
        assert!(second[name] == *bytes, "{name} differs");
    }
}

pub(crate) fn with_end(folder: &Path, end: &str) -> PathBuf {
    let name = files(folder).into_keys().find(|name| name.ends_with(end)).unwrap_or_else(|| panic!("no file {end}"));
    folder.join(name)
}

/// Mode and owner of each file of a listing of tar or dpkg-deb, by the path below a folder. Folders are left out.
pub(crate) fn listed(listing: &str, folder: &str) -> BTreeMap<String, (String, String)> {
    let lines = listing.lines().filter(|line| !line.starts_with('d'));
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let path = words[5].strip_prefix(folder).unwrap_or_else(|| panic!("{line} is not below {folder}"));
        (path.to_owned(), (words[0].to_owned(), words[1].to_owned()))
    };
    lines.map(entry).collect()
}

#[test]
fn the_same_inputs_give_the_same_packages() {
    assert_same_files(packages().path(), packages().path(), 4);
}

#[test]
fn the_debian_package_and_the_tarball_have_the_same_files_with_the_right_owners_and_modes() {
    let folder = packages();
    let deb = with_end(folder.path(), ".deb");
    let of_deb = listed(&run(Command::new("dpkg-deb").arg("--contents").arg(&deb)), "./");
    let tarball = with_end(folder.path(), ".tar.gz");
    let name = format!("kube-proxy-nft-{}-linux-", env!("CARGO_PKG_VERSION"));
    let listing = run(Command::new("tar").args(["--list", "--verbose", "--numeric-owner", "--file"]).arg(&tarball));
    let folder_name = tarball.file_name().expect("a name").to_string_lossy().replace(".tar.gz", "/");
    assert!(folder_name.starts_with(&name), "{folder_name}");
    let of_tarball = listed(&listing, &folder_name);
    assert_eq!(of_deb.keys().collect::<Vec<_>>(), of_tarball.keys().collect::<Vec<_>>());
    assert!(of_deb.values().all(|(_, owner)| owner == "root/root"), "{of_deb:?}");
    assert!(of_tarball.values().all(|(_, owner)| owner == "0/0"), "{of_tarball:?}");
    for (path, (mode, _)) in of_deb.iter().chain(&of_tarball) {
        let wanted = if path == "usr/bin/kube-proxy" { "-rwxr-xr-x" } else { "-rw-r--r--" };
        assert_eq!(mode, wanted, "{path}");
    }
    for path in [
        "usr/bin/kube-proxy",
        "usr/lib/systemd/system/kube-proxy.service",
        "usr/share/man/man8/kube-proxy.8.gz",
        "usr/share/bash-completion/completions/kube-proxy",
        "usr/share/doc/kube-proxy-nft/copyright",
        "usr/share/doc/kube-proxy-nft/LICENSE",
        "usr/share/doc/kube-proxy-nft/kubectl-kubeproxy",
        "usr/share/doc/kube-proxy-nft/crates.txt.gz",
        "usr/share/doc/kube-proxy-nft/kube-proxy.cdx.json",
        "etc/kube-proxy/config.conf",
    ] {
        assert!(of_deb.contains_key(path), "no {path} in {:?}", of_deb.keys());
    }

    let control = run(Command::new("dpkg-deb").arg("--field").arg(&deb));
    assert!(control.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{control}");
    for line in ["Depends: ", "libc6 (>= 2.", "\nProvides: kube-proxy\n", "\nConflicts: kube-proxy, kubernetes-node\n"]
    {
        assert!(control.contains(line), "no {line:?} in {control}");
    }
    let unpacked = TempDir::new().expect("a temporary directory can be made");
    run(Command::new("dpkg-deb").arg("--control").arg(&deb).arg(unpacked.path()));
    let of_control = files(unpacked.path());
    let configuration: BTreeSet<&str> = str::from_utf8(&of_control["conffiles"]).expect("text").lines().collect();
    let in_etc: Vec<String> =
        of_deb.keys().filter(|path| path.starts_with("etc/")).map(|path| format!("/{path}")).collect();
    assert_eq!(configuration, in_etc.iter().map(String::as_str).collect(), "dpkg keeps what the operator changed");
    let sums = String::from_utf8_lossy(&of_control["md5sums"]);
    let verified: BTreeSet<&str> = sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let in_usr = of_deb.keys().filter(|path| !path.starts_with("etc/")).map(String::as_str);
    assert_eq!(verified, in_usr.collect(), "`dpkg --verify` has something to compare");
    for script in ["postinst", "prerm", "postrm"] {
        let path = unpacked.path().join(script);
        assert_eq!(fs::metadata(&path).expect("a script").permissions().mode() & 0o777, 0o755, "{script}");
        run(Command::new("sh").arg("-n").arg(&path));
    }
}

#[test]
fn the_words_of_the_packages_are_those_of_the_program() {
    let folder = packages();
    let unpacked = TempDir::new().expect("a temporary directory can be made");
    run(Command::new("dpkg-deb").arg("--extract").arg(with_end(folder.path(), ".deb")).arg(unpacked.path()));
    let page = run(Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(unpacked.path().join("usr/share/man/man8/kube-proxy.8.gz")));
    assert_eq!(page, run(Command::new(binary()).arg("man")));
    let completion = fs::read_to_string(unpacked.path().join("usr/share/bash-completion/completions/kube-proxy"));
    assert_eq!(completion.expect("text"), run(Command::new(binary()).args(["completion", "bash"])));

    let bill = fs::read(unpacked.path().join("usr/share/doc/kube-proxy-nft/kube-proxy.cdx.json")).expect("a file");
    let bill: Value = serde_json::from_slice(&bill).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&Value::from("CycloneDX"), &Value::from("1.5")));
    assert_eq!(bill["metadata"]["timestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = bill["components"].as_array().expect("a list");
    let has =
        |name: &str| components.iter().any(|component| component["name"] == name && component["purl"].is_string());
    assert!(has("nftnl") && has("hyper") && has("libc6"), "{components:?}");
    assert!(!has("proptest") && !has("rcgen"), "what only tests use is not in the binary");
}

#[test]
fn the_rpm_has_the_files_of_the_debian_package_and_needs_the_libraries_of_the_binary() {
    let folder = packages();
    let of_deb = listed(&run(Command::new("dpkg-deb").arg("--contents").arg(with_end(folder.path(), ".deb"))), "./");
    let rpm = with_end(folder.path(), ".rpm");
    let query = |arguments: &[&str]| run(Command::new("rpm").args(["--query", "--package"]).args(arguments).arg(&rpm));
    let rows = query(&["--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]"]);
    let of_rpm: BTreeMap<String, (String, String)> = rows
        .lines()
        .filter(|row| !row.starts_with('d'))
        .map(|row| row.split_whitespace().collect())
        .map(|words: Vec<&str>| {
            (words[2].trim_start_matches('/').to_owned(), (words[0].to_owned(), words[1].to_owned()))
        })
        .collect();
    assert_eq!(of_rpm, of_deb);
    assert_eq!(query(&["--configfiles"]), "/etc/default/kube-proxy\n/etc/kube-proxy/config.conf\n");
    let requires = query(&["--requires"]);
    assert!(requires.contains("libc.so.6(GLIBC_2.") && requires.contains("libnftables.so.1"), "{requires}");
    assert!(!query(&["--scripts"]).contains("systemctl enable"), "it takes no node's Services over");
}

#[test]
fn lintian_finds_no_error_in_the_debian_package() {
    let folder = packages();
    let mut lintian = Command::new("lintian");
    // Only errors; the program in the place of the binary is a library's front end, with notices of its own.
    lintian.args(["--allow-root", "--fail-on", "error", "--tag-display-limit", "0"]);
    let output = lintian.arg(with_end(folder.path(), ".deb")).output().expect("lintian is there: run `make deps`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_debian_package_needs_the_glibc_whose_symbols_the_binary_uses() {
    let folder = packages();
    let depends = run(Command::new("dpkg-deb").arg("--field").arg(with_end(folder.path(), ".deb")).arg("Depends"));
    let versions = run(Command::new("readelf").args(["--wide", "--version-info", "/usr/sbin/nft"]));
    let number = |text: &str| text.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>();
    let symbols = versions.split("Name: GLIBC_").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let newest = symbols.max_by_key(|version| number(version)).expect("it uses glibc");
    assert!(depends.contains(&format!("libc6 (>= {newest})")), "{depends}: {newest}");
}

/// Whether the check of a release takes a program, and what it says.
fn check_glibc(program: &Path) -> (bool, String) {
    let script = r#". deploy/architecture.sh && check_glibc "$1""#;
    let output = Command::new("bash").args(["-c", script, "check"]).arg(program).current_dir(project()).output();
    let output = output.expect("bash can be started");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_binary_that_needs_a_newer_glibc_than_that_of_rhel_9_is_no_release() {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let compiled = |name: &str, source: &str| {
        let (text, program) = (folder.path().join(format!("{name}.c")), folder.path().join(name));
        fs::write(&text, source).expect("a file can be written");
        run(Command::new("cc").arg("-o").arg(&program).arg(&text));
        program
    };
    let old = compiled("old", "#include <unistd.h>\nint main(void) { return getpid() == 0; }\n");
    assert_eq!(check_glibc(&old), (true, String::new()));
    // This function came with glibc 2.36.
    let new = compiled("new", "#include <stdlib.h>\nint main(void) { return arc4random() == 0; }\n");
    let (is_good, message) = check_glibc(&new);
    assert!(!is_good && message.contains("needs glibc 2.36"), "{message}");
}

/// A script of the package, in a root of its own; it must end well.
fn script(root: &Path, name: &str, arguments: &[&str]) {
    let path = project().join("deploy/node").join(name);
    run(Command::new("sh")
        .arg(path)
        .args(arguments)
        .env("DPKG_ROOT", root)
        .env("DPKG_MAINTSCRIPT_PACKAGE", "kube-proxy-nft"));
}

#[test]
fn what_the_operator_enabled_stays_through_an_upgrade_and_goes_with_the_package() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let put = |path: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder can be made");
        path
    };
    let unit = project().join("deploy/node/kube-proxy.service");
    fs::copy(unit, put("usr/lib/systemd/system/kube-proxy.service")).expect("a file can be copied");
    fs::create_dir_all(put("lib/systemd/system/none")).expect("a folder can be made");
    let link = put("etc/systemd/system/multi-user.target.wants/kube-proxy.service");
    let is_enabled = || fs::symlink_metadata(&link).is_ok();

    script(root.path(), "postinst", &["configure", ""]);
    assert!(!is_enabled(), "a package that is installed enables nothing");
    script(root.path(), "postinst", &["configure", "0.0.1"]);
    assert!(!is_enabled(), "an upgrade enables nothing");
    std::os::unix::fs::symlink("/usr/lib/systemd/system/kube-proxy.service", &link).expect("a link can be made");
    script(root.path(), "prerm", &["upgrade", "0.0.2"]);
    script(root.path(), "postrm", &["upgrade", "0.0.2"]);
    script(root.path(), "postinst", &["configure", "0.0.1"]);
    assert!(is_enabled(), "what the operator enabled stays");
    script(root.path(), "prerm", &["remove"]);
    script(root.path(), "postrm", &["remove"]);
    assert!(!is_enabled(), "no link to a unit that is gone");
    script(root.path(), "postrm", &["purge"]);
    let notes = root.path().join("var/lib/systemd/deb-systemd-helper-enabled");
    let left = Command::new("find").arg(&notes).args(["-type", "f"]).output().expect("find").stdout;
    assert_eq!(String::from_utf8_lossy(&left), "", "no note is left");
}

/// A directive of a systemd unit.
fn directive<'a>(unit: &'a str, name: &str) -> &'a str {
    let mut found = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    found.next().unwrap_or_else(|| panic!("the unit has no {name}"))
}

#[test]
fn the_unit_is_valid_and_starts_the_program_with_the_configuration_of_the_package() {
    let unit = fs::read_to_string(project().join("deploy/node/kube-proxy.service")).expect("a file");
    let start = directive(&unit, "ExecStart");
    assert_eq!(start, "/usr/bin/kube-proxy --config=/etc/kube-proxy/config.conf $KUBE_PROXY_ARGS");
    assert_eq!(directive(&unit, "CapabilityBoundingSet"), "CAP_NET_ADMIN CAP_NET_BIND_SERVICE");
    // systemd looks whether the program is there; the package puts it there.
    let folder = TempDir::new().expect("a temporary directory can be made");
    let present = folder.path().join("kube-proxy.service");
    let text = unit.replace("/usr/bin/kube-proxy", &binary().to_string_lossy());
    fs::write(&present, &text).expect("a file can be written");
    let verify = |path: &Path| Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output();
    let output = verify(&present).expect("systemd-analyze is there: run `make deps`");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(&present, text.replace("ProtectHome=yes", "ProtectHome=perhaps")).expect("a file can be written");
    assert!(!verify(&present).expect("it runs").stderr.is_empty(), "a wrong value is noticed");

    let content = fs::read(project().join("deploy/node/config.conf")).expect("a file");
    config::check_content(&content).expect("the program takes it");
    let configuration: Value = serde_saphyr::from_slice(&content).expect("YAML");
    let kubeconfig = configuration["clientConnection"]["kubeconfig"].as_str().expect("a path");
    assert_eq!(directive(&unit, "ConditionPathExists"), kubeconfig);
}

/// The JSON of a blob, after a look whether it has the digest that its name says.
fn blob(layout: &Path, descriptor: &Value) -> Value {
    serde_json::from_slice(&blob_bytes(layout, descriptor)).expect("JSON")
}

fn blob_bytes(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("a digest");
    let path = layout.join("blobs/sha256").join(digest);
    assert!(run(Command::new("sha256sum").arg(&path)).starts_with(digest), "{digest}");
    let bytes = fs::read(path).expect("a blob");
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

#[test]
fn an_archive_of_images_has_each_architecture_with_labels_and_the_files_of_its_root() {
    let folder = TempDir::new().expect("a temporary directory can be made");
    let path = |name: &str| folder.path().join(name);
    for architecture in ["amd64", "arm64"] {
        let file = path(architecture).join("usr/local/bin/kube-proxy");
        fs::create_dir_all(file.parent().expect("a folder"))
            .and_then(|()| fs::write(&file, architecture))
            .expect("written");
    }
    for name in ["one.tar", "two.tar"] {
        let mut pack = Command::new(project().join("deploy/oci-archive.py"));
        pack.arg("--out")
            .arg(path(name))
            .args(["--version", "1.2.3", "--revision", "abc"])
            .env("SOURCE_DATE_EPOCH", TIME);
        run(pack.args(["amd64", "arm64"].map(|each| format!("{each}={}", path(each).display()))));
    }
    assert!(fs::read(path("one.tar")).expect("a file") == fs::read(path("two.tar")).expect("a file"), "the same bytes");

    let layout = path("layout");
    fs::create_dir(&layout).expect("a folder");
    run(Command::new("tar").arg("--extract").arg("--directory").arg(&layout).arg("--file").arg(path("one.tar")));
    let top: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).expect("an index")).expect("JSON");
    assert_eq!(top["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
    let index = blob(&layout, &top["manifests"][0]);
    let manifests = index["manifests"].as_array().expect("a list");
    assert_eq!(manifests.len(), 2);
    for (descriptor, architecture) in manifests.iter().zip(["amd64", "arm64"]) {
        assert_eq!(descriptor["platform"]["architecture"], architecture);
        let manifest = blob(&layout, descriptor);
        let image = blob(&layout, &manifest["config"]);
        assert_eq!(image["architecture"], architecture);
        assert_eq!(image["config"]["Entrypoint"][0], "/usr/local/bin/kube-proxy");
        assert_eq!(image["config"]["User"], "0:0");
        for (label, value) in [("version", "1.2.3"), ("revision", "abc"), ("licenses", "GPL-3.0-or-later")] {
            assert_eq!(image["config"]["Labels"][format!("org.opencontainers.image.{label}")], value);
        }
        let layer = path("layer.tar.gz");
        fs::write(&layer, blob_bytes(&layout, &manifest["layers"][0])).expect("a file can be written");
        let mut tar = Command::new("tar");
        let content = run(tar.args(["--extract", "--to-stdout", "--file"]).arg(&layer).arg("usr/local/bin/kube-proxy"));
        assert_eq!(content, architecture);
        let plain = path("layer.tar");
        fs::write(&plain, Command::new("gzip").args(["-dc"]).arg(&layer).output().expect("gzip").stdout)
            .expect("written");
        let sum = run(Command::new("sha256sum").arg(&plain));
        let diff = image["rootfs"]["diff_ids"][0].as_str().expect("a digest");
        assert!(sum.starts_with(diff.trim_start_matches("sha256:")), "{diff}");
    }
}
