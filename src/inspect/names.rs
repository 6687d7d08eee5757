//! The names that commands take and print: Services, their ports, and frontends.
//!
//! | written | means |
//! |---|---|
//! | `shop/web` | all ports of a Service |
//! | `shop/web:http`, `shop/web:80` | one port of a Service, by its name; a number may be its name or its number |
//! | `10.96.0.10`, `fd00::10` | all frontends with this address, and those with an endpoint at it |
//! | `10.96.0.10:53`, `[fd00::10]:53` | the frontends with this address and port |
//! | `10.96.0.10:53/udp` | one frontend |
//! | `*:30080`, `:30080`, `30080` | a node port, of all protocols |
//! | `*:30080/tcp` | a node port of one protocol |
//! | `shop` | all Services of a namespace; with [`Wanted::in_namespace`] a Service |
//!
//! Pure. Invariant: parsing a printed name gives the same value.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use rules::model::Protocol;

/// A name that the user gave, in one of the forms of [this table](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A Service, or one port of it.
    Service(ServiceName),
    /// All frontends with this address, and those with an endpoint at it.
    Address(IpAddr),
    /// The frontends with this address (or node port), port and protocol.
    Frontend(FrontendName),
}

/// NAMESPACE/NAME or NAMESPACE/NAME:PORT. A name without a slash means a namespace; see [`Wanted::in_namespace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceName {
    /// The namespace and the name, as `namespace/name`; or only a namespace.
    pub(crate) service: String,
    /// The name of the port, or its number; `None` for all ports.
    pub(crate) port: Option<String>,
}

impl ServiceName {
    /// Whether it is the name of a namespace.
    pub(crate) fn is_namespace(&self) -> bool {
        !self.service.contains('/')
    }

    /// Whether `service`, a Service or service port, belongs to the Service or to the namespace of this name. Ports are not compared.
    pub(crate) fn is_of(&self, service: &str) -> bool {
        if self.is_namespace() { is_in(service, &self.service) } else { is_port_of(service, &self.service) }
    }

    /// Whether it includes `service_port`, which has the form of the comments in the tables: `namespace/name`, or `namespace/name:port`
    /// when the port has a name.
    pub(crate) fn names(&self, service_port: &str) -> bool {
        self.is_of(service_port) && (self.port.is_none() || is(service_port, &self.to_string()))
    }
}

/// Whether a Service or service port, `namespace/name[:port]`, is in a namespace.
pub(crate) fn is_in(service: &str, namespace: &str) -> bool {
    service.split_once('/').is_some_and(|(its, _)| its == namespace)
}

/// Whether a name in a comment of the tables may be `name`: a long name is cut there, and ends with `...`.
pub(crate) fn is(known: &str, name: &str) -> bool {
    known.strip_suffix("...").map_or(known == name, |start| name.starts_with(start))
}

/// Whether a service port, `namespace/name[:port]` as the tables name it, may belong to a Service.
pub(crate) fn is_port_of(service_port: &str, service: &str) -> bool {
    is(split_port(service_port).0, service)
}

/// Splits `namespace/name[:port]` into `namespace/name` and the name of the port.
pub(crate) fn split_port(service_port: &str) -> (&str, Option<&str>) {
    service_port.split_once(':').map_or((service_port, None), |(service, port)| (service, Some(port)))
}

impl Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.service)?;
        self.port.as_ref().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// IP:PORT[/PROTO], or `*:PORT[/PROTO]` for a node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrontendName {
    /// `None` for a node port.
    pub(crate) address: Option<IpAddr>,
    /// The port, not 0.
    pub(crate) port: u16,
    /// `None` for all protocols.
    pub(crate) protocol: Option<Protocol>,
}

impl Display for FrontendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port)?,
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port)?,
            None => write!(f, "*:{}", self.port)?,
        }
        self.protocol.map_or(Ok(()), |protocol| write!(f, "/{}", protocol.api_name()))
    }
}

/// Why a text is not a valid name. Printed after the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NameError(&'static str);

const EXPECTED: NameError = NameError(
    "expected NAMESPACE/NAME[:PORT], IP, IP:PORT[/PROTO] ([IP]:PORT for IPv6), or *:PORT[/PROTO] for a node port",
);
const PORT: NameError = NameError("expected a port from 1 to 65535");
const PROTOCOL: NameError = NameError("expected tcp, udp or sctp behind the slash");

impl FromStr for FrontendName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (frontend, protocol) = match text.split_once('/') {
            Some((frontend, protocol)) => (frontend, Some(protocol_of(protocol)?)),
            None => (text, None),
        };
        let (address, port) = frontend.rsplit_once(':').ok_or(EXPECTED)?;
        let address = match address {
            "" | "*" => None,
            bracketed if bracketed.starts_with('[') => {
                let inner = bracketed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).ok_or(EXPECTED)?;
                Some(IpAddr::V6(inner.parse().map_err(|_| EXPECTED)?))
            }
            plain => Some(IpAddr::V4(plain.parse().map_err(|_| EXPECTED)?)),
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(PORT)?;
        Ok(Self { address, port, protocol })
    }
}

impl FromStr for Wanted {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().ok().filter(|port| *port != 0).ok_or(PORT)?;
            return Ok(Self::Frontend(FrontendName { address: None, port, protocol: None }));
        }
        // IP:PORT/PROTO has a colon before the slash; NAMESPACE/NAME[:PORT] can only have one after it.
        let is_frontend = text.split('/').next().is_some_and(|head| head.contains(':'));
        if is_frontend { text.parse().map(Self::Frontend) } else { text.parse().map(Self::Service) }
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (service, port) = split_port(text);
        let is_label = |label: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !label.is_empty() && label.chars().all(is_part)
        };
        // A text without a slash is a namespace, or the name of a Service to which `in_namespace` adds the namespace.
        let Some((namespace, name)) = service.split_once('/') else {
            let is_name = port.is_none() && is_label(service) && service.contains(|c: char| c.is_ascii_alphabetic());
            return is_name.then(|| Self { service: service.to_owned(), port: None }).ok_or(EXPECTED);
        };
        // A Service's port may have a name of digits only (a DNS label), so a number may be the name of a port or the number of one.
        let fits = is_label(namespace) && is_label(name) && port.is_none_or(is_label);
        fits.then(|| Self { service: service.to_owned(), port: port.map(str::to_owned) }).ok_or(EXPECTED)
    }
}

impl Wanted {
    /// Returns a copy of this name. A Service's name without a namespace gets `namespace`, if there is one.
    pub(crate) fn in_namespace(&self, namespace: Option<&str>) -> Self {
        match (self, namespace) {
            (Self::Service(name), Some(namespace)) if name.is_namespace() => {
                let service = format!("{namespace}/{}", name.service);
                Self::Service(ServiceName { service, port: name.port.clone() })
            }
            _ => self.clone(),
        }
    }
}

impl Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => name.fmt(f),
            Self::Address(ip) => ip.fmt(f),
            Self::Frontend(frontend) => frontend.fmt(f),
        }
    }
}

/// Parses a protocol, in upper or lower case.
pub(crate) fn protocol_of(text: &str) -> Result<Protocol, NameError> {
    Protocol::named(text).ok_or(PROTOCOL)
}

/// An error message suggests at most this many similar names.
const NEAR_NAMES: usize = 3;
/// A known name is suggested if its similarity, from 0 to 1, is above this. clap has the same limit for its suggestions.
const NEAR: f64 = 0.7;
/// A suggested name may be less similar than the best one by at most this.
const NEAR_THE_BEST: f64 = 0.15;

/// The message that the tables have no Service with this name.
pub(crate) fn no_service(name: &str) -> String {
    match name.contains('/') {
        true => format!("no Service {name} in the tables of this node"),
        false => format!("no namespace {name} in the tables of this node (a Service is named NAMESPACE/NAME)"),
    }
}

/// The error for an unknown name: `what`, and similar names if there are any, as in `no Service shop/wbe ...; did you mean shop/web:http?`.
pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> anyhow::Error {
    match near(name, known).join(", ") {
        names if names.is_empty() => anyhow::anyhow!("{what}"),
        names => anyhow::anyhow!("{what}; did you mean {names}?"),
    }
}

/// The known names that are most similar to `wrong`, best first: at most [`NEAR_NAMES`], and none that is much less similar than the first.
pub(crate) fn near<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut scored: Vec<(f64, &str)> =
        known.map(|name| (likeness(wrong, name), name)).filter(|(score, _)| *score > NEAR).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    let least = scored.first().map_or(0.0, |(best, _)| best - NEAR_THE_BEST);
    scored.into_iter().take_while(|(score, _)| *score >= least).take(NEAR_NAMES).map(|(_, name)| name).collect()
}

/// The similarity of two names, from 0 to 1. When `wrong` has no port or no namespace, that part of `known` is ignored.
fn likeness(wrong: &str, known: &str) -> f64 {
    let (wrong, known) = if wrong.contains(':') { (wrong, known) } else { (wrong, split_port(known).0) };
    let name = known.split_once('/').map_or(known, |(_, name)| name);
    match wrong.split_once('/') {
        // The right name in a wrong namespace counts as very similar, even if the namespaces are not.
        Some((_, wrong_name)) if wrong_name == name => 0.9_f64.max(strsim::jaro(wrong, known)),
        Some(_) => strsim::jaro(wrong, known),
        None => strsim::jaro(wrong, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frontend(text: &str) -> FrontendName {
        text.parse().unwrap()
    }

    #[test]
    fn each_kind_of_name_is_told_from_the_others() {
        let kinds = |text: &str| match text.parse().unwrap() {
            Wanted::Service(name) => format!("{} {:?}", name.service, name.port),
            Wanted::Address(ip) => format!("address {ip}"),
            Wanted::Frontend(frontend) => format!("frontend {frontend}"),
        };
        assert_eq!(kinds("shop/web"), "shop/web None");
        assert_eq!(kinds("shop/web:http"), "shop/web Some(\"http\")");
        assert_eq!(kinds("shop/web:80"), "shop/web Some(\"80\")");
        assert_eq!(kinds("web"), "web None");
        assert_eq!(kinds("10.96.0.10"), "address 10.96.0.10");
        assert_eq!(kinds("fd00::10"), "address fd00::10");
        assert_eq!(kinds("10.96.0.10:53/udp"), "frontend 10.96.0.10:53/UDP");
        assert_eq!(kinds("[fd00::10]:53/SCTP"), "frontend [fd00::10]:53/SCTP");
        assert_eq!(kinds("*:30080"), "frontend *:30080");
        assert_eq!(kinds(":30080/tcp"), "frontend *:30080/TCP");
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for text in
            ["shop/web", "shop/web:http", "10.96.0.10", "fd00::10", "10.96.0.10:53", "[fd00::10]:53/UDP", "*:1/TCP"]
        {
            assert_eq!(text.parse::<Wanted>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_word_is_told_what_is_right() {
        for (text, part) in [
            ("web:http", "IP:PORT"),
            ("10.96.0", "NAMESPACE/NAME"),
            ("10.96.0.10:0", "1 to 65535"),
            ("10.96.0.10:65536", "1 to 65535"),
            ("10.96.0.10:53/icmp", "tcp, udp or sctp"),
            ("10.96.0:53", "IP:PORT"),
            ("[10.96.0.10]:53", "IP:PORT"),
            ("/web", "NAMESPACE/NAME"),
            ("shop/", "NAMESPACE/NAME"),
            ("shop/web:", "NAMESPACE/NAME"),
        ] {
            let error = text.parse::<Wanted>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_service_names_all_its_ports_and_a_port_only_itself() {
        let name = |text: &str| text.parse::<ServiceName>().unwrap();
        assert!(name("shop/web").names("shop/web:http") && name("shop/web").names("shop/web"));
        assert!(name("shop/web:http").names("shop/web:http"));
        assert!(!name("shop/web:http").names("shop/web:https") && !name("shop/web:http").names("shop/web"));
        assert!(!name("shop/web").names("shop/web2") && !name("web").names("shop/web"));
    }

    #[test]
    fn a_name_that_the_tables_cut_stands_for_each_that_begins_so() {
        let name = |text: &str| text.parse::<ServiceName>().unwrap();
        assert!(name("shop/web-of-many-words").names("shop/web-of...") && !name("shop/we").names("shop/web-of..."));
        assert!(
            name("shop/web:http-metrics").names("shop/web:http-me...") && name("shop/web").names("shop/web:http-me...")
        );
        assert!(!name("shop/web:grpc").names("shop/web:http-me...") && !name("shop/web2").names("shop/web:http-me..."));
        assert!(!is_port_of("shop/web:http", "shop/webserver"));
    }

    #[test]
    fn near_names_are_those_that_were_likely_meant() {
        let known = ["shop/web:http", "shop/web2", "shop/api", "kube-system/kube-dns:dns", "default/kubernetes:https"];
        let near = |wrong| near(wrong, known.into_iter());
        assert_eq!(near("shop/wbe")[0], "shop/web:http");
        assert_eq!(near("kube-dns"), ["kube-system/kube-dns:dns"]);
        assert_eq!(near("default/kube-dns")[0], "kube-system/kube-dns:dns");
        assert_eq!(near("shop/web:htpp")[0], "shop/web:http");
        assert!(near("zzz").is_empty());
        let error = unknown("no Service shop/wbe", "shop/wbe", known.into_iter()).to_string();
        assert!(error.starts_with("no Service shop/wbe; did you mean shop/web:http"), "{error}");
    }

    #[test]
    fn a_node_port_has_no_address() {
        assert_eq!(frontend("*:30080/tcp"), FrontendName { address: None, port: 30080, protocol: Some(Protocol::Tcp) });
    }
}
