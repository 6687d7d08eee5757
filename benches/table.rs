//! The result table: one row for each measurement, printed as it is made, and all written as JSON after each part.
//!
//! The file keeps the rows of parts that this run did not measure, so that several runs, each of some parts, make one table. Each row says
//! when, where and with which commit it was measured. `BENCH_QUICK=1` writes another file, because it measures other sizes.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::{Value, json};

use crate::figures::{Point, Row, Run, WITHIN, merge, read, written};

/// The most failures that are printed.
const SHOWN: usize = 20;

/// The rows so far, and the failures.
pub(crate) struct Table {
    path: PathBuf,
    run: Run,
    part: String,
    /// The names of the last row and of the rows to which it belongs.
    within: Vec<String>,
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Table {
    /// Prints the kernel's version and the load, on which the times depend, and the head of the table.
    pub(crate) fn new(quick: bool) -> Self {
        let run = this_run();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!("kernel {}, commit {}, load {}", run.kernel, run.commit, load.trim());
        println!("{:<70} {:>14} {:>12}", "what", "measured", "goal");
        let directory = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
        let path = Path::new(&directory).join(if quick { "bench-quick.json" } else { "bench.json" });
        Self { path, run, part: String::new(), within: Vec::new(), rows: Vec::new(), failures: Vec::new() }
    }

    /// Notes that the following rows are of this part.
    pub(crate) fn begin(&mut self, part: &str) {
        part.clone_into(&mut self.part);
        self.within.clear();
    }

    /// Adds a time, with its goal: the longest time that it should be.
    pub(crate) fn time(&mut self, what: &str, time: Duration, goal: &str) {
        self.time_at(None, what, time, goal);
    }

    /// Adds a time that has a place in a plot.
    pub(crate) fn time_at(&mut self, point: Option<Point>, what: &str, time: Duration, goal: &str) {
        let text = match time.as_secs_f64() {
            seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
            seconds => format!("{:.3} ms", seconds * 1e3),
        };
        self.row(what, &text, goal, json!(time.as_secs_f64()));
        if let Some(row) = self.rows.last_mut() {
            row.point = point;
        }
    }

    /// Adds the ratio of two times.
    pub(crate) fn ratio(&mut self, what: &str, one: Duration, other: Duration, goal: &str) {
        self.number(what, one.as_secs_f64() / other.as_secs_f64(), goal);
    }

    /// Adds a ratio of other numbers.
    pub(crate) fn number(&mut self, what: &str, ratio: f64, goal: &str) {
        let goal = if goal.is_empty() { String::new() } else { format!("{goal} x") };
        // Six digits: more are noise.
        self.row(what, &format!("{ratio:.2} x"), &goal, json!((ratio * 1e6).round() / 1e6));
    }

    /// Adds a ratio whose hundredths are what it is about.
    pub(crate) fn fine(&mut self, what: &str, ratio: f64, goal: &str) {
        let goal = if goal.is_empty() { String::new() } else { format!("{goal} x") };
        self.row(what, &format!("{ratio:.4} x"), &goal, json!((ratio * 1e6).round() / 1e6));
    }

    /// Adds an amount, such as bytes or requests.
    pub(crate) fn amount(&mut self, what: &str, amount: f64, unit: &str) {
        self.row(what, &format!("{amount:.1} {unit}"), "", json!((amount * 1e3).round() / 1e3));
    }

    /// Adds a value as text.
    pub(crate) fn text(&mut self, what: &str, measured: &str, goal: &str) {
        self.row(what, measured, goal, json!(measured));
    }

    /// Adds a row. A row whose name begins with two spaces more than that of an earlier row belongs to the nearest such row.
    fn row(&mut self, what: &str, measured: &str, goal: &str, value: Value) {
        println!("{what:<70} {measured:>14} {goal:>12}");
        let name = what.trim_start();
        self.within.truncate((what.len() - name.len()) / 2);
        self.within.push(name.to_owned());
        self.rows.push(Row {
            part: self.part.clone(),
            what: self.within.join(WITHIN),
            measured: measured.to_owned(),
            goal: goal.to_owned(),
            value,
            point: None,
            run: self.run.clone(),
        });
    }

    /// Notes an error that must not happen on any machine: the bench continues, and fails at the end.
    pub(crate) fn fail(&mut self, what: &str) {
        self.failures.push(what.to_owned());
    }

    /// Writes the rows so far over those of earlier runs, so that a part that fails loses no other.
    pub(crate) fn save(&self) {
        let earlier = fs::read_to_string(&self.path).ok().and_then(|text| read(&text).ok()).unwrap_or_default();
        let text = written(&merge(earlier, self.rows.clone()));
        if let Err(error) = fs::write(&self.path, text) {
            eprintln!("cannot write {}: {error}", self.path.display());
        }
    }

    /// Says where the rows are, and prints the first failures.
    pub(crate) fn finish(self) -> ExitCode {
        println!("\nwritten to {}", self.path.display());
        self.failures.iter().take(SHOWN).for_each(|failure| eprintln!("{failure}"));
        if self.failures.is_empty() {
            return ExitCode::SUCCESS;
        }
        eprintln!("{} failures", self.failures.len());
        ExitCode::FAILURE
    }
}

/// Returns the time, machine and commit of this run.
fn this_run() -> Run {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let changed = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { "+" };
    Run {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        processors: thread::available_parallelism().map_or(1, usize::from),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        commit: git(&["rev-parse", "--short", "HEAD"]) + changed,
    }
}
