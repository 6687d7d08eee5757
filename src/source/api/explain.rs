//! What is likely wrong when a request fails, in words for who runs the cluster.
//!
//! Takes an error of the client, or a status of the server; gives one line: what happened, then what to look at. Pure.
//!
//! Invariant: no text is there twice, although the client's errors print their causes and name them as causes too.

use std::error::Error;
use std::io::{self, ErrorKind};

use rustls::{AlertDescription, CertificateError};

/// What a failed request means: the innermost text that says something, with the remedy where one is known.
pub(super) fn request(error: &(dyn Error + 'static)) -> String {
    let text = chain(error);
    match causes(error).find_map(remedy) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

/// What to look at when the server answers with this HTTP status instead of objects.
pub(super) const fn status(code: u16) -> Option<&'static str> {
    Some(match code {
        400 => "is the URL right? An API server with TLS needs https://",
        401 => {
            "it does not accept the credentials: the token or client certificate may have expired, or belong to another \
             cluster; a change of the files is noticed"
        }
        403 => "the user needs the ClusterRole system:node-proxier: look at its ClusterRoleBinding",
        404 => "is this the URL of an API server?",
        _ => return None,
    })
}

/// An error with its causes, each text once.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let more = match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            // The text of rustls is a URL of its manual.
            Some(ErrorKind::UnexpectedEof) => "the server closed the connection".to_owned(),
            Some(ErrorKind::TimedOut) => "timed out".to_owned(),
            _ => cause.to_string(),
        };
        if is_place(cause, &more) || text.contains(&more) {
            continue;
        }
        text = if text.is_empty() { more } else { format!("{text}: {more}") };
    }
    text
}

/// Whether an error only names the place in the client's code at which its cause came up.
fn is_place(error: &(dyn Error + 'static), text: &str) -> bool {
    let is_wrapper =
        matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Service(_) | kube::Error::HyperError(_)));
    let places = ["tcp connect error", "error reading a body from connection", "deadline has elapsed"];
    is_wrapper || text.starts_with("client error (") || places.contains(&text)
}

/// An error and its causes from the outside in, also those that an I/O error wraps.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|inner| inner as &(dyn Error + 'static)).or_else(move || error.source())
    })
}

fn remedy(cause: &(dyn Error + 'static)) -> Option<&'static str> {
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
        // The types behind these are not ones that rustls shows.
        E::Other(other) if format!("{other:?}").contains("UnsupportedCertVersion") => {
            "a certificate is of X.509 version 1: make it anew with extensions, which is version 3"
        }
        E::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server's certificate is self-signed and its own CA: give the server a certificate that a CA signed \
             (basicConstraints CA:FALSE), and name that CA as certificate-authority of the kubeconfig"
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

    /// As the client reports an error of a connection.
    fn connect(error: impl Into<Box<dyn Error + Send + Sync>>) -> String {
        request(&Client(io::Error::other(error)))
    }

    #[test]
    fn each_cause_is_said_once() {
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
    fn networks_that_lead_nowhere_are_explained() {
        for (kind, words) in [
            (ErrorKind::ConnectionRefused, "is the API server running"),
            (ErrorKind::NetworkUnreachable, "no route"),
            (ErrorKind::HostUnreachable, "no route"),
            (ErrorKind::TimedOut, "firewall"),
        ] {
            let text = request(&Client(io::Error::from(kind)));
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
        let text = connect(rustls::Error::AlertReceived(AlertDescription::CertificateExpired));
        assert!(text.contains("refuses our client certificate"), "{text}");
    }

    #[test]
    fn refusals_say_what_is_missing() {
        assert!(status(401).is_some_and(|text| text.contains("credentials")));
        assert!(status(403).is_some_and(|text| text.contains("system:node-proxier")));
        assert!(status(404).is_some_and(|text| text.contains("API server")));
        assert_eq!(status(503), None);
    }
}
