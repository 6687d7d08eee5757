//! Why a list or a watch ended, explained to the operator of the cluster.
//!
//! The module takes an error of the client, a Status of the server or a failure that the reflector found, and returns one line of text:
//! what happened, and what the operator can check. It does no I/O.
//!
//! Invariant: a line contains the text of each cause only once, although some errors of the client print their causes and also return them
//! as `source`.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use super::decode::Status;
use super::proxy;
use super::tls::WeakKey;
use component::excerpt::{MESSAGE, excerpt};

/// A part of the message that a server sends with status 504 if it does not have the requested version yet
/// (`NewTooLargeResourceVersionError` of k8s.io/apiserver).
const TOO_LARGE: &str = "Too large resource version";

/// Why a list or a watch failed or ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The version from which the watch should resume is too old, so a complete list is needed.
    #[error("the version to resume from is too old")]
    Expired,
    /// The server does not have a version that it, or another API server, has sent before.
    #[error(
        "the server's versions went back: it was restored from a backup, or lags behind another one; everything is listed again"
    )]
    VersionLost,
    /// The server refused a request or ended a watch with this status.
    #[error("the server answered {code}{}{}", after(": ", message.as_deref()), after("; ", advice(*code)))]
    Refused {
        /// HTTP status.
        code: u16,
        /// The message of the server; `None` if its answer has none.
        message: Option<String>,
        /// How long the server asks to wait before the next request (Retry-After).
        retry_after: Option<Duration>,
    },
    /// The plugin returned no credentials, or the configuration or its files cannot be used.
    #[error("no credentials: {0}")]
    Credentials(String),
    /// There is no connection, or the request failed on it.
    #[error("{0}")]
    Connection(String),
    /// The connection broke or ended while an answer was read, or nothing came on a watch for too long.
    #[error("{0}")]
    Broken(String),
    /// The connection ended within an event.
    #[error("{0} within an event")]
    CutOff(String),
    /// The server sent no answer, or no further bytes of an answer, within this time.
    #[error("the server accepts connections, but sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// The server sent a part of an answer, and not the whole answer within this time.
    #[error("the server is too slow: it sent only a part of its answer in {} s", .0.as_secs())]
    Late(Duration),
    /// The server ended a watch within a second of its start, without a new version on it.
    #[error("the server ended the watch at once")]
    VeryShortWatch,
    /// The answer is not one of the Kubernetes API, or is too long.
    #[error("the answer cannot be read: {}; is this the URL of an API server?", excerpt(.0, MESSAGE))]
    Malformed(String),
    /// A complete list lacks this number of objects (first field), which is more than this share in percent (second field). That may be a
    /// mistake of the server.
    #[error(
        "the server's list lacks {0} objects, more than {1} % of all that there were (nftables.relistRemovalLimit); they stay until \
         a second list confirms it"
    )]
    ExcessiveRemoval(usize, u8),
    /// The server does not support streaming lists. This is not handled as a failure: the next attempt lists page by page.
    #[error("the server does no streaming lists")]
    NoStreamingList,
    /// The receiver of the events was dropped, because the process ends.
    #[error("the receiver of the events is gone")]
    ReceiverGone,
}

/// The cause of a failure. Failures with equal causes look the same to an operator, so a warning about one stands for all of them for a
/// while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A list or watch was interrupted: by a broken connection, or because its version is too old. The next attempt often succeeds.
    Interrupted,
    /// There is no connection, or no complete answer to a request.
    Unreachable,
    /// The server answered with this HTTP status.
    Refused(u16),
    /// The answer is not one of the Kubernetes API.
    Malformed,
    /// The list removes too many objects.
    ExcessiveRemoval,
    /// The client's configuration cannot be read, or its plugin returned no credentials.
    Configuration,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server ended the answer regularly, without an error.
    InOrder,
    /// The connection ended within an event.
    WithinEvent,
    /// The connection ended between two events, or nothing came on a watch for too long.
    Interrupted,
    /// The connection ended before a list was complete.
    Unfinished,
    /// The server does not have the version from which the watch should resume, so a list is needed.
    ListNeeded,
    /// There was no connection, or the answer was 401 (credentials not accepted).
    NoAnswer,
    /// Any other failure.
    Failed,
}

impl Error {
    /// Returns the error for a request to which no answer came.
    pub(super) fn of_request(error: &kube::Error) -> Self {
        Self::Connection(explain(error))
    }

    /// Returns the error for a Status with which the server refused a request or ended a watch.
    pub(super) fn of_status(status: Status, retry_after: Option<Duration>) -> Self {
        if status.is_expired() {
            return Self::Expired;
        }
        if status.code == 504 && status.message.as_deref().is_some_and(|text| text.contains(TOO_LARGE)) {
            return Self::VersionLost;
        }
        let message = status.message.or(status.reason).filter(|text| !text.is_empty());
        let message = message.map(|text| excerpt(&text, MESSAGE).into_owned());
        Self::Refused { code: status.code, message, retry_after }
    }

    /// Returns the cause of this error.
    pub(super) const fn cause(&self) -> Cause {
        match self {
            Self::Expired
            | Self::VersionLost
            | Self::Broken(_)
            | Self::CutOff(_)
            | Self::VeryShortWatch
            | Self::NoStreamingList
            | Self::ReceiverGone => Cause::Interrupted,
            Self::Refused { code, .. } => Cause::Refused(*code),
            Self::Connection(_) | Self::Silent(_) | Self::Late(_) => Cause::Unreachable,
            Self::Credentials(_) => Cause::Configuration,
            Self::Malformed(_) => Cause::Malformed,
            Self::ExcessiveRemoval(..) => Cause::ExcessiveRemoval,
        }
    }

    /// Returns the end of an attempt that failed with this error.
    pub(super) fn end(&self) -> End {
        match self {
            Self::VeryShortWatch => End::InOrder,
            Self::CutOff(_) => End::WithinEvent,
            Self::Broken(_) => End::Interrupted,
            Self::Expired | Self::VersionLost => End::ListNeeded,
            Self::Refused { code: 401, .. } | Self::Connection(_) => End::NoAnswer,
            _ => End::Failed,
        }
    }

    /// Returns how long the server asks to wait before the next request, if it asks for that.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns the HTTP status with which the server refused a request; `None` for any other error.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns whether new credentials or another CA, which may already be in the files, may end the failure.
    pub(super) fn is_about_access(&self) -> bool {
        matches!(self, Self::Connection(_)) || self.code() == Some(401)
    }

    /// Returns whether new files of the configuration or of the credentials may end the failure.
    pub(super) fn depends_on_files(&self) -> bool {
        self.is_about_access() || matches!(self, Self::Credentials(_))
    }

    /// Returns whether a complete list has to come next, because the watch cannot be resumed. That includes a malformed answer, which the
    /// server could send again to a resumed watch.
    pub(super) fn needs_list(&self) -> bool {
        matches!(self, Self::Expired | Self::VersionLost | Self::Malformed(_))
            || self.code().is_some_and(|code| (400..500).contains(&code) && ![401, 403, 408, 429].contains(&code))
    }
}

/// Returns the separator and the text, or nothing if there is no text.
fn after(separator: &str, text: Option<&str>) -> String {
    text.map(|text| format!("{separator}{text}")).unwrap_or_default()
}

/// Returns why a request failed: the error with its causes, and what to check where that is known.
pub(super) fn explain(error: &(dyn StdError + 'static)) -> String {
    let text = excerpt(&chain(error), MESSAGE).into_owned();
    match causes(error).find_map(remedy) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

/// Returns what the operator can check when the server answers with this HTTP status.
const fn advice(code: u16) -> Option<&'static str> {
    Some(match code {
        400 => "is the URL right? An API server with TLS needs https://",
        401 => {
            "it does not accept the credentials: the token or client certificate may have expired, or belong to another \
             cluster; new files are used as soon as they are there"
        }
        403 => "the user needs the ClusterRole system:node-proxier: look at its ClusterRoleBinding",
        404 => "is this the URL of an API server?",
        407 => "a proxy on the way needs a user and a password that it knows, as in http://user:password@host:port",
        _ => return None,
    })
}

/// Returns the text of an error with its causes, in which each text occurs once.
pub(super) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let more = match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            // Replace the text of rustls for this error, which has a URL of its manual.
            Some(ErrorKind::UnexpectedEof) => "the server closed the connection".to_owned(),
            Some(ErrorKind::TimedOut) => "timed out".to_owned(),
            _ => cause.to_string(),
        };
        if is_wrapper(cause, &more) || text.contains(&more) {
            continue;
        }
        text = if text.is_empty() { more } else { format!("{text}: {more}") };
    }
    text
}

/// Returns whether an error's text only names the part of the client in which the error occurred.
fn is_wrapper(error: &(dyn StdError + 'static), text: &str) -> bool {
    let is_kube_wrapper =
        matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Service(_) | kube::Error::HyperError(_)));
    let texts = ["tcp connect error", "error reading a body from connection", "deadline has elapsed"];
    is_kube_wrapper || text.starts_with("client error (") || texts.contains(&text)
}

/// Returns an error and its causes, the outermost first, including errors that an I/O error wraps.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|inner| inner as &(dyn StdError + 'static)).or_else(move || error.source())
    })
}

fn remedy(cause: &(dyn StdError + 'static)) -> Option<&'static str> {
    if let Some(failure) = cause.downcast_ref::<proxy::Failure>() {
        return Some(failure.remedy());
    }
    if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        return tls(error);
    }
    if cause.to_string().contains("failed to lookup address") {
        return Some(
            "the name in the URL cannot be resolved on this node: look at /etc/resolv.conf, or use an IP address",
        );
    }
    if cause.to_string() == "tls handshake eof" {
        return Some("it does not speak TLS, or a load balancer has no server behind it");
    }
    match cause.downcast_ref::<io::Error>()?.kind() {
        ErrorKind::ConnectionRefused => {
            Some("nothing listens there: is the API server running, and is this its address?")
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Some("this node has no route to that address"),
        ErrorKind::TimedOut => Some("no connection in time: a firewall may drop the packets, or the server hangs"),
        _ => None,
    }
}

fn tls(error: &rustls::Error) -> Option<&'static str> {
    Some(match error {
        rustls::Error::InvalidCertificate(error) => return certificate(error),
        rustls::Error::InvalidMessage(_) => "it does not speak TLS: is its URL one with http://?",
        rustls::Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => "the server refuses our client certificate: has it expired, and is it signed by this cluster's CA?",
        rustls::Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => {
            "they have no version or algorithm of TLS in common: this program takes TLS 1.3, and TLS 1.2 with ECDHE and AES-GCM or ChaCha20; key \
             exchange by X25519, P-256 or P-384"
        }
        _ => return None,
    })
}

fn certificate(error: &CertificateError) -> Option<&'static str> {
    use CertificateError as E;
    Some(match error {
        E::UnknownIssuer | E::BadSignature => {
            "another CA signed the server's certificate: certificate-authority of the kubeconfig has to be the CA of this cluster"
        }
        E::Expired | E::ExpiredContext { .. } => {
            "renew the server's certificate (kubeadm certs renew apiserver), if this node's clock is right"
        }
        E::NotValidYet | E::NotValidYetContext { .. } => "is this node's clock right?",
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            "use one of these names in the URL, or add the name to the server's certificate (--apiserver-cert-extra-sans of kubeadm)"
        }
        // Compare the debug text, because the type of this error is not one of rustls, but of its dependency webpki.
        E::Other(other) if format!("{other:?}").contains("UnsupportedCertVersion") => {
            "a certificate is of X.509 version 1: create it again with extensions, which makes it version 3"
        }
        E::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server shows the certificate of a CA: give the server a certificate of its own (basicConstraints CA:FALSE), or add this one to \
             certificate-authority of the kubeconfig"
        }
        E::Other(other) if other.0.is::<WeakKey>() => {
            "create the certificate again with a longer key (openssl req -newkey rsa:2048, or one of ECDSA)"
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the server's certificate is not one for servers: its extendedKeyUsage needs serverAuth"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Client(#[source] io::Error);

    /// Returns the explanation of a connection's error, wrapped as the HTTP client wraps it.
    fn connect(error: impl Into<Box<dyn StdError + Send + Sync>>) -> String {
        explain(&Client(io::Error::other(error)))
    }

    #[test]
    fn each_cause_is_there_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: inner")]
        struct Outer(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner(#[source] io::Error);
        let error = Outer(Inner(io::Error::other("refused")));
        assert_eq!(chain(&error), "outer: inner: refused");
        let missing = Client(io::Error::from_raw_os_error(2));
        assert_eq!(chain(&missing), "No such file or directory (os error 2)");
    }

    #[test]
    fn networks_that_do_not_work_are_explained() {
        for (kind, words) in [
            (ErrorKind::ConnectionRefused, "is the API server running"),
            (ErrorKind::NetworkUnreachable, "no route"),
            (ErrorKind::HostUnreachable, "no route"),
            (ErrorKind::TimedOut, "firewall"),
        ] {
            let text = explain(&Client(io::Error::from(kind)));
            assert!(text.contains(words), "{text}");
        }
        let text = connect("failed to lookup address information: Name or service not known");
        assert!(text.contains("resolv.conf"), "{text}");
    }

    #[test]
    fn certificates_that_do_not_fit_are_explained_with_the_remedy() {
        #[derive(Debug, thiserror::Error)]
        #[error("CaUsedAsEndEntity")]
        struct CaUsedAsEndEntity;
        for (error, words) in [
            (CertificateError::UnknownIssuer, "has to be the CA of this cluster"),
            (CertificateError::Expired, "kubeadm certs renew apiserver"),
            (CertificateError::NotValidYet, "clock"),
            (CertificateError::NotValidForName, "one of these names"),
            (CertificateError::Other(OtherError(Arc::new(CaUsedAsEndEntity))), "CA:FALSE"),
        ] {
            let text = connect(rustls::Error::InvalidCertificate(error));
            assert!(text.contains(words), "{text}");
        }
        let text = connect(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure));
        assert!(text.contains("no version or algorithm of TLS in common"), "{text}");
        let text = connect(rustls::Error::AlertReceived(AlertDescription::CertificateExpired));
        assert!(text.contains("refuses our client certificate"), "{text}");
    }

    #[test]
    fn a_refusal_names_what_to_check() {
        assert!(advice(401).is_some_and(|text| text.contains("credentials")));
        assert!(advice(403).is_some_and(|text| text.contains("system:node-proxier")));
        assert!(advice(404).is_some_and(|text| text.contains("API server")));
        assert_eq!(advice(503), None);
    }

    #[test]
    fn statuses_lead_to_the_next_step() {
        let status = |code, reason: &str| Status { code, reason: Some(reason.into()), message: None };
        assert!(matches!(Error::of_status(status(410, "Gone"), None), Error::Expired));
        assert!(matches!(Error::of_status(status(0, "Expired"), None), Error::Expired));
        let future = Status {
            message: Some("Timeout: Too large resource version: 9, current: 7".into()),
            ..status(504, "Timeout")
        };
        assert!(matches!(Error::of_status(future, Some(Duration::from_secs(1))), Error::VersionLost));
        assert!(!Error::of_status(status(504, "Timeout"), None).needs_list());
        let after = Some(Duration::from_secs(3));
        let busy = Error::of_status(status(429, "TooManyRequests"), after);
        assert_eq!(busy.to_string(), "the server answered 429: TooManyRequests");
        assert_eq!((busy.retry_after(), busy.needs_list(), busy.is_about_access()), (after, false, false));
        assert!(Error::of_status(status(422, "Invalid"), None).needs_list());
        assert!(Error::of_status(status(401, "Unauthorized"), None).is_about_access());
    }
}
