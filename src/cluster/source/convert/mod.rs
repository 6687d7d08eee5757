//! Converts Kubernetes objects to events of `rules::model`.
//!
//! The module takes the reduced objects of [`super::objects`] and returns [`Converted`]: the [`Event`] for an object, and a [`Problem`] for
//! each part of the object that cannot be used. `text` validates names, and `intern` keeps one copy of each name.
//!
//! Invariants: the result depends only on the object and the options; an invalid item of a list is dropped alone, and valid items stay; an
//! object that this proxy does not handle becomes the event that deletes the object; an object without a valid name becomes no event.

mod cluster_scoped;
mod intern;
mod service;
mod slice;

#[cfg(test)]
mod tests;

use std::fmt::{Arguments, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::Deserialize;

use super::Problem;
use super::objects::{EndpointSlice, Message, Metadata, Node, Service, ServiceCidr, Text};
use component::addresses::{parse_cidr, parse_ip};
use component::config::NodeMark;
use component::dns_names::{is_dns_label, is_dns_subdomain};
use component::excerpt::quoted;
use intern::Interner;
use rules::model::{ClusterIps, Event, MOST_WEIGHT, ObjectName, Protocol};

/// What decides, besides the object itself, how an object is converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Feature gate AllowServiceExternalIPs: whether `spec.externalIPs` is used (A7).
    pub(crate) allow_external_ips: bool,
    /// How a Service without a cluster IP is handled.
    pub(crate) without_cluster_ip: WithoutClusterIp,
    /// Whether the manifests' EndpointSlices are also read for the names and addresses of pods. The rules do not need them.
    pub(crate) keeps_pods: bool,
    /// The mark with which an operator drains a node; `None` if no mark does (L10).
    pub(crate) drain_on: Option<NodeMark>,
}

/// How a Service is handled that has no cluster IP, is not headless and not of type ExternalName. An API server assigns a cluster IP to
/// each such Service, so only manifests that were never sent to an API server have such Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WithoutClusterIp {
    /// It does not exist for the proxy (A3).
    #[default]
    Ignored,
    /// It is ignored, and a problem says so.
    Reported,
    /// It is converted, with [`ASSIGN`] in place of each address and [`ASSIGN_PORT`] in place of each port that an API server would give
    /// it.
    Assigned,
}

/// Stands for a cluster IP that is still to be assigned.
pub(crate) const ASSIGN: ClusterIps = ClusterIps { v4: Some(Ipv4Addr::UNSPECIFIED), v6: Some(Ipv6Addr::UNSPECIFIED) };
/// Stands for a node port that is still to be assigned.
pub(crate) const ASSIGN_PORT: u16 = 0;

impl Default for ConvertOptions {
    /// Returns the options for a configuration in which nothing is set.
    fn default() -> Self {
        Self {
            allow_external_ips: true,
            without_cluster_ip: WithoutClusterIp::default(),
            keeps_pods: false,
            drain_on: None,
        }
    }
}

/// The event for an object, and the object's problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The event; `None` if the object has no valid name.
    pub event: Option<Event>,
    /// The problems that were found in the object.
    pub problems: Vec<Problem>,
}

/// A kind of objects. It is implemented by the kind's object type with lifetime `'static`, which stands for the kind.
pub(super) trait ObjectKind {
    /// An object of this kind that borrows its strings from the input.
    type Object<'a>: Deserialize<'a> + Message<'a>;

    /// Returns the object's `kind`, which may be empty in a list and is empty in protobuf, and its `metadata`.
    fn head<'a>(object: &'a Self::Object<'_>) -> (&'a str, &'a Metadata<'a>);

    fn convert(object: &Self::Object<'_>, converter: &mut Converter) -> Converted;
}

macro_rules! kind {
    ($type:ident, $convert:ident) => {
        impl ObjectKind for $type<'static> {
            type Object<'a> = $type<'a>;

            fn head<'a>(object: &'a Self::Object<'_>) -> (&'a str, &'a Metadata<'a>) {
                (&object.kind, &object.metadata)
            }

            fn convert(object: &Self::Object<'_>, converter: &mut Converter) -> Converted {
                converter.$convert(object)
            }
        }
    };
}

kind!(Node, node);
kind!(Service, service);
kind!(EndpointSlice, endpoint_slice);
kind!(ServiceCidr, service_cidr);

/// Converts objects. Equal names of nodes, zones, ports and namespaces share one copy among all objects that it converts.
#[derive(Debug, Default)]
pub struct Converter {
    options: ConvertOptions,
    names: Interner,
}

impl Converter {
    /// Makes a converter whose string interner is empty.
    #[must_use]
    pub fn new(options: ConvertOptions) -> Self {
        Self { options, names: Interner::default() }
    }

    /// Returns the name of a namespaced object; `None` with a problem if the name or the namespace is invalid.
    fn object_name(&mut self, meta: &Metadata<'_>, fields: &mut Fields<'_>) -> Option<ObjectName> {
        let name = valid_name(meta, fields)?;
        let namespace = &*meta.namespace;
        if !is_dns_label(namespace) {
            fields.problem("metadata.namespace", format!("{} is not a DNS label; object ignored", quoted(namespace)));
            return None;
        }
        Some(ObjectName::new(self.names.share(namespace), name))
    }

    /// Returns the name of an object without a namespace; `None` with a problem if it is invalid.
    fn cluster_name(&mut self, meta: &Metadata<'_>, fields: &mut Fields<'_>) -> Option<Arc<str>> {
        valid_name(meta, fields).map(|name| self.names.share(name))
    }

    /// Returns a port's name, which may be empty; `None` with a problem if it is invalid.
    fn port_name(&mut self, name: &str, field: Arguments<'_>, fields: &mut Fields<'_>) -> Option<Arc<str>> {
        if name.is_empty() || is_dns_label(name) {
            return Some(self.names.share(name));
        }
        fields.problem(format_args!("{field}.name"), format!("{} is not a DNS label; port ignored", quoted(name)));
        None
    }
}

/// Parses a weight, a whole number from 1 to [`MOST_WEIGHT`] with or without white space around it; `None` for any other text.
fn parse_weight(text: &str) -> Option<u8> {
    text.trim().parse().ok().filter(|weight| (1..=MOST_WEIGHT).contains(weight))
}

fn valid_name<'a>(meta: &'a Metadata<'_>, fields: &mut Fields<'_>) -> Option<&'a str> {
    let name = &*meta.name;
    if is_dns_subdomain(name) {
        return Some(name);
    }
    fields.problem(
        "metadata.name",
        format!("{} is not a DNS subdomain of at most 253 characters; object ignored", quoted(name)),
    );
    None
}

/// The most problems of an object that are kept, because the source remembers them as long as the object exists.
const MOST_PROBLEMS: usize = 10;

/// Reads the fields of one object and collects its problems.
struct Fields<'a> {
    kind: &'static str,
    meta: &'a Metadata<'a>,
    /// The first problems of the object.
    problems: Vec<Problem>,
    /// The number of further problems.
    more: usize,
}

impl<'a> Fields<'a> {
    fn of(kind: &'static str, meta: &'a Metadata<'_>) -> Self {
        Self { kind, meta, problems: Vec::new(), more: 0 }
    }

    fn problem(&mut self, field: impl Display, text: impl Into<String>) {
        if self.problems.len() < MOST_PROBLEMS {
            let object = self.meta.full_name();
            self.problems.push(Problem::new(self.kind, &object, &field.to_string(), &text.into()));
        } else {
            self.more += 1;
        }
    }

    /// Returns the event, with the problems that were found in the object.
    fn finish(mut self, event: Option<Event>) -> Converted {
        if self.more > 0 {
            let (object, field) = (self.meta.full_name(), format!("{} more fields", self.more));
            self.problems.push(Problem::new(self.kind, &object, &field, "cannot be used either"));
        }
        Converted { event, problems: self.problems }
    }

    /// Parses an IP address; leading zeros are allowed (A10). `None` with a problem if it is invalid.
    fn ip(&mut self, field: impl Display, value: &str) -> Option<IpAddr> {
        let ip = parse_ip(value);
        if ip.is_none() {
            self.problem(field, format!("{} is not an IP address; ignored", quoted(value)));
        }
        ip
    }

    /// Parses CIDRs. Removes the white space around each text, skips blank texts and reports invalid ones (A9, A10).
    fn cidrs(&mut self, field: &str, values: &[Text<'_>]) -> Vec<ipnet::IpNet> {
        let mut cidrs = Vec::new();
        for (index, value) in values.iter().enumerate() {
            match parse_cidr(value.trim()) {
                Some(cidr) => cidrs.push(cidr),
                None if value.trim().is_empty() => {}
                None => {
                    self.problem(format_args!("{field}[{index}]"), format!("{} is not a CIDR; ignored", quoted(value)))
                }
            }
        }
        cidrs
    }

    /// Parses a transport protocol. An empty text means TCP, as in the API. `None` with a problem for any other text.
    fn protocol(&mut self, field: Arguments<'_>, value: &str) -> Option<Protocol> {
        match value {
            "" | "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            other => {
                self.problem(
                    format_args!("{field}.protocol"),
                    format!("{} is not TCP, UDP or SCTP; port ignored", quoted(other)),
                );
                None
            }
        }
    }

    /// Returns a port number; `None` with a problem if it is not in 1..=65535. `loss` is the end of the problem's text, such as `port
    /// ignored`.
    fn port(&mut self, field: impl Display, value: i32, loss: &str) -> Option<u16> {
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        if port.is_none() {
            self.problem(field, format!("{value} is not a port (1 to 65535); {loss}"));
        }
        port
    }
}
