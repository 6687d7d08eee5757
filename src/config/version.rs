//! What `--version` prints.
//!
//! Takes the flag's value, gives the text. Tools read `Kubernetes v1.36.2` from the first line, so the release whose behaviour
//! this program follows comes first; its own version is the build part after `+`, as semantic versioning has it.

/// The version to report: Kubernetes' and our own.
pub const VERSION: &str = concat!("v1.36.2+kube-proxy-nft.", env!("CARGO_PKG_VERSION"));

/// The text to print, or `None` if the flag asks for nothing: it is false, or only changes the version that is reported.
///
/// # Errors
/// When the value is none that upstream takes.
pub(super) fn text(value: &str) -> Result<Option<String>, String> {
    match value {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(Some(format!("Kubernetes {VERSION}\n"))),
        "raw" => Ok(Some(format!("version.Info{{Major:\"1\", Minor:\"36\", GitVersion:\"{VERSION}\"}}\n"))),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Ok(None),
        other if other.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) => Ok(None),
        other => {
            Err(format!("invalid value {other:?} for --version: expected true, raw or a version such as {VERSION}\n"))
        }
    }
}
