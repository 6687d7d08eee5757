//! What is wrong with a manifest.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// How much a [`Problem`] costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A part of an object, or one of several copies, was left out.
    Warning,
    /// A document, file or directory could not be read; what it provided before stays.
    Error,
}

/// Something wrong with a manifest; prints as `examples/web.yaml, document 2: spec.foo: unknown field; ignored`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How much it costs.
    pub severity: Severity,
    /// The file or directory.
    pub file: Arc<Path>,
    /// The document of the file, from 1; `None` when it is about the whole file.
    pub document: Option<usize>,
    /// What is wrong.
    pub text: String,
    /// The kind of the object that it is about, or [`Problem::NO_KIND`]; `None` if it says nothing about the content of an object.
    pub kind: Option<&'static str>,
}

impl Problem {
    /// The kind of what is too broken to say its kind.
    pub const NO_KIND: &'static str = "unknown";

    /// An error about a whole file or directory.
    pub(super) fn of_file(file: &Arc<Path>, text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, file: Arc::clone(file), document: None, text: text.into(), kind: None }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, ", document {document}")?;
        }
        write!(f, ": {}", self.text)
    }
}
