//! The change of a frontend (an address and port that clients connect to, or a node port), as a value and in JSON.
//!
//! Invariant: a value that is written is read back as the same value.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use rules::model::{Destination, Family, Frontend, Protocol};

/// What becomes of new connections to a frontend. When several fates apply, the last one in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// They go to an endpoint.
    Served,
    /// They are dropped, all of them or those from outside the cluster: there is no endpoint on this node, and the policy is Local.
    Dropped,
    /// They are refused: there is no endpoint.
    Refused,
}

/// A frontend that was added or removed, or whose connections have another fate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Form", try_from = "Form")]
pub struct FrontendChange {
    /// The address or node port to which clients connect, with protocol and port.
    pub frontend: Frontend,
    /// The fate before; `None` for a frontend that was added.
    pub before: Option<Fate>,
    /// The fate now; `None` for a frontend that was removed.
    pub after: Option<Fate>,
}

/// The JSON form of a [`FrontendChange`]. Names the frontend as `services -o json` does.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    /// Null for a node port.
    address: Option<IpAddr>,
    family: String,
    port: u16,
    protocol: String,
    before: Option<Fate>,
    after: Option<Fate>,
}

impl From<FrontendChange> for Form {
    fn from(change: FrontendChange) -> Self {
        let FrontendChange { frontend, before, after } = change;
        let address = match frontend.destination {
            Destination::Address(address) => Some(address),
            Destination::NodePort(_) => None,
        };
        let protocol = frontend.protocol.api_name().to_owned();
        Self { address, family: frontend.family().to_string(), port: frontend.port, protocol, before, after }
    }
}

impl TryFrom<Form> for FrontendChange {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        let protocol = Protocol::named(&form.protocol);
        let family = Family::BOTH.into_iter().find(|known| known.to_string() == form.family);
        let frontend = Frontend {
            destination: match form.address {
                Some(address) => Destination::Address(address),
                None => Destination::NodePort(family.ok_or_else(|| format!("unknown family {}", form.family))?),
            },
            protocol: protocol.ok_or_else(|| format!("unknown protocol {}", form.protocol))?,
            port: form.port,
        };
        Ok(Self { frontend, before: form.before, after: form.after })
    }
}
