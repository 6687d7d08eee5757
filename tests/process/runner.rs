//! The binary under the name `go-runner`, as installers start upstream's image: it runs a program and writes its output to a file.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::logs::{fill, narrow_pipe};
use crate::support::nft;
use crate::support::objects::{node, service_cidr};
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(20);
/// Prints to both streams and ends with 7.
const PRINTS: &str = "echo to-stdout; echo to-stderr >&2; exit 7";

/// A folder with the binary under another name, and with a log.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = TempDir::new().expect("a temporary directory can be made");
        symlink(binary(), folder.path().join(name)).expect("a link can be made");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `--log-file=` with the log.
    fn flag(&self) -> String {
        format!("--log-file={}", self.path("a.log").display())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("a.log")).unwrap_or_default()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("go-runner"));
        command.args(arguments);
        command
    }

    /// What became of `go-runner ARGUMENTS sh -c SCRIPT`: exit code, standard output, standard error, log.
    fn run(&self, arguments: &[&str], script: &str) -> (Option<i32>, String, String, String) {
        let output = self.command(&[arguments, &["sh", "-c", script]].concat()).output();
        let Output { status, stdout, stderr } = output.expect("the binary can be run");
        let text = |bytes| String::from_utf8(bytes).expect("the output is text");
        (status.code(), text(stdout), text(stderr), self.log())
    }
}

fn assert_ran(ran: (Option<i32>, String, String, String), code: i32, stdout: &str, stderr: &str, log: &str) {
    assert_eq!(ran, (Some(code), stdout.to_owned(), stderr.to_owned(), log.to_owned()));
}

#[test]
fn the_output_goes_where_the_flags_say_and_the_exit_code_is_that_of_the_program() {
    // The flags of kube-log-runner, and the exit code of the program (P17).
    let folder = || Folder::new("go-runner");
    let (out, err) = ("to-stdout\n", "to-stderr\n");
    let both = "to-stdout\nto-stderr\n";
    assert_ran(folder().run(&[], PRINTS), 7, both, "", "");
    assert_ran(folder().run(&["--redirect-stderr=false"], PRINTS), 7, out, err, "");
    for also in [&["--also-stdout"][..], &["-also-stdout=true"], &["--also-stdout=1", "--flush-interval=1ms", "--"]] {
        let folder = folder();
        assert_ran(folder.run(&[&[&*folder.flag()], also].concat(), PRINTS), 7, both, "", both);
        // The file is appended to.
        assert_ran(folder.run(&[&[&*folder.flag()], also].concat(), PRINTS), 7, both, "", &both.repeat(2));
    }
    for only in [&[][..], &["--also-stdout=false"], &["--redirect-stderr", "-flush-interval", "1ms"]] {
        let folder = folder();
        assert_ran(folder.run(&[&[&*folder.flag()], only].concat(), PRINTS), 7, "", "", both);
    }
    let other = folder();
    assert_ran(other.run(&[&other.flag(), "--redirect-stderr=false"], PRINTS), 7, "", err, out);
    let other = folder();
    let arguments = [&*other.flag(), "--redirect-stderr=false", "--also-stdout"];
    assert_ran(other.run(&arguments, PRINTS), 7, out, err, out);
}

#[test]
fn a_program_that_a_signal_killed_ends_the_runner_with_an_error() {
    let folder = Folder::new("go-runner");
    let output = folder.command(&["--log-file", "/dev/null", "sh", "-c", "kill -KILL $$"]).output();
    assert_eq!(output.expect("the binary can be run").status.signal(), Some(9), "the runner has become the program");
    let (code, ..) = folder.run(&[&folder.flag(), "--also-stdout"], "kill -KILL $$");
    assert_eq!(code, Some(128 + 9));
}

#[test]
fn what_is_wrong_with_the_arguments_is_one_line() {
    let folder = Folder::new("kube-log-runner");
    let wrong = |arguments: &[&str], code: i32, expected: &str| {
        let output = Command::new(folder.path("kube-log-runner")).args(arguments).output();
        let Output { status, stderr, .. } = output.expect("the binary can be run");
        let text = String::from_utf8_lossy(&stderr);
        assert!(text.contains(expected) && text.lines().count() == 1, "{arguments:?}: {text}");
        assert_eq!(status.code(), Some(code), "{arguments:?}: {text}");
    };
    wrong(&[], 1, "kube-log-runner: no program is given to run");
    wrong(&["--also-stdout"], 1, "no program is given");
    wrong(&["--log-files=x", "true"], 2, "--log-files");
    wrong(&["--also-stdout=maybe", "true"], 2, "maybe");
    wrong(&["--log-file-size=10MM", "true"], 2, "10MM");
    wrong(&["--log-file-size=-1", "true"], 1, "--log-file-size");
    wrong(&["--log-file-age=-10h", "true"], 1, "--log-file-age");
    wrong(&["--log-file=/nowhere/a.log", "true"], 1, "/nowhere/a.log");
    wrong(&["/nowhere/kube-proxy"], 1, "/nowhere/kube-proxy");
    wrong(&["--log-file=/dev/null", "--also-stdout", "/nowhere/kube-proxy"], 1, "/nowhere/kube-proxy");
}

#[test]
fn a_file_that_has_reached_its_size_is_renamed_and_old_ones_are_deleted() {
    let folder = Folder::new("go-runner");
    let old = folder.path("a-20060102-150405.log");
    for path in [&old, &folder.path("a-2006.log"), &folder.path("ab-20060102-150405.log")] {
        fs::write(path, "old").expect("a file can be written");
    }
    fs::write(folder.path("a.log"), "from the start before\n").expect("a file can be written");
    let arguments = [&*folder.flag(), "--log-file-size=50", "--log-file-age=24h"];
    let (code, stdout, ..) = folder.run(&arguments, "echo 1234567890123456789012345678901; sleep 0.2; echo last");
    assert_eq!((code, &*stdout, &*folder.log()), (Some(0), "", "last\n"));
    let names = fs::read_dir(folder.0.path()).expect("a folder").flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let is_renamed = |name: &String| name.starts_with("a-") && name.len() == "a-20060102-150405.log".len();
    let renamed: Vec<String> = names.extract_if(.., |name| is_renamed(name)).collect();
    assert_eq!(names, ["a-2006.log", "a.log", "ab-20060102-150405.log", "go-runner"]);
    assert!(renamed.len() == 1 && !renamed[0].contains("20060102"), "{renamed:?}");
    let text = fs::read_to_string(folder.path(&renamed[0])).expect("a file");
    assert_eq!(text, "from the start before\n1234567890123456789012345678901\n");
}

#[test]
fn a_file_that_cannot_be_written_keeps_nothing_from_standard_output() {
    let folder = Folder::new("go-runner");
    let (code, stdout, stderr, _) = folder.run(&["--log-file=/dev/full", "--also-stdout"], "echo a; echo b; exit 3");
    assert_eq!((code, &*stdout), (Some(3), "a\nb\n"), "{stderr}");
    assert!(stderr.contains("/dev/full") && stderr.lines().count() == 1, "{stderr}");
}

/// A program under the runner that says which signal it got.
struct Listening(Child);

impl Listening {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let traps = ["HUP", "INT", "TERM", "QUIT"].map(|signal| format!("trap 'echo {signal}; exit 5' {signal}; "));
        let script = format!("{}echo ready; while :; do sleep 0.02; done", traps.concat());
        let mut command = folder.command(&[arguments, &["sh", "-c", &script]].concat());
        let listening = Self(command.stdout(Stdio::null()).spawn().expect("the binary can be run"));
        wait_for("the program", || folder.log().contains("ready\n"));
        listening
    }

    /// Sends a signal and waits for the end; gives the exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        send(self.0.id(), signal);
        self.0.wait().expect("a child can be waited for").code()
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("a process id");
    kill_process(pid, signal).expect("the process is there");
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not come within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn signals_reach_the_program() {
    for also in [&["--also-stdout"][..], &[]] {
        for (name, signal) in
            [("HUP", Signal::HUP), ("INT", Signal::INT), ("TERM", Signal::TERM), ("QUIT", Signal::QUIT)]
        {
            let folder = Folder::new("go-runner");
            let listening = Listening::start(&folder, &[&[&*folder.flag()], also].concat());
            assert_eq!(listening.end(signal), Some(5), "{name}, {also:?}");
            assert!(folder.log().ends_with(&format!("{name}\n")), "{name}, {also:?}: {}", folder.log());
        }
    }
}

/// A proxy that is started as kops does it, with the log in this file.
fn as_kops_starts_it<'world>(world: &'world World, folder: &Folder) -> Proxy<'world> {
    let mut proxy = Proxy::prepare(&world.node, &config(), &[node(), service_cidr()]);
    let runner = folder.path("go-runner").display().to_string();
    proxy.set_wrapper(&[&runner, &folder.flag(), "--also-stdout"]);
    proxy
}

fn has_rules(world: &World) -> bool {
    nft::list_ruleset(&world.node).contains("table ip kube-proxy {")
}

#[test]
fn a_proxy_under_the_runner_logs_to_both_ends_at_sigterm_and_leaves_its_rules() {
    // The end of a proxy (O15), through the runner.
    let (world, folder) = (World::new(), Folder::new("go-runner"));
    let mut proxy = as_kops_starts_it(&world, &folder);
    proxy.launch();
    let start = Instant::now();
    assert_eq!(proxy.stop().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(folder.log().contains("Ended; the rules stay in force"), "{}", folder.log());
    assert_eq!(folder.log(), proxy.log());
    assert!(has_rules(&world));
}

#[test]
fn a_reader_of_standard_output_that_hangs_keeps_nothing_from_its_end() {
    let (world, folder) = (World::new(), Folder::new("go-runner"));
    // Nothing reads the pipe, and it is full.
    let (reader, writer) = narrow_pipe();
    fill(&writer);
    let mut proxy = as_kops_starts_it(&world, &folder);
    let runner = folder.path("go-runner").display().to_string();
    proxy.set_wrapper(&["sh", "-c", "exec \"$0\" \"$@\" >&2", &runner, &folder.flag(), "--also-stdout"]);
    proxy.set_stderr(writer.into());
    proxy.launch();
    let start = Instant::now();
    assert_eq!(proxy.stop().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(has_rules(&world));
    drop(reader);
}

/// The name of the file alone says whether the binary is the runner.
#[test]
fn under_any_other_name_it_is_the_proxy() {
    for name in ["kube-proxy", "go-runner-of-mine", "runner"] {
        let folder = Folder::new(name);
        let output = Command::new(folder.path(name)).arg("--version").output().expect("the binary can be run");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.starts_with("Kubernetes v"), "{name}: {text}");
    }
}
