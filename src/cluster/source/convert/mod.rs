//! Kubernetes objects to model events.
//!
//! Takes the reduced objects of [`super::objects`], gives [`Converted`]: the [`Event`] that an object stands for, and a [`Problem`] for
//! each part of it that cannot be used. `text` reads the values that the kinds share, `intern` shares names.
//!
//! Invariants: pure, the result depends on the object and the options only; a bad item is dropped alone; an object that is
//! not for this proxy gives the deletion event of its name, one without a valid name gives no event at all.

mod cluster_scoped;
mod intern;
mod service;
mod slice;
mod text;

#[cfg(test)]
mod tests;

use std::fmt::{Arguments, Display};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::Problem;
use super::objects::{EndpointSlice, Message, Metadata, Node, Service, ServiceCidr, Text};
use component::addresses::{parse_cidr, parse_ip};
use intern::Interner;
use rules::model::{Event, ObjectName, Protocol};

/// What the conversion depends on besides the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Feature gate AllowServiceExternalIPs: whether `spec.externalIPs` count (A7).
    pub(crate) allow_external_ips: bool,
}

impl Default for ConvertOptions {
    /// The gates' defaults.
    fn default() -> Self {
        Self { allow_external_ips: true }
    }
}

/// An object's event and problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The event; `None` when the object has no valid name.
    pub event: Option<Event>,
    /// Why parts of it were left out.
    pub problems: Vec<Problem>,
}

/// A kind of objects, named by the type of one that lives as long as the program.
pub(super) trait ObjectKind {
    /// An object, with its texts where they were read from.
    type Object<'a>: Deserialize<'a> + Message<'a>;

    /// Its `kind`, which is empty in a list and in protobuf, and its `metadata`.
    fn head<'a>(object: &'a Self::Object<'_>) -> (&'a str, &'a Metadata<'a>);

    /// What it means for the model.
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

/// Converts objects; shares equal node, zone, port and namespace names among all that it has converted.
#[derive(Debug, Default)]
pub struct Converter {
    options: ConvertOptions,
    names: Interner,
}

impl Converter {
    /// A converter without shared names yet.
    #[must_use]
    pub fn new(options: ConvertOptions) -> Self {
        Self { options, names: Interner::default() }
    }

    /// The validated name of a namespaced object.
    fn object_name(&mut self, meta: &Metadata<'_>, fields: &mut Fields<'_>) -> Option<ObjectName> {
        let name = valid_name(meta, fields)?;
        let namespace = &*meta.namespace;
        if !text::is_dns_label(namespace) {
            fields.problem("metadata.namespace", format!("{namespace:?} is not a DNS label; object ignored"));
            return None;
        }
        Some(ObjectName::new(self.names.share(namespace), name))
    }

    /// The validated name of an object without a namespace.
    fn cluster_name(&mut self, meta: &Metadata<'_>, fields: &mut Fields<'_>) -> Option<Arc<str>> {
        valid_name(meta, fields).map(|name| self.names.share(name))
    }

    /// A port's name, which may be empty.
    fn port_name(&mut self, name: &str, field: Arguments<'_>, fields: &mut Fields<'_>) -> Option<Arc<str>> {
        if name.is_empty() || text::is_dns_label(name) {
            return Some(self.names.share(name));
        }
        fields.problem(format_args!("{field}.name"), format!("{name:?} is not a DNS label; port ignored"));
        None
    }
}

fn valid_name<'a>(meta: &'a Metadata<'_>, fields: &mut Fields<'_>) -> Option<&'a str> {
    let name = &*meta.name;
    if text::is_dns_subdomain(name) {
        return Some(name);
    }
    fields
        .problem("metadata.name", format!("{name:?} is not a DNS subdomain of at most 253 characters; object ignored"));
    None
}

/// Reads the fields of one object and collects its problems.
struct Fields<'a> {
    kind: &'static str,
    meta: &'a Metadata<'a>,
    problems: Vec<Problem>,
}

impl<'a> Fields<'a> {
    fn of(kind: &'static str, meta: &'a Metadata<'_>) -> Self {
        Self { kind, meta, problems: Vec::new() }
    }

    fn problem(&mut self, field: impl Display, text: impl Into<String>) {
        let (object, field, text) = (self.meta.full_name(), field.to_string(), text.into());
        self.problems.push(Problem { kind: self.kind, object, field, text });
    }

    /// The event with the problems so far.
    fn finish(self, event: Option<Event>) -> Converted {
        Converted { event, problems: self.problems }
    }

    /// An address; leading zeros are allowed (A10).
    fn ip(&mut self, field: impl Display, value: &str) -> Option<IpAddr> {
        let ip = parse_ip(value);
        if ip.is_none() {
            self.problem(field, format!("{value:?} is not an IP address; ignored"));
        }
        ip
    }

    /// A list of CIDRs, each trimmed; blank ones are left out, bad ones are problems (A9, A10).
    fn cidrs(&mut self, field: &str, values: &[Text<'_>]) -> Vec<ipnet::IpNet> {
        let mut cidrs = Vec::new();
        for (index, value) in values.iter().enumerate() {
            match parse_cidr(value.trim()) {
                Some(cidr) => cidrs.push(cidr),
                None if value.trim().is_empty() => {}
                None => {
                    self.problem(format_args!("{field}[{index}]"), format!("{:?} is not a CIDR; ignored", &**value))
                }
            }
        }
        cidrs
    }

    /// A transport protocol; absent means TCP, as in the API.
    fn protocol(&mut self, field: Arguments<'_>, value: &str) -> Option<Protocol> {
        match value {
            "" | "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            other => {
                self.problem(
                    format_args!("{field}.protocol"),
                    format!("{other:?} is not TCP, UDP or SCTP; port ignored"),
                );
                None
            }
        }
    }

    /// A port number in 1..=65535. `loss` is what a bad one costs, for the message.
    fn port(&mut self, field: impl Display, value: i32, loss: &str) -> Option<u16> {
        let port = u16::try_from(value).ok().filter(|port| *port != 0);
        if port.is_none() {
            self.problem(field, format!("{value} is not a port (1 to 65535); {loss}"));
        }
        port
    }
}
