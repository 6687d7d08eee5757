//! A real terminal for programs that draw on one: tmux, with a shell in a namespace.
//!
//! Takes a namespace and a size, and returns a terminal to type into and to read. The tmux server has a separate socket, and ends when the
//! value is dropped. The shell is one that leaves the modes of the terminal alone, so what a program leaves behind stays.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::netns::{Namespace, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with a shell.
pub(crate) struct Terminal {
    directory: TempDir,
}

impl Terminal {
    /// Starts a shell in the namespace, in a terminal of this many columns and rows, and waits for its prompt.
    pub(crate) fn start(namespace: &Namespace, columns: u16, rows: u16) -> Self {
        let terminal = Self { directory: TempDir::new().expect("a temporary directory can be made") };
        let shell = format!("exec ip netns exec {} env PS1='ready> ' sh", namespace.name());
        let (columns, rows) = (columns.to_string(), rows.to_string());
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, &shell]);
        terminal.wait_for("the prompt", |screen| screen.contains("ready>"));
        terminal
    }

    /// Types a line.
    pub(crate) fn line(&self, text: &str) {
        self.text(text);
        self.key("Enter");
    }

    /// Types text.
    pub(crate) fn text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Presses a key, by its name in tmux.
    pub(crate) fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Returns the text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns whether the terminal shows the screen of a program in place of the shell's screen.
    pub(crate) fn is_screen_of_program(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{alternate_on}"]).trim() == "1"
    }

    /// Returns whether the terminal shows the cursor.
    pub(crate) fn has_cursor(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{cursor_flag}"]).trim() == "1"
    }

    /// Waits until the screen is as wanted.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "{what} is not on the screen:\n{screen}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The modes of the terminal, as `stty -a` prints them in the shell, without the size.
    pub(crate) fn modes(&self) -> String {
        let path = self.directory.path().join("modes");
        let _ = fs::remove_file(&path);
        self.line(&format!("stty -a > {0}.new && mv {0}.new {0}", path.display()));
        let end = Instant::now() + PATIENCE;
        while !path.exists() {
            assert!(Instant::now() < end, "the shell does not answer:\n{}", self.screen());
            thread::sleep(Duration::from_millis(50));
        }
        let modes = fs::read_to_string(path).expect("the modes can be read");
        modes.lines().skip(1).collect::<Vec<_>>().join("\n")
    }

    /// The children of the shell, each with its children.
    pub(crate) fn processes(&self) -> Vec<(u32, Vec<u32>)> {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]).trim().parse().expect("a number");
        children(shell).into_iter().map(|child| (child, children(child))).collect()
    }

    fn tmux(&self, args: &[&str]) -> String {
        let socket = self.directory.path().join("socket");
        run(Command::new("tmux").env_remove("TMUX").arg("-S").arg(socket).args(args))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.directory.path().join("socket");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

/// Returns the children of a process that have not ended.
fn children(process: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Sends a signal to a process.
pub(crate) fn signal(process: u32, signal: Signal) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(pid, signal).expect("the process is there");
}

/// Waits until a process is gone.
pub(crate) fn wait_until_gone(process: u32) {
    let end = Instant::now() + PATIENCE;
    let is_there = || {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"));
        // A zombie has ended; only its parent has not waited for it yet.
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    while is_there() {
        assert!(Instant::now() < end, "process {process} does not end");
        thread::sleep(Duration::from_millis(50));
    }
}
