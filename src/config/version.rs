//! What `--version` prints.
//!
//! Takes the flag's value, gives the text, or the version to report otherwise. Tools read `Kubernetes v1.36.2` from the first line, so the release whose behaviour
//! this program follows comes first; its own version is the build part after `+`, as semantic versioning has it.

/// The version to report unless another one is asked for: Kubernetes' and our own.
pub(super) const VERSION: &str = concat!("v1.36.2+kube-proxy-nft.", env!("CARGO_PKG_VERSION"));

/// What `--version` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing.
    None,
    /// Print this text and end.
    Print(String),
    /// Run, and report this version in metrics, pages and log.
    Report(String),
}

/// What a value of the flag asks for.
///
/// # Errors
/// When the value is none that upstream takes.
pub(super) fn wish(value: &str) -> Result<Wish, String> {
    match value {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(Wish::Print(format!("Kubernetes {VERSION}\n"))),
        "raw" => Ok(Wish::Print(format!("version.Info{{Major:\"1\", Minor:\"36\", GitVersion:\"{VERSION}\"}}\n"))),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(Wish::None),
        other if other.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) => {
            Ok(Wish::Report(other.to_owned()))
        }
        other => {
            Err(format!("invalid value {other:?} for --version: expected true, raw or a version such as {VERSION}\n"))
        }
    }
}
