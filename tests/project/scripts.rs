//! The scripts of the repository: each says at once which program is missing, and what brings it.
//!
//! Runs every script with a `PATH` that lacks one program. In the place of cargo and make stand programs that only note that they were
//! called, so that a script that begins its work before it has checked is detected, and nothing is built.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::support::proxy::binary;
use tempfile::TempDir;

/// A script with the flags that start its work, a program that it needs, and what its message about the missing program names.
struct Case {
    script: &'static str,
    arguments: &'static [&'static str],
    program: &'static str,
    named: &'static [&'static str],
}

const fn case(script: &'static str, program: &'static str, named: &'static [&'static str]) -> Case {
    Case { script, arguments: &[], program, named }
}

const CASES: &[Case] = &[
    Case { script: ".ci/compare", arguments: &["HEAD"], program: "python3", named: &["Debian package python3"] },
    case(".ci/kind", "hydrophone", &["make kind-tools"]),
    Case { script: ".ci/publish", arguments: &[], program: "skopeo", named: &["Debian package skopeo"] },
    case(".ci/run", "make", &["Debian package make"]),
    case(".ci/weekly", "make", &["Debian package make"]),
    case("deploy/artefacts", "git", &["Debian package git", "make release-deps"]),
    case("deploy/audit", "cargo-deny", &["make audit"]),
    Case {
        script: "deploy/build-packages",
        arguments: &["arm64"],
        program: "dpkg-deb",
        named: &["Debian package dpkg"],
    },
    Case {
        script: "deploy/build-root",
        arguments: &["true"],
        program: "mmdebstrap",
        named: &["Debian package mmdebstrap", "make release-deps"],
    },
    case("deploy/copyright", "cargo", &["rustup.rs"]),
    case("deploy/image-root", "dpkg-query", &["Debian package dpkg"]),
    case("deploy/image-root", "readelf", &["Debian package binutils"]),
    Case {
        script: "deploy/package",
        arguments: &["--binary", "/bin/true"],
        program: "dpkg-deb",
        named: &["Debian package dpkg"],
    },
    Case {
        script: "deploy/kubectl-kubeproxy",
        arguments: &["check"],
        program: "kubectl",
        named: &["https://kubernetes.io/docs/tasks/tools"],
    },
    case("deploy/release", "pkg-config", &["Debian package pkg-config", "make deps"]),
    case("deploy/release", "cargo", &["rustup.rs", "make deps"]),
    case("deploy/release", "cc", &["Debian package gcc", "make deps"]),
    case("deploy/reproduce", "strings", &["Debian package binutils", "make reproduce"]),
    case("deploy/reproduce", "rustc", &["rustup.rs"]),
    case("deploy/sbom", "python3", &["Debian package python3", "make sbom"]),
    case("deploy/source-package", "dpkg-source", &["Debian package dpkg-dev", "make deps"]),
    case("deploy/sources", "apt-get", &["Debian package apt"]),
    case("tests/again", "cargo", &["rustup.rs"]),
    case("examples/demo", "make", &["Debian package make"]),
    case("tests/arm64", "cargo", &["rustup.rs"]),
    case("tests/fuzz/run", "c++", &["Debian package g++", "make fuzz"]),
    case("vm-tests/run", "cpio", &["Debian package cpio", "make vm-deps"]),
    case("vm-tests/run", "depmod", &["Debian package kmod", "make vm-deps"]),
    case("vm-tests/run", "conntrack", &["Debian package conntrack", "make vm-deps"]),
    case("vm-tests/run", "setpriv", &["Debian package util-linux", "make vm-deps"]),
    Case {
        script: "vm-tests/run",
        arguments: &["--binary", "/nowhere", "bookworm"],
        program: "xz",
        named: &["Debian package xz-utils", "make vm-deps"],
    },
];

// The last thing that a visitor sees is what the commands say, and not the rules.
#[test]
fn the_demo_shows_traffic_and_ends_with_what_four_commands_print() {
    let mut demo = Command::new(root().join("examples/demo"));
    let output = demo.env("KUBE_PROXY_BINARY", binary()).output().expect("the demo can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().count() < 150, "{text}");
    let mut rest = &*text;
    for part in [
        "Now only pod 2 answers",
        "$ kube-proxy services\n",
        "shop/mail:smtp  10.96.0.30:25/TCP        ClusterIP  refused",
        "$ kube-proxy explain --from 203.0.113.7",
        "TRANSLATED: shop/web:http sends it to 10.244.1.12:8080",
        "$ kube-proxy changes\n",
        // Both slices may be in one sync.
        ": -10.244.1.11:8080",
        "$ kube-proxy top --once",
        "10.244.1.12:8080",
    ] {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part:?} after what came before in\n{text}")).1;
    }
}

/// The programs that only note that they were called: those that build, install, download, publish, or make a container.
const NOTED: [&str; 13] = [
    "cargo",
    "make",
    "apt-get",
    "bwrap",
    "dpkg",
    "docker",
    "gh",
    "go",
    "hydrophone",
    "kind",
    "kubectl",
    "mmdebstrap",
    "skopeo",
];

/// Programs that scripts look for and that this machine may lack: `make test` installs what the tests need, and not what all scripts do.
const OFTEN_MISSING: [&str; 16] = [
    "aarch64-linux-gnu-gcc",
    "minisign",
    "qemu-aarch64-static",
    "readelf",
    "conntrack",
    "ipvsadm",
    "cpio",
    "depmod",
    "modprobe",
    "strip",
    "xz",
    "zstd",
    "rustc",
    "cc",
    "c++",
    "strings",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with all programs of this machine's `PATH`, in which some are replaced.
struct Programs {
    folder: TempDir,
    called: PathBuf,
}

impl Programs {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary directory can be made");
        let called = folder.path().join("called");
        let path = env::var_os("PATH").expect("there is a PATH");
        let present = env::split_paths(&path).filter_map(|folder| fs::read_dir(folder).ok());
        for program in present.flatten().map(|entry| entry.expect("a folder can be listed")) {
            let link = folder.path().join(program.file_name());
            // The first of a name counts, as in a PATH.
            if fs::symlink_metadata(&link).is_err() {
                symlink(program.path(), link).expect("a link can be made");
            }
        }
        let programs = Self { folder, called };
        let note = format!("#!/bin/sh\necho \"$0 $*\" >>{}\nexit 1\n", programs.called.display());
        // Programs that this machine may lack are replaced too, so that only the program of the case is missing.
        let others = CASES.iter().map(|case| case.program).filter(|program| !programs.path(program).exists());
        for program in NOTED.into_iter().chain(others.collect::<Vec<_>>()) {
            programs.put(program, &note);
        }
        let missing = OFTEN_MISSING.into_iter().filter(|program| !programs.path(program).exists());
        missing.collect::<Vec<_>>().into_iter().for_each(|program| programs.put(program, "#!/bin/sh\nexit 0\n"));
        programs
    }

    fn path(&self, program: &str) -> PathBuf {
        self.folder.path().join(program)
    }

    fn put(&self, program: &str, script: &str) {
        self.take(program);
        fs::write(self.path(program), script).expect("a file can be written");
        fs::set_permissions(self.path(program), fs::Permissions::from_mode(0o755)).expect("it can be made executable");
    }

    fn take(&self, program: &str) {
        if fs::symlink_metadata(self.path(program)).is_ok() {
            fs::remove_file(self.path(program)).expect("a link can be removed");
        }
    }

    /// Does some work while a program is not there.
    fn without<T>(&self, program: &str, work: impl FnOnce() -> T) -> T {
        let aside = self.folder.path().join("aside");
        fs::rename(self.path(program), &aside).expect("a link can be renamed");
        let outcome = work();
        fs::rename(&aside, self.path(program)).expect("a link can be renamed");
        outcome
    }

    /// The exit code and standard error of a script.
    fn run(&self, script: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(root().join(script));
        command.args(arguments).env("PATH", self.folder.path());
        // Files that the script makes go to a folder that is removed.
        command.env("VM_WORK", self.folder.path().join("work"));
        let output = command.output().expect("a script can be run");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The calls that the replaced programs recorded since the last time.
    fn calls(&self) -> String {
        let calls = fs::read_to_string(&self.called).unwrap_or_default();
        fs::write(&self.called, "").expect("a file can be written");
        calls
    }
}

#[test]
fn a_script_that_lacks_a_program_says_so_before_it_does_anything() {
    let programs = Programs::new();
    let mut wrong = String::new();
    for Case { script, arguments, program, named } in CASES {
        let (code, message) = programs.without(program, || programs.run(script, arguments));
        let calls = programs.calls();
        let says_all = [&[*script, program], *named].concat().iter().all(|named| message.contains(named));
        // A command that looks at nodes ends with 2 when it cannot look.
        let expected = if *script == "deploy/kubectl-kubeproxy" { 2 } else { 1 };
        if code != Some(expected) || !says_all || !calls.is_empty() {
            wrong +=
                &format!("{script} without {program} ended with {code:?}, called {calls:?} and printed: {message}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn with_its_programs_a_script_begins_its_work() {
    // Without this, a script that always complains would pass the other test.
    let programs = Programs::new();
    programs.put("pkg-config", "#!/bin/sh\nexit 0\n");
    let elsewhere = programs.folder.path().join("reproduce");
    for script in CASES.iter().map(|case| case.script).collect::<BTreeSet<_>>() {
        let folder = [elsewhere.to_str().expect("a temporary path is text")];
        let arguments = CASES.iter().find(|case| case.script == script).map_or(&[][..], |case| case.arguments);
        let (_, message) = programs.run(script, if script == "deploy/reproduce" { &folder } else { arguments });
        // The keys of Debian's archive, a tag, a release and a log are no programs: a script that lacks these says so after it has looked for
        // programs.
        let others = ["debian-archive-keyring", "TAG: is the tag of the release", "run make release", "again LOG..."];
        let began = !programs.calls().is_empty() || others.iter().any(|other| message.contains(other));
        assert!(began && !message.contains("not on this machine"), "{script} did not begin its work: {message}");
    }
}

#[test]
fn every_script_has_a_test() {
    let mut git = Command::new("git");
    git.arg("-c").arg(format!("safe.directory={}", root().display())).current_dir(root());
    let output = git.args(["ls-files", "-z"]).output().expect("git can be started");
    let names = String::from_utf8(output.stdout).expect("names are text");
    let is_script = |name: &&str| {
        let path = root().join(name);
        let executable = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o100 != 0);
        // Scripts of guests have the programs that vm-tests/run put there; Python itself reports what it lacks.
        executable && !name.starts_with("vm-tests/guest/") && !name.ends_with(".py")
    };
    let scripts: BTreeSet<&str> = names.split_terminator('\0').filter(is_script).collect();
    assert_eq!(CASES.iter().map(|case| case.script).collect::<BTreeSet<_>>(), scripts);
}
