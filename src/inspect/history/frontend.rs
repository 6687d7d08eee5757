//! A frontend that came, went or is treated in another way, as a value and in JSON.
//!
//! Invariant: what is written is read back as the same value.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use rules::model::{Destination, Family, Frontend, Protocol};

/// What becomes of new connections to a frontend; of several, the last counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// They go to an endpoint.
    Served,
    /// They are dropped, all or those from outside: there is no endpoint on this node, and the policy is Local.
    Dropped,
    /// They are refused: there is no endpoint.
    Refused,
}

/// A frontend that came, went or is treated in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Form", try_from = "Form")]
pub struct FrontendChange {
    /// The frontend.
    pub frontend: Frontend,
    /// `None` for one that came.
    pub before: Option<Fate>,
    /// `None` for one that went.
    pub after: Option<Fate>,
}

/// A frontend as `services -o json` has it, with what became of it.
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
        let protocol = frontend.protocol.to_string().to_uppercase();
        Self { address, family: frontend.family().to_string(), port: frontend.port, protocol, before, after }
    }
}

impl TryFrom<Form> for FrontendChange {
    type Error = String;

    fn try_from(form: Form) -> Result<Self, String> {
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let protocol = protocols.into_iter().find(|known| known.to_string().eq_ignore_ascii_case(&form.protocol));
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
