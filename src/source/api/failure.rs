//! Why a try to list or watch ended.

use std::time::Duration;

use super::explain;
use super::frame::Status;
use super::outage::Cause;

/// Why a try to list or watch ended before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The version to resume from is too old: list again.
    #[error("the version to go on from is too old")]
    Gone,
    /// The server answered with something else than 200.
    #[error("the server answered {code}{}{}", after(": ", message.as_deref()), after("; ", explain::status(*code)))]
    Refused {
        /// HTTP status.
        code: u16,
        /// What the server says about it.
        message: Option<String>,
        /// When the server wants to hear from us again.
        retry_after: Option<Duration>,
    },
    /// The plugin gives no credentials, or the configuration cannot be read any more.
    #[error("no credentials: {0}")]
    Credentials(String),
    /// No connection comes about.
    #[error("{0}")]
    Connection(String),
    /// An answer broke off.
    #[error("{0}")]
    Broken(String),
    /// Nothing arrives.
    #[error("the server accepts connections, but nothing came from it for {} s", .0.as_secs())]
    Silent(Duration),
    /// The server ended a watch at once.
    #[error("the server ended the watch at once")]
    Short,
    /// Not what an API server says.
    #[error("not understood: {0}; is this the URL of an API server?")]
    Garbage(String),
    /// The listing takes so many objects away, more than so many percent; it may be a mistake of the server.
    #[error(
        "the server's list lacks {0} objects, more than {1} % of all that there were (nftables.relistRemovalLimit); they stay until \
         a second list confirms it"
    )]
    Doubtful(usize, u8),
    /// The server does not do streaming lists; not a failure of the listing.
    #[error("no streaming list")]
    NotStreaming,
    /// Nobody listens any more.
    #[error("the receiver is gone")]
    Stopped,
}

impl Failure {
    /// A failed request, with the causes that its own text leaves out.
    pub(super) fn of_request(error: &kube::Error) -> Self {
        Self::Connection(explain::request(error))
    }

    /// What a Status means.
    pub(super) fn of_status(status: Status, retry_after: Option<Duration>) -> Self {
        if status.is_gone() {
            return Self::Gone;
        }
        let message = status.message.or(status.reason).filter(|text| !text.is_empty());
        Self::Refused { code: status.code, message, retry_after }
    }

    /// What it is to an operator.
    pub(super) const fn cause(&self) -> Cause {
        match self {
            Self::Gone | Self::Broken(_) | Self::Short | Self::NotStreaming | Self::Stopped => Cause::Interrupted,
            Self::Refused { code, .. } => Cause::Refused(*code),
            Self::Connection(_) | Self::Silent(_) => Cause::Unreachable,
            Self::Credentials(_) => Cause::Configuration,
            Self::Garbage(_) => Cause::NotUnderstood,
            Self::Doubtful(..) => Cause::Doubtful,
        }
    }

    /// How long the server wants not to be asked.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The status of a refusal.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether other credentials or another certificate of the server may be needed, which may be in the files by now.
    pub(super) fn is_about_access(&self) -> bool {
        matches!(self, Self::Connection(_)) || self.code() == Some(401)
    }

    /// Whether the watch is not to be resumed where it was: a complete listing comes next. Garbage may be there again.
    pub(super) fn needs_listing(&self) -> bool {
        matches!(self, Self::Gone | Self::Garbage(_))
            || self.code().is_some_and(|code| (400..500).contains(&code) && ![401, 403, 408, 429].contains(&code))
    }
}

/// A text behind what leads to it, if there is one.
fn after(lead: &str, text: Option<&str>) -> String {
    text.map(|text| format!("{lead}{text}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_lead_to_the_next_step() {
        let status = |code, reason: &str| Status { code, reason: Some(reason.into()), message: None };
        assert!(matches!(Failure::of_status(status(410, "Gone"), None), Failure::Gone));
        assert!(matches!(Failure::of_status(status(0, "Expired"), None), Failure::Gone));
        let after = Some(Duration::from_secs(3));
        let busy = Failure::of_status(status(429, "TooManyRequests"), after);
        assert_eq!(busy.to_string(), "the server answered 429: TooManyRequests");
        assert_eq!((busy.retry_after(), busy.needs_listing(), busy.is_about_access()), (after, false, false));
        assert!(Failure::of_status(status(422, "Invalid"), None).needs_listing());
        assert!(Failure::of_status(status(401, "Unauthorized"), None).is_about_access());
    }
}
