//! The four kinds that are watched: where they are, which of their objects are asked for, how one is read (surface.md section 8).
//!
//! Takes the JSON of an object, gives what it amounts to or a [`Broken`]. Pure.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::model::ObjectName;
use crate::source::convert::{Converted, Converter};
use crate::source::key::Key;
use crate::source::notice::Notice;
use crate::source::objects::{self, EndpointSlice, Metadata, Node, Service, ServiceCidr};

/// A watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Resource {
    Node,
    Service,
    EndpointSlice,
    ServiceCidr,
}

/// An object that decoded.
#[derive(Debug)]
pub(super) struct Decoded {
    /// What it amounts to.
    pub(super) converted: Converted,
    /// Its version; empty if it has none.
    pub(super) version: Box<str>,
}

/// An object that did not decode.
#[derive(Debug)]
pub(super) struct Broken {
    /// Which object; `None` if not even that can be read.
    pub(super) key: Option<Key>,
    /// Its version, if that much can be read.
    pub(super) version: Option<Box<str>>,
    /// What is wrong with it.
    pub(super) notice: Notice,
}

impl Resource {
    /// All of them. The Node comes first: start-up waits for it (M2).
    pub(super) const ALL: [Self; 4] = [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr];

    /// The kind's name.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// Where the API server has them.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Node => "/api/v1/nodes",
            Self::Service => "/api/v1/services",
            Self::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }

    /// Which of them are asked for, by label.
    pub(super) const fn label_selector(self) -> Option<&'static str> {
        match self {
            Self::Service => Some("!service.kubernetes.io/service-proxy-name"),
            Self::EndpointSlice => Some("!service.kubernetes.io/headless"),
            Self::Node | Self::ServiceCidr => None,
        }
    }

    /// Which of them are asked for, by field.
    pub(super) fn field_selector(self, node_name: &str) -> Option<String> {
        match self {
            Self::Service => Some("spec.clusterIP!=None".into()),
            Self::Node => Some(format!("metadata.name={node_name}")),
            Self::EndpointSlice | Self::ServiceCidr => None,
        }
    }

    /// Whether a cluster may do without: older ones have no ServiceCIDRs, or no rule that lets us see them.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::ServiceCidr)
    }

    /// Reads an object.
    pub(super) fn decode(self, converter: &mut Converter, object: &RawValue) -> Result<Decoded, Box<Broken>> {
        match self {
            Self::Node => self.typed(object, |node: &Node| (&node.kind, &node.metadata), |node| converter.node(node)),
            Self::Service => self.typed(
                object,
                |service: &Service| (&service.kind, &service.metadata),
                |service| converter.service(service),
            ),
            Self::EndpointSlice => self.typed(
                object,
                |slice: &EndpointSlice| (&slice.kind, &slice.metadata),
                |slice| converter.endpoint_slice(slice),
            ),
            Self::ServiceCidr => self.typed(
                object,
                |cidr: &ServiceCidr| (&cidr.kind, &cidr.metadata),
                |cidr| converter.service_cidr(cidr),
            ),
        }
    }

    fn typed<T: DeserializeOwned>(
        self,
        object: &RawValue,
        head: impl FnOnce(&T) -> (&Box<str>, &Metadata),
        convert: impl FnOnce(&T) -> Converted,
    ) -> Result<Decoded, Box<Broken>> {
        let Ok(object) = serde_json::from_str::<T>(object.get()) else {
            return Err(Box::new(self.broken::<T>(object)));
        };
        let (kind, metadata) = head(&object);
        if !self.is_named(kind) {
            return Err(Box::new(self.stray(kind, metadata)));
        }
        Ok(Decoded { version: metadata.resource_version.clone(), converted: convert(&object) })
    }

    /// Whether an object of this kind belongs here. In a list objects do not say what they are.
    fn is_named(self, kind: &str) -> bool {
        kind.is_empty() || kind == self.kind()
    }

    /// Something of another kind. It may have the name of one of ours, and says nothing about that.
    fn stray(self, kind: &str, metadata: &Metadata) -> Broken {
        let object = match &metadata.namespace {
            Some(namespace) => format!("{namespace}/{}", metadata.name),
            None => metadata.name.to_string(),
        };
        Broken {
            key: None,
            version: Some(metadata.resource_version.clone()).filter(|version| !version.is_empty()),
            notice: Notice {
                kind: self.kind(),
                object,
                field: "kind".into(),
                problem: format!("the server sent a {kind:?}; it is not used"),
            },
        }
    }

    /// Looks closer at an object that does not decode. Slower, and needed for few.
    fn broken<T: DeserializeOwned>(self, object: &RawValue) -> Broken {
        let identity = serde_json::from_str::<Identity<'_>>(object.get()).ok();
        let metadata = identity.map(|identity| identity.metadata).unwrap_or_default();
        let name = metadata.name.filter(|name| !name.is_empty());
        let error = match serde_json::from_str(object.get()).map(|value| objects::decode::<T>(&value)) {
            Ok(Err(error)) => (error.field, error.problem),
            // What fails as text but not as a tree, such as a field that is there twice.
            Ok(Ok(_)) => (".".into(), "not readable".into()),
            Err(error) => (".".into(), error.to_string()),
        };
        let object = match (&metadata.namespace, &name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            (None, Some(name)) => name.clone().into_owned(),
            (_, None) => "without a name".into(),
        };
        Broken {
            key: name.map(|name| self.key(metadata.namespace.as_deref().unwrap_or_default(), &name)),
            version: metadata.resource_version.map(Into::into),
            notice: Notice {
                kind: self.kind(),
                object,
                field: error.0,
                problem: format!("{}; the object stays as it was", error.1),
            },
        }
    }

    /// Which object a deletion is about.
    pub(super) fn identify(self, object: &RawValue) -> Option<(Key, Option<Box<str>>)> {
        let Identity { kind, metadata } = serde_json::from_str(object.get()).ok()?;
        if !kind.is_none_or(|kind| self.is_named(&kind)) {
            return None;
        }
        let key = self.key(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref()?);
        Some((key, metadata.resource_version.map(Into::into)))
    }

    fn key(self, namespace: &str, name: &str) -> Key {
        match self {
            Self::Node => Key::Node(name.into()),
            Self::ServiceCidr => Key::ServiceCidr(name.into()),
            Self::Service => Key::Service(ObjectName::new(namespace, name)),
            Self::EndpointSlice => Key::Slice(ObjectName::new(namespace, name)),
        }
    }
}

/// The least that can be known of an object.
#[derive(Deserialize)]
struct Identity<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    metadata: IdentityMetadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityMetadata<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
}
