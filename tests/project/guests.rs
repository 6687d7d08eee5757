//! The guests of `vm-tests` have what their tests need: each program and file that a test of a group uses is in the list
//! `vm-tests/surroundings`, from which guests are built.
//!
//! Reads the groups of `vm-tests/guest/groups`, the sources of the tests that they run, and of the helpers that these use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of the list, by their kind.
fn listed(list: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(
            words.len() > 3 && words[2].ends_with(':'),
            "a line has a kind, a name, a package and a reason: {line}"
        );
        assert!(names.entry(words[0]).or_default().insert(words[1]), "twice in the list: {line}");
    }
    names
}

/// The files with Rust sources below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a folder can be listed").path());
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    paths.flat_map(below).filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The path of the module of a file below the folder of a test program: `services::udp::`.
fn module(folder: &Path, file: &Path) -> String {
    let path = file.strip_prefix(folder).expect("a file is in its folder").with_extension("");
    let names = path.iter().map(|name| name.to_str().expect("names are text"));
    names.filter(|name| !["mod", "main"].contains(name)).map(|name| format!("{name}::")).collect()
}

/// A line `run_tests PROGRAM FILTER...` of a group.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    program: String,
    wanted: Vec<String>,
    left_out: Vec<String>,
}

fn runs(group: &str) -> Vec<Run> {
    let command = |line: &str| {
        let (before, words) = line.split_once("run_tests ")?;
        let mut words = words.split_whitespace().take_while(|word| !["||", "&&"].contains(word));
        let mut run = Run { program: words.next()?.to_owned(), wanted: Vec::new(), left_out: Vec::new() };
        while let Some(word) = words.next() {
            if word == "--skip" {
                run.left_out.extend(words.next().map(str::to_owned));
            } else if word.contains("::") {
                run.wanted.push(word.to_owned());
            }
        }
        (!before.contains('#')).then_some(run)
    };
    group.lines().filter_map(command).collect()
}

impl Run {
    /// Whether a module may have a test that is run, or helpers of one.
    fn has(&self, module: &str) -> bool {
        // A filter for a layout names the ends of tests, which are in any module.
        let is_wanted =
            |filter: &String| filter.starts_with("::") || module.contains(filter.as_str()) || filter.contains(module);
        let is_left_out = |filter: &String| module.contains(filter.as_str());
        (self.wanted.is_empty() || self.wanted.iter().any(is_wanted)) && !self.left_out.iter().any(is_left_out)
    }

    fn folder(&self) -> PathBuf {
        let places = ["tests", "nft/tests"].map(|place| root().join(place).join(&self.program));
        places
            .into_iter()
            .find(|place| place.is_dir())
            .unwrap_or_else(|| panic!("no tests are called {}", self.program))
    }

    /// The files with the tests that are run, and the shared helpers that these name.
    fn files(&self) -> BTreeSet<PathBuf> {
        let folder = self.folder();
        let own = sources(&folder).into_iter().filter(|file| self.has(&module(&folder, file)));
        let mut files: BTreeSet<PathBuf> = own.collect();
        let mut open: Vec<PathBuf> = files.iter().cloned().collect();
        let support = root().join("tests/support");
        let helpers: Vec<PathBuf> = sources(&support);
        while let Some(file) = open.pop() {
            let text = read(&file);
            for helper in &helpers {
                let module = module(&support, helper);
                let is_named =
                    ["support::", "super::"].iter().any(|before| text.contains(&format!("{before}{module}")));
                if !module.is_empty() && is_named && files.insert(helper.clone()) {
                    open.push(helper.clone());
                }
            }
        }
        files
    }
}

/// The texts behind each place of a beginning, up to an end.
fn between<'a>(text: &'a str, begin: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The programs that a source names where it starts them, and in scripts of a shell.
fn programs(text: &str) -> BTreeSet<&str> {
    let started = ["command(\"", "Command::new(\""].into_iter().flat_map(|begin| between(text, begin, '"'));
    started.chain(in_scripts(text)).collect()
}

/// Whether this machine has a program of this name.
fn is_program(name: &str) -> bool {
    let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c));
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    is_name && folders.iter().any(|folder| Path::new(folder).join(name).is_file())
}

/// What shells do themselves, and words of tests that are also names of programs.
const NO_PROGRAMS: [&str; 10] = ["test", "echo", "printf", "kill", "exec", "true", "service", "sysctl", "top", "open"];
/// A source that starts what a variable holds, but not in the tests that a group runs.
const WITH_OTHER_TESTS: &str = "tests/engine/leftovers/mod.rs";

fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

/// The programs in scripts of a source that gives some to a shell: the first word of each command that this machine has.
fn in_scripts(text: &str) -> Vec<&str> {
    let has_script = text.contains("\"-c\"");
    let scripts = literals(text).filter(|literal| has_script && literal.contains(' '));
    let commands = scripts.flat_map(|script| script.split(['|', ';', '&', '(', '`', '\n', '!']));
    let words = commands.filter_map(|command| {
        command
            .split_whitespace()
            .find(|word| !word.contains('=') && !["exec", "then", "do", "else", "if"].contains(word))
    });
    words.filter(|word| is_program(word) && !NO_PROGRAMS.contains(word)).collect()
}

/// The names of programs in a source that starts what a variable holds; the proxy is none.
fn in_variables(text: &str) -> Vec<&str> {
    let started = ["command(", "Command::new("].into_iter().flat_map(|begin| between(text, begin, ')'));
    let is_variable =
        |name: &str| name.starts_with(|c: char| c.is_alphabetic() || c == '&') && !name.contains("binary");
    let mut variables = started.filter(|name| is_variable(name));
    if variables.next().is_none() {
        return Vec::new();
    }
    literals(text).filter(|literal| is_program(literal) && !NO_PROGRAMS.contains(literal)).collect()
}

/// The files that a source names: of the repository, as far as the name is fixed, and of Debian's packages.
fn files(text: &str) -> BTreeSet<&str> {
    let literals = text.split('"').skip(1).step_by(2);
    let fixed = literals.filter_map(|literal| literal.split('{').next()).map(|name| name.trim_matches('\n'));
    let is_path = |name: &&str| name.contains('/') && !name.contains([' ', '*']);
    let of_system = |name: &str| ["/etc/", "/usr/", "/lib/"].iter().any(|place| name.starts_with(place));
    let of_project = |name: &str| !name.starts_with(['/', '.']) && name != "tests/" && root().join(name).exists();
    fixed.filter(is_path).filter(|name| of_system(name) || of_project(name)).collect()
}

/// What the list lacks for a source.
fn missing<'a>(text: &'a str, list: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<&'a str> {
    let has = |kind: &str, name: &str| list.get(kind).is_some_and(|names| names.contains(name));
    let in_listed = |name: &str| list["file"].iter().any(|file| Path::new(name).starts_with(file));
    let programs = programs(text).into_iter().filter(|name| !has("program", name) && !has("applet", name));
    let files = files(text).into_iter().filter(|name| !in_listed(name) && !has("system", name));
    programs.chain(files).collect()
}

fn groups() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("vm-tests/guest/groups")).expect("there are groups");
    let paths = entries.map(|entry| entry.expect("a folder can be listed").path());
    let name = |path: &Path| path.file_name().expect("a file has a name").to_string_lossy().into_owned();
    paths.map(|path| (name(&path), read(&path))).collect()
}

#[test]
fn guests_have_what_their_tests_need() {
    let text = read(&root().join("vm-tests/surroundings"));
    let list = listed(&text);
    let (mut wrong, mut used) = (BTreeSet::new(), BTreeSet::new());
    for (group, script) in groups() {
        for run in runs(&script) {
            let files = run.files();
            assert!(files.len() > 1, "{group}: no test matches {run:?}");
            for file in files {
                let text = read(&file);
                let lacks = missing(&text, &list).into_iter();
                let held = if file.ends_with(WITH_OTHER_TESTS) { Vec::new() } else { in_variables(&text) };
                let held =
                    held.into_iter().filter(|name| !list["program"].contains(name) && !list["applet"].contains(name));
                wrong.extend(lacks.chain(held).map(|name| format!("{name}, for {} (group {group})", file.display())));
                let types = list["by-group"].iter().filter(|module| text.contains(&format!("type {module}")));
                let unloaded = types.filter(|module| !script.contains(&format!("needs_module {module}\n")));
                wrong.extend(unloaded.map(|module| format!("needs_module {module} (group {group})")));
                used.extend(programs(&text).into_iter().map(str::to_owned));
                used.extend(in_variables(&text).into_iter().map(str::to_owned));
            }
        }
        let modules = between(&script, "needs_module ", '\n').filter(|module| !list["by-group"].contains(module));
        wrong.extend(modules.map(|module| format!("module {module} (group {group})")));
    }
    assert!(wrong.is_empty(), "vm-tests/surroundings lacks {wrong:#?}");
    let unused = list["program"].iter().chain(&list["applet"]).filter(|name| !used.contains(**name));
    assert_eq!(
        unused.collect::<Vec<_>>(),
        [] as [&&str; 0],
        "in vm-tests/surroundings, but no test of a group uses it"
    );
}

/// The words of an array of `vm-tests/matrix.sh`.
fn words<'a>(matrix: &'a str, array: &str) -> BTreeSet<&'a str> {
    let begin = format!("\n{array}=(");
    let (_, rest) = matrix.split_once(&begin).unwrap_or_else(|| panic!("no {array} in vm-tests/matrix.sh"));
    let (inside, _) = rest.split_once(')').expect("an array has an end");
    inside.split(|c: char| c.is_whitespace() || c == '"').filter(|word| !word.is_empty()).collect()
}

#[test]
fn each_group_is_in_the_matrix_in_a_guest_and_in_a_part_that_a_commit_chooses() {
    let matrix = read(&root().join("vm-tests/matrix.sh"));
    let groups = groups();
    let files: BTreeSet<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
    let mut listed = words(&matrix, "GROUPS_PER_KERNEL");
    listed.extend(words(&matrix, "GROUPS_PER_NFT"));
    assert_eq!(listed, files);
    assert_eq!(words(&matrix, "GUESTS"), files);
    assert_eq!(words(&matrix, "PARTS"), files);
}

// Without this, a reader of sources that sees nothing would pass the other test.
#[test]
fn a_tool_or_file_that_is_not_in_the_list_is_found() {
    let list = listed("program ip iproute2: links\nfile nft/rulesets -: shown\nsystem /etc/protocols netbase: names\n");
    let ends = "world.node.command(\"ip\"); let path = join(\"nft/rulesets/maps\"); read(\"/etc/protocols\")";
    assert!(missing(ends, &list).is_empty());
    assert_eq!(missing("node.command(\"tcpdump\")", &list), ["tcpdump"]);
    assert_eq!(missing("process::Command::new(\"ip\").arg(); Command::new(\"jq\")", &list), ["jq"]);
    assert_eq!(
        missing("join(\"deploy/METRICS.md\"); format!(\"tests/data/{}.txt\")", &list),
        ["deploy/METRICS.md", "tests/data/"]
    );
    assert_eq!(missing("read(\"/etc/services\")", &list), ["/etc/services"]);
    // Within scripts, behind what a shell does itself.
    let script = "command(\"ip\").args([\"-c\", \"A=1 ip link | sort; if true; then exec awk x\"])";
    assert_eq!(missing(script, &list), ["awk", "sort"]);
    assert!(missing("let text = \"sort of; awk x\";", &list).is_empty(), "no script");
    assert_eq!(in_variables("for program in [\"awk\", \"sort\", \"top\"] { node.command(program) }"), ["awk", "sort"]);
    assert!(in_variables("[\"awk\"]; node.command(binary()); Command::new(\"ip\")").is_empty());
}

/// The words of a variable of the Makefile.
fn variable<'a>(makefile: &'a str, name: &str) -> BTreeSet<&'a str> {
    let begin = format!("{name} := ");
    let line = makefile.lines().find_map(|line| line.strip_prefix(&begin));
    line.unwrap_or_else(|| panic!("no {name} in the Makefile")).split_whitespace().collect()
}

#[test]
fn the_packages_of_the_list_are_installed_for_the_guests() {
    let makefile = read(&root().join("Makefile"));
    let mut installed = variable(&makefile, "PACKAGES");
    installed.extend(variable(&makefile, "VM_PACKAGES"));
    let text = read(&root().join("vm-tests/surroundings"));
    // Busybox is fetched for the guests; modules come with their kernels.
    let of_machine = text.lines().filter(|line| line.starts_with("program ") || line.starts_with("system "));
    let packages: BTreeSet<&str> =
        of_machine.filter_map(|line| line.split(' ').nth(2)).map(|package| package.trim_end_matches(':')).collect();
    assert!(packages.len() > 4, "{packages:?}");
    let missing: Vec<_> = packages.difference(&installed).collect();
    assert!(missing.is_empty(), "`make vm-deps` does not install {missing:?}");
}

#[test]
fn groups_are_read_as_they_run() {
    let group =
        "# run_tests nothing\nrun_tests packets services:: ::chains --skip services::udp:: --nocapture || exit 1\n";
    let run = runs(group).pop().expect("one run");
    assert_eq!((run.program.as_str(), run.wanted.len(), run.left_out.len()), ("packets", 2, 1));
    let names: Vec<String> =
        run.files().iter().map(|file| file.strip_prefix(root()).expect("ours").display().to_string()).collect();
    let has = |name: &str| names.iter().any(|file| file == name);
    assert!(
        has("tests/packets/services/mod.rs") && has("tests/support/netns.rs") && has("tests/packets/main.rs"),
        "{names:?}"
    );
    assert!(!has("tests/packets/services/udp.rs") && !has("tests/support/strace.rs"), "{names:?}");
}
