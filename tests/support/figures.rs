//! The figures of a long test, as a table for people.
//!
//! Takes rows and prints them; with `KUBE_PROXY_FIGURES=FILE` also appends them to that file, in which `make soak` collects the figures of
//! several test binaries.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::{env, fmt};

/// Rows of a name and a value.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(String, String)>);

impl Figures {
    /// Adds a row.
    pub(crate) fn row(&mut self, name: impl Display, value: impl Display) {
        self.0.push((name.to_string(), value.to_string()));
    }

    /// Prints the rows, and keeps them where the environment says.
    pub(crate) fn publish(&self) {
        println!("{self}");
        if let Some(path) = env::var_os("KUBE_PROXY_FIGURES") {
            let file = File::options().create(true).append(true).open(&path);
            let written = file.and_then(|mut file| write!(file, "{self}"));
            written.unwrap_or_else(|error| panic!("KUBE_PROXY_FIGURES: cannot write {}: {error}", path.display()));
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "| {name:<58} | {value:>12} |"))
    }
}
