//! Describes claims on frontends that their Services do not get.
//!
//! Only values: [`claims`](super::claims) makes them, and the log and the events of the API server print them. Invariant: a report on a
//! frontend lists at most as many Services as its caller asked for, however many claim the frontend.

use std::fmt;
use std::net::SocketAddr;

use super::frontends::FrontendKind;
use super::names::{Destination, Frontend, ObjectName};

/// A claim of a Service on a frontend that the Service does not get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The frontend that is claimed.
    pub frontend: Frontend,
    /// Why the loser does not get it.
    pub winner: Winner,
    /// The Service that does not get the traffic.
    pub loser: ObjectName,
    /// The kind of frontend as which the loser claims it.
    pub kind: FrontendKind,
}

/// The reason why a claim loses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Winner {
    /// This Service has the frontend, as this kind; it is the loser itself when two of its ports claim the frontend.
    Service(ObjectName, FrontendKind),
    /// The frontend is an endpoint of the API server.
    ApiServer,
    /// No Service gets the frontend: its address is in a ServiceCIDR, and the first claim on it is an external IP.
    None,
}

/// Conflicts at one frontend that several claims want or that no Service may have: those that arose lately, or all that exist now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The first of the conflicts, at least one, in the order in which the losers would get the frontend.
    pub conflicts: Vec<Conflict>,
    /// The number of further claims with a conflict, beyond those for `conflicts`.
    pub more: usize,
    /// The number of all Services' claims on the frontend, winning or losing, whenever they came.
    pub claims: usize,
}

impl fmt::Display for Contest {
    /// One sentence: how many claims there are, which Service gets the frontend, why, and which Services do not.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conflicts, more, claims } = self;
        let Some(first) = conflicts.first() else { return Ok(()) };
        if conflicts.len() + more == 1 {
            return first.fmt(f);
        }
        // Not the number of Services: one may claim the frontend with two of its ports.
        write!(f, "{claims} claims on {}; ", first.frontend)?;
        match &first.winner {
            Winner::Service(owner, theirs) => write!(f, "{owner} gets it, {}", Precedence(*theirs, first.kind))?,
            Winner::ApiServer => write!(f, "none gets it as {}, because {IS_API_SERVER}", first.kind.one())?,
            Winner::None => write!(f, "none gets it as {}, because {IS_RESERVED}", first.kind.one())?,
        }
        f.write_str("; those that do not get it: ")?;
        for (index, conflict) in conflicts.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, conflict.loser)?;
        }
        if *more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

const IS_API_SERVER: &str = "it is an endpoint of the API server";
const IS_RESERVED: &str = "the address is in a ServiceCIDR and is not its cluster IP";

/// Prints why a claim of the first kind wins over a claim of the second kind.
struct Precedence(FrontendKind, FrontendKind);

impl fmt::Display for Precedence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(winner, loser) = self;
        if winner == loser {
            f.write_str("by age and then by name")
        } else {
            write!(f, "because {} comes before {}", winner.one(), loser.one())
        }
    }
}

impl Conflict {
    /// The conflict in few words: which Service does not get the frontend, and what has it.
    #[must_use]
    pub fn in_short(&self) -> String {
        let Self { winner, loser, kind, .. } = self;
        let frontend = as_typed(&self.frontend);
        match winner {
            Winner::Service(owner, _) if owner == loser => {
                format!("{loser} does not get {frontend} for two of its ports, the first of them has it")
            }
            Winner::Service(owner, _) => format!("{loser} does not get {frontend}, {owner} has it"),
            Winner::ApiServer => format!("{loser} does not get {frontend} as {}, because {IS_API_SERVER}", kind.one()),
            Winner::None => format!("{loser} does not get {frontend} as {}, because {IS_RESERVED}", kind.one()),
        }
    }
}

/// A frontend as operators type it: `10.96.0.10:80/TCP`, `node port 30080/TCP`.
fn as_typed(frontend: &Frontend) -> String {
    let (port, protocol) = (frontend.port, frontend.protocol.api_name());
    match frontend.destination {
        Destination::Address(ip) => format!("{}/{protocol}", SocketAddr::new(ip, port)),
        Destination::NodePort(_) => format!("node port {port}/{protocol}"),
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frontend, winner, loser, kind } = self;
        let does_not_get = |f: &mut fmt::Formatter<'_>, reason: &str| {
            write!(f, "Service {loser} does not get {frontend} as {}, because {reason}", kind.one())
        };
        match winner {
            Winner::Service(owner, _) if owner == loser => {
                write!(f, "two ports of Service {owner} claim {frontend}; the first of them gets it")
            }
            Winner::Service(owner, theirs) => {
                let precedence = Precedence(*theirs, *kind);
                write!(f, "Services {owner} and {loser} both claim {frontend}; {owner} gets it, {precedence}")
            }
            Winner::ApiServer => does_not_get(f, IS_API_SERVER),
            Winner::None => does_not_get(f, IS_RESERVED),
        }
    }
}
