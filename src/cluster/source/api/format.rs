//! The encodings of answers of the API server.

/// The media type of JSON.
pub(super) const JSON: &str = "application/json";
/// The media type of Kubernetes' protobuf.
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// Returns the encoding that a `Content-Type` header names, or JSON if there is no header.
    ///
    /// # Errors
    /// Returns the media type if it is neither JSON nor protobuf.
    pub(super) fn of(content_type: Option<&str>) -> Result<Self, String> {
        let media_type = content_type.unwrap_or(JSON).split(';').next().unwrap_or_default().trim();
        match media_type {
            PROTOBUF => Ok(Self::Protobuf),
            JSON => Ok(Self::Json),
            other => Err(other.to_owned()),
        }
    }
}
