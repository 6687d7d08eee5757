//! The answer to a request that the server refuses: a Kubernetes Status.

use serde_json::{Value, json};

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub(crate) code: u16,
    /// The reason as one word, such as `NotFound`.
    pub(crate) reason: &'static str,
    /// The explanation, a sentence.
    pub(crate) message: String,
    /// Seconds after which to try again.
    pub(crate) retry_after: Option<u32>,
}

impl Refusal {
    /// Makes a refusal with the reason that belongs to the HTTP status.
    pub(crate) fn new(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self { code, reason, message: message.into(), retry_after: None }
    }

    /// Returns this refusal with the number of seconds after which to try again.
    pub(crate) fn after(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Returns the refusal as a Status object.
    pub(crate) fn json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({ "retryAfterSeconds": seconds });
        }
        status
    }
}
