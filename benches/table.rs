//! The result table: one row for each measurement, printed as it is made, and all written as JSON at the end.

use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use serde_json::{Value, json};

/// The most failures that are printed.
const SHOWN: usize = 20;

/// The rows so far, and the failures.
pub(crate) struct Table {
    rows: Vec<Value>,
    failures: Vec<String>,
}

impl Table {
    /// Prints the kernel's version and the load, on which the times depend, and the head of the table.
    pub(crate) fn new() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        println!("kernel {}, load {}", line("/proc/sys/kernel/osrelease"), line("/proc/loadavg"));
        println!("{:<70} {:>14} {:>12}", "what", "measured", "goal");
        Self { rows: Vec::new(), failures: Vec::new() }
    }

    /// Adds a time, with its goal: the longest time that it should be.
    pub(crate) fn time(&mut self, what: &str, time: Duration, goal: &str) {
        let text = match time.as_secs_f64() {
            seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
            seconds => format!("{:.3} ms", seconds * 1e3),
        };
        self.row(what, &text, goal, json!(time.as_secs_f64()));
    }

    /// Adds the ratio of two times.
    pub(crate) fn ratio(&mut self, what: &str, one: Duration, other: Duration, goal: &str) {
        self.number(what, one.as_secs_f64() / other.as_secs_f64(), goal);
    }

    /// Adds a ratio of other numbers.
    pub(crate) fn number(&mut self, what: &str, ratio: f64, goal: &str) {
        let goal = if goal.is_empty() { String::new() } else { format!("{goal} x") };
        self.row(what, &format!("{ratio:.2} x"), &goal, json!(ratio));
    }

    /// Adds a value as text.
    pub(crate) fn text(&mut self, what: &str, measured: &str, goal: &str) {
        self.row(what, measured, goal, json!(measured));
    }

    fn row(&mut self, what: &str, measured: &str, goal: &str, value: Value) {
        println!("{what:<70} {measured:>14} {goal:>12}");
        self.rows.push(json!({ "what": what.trim(), "measured": measured, "goal": goal, "value": value }));
    }

    /// Notes an error that must not happen on any machine: the bench continues, and fails at the end.
    pub(crate) fn fail(&mut self, what: &str) {
        self.failures.push(what.to_owned());
    }

    /// Writes `bench.json` into the target directory, and prints the first failures.
    pub(crate) fn finish(self) -> ExitCode {
        let directory = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
        let path = format!("{directory}/bench.json");
        match fs::write(&path, Value::Array(self.rows).to_string()) {
            Ok(()) => println!("\nwritten to {path}"),
            Err(error) => eprintln!("cannot write {path}: {error}"),
        }
        self.failures.iter().take(SHOWN).for_each(|failure| eprintln!("{failure}"));
        if self.failures.is_empty() {
            return ExitCode::SUCCESS;
        }
        eprintln!("{} failures", self.failures.len());
        ExitCode::FAILURE
    }
}
