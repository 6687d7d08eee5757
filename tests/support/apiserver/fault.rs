//! The faults that a test can order: for requests to come ([`Fault`]), and for watches that are open ([`Command`]).

use std::time::Duration;

use super::resource::Resource;

/// Which requests a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// Lists and watches of every kind.
    All,
    /// Lists of a kind.
    List(Resource),
    /// Watches of a kind, streaming lists among them.
    Watch(Resource),
    /// Lists and watches of a kind.
    Both(Resource),
}

impl On {
    /// Whether the fault meets this request.
    pub(crate) fn meets(self, resource: Resource, is_watch: bool) -> bool {
        match self {
            Self::All => true,
            Self::List(kind) => kind == resource && !is_watch,
            Self::Watch(kind) => kind == resource && is_watch,
            Self::Both(kind) => kind == resource,
        }
    }
}

/// How an answer ends before it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a TCP reset.
    Reset,
    /// The connection is closed.
    Close,
    /// Nothing more comes, and the connection stays open.
    Silence,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No answer at all, not even a status line.
    Unanswered(Ending),
    /// The answer begins after this time.
    Delay(Duration),
    /// The body breaks off after this many bytes.
    After(usize, Ending),
    /// The body comes in chunks of this many bytes, with a pause after each.
    Drip(usize, Duration),
    /// An HTTP status with a Status object, and Retry-After in seconds.
    Refuse(u16, Option<u32>),
    /// These bytes take the place of the body.
    Garbage(Vec<u8>),
}

/// A fault that waits for its requests.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The requests that the fault meets.
    pub(crate) on: On,
    /// How many requests the fault meets; `None` for all until the fault is cancelled.
    pub(crate) times: Option<u32>,
    /// What happens to these requests.
    pub(crate) fault: Fault,
}

/// Returns the fault of the first plan that meets the request, and uses it once.
pub(crate) fn take(plans: &mut Vec<Planned>, resource: Resource, is_watch: bool) -> Option<Fault> {
    let at = plans.iter().position(|plan| plan.on.meets(resource, is_watch))?;
    let fault = plans[at].fault.clone();
    if let Some(times) = &mut plans[at].times {
        *times -= 1;
        if *times == 0 {
            plans.remove(at);
        }
    }
    Some(fault)
}

/// An order that open watches carry out at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// End in this way.
    End(Ending),
    /// End as a watch whose time is over.
    Finish,
    /// Say that the version is too old, then end.
    Expire,
    /// Send a bookmark.
    Bookmark,
    /// Send these bytes as they are.
    Bytes(Vec<u8>),
    /// Send this many bytes of a line that does not end.
    Flood(usize),
}
