//! The table: a row a measurement, printed as it is made, and written as JSON at the end.

use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use serde_json::{Value, json};

/// Failures that are printed.
const SHOWN: usize = 20;

/// Rows so far, and what was found wrong.
pub(crate) struct Table {
    rows: Vec<Value>,
    failures: Vec<String>,
}

impl Table {
    /// Prints what the times depend on, and the head.
    pub(crate) fn new() -> Self {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        println!("kernel {}, load {}", line("/proc/sys/kernel/osrelease"), line("/proc/loadavg"));
        println!("{:<70} {:>14} {:>12}", "what", "measured", "goal");
        Self { rows: Vec::new(), failures: Vec::new() }
    }

    /// A time, with the most that it should be.
    pub(crate) fn time(&mut self, what: &str, time: Duration, goal: &str) {
        let text = match time.as_secs_f64() {
            seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
            seconds => format!("{:.3} ms", seconds * 1e3),
        };
        self.row(what, &text, goal, json!(time.as_secs_f64()));
    }

    /// How many times as long one took as the other.
    pub(crate) fn ratio(&mut self, what: &str, one: Duration, other: Duration, goal: &str) {
        self.number(what, one.as_secs_f64() / other.as_secs_f64(), goal);
    }

    /// A ratio that was computed elsewhere.
    pub(crate) fn number(&mut self, what: &str, ratio: f64, goal: &str) {
        let goal = if goal.is_empty() { String::new() } else { format!("{goal} x") };
        self.row(what, &format!("{ratio:.2} x"), &goal, json!(ratio));
    }

    /// Anything else.
    pub(crate) fn text(&mut self, what: &str, measured: &str, goal: &str) {
        self.row(what, measured, goal, json!(measured));
    }

    fn row(&mut self, what: &str, measured: &str, goal: &str, value: Value) {
        println!("{what:<70} {measured:>14} {goal:>12}");
        self.rows.push(json!({ "what": what.trim(), "measured": measured, "goal": goal, "value": value }));
    }

    /// Something that must not be, whatever the machine: the bench goes on, and fails at the end.
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
