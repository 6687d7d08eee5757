//! One entry of the proxy's ring buffer of changes. Its JSON form is described in `deploy/REFERENCE.md`; other programs read it.
//!
//! Invariant: an entry is small. Lists hold at most [`LISTED`] members, and long texts are cut.

use std::fmt;
use std::mem::size_of;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use rules::model::ObjectName;

use super::form;
use super::frontend::FrontendChange;

/// The most members that each list of an entry holds.
pub(super) const LISTED: usize = 32;
/// The most bytes of an error, of a finding and of a field's value.
pub(super) const TEXT: usize = 512;

/// Something that the proxy did, or an event that it noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The number of the entry, 1 for the first entry of a process.
    pub number: u64,
    /// When it happened.
    #[serde(with = "form::time")]
    pub time: Timestamp,
    /// The number of the sync that did it, 1 for the first sync of a process; `None` for an entry that no sync caused.
    pub sync: Option<u64>,
    /// The kind of the entry, with its details.
    #[serde(flatten)]
    pub what: EntryKind,
}

/// The kinds of entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum EntryKind {
    /// A sync changed the tables for one Service, tried to and failed, or left the Service out.
    Service(Box<Change>),
    /// A sync as a whole: the first one, one that failed, one that changed too many Services to list them, or one that the node, a
    /// ServiceCIDR or a takeover triggered and that changed the tables for no Service.
    Sync(SyncRun),
    /// The proxy repaired tables that another program had changed.
    Repair(Repair),
    /// The connection to the API server was lost or found again.
    ApiServer(ApiServer),
}

/// What a sync did for one Service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The namespace and name of the Service.
    #[serde(with = "form::name")]
    pub service: ObjectName,
    /// What happened to the Service in the tables.
    pub action: Action,
    /// What triggered the change.
    pub trigger: Trigger,
    /// The time from when the proxy applied the first object that triggered the change to its state until the result was known; `None` when
    /// neither the Service nor one of its EndpointSlices triggered it.
    #[serde(rename = "latencySeconds", with = "form::seconds")]
    pub latency: Option<Duration>,
    /// The time from the change in the cluster, as the annotation of the EndpointSlice that triggered the change has it, until the result was
    /// known; `None` without this annotation.
    #[serde(rename = "clusterLatencySeconds", with = "form::seconds")]
    pub cluster_latency: Option<Duration>,
    /// The result of the transaction for this change.
    pub result: CommitOutcome,
    /// Why the change was not committed; `None` if it was.
    pub error: Option<String>,
    /// The fields of the Service that changed.
    pub fields: Vec<FieldChange>,
    /// The frontends that were added or removed, or whose traffic is now treated in another way.
    #[serde(rename = "fronts")]
    pub frontends: Vec<FrontendChange>,
    /// The number of such frontends that `frontends` has no room for.
    #[serde(rename = "moreFronts")]
    pub more_frontends: usize,
    /// The change of its endpoints.
    pub endpoints: Endpoints,
}

/// How the tables changed for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// The tables had nothing for this Service before.
    Added,
    /// The tables had something else for this Service before.
    Changed,
    /// The tables have nothing for this Service any more.
    Removed,
    /// The tables stay as they are: the change was not committed.
    Kept,
}

/// The result of a transaction, or of one Service in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommitOutcome {
    /// The kernel acknowledged it.
    Committed,
    /// The kernel refused it, or could not be asked; the proxy tries again.
    Refused,
    /// The kernel refuses this Service; it is left out until it changes, or for an hour.
    Quarantined,
    /// The Service needs more set elements than the limit; it is left out until it is smaller.
    Oversized,
}

/// What triggered a sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// The kind of the trigger.
    pub kind: TriggerKind,
    /// The object that changed, if the trigger has one.
    #[serde(with = "form::optional_name")]
    pub object: Option<ObjectName>,
}

/// What can trigger a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerKind {
    /// The process started: no sync was committed before this one.
    #[serde(rename = "start")]
    Start,
    /// An EndpointSlice changed.
    #[serde(rename = "slice")]
    Slice,
    /// The Service itself changed.
    #[serde(rename = "service")]
    Service,
    /// Another Service gave up or took over a frontend that both Services claim.
    #[serde(rename = "claim")]
    Claim,
    /// The Node object changed.
    #[serde(rename = "node")]
    Node,
    /// The addresses of the node's interfaces changed.
    #[serde(rename = "addresses")]
    Addresses,
    /// A ServiceCIDR changed.
    #[serde(rename = "serviceCIDR")]
    ServiceCidr,
    /// An earlier sync failed, or a Service that was left out for an hour is tried again.
    #[serde(rename = "retry")]
    Retry,
    /// Another program wrote to the tables.
    #[serde(rename = "repair")]
    Repair,
    /// Another kube-proxy on this node, which had the writer lock, ended, and this one takes over.
    #[serde(rename = "takeover")]
    Takeover,
    /// An hour passed since the last full sync.
    #[serde(rename = "resync")]
    Resync,
}

/// A field of a Service that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Its name, such as `externalTrafficPolicy`.
    pub field: String,
    /// Its value before; empty when it had none.
    pub before: String,
    /// Its value now.
    pub after: String,
}

/// The change of the endpoints (address and port) that the frontends of a Service lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// The number of endpoints before, in the IP families that changed.
    pub before: usize,
    /// The number of endpoints now.
    pub after: usize,
    /// New endpoints, up to a limit.
    pub added: Vec<SocketAddr>,
    /// The number of new endpoints beyond the limit.
    pub more_added: usize,
    /// Endpoints that are gone, up to a limit.
    pub removed: Vec<SocketAddr>,
    /// The number of gone endpoints beyond the limit.
    pub more_removed: usize,
}

/// A sync as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRun {
    /// What triggered the sync.
    pub trigger: Trigger,
    /// The number of Services whose rules were computed; 0 when the sync failed.
    pub services: usize,
    /// The number of Services that changed and have no entry of their own.
    pub unlisted: usize,
    /// Whether everything was compared with what the kernel holds; always true when the sync failed.
    pub full: bool,
    /// The number of set elements added; a changed element counts as added and as removed. 0 when the sync failed.
    pub elements_added: usize,
    /// The number of set elements removed; 0 when the sync failed.
    pub elements_removed: usize,
    /// How long the sync took.
    #[serde(rename = "latencySeconds", with = "form::seconds")]
    pub latency: Option<Duration>,
    /// The result of the transaction of this sync.
    pub result: CommitOutcome,
    /// Why the transaction was not committed; `None` if it was.
    pub error: Option<String>,
}

/// A repair of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// The programs that wrote to the tables, as far as the kernel names them.
    pub by: Vec<Program>,
    /// Findings in the tables other than changed rules and elements.
    pub found: Vec<String>,
    /// The Services whose rules or elements were changed.
    #[serde(with = "form::names")]
    pub services: Vec<ObjectName>,
    /// The number of such Services that `services` has no room for; 0 also when they were not counted, because too many elements were
    /// repaired.
    pub more_services: usize,
    /// How many times the tables were repaired since the last entry of this kind.
    pub times: u64,
    /// The number of set elements that the syncs which repaired the tables added.
    pub elements_added: usize,
    /// The number of set elements that these syncs removed.
    pub elements_removed: usize,
}

/// A program that writes to nf_tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    /// The name of its process, at most 15 bytes; that of the thread that wrote, if it had ended before its process was looked up or belongs
    /// to another PID namespace.
    pub name: String,
    /// The id of this process or thread; that of a thread is the one in the initial PID namespace.
    pub pid: u32,
}

/// An event of the connection to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServer {
    /// Whether the connection was lost or found again.
    pub state: Connection,
    /// The resource whose watch failed first, or is the last one to work again.
    pub resource: String,
    /// The error, with the URL; `None` when the connection was found again.
    pub error: Option<String>,
    /// How long the watch of this resource had failed; `None` when the connection was lost.
    #[serde(rename = "lastedSeconds", with = "form::seconds")]
    pub lasted: Option<Duration>,
}

/// The state of the connection to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    /// The API server does not serve a resource that the proxy watches.
    Lost,
    /// The API server serves all watched resources again.
    Found,
}

impl Trigger {
    /// A trigger without an object.
    #[must_use]
    pub const fn of(kind: TriggerKind) -> Self {
        Self { kind, object: None }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

impl Endpoints {
    /// Records that an endpoint is new.
    pub fn add(&mut self, endpoint: SocketAddr) {
        push(&mut self.added, &mut self.more_added, endpoint);
    }

    /// Records that an endpoint is gone.
    pub fn remove(&mut self, endpoint: SocketAddr) {
        push(&mut self.removed, &mut self.more_removed, endpoint);
    }
}

impl Change {
    /// Adds a frontend, or counts it when the list is full.
    pub fn frontend(&mut self, frontend: FrontendChange) {
        push(&mut self.frontends, &mut self.more_frontends, frontend);
    }

    /// Whether no field, frontend or endpoint changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { fields, frontends, endpoints: Endpoints { added, removed, .. }, .. } = self;
        fields.is_empty() && frontends.is_empty() && added.is_empty() && removed.is_empty()
    }
}

/// Adds a member to a list, or counts it when the list is full.
fn push<T>(list: &mut Vec<T>, more: &mut usize, member: T) {
    if list.len() < LISTED {
        list.push(member);
    } else {
        *more += 1;
    }
}

impl Repair {
    /// Adds a Service, or counts it when the list is full.
    pub fn service(&mut self, name: ObjectName) {
        if !self.services.contains(&name) {
            push(&mut self.services, &mut self.more_services, name);
        }
    }

    /// Adds the numbers and Services of a further repair to this one.
    pub fn add(&mut self, other: Self) {
        self.times += other.times;
        self.elements_added += other.elements_added;
        self.elements_removed += other.elements_removed;
        other.services.into_iter().for_each(|name| self.service(name));
        self.more_services += other.more_services;
    }
}

/// Cuts a text to at most `TEXT` bytes.
#[must_use]
pub fn cut(text: String) -> String {
    const CUT: &str = "...";
    if text.len() <= TEXT {
        return text;
    }
    let mut end = TEXT - CUT.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &text[..end])
}

impl Entry {
    /// An estimate of the memory that the entry takes, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.what.size()
    }

    /// Whether the entry is, or may be, about a Service with this name (`namespace/name`, or the name alone). A sync that failed, or
    /// changed more Services than it lists, may be about any Service.
    #[must_use]
    pub fn is_about(&self, service: &str) -> bool {
        let is = |name: &ObjectName| match service.split_once('/') {
            Some((namespace, wanted)) => *name.namespace == *namespace && *name.name == *wanted,
            None => *name.name == *service,
        };
        match &self.what {
            EntryKind::Service(change) => is(&change.service),
            EntryKind::Sync(run) => run.unlisted > 0 || run.result != CommitOutcome::Committed,
            EntryKind::Repair(repair) => repair.more_services > 0 || repair.services.iter().any(is),
            EntryKind::ApiServer(_) => false,
        }
    }
}

impl EntryKind {
    fn size(&self) -> usize {
        match self {
            Self::Service(change) => size_of::<Change>() + change.heap(),
            Self::Sync(run) => text_size(run.error.as_ref()) + run.trigger.heap(),
            Self::Repair(repair) => repair.heap(),
            Self::ApiServer(server) => server.resource.capacity() + text_size(server.error.as_ref()),
        }
    }
}

impl Trigger {
    fn heap(&self) -> usize {
        self.object.as_ref().map_or(0, name_size)
    }
}

impl Change {
    fn heap(&self) -> usize {
        let fields =
            self.fields.iter().map(|field| field.field.capacity() + field.before.capacity() + field.after.capacity());
        let endpoints = self.endpoints.added.capacity() + self.endpoints.removed.capacity();
        name_size(&self.service)
            + self.trigger.heap()
            + text_size(self.error.as_ref())
            + self.fields.capacity() * size_of::<FieldChange>()
            + fields.sum::<usize>()
            + self.frontends.capacity() * size_of::<FrontendChange>()
            + endpoints * size_of::<SocketAddr>()
    }
}

impl Repair {
    fn heap(&self) -> usize {
        let by = self.by.iter().map(|program| size_of::<Program>() + program.name.capacity());
        let found = self.found.iter().map(|text| size_of::<String>() + text.capacity());
        let services = self.services.iter().map(|name| size_of::<ObjectName>() + name_size(name));
        by.sum::<usize>() + found.sum::<usize>() + services.sum::<usize>()
    }
}

fn text_size(text: Option<&String>) -> usize {
    text.map_or(0, String::capacity)
}

/// The bytes of a name with its reference counts. Other entries may share its memory; each entry counts the memory as its own.
fn name_size(name: &ObjectName) -> usize {
    const COUNTS: usize = 2 * size_of::<usize>();
    name.namespace.len() + name.name.len() + 2 * COUNTS
}
