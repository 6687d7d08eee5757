//! One entry of the ring, as values. Their form in JSON is described in `deploy/COMMANDS.md` and does not change.
//!
//! Invariant: an entry is small. Lists hold at most [`LISTED`] members and a number of those left out; texts are cut.

use std::fmt;
use std::mem::size_of;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use rules::model::ObjectName;

use super::form;
use super::frontend::FrontendChange;

/// Members that each list of an entry holds.
pub(super) const LISTED: usize = 32;
/// Bytes of an error, of a finding and of a field's value.
pub(super) const TEXT: usize = 512;

/// What the proxy did, or what happened to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// 1 for the first entry of a process.
    pub number: u64,
    /// When it was done.
    #[serde(with = "form::time")]
    pub time: Timestamp,
    /// The number of the sync that did it, 1 for the first one of a process; `None` for what no sync does.
    pub sync: Option<u64>,
    /// What it is.
    #[serde(flatten)]
    pub what: EntryKind,
}

/// The kinds of entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum EntryKind {
    /// What the tables hold for one Service changed, or should have.
    Service(Box<Change>),
    /// A sync that is more than its Services: the first one, one that failed, one that changed too many Services to list them.
    Sync(SyncRun),
    /// Another program had changed the tables, and they are as they should be again.
    Repair(Repair),
    /// The connection to the API server was lost or found again.
    ApiServer(ApiServer),
}

/// What a sync did for one Service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The Service.
    #[serde(with = "form::name")]
    pub service: ObjectName,
    /// Whether the Service came, went or became another.
    pub action: Action,
    /// What made it necessary.
    pub trigger: Trigger,
    /// From the moment at which the proxy took over the first object that made it necessary to the kernel's answer.
    #[serde(rename = "latencySeconds", with = "form::seconds")]
    pub latency: Option<Duration>,
    /// From the change in the cluster, as the slice's annotation has it, to the kernel's answer.
    #[serde(rename = "clusterLatencySeconds", with = "form::seconds")]
    pub cluster_latency: Option<Duration>,
    /// What became of it.
    pub result: CommitOutcome,
    /// Why it was not committed.
    pub error: Option<String>,
    /// Fields of the Service that are different now.
    pub fields: Vec<FieldChange>,
    /// Frontends that came, went, or are treated in another way.
    #[serde(rename = "fronts")]
    pub frontends: Vec<FrontendChange>,
    /// How many more such frontends there are.
    #[serde(rename = "moreFronts")]
    pub more_frontends: usize,
    /// Its endpoints.
    pub endpoints: Endpoints,
}

/// What became of a Service in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// There was nothing of it.
    Added,
    /// There was something else.
    Changed,
    /// There is nothing of it any more.
    Removed,
    /// What there is stays: the change was not committed.
    Kept,
}

/// What became of a transaction, or of a Service in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CommitOutcome {
    /// The kernel acknowledged it.
    Committed,
    /// The kernel refused it, or could not be asked; it is tried again.
    Refused,
    /// The kernel refuses this Service; it is left out until it changes.
    Quarantined,
    /// The Service takes more elements than it may; it is left out until it is smaller.
    Oversized,
}

/// What made a sync necessary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// The kind.
    pub kind: TriggerKind,
    /// The object, where there is one.
    #[serde(with = "form::optional_name")]
    pub object: Option<ObjectName>,
}

/// The kinds of triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerKind {
    /// The process began. A new configuration is one of these too, because it starts the process again.
    #[serde(rename = "start")]
    Start,
    /// An EndpointSlice.
    #[serde(rename = "slice")]
    Slice,
    /// The Service itself.
    #[serde(rename = "service")]
    Service,
    /// Another Service, which gave up a frontend that both claim, or took it.
    #[serde(rename = "claim")]
    Claim,
    /// The Node.
    #[serde(rename = "node")]
    Node,
    /// The addresses of the node's interfaces.
    #[serde(rename = "addresses")]
    Addresses,
    /// A ServiceCIDR.
    #[serde(rename = "serviceCIDR")]
    ServiceCidr,
    /// A failure before.
    #[serde(rename = "retry")]
    Retry,
    /// A write of another program.
    #[serde(rename = "repair")]
    Repair,
    /// The other kube-proxy of this node ended.
    #[serde(rename = "takeover")]
    Takeover,
    /// An hour passed.
    #[serde(rename = "resync")]
    Resync,
}

/// A field that is different now, in Kubernetes' words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Its name, such as `externalTrafficPolicy`.
    pub field: String,
    /// Its value before; empty when it had none.
    pub before: String,
    /// Its value now.
    pub after: String,
}

/// The endpoints that the frontends of a Service lead to, address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// How many there were, in the families that changed.
    pub before: usize,
    /// How many there are.
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
    /// What made it necessary.
    pub trigger: Trigger,
    /// Services that were computed anew.
    pub services: usize,
    /// Services that changed and have no entry of their own.
    pub unlisted: usize,
    /// Everything was compared with what the kernel holds.
    pub full: bool,
    /// Elements added; one that changed counts as added and as removed.
    pub elements_added: usize,
    /// Elements removed.
    pub elements_removed: usize,
    /// How long it took.
    #[serde(rename = "latencySeconds", with = "form::seconds")]
    pub latency: Option<Duration>,
    /// What became of it.
    pub result: CommitOutcome,
    /// Why it was not committed.
    pub error: Option<String>,
}

/// A repair of the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// The programs that wrote to the tables, as far as the kernel names them.
    pub by: Vec<Program>,
    /// What was found in the tables, where it is more than other rules and elements.
    pub found: Vec<String>,
    /// Services that had something of what was changed.
    #[serde(with = "form::names")]
    pub services: Vec<ObjectName>,
    /// How many more such Services there are; 0 also when that was not counted, because nearly everything was changed.
    pub more_services: usize,
    /// How many times since the last entry of this kind the tables were repaired.
    pub times: u64,
    /// Elements added; 0 when rules, chains or sets were changed only.
    pub elements_added: usize,
    /// Elements removed.
    pub elements_removed: usize,
}

/// A program that writes to nf_tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    /// The name of the process, at most 15 bytes.
    pub name: String,
    /// Its id in the initial process namespace.
    pub pid: u32,
}

/// What happened to the connection to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServer {
    /// Lost or found.
    pub state: Connection,
    /// The kind of objects of which this was noticed first.
    pub resource: String,
    /// What is wrong, with the URL; `None` when it was found.
    pub error: Option<String>,
    /// How long it was lost.
    #[serde(rename = "lastedSeconds", with = "form::seconds")]
    pub lasted: Option<Duration>,
}

/// The connection to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    /// It does not serve what is watched.
    Lost,
    /// The API server answers for this kind again.
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
    /// Adds one that came.
    pub fn add(&mut self, endpoint: SocketAddr) {
        push(&mut self.added, &mut self.more_added, endpoint);
    }

    /// Adds one that went.
    pub fn remove(&mut self, endpoint: SocketAddr) {
        push(&mut self.removed, &mut self.more_removed, endpoint);
    }
}

impl Change {
    /// Adds a frontend.
    pub fn frontend(&mut self, frontend: FrontendChange) {
        push(&mut self.frontends, &mut self.more_frontends, frontend);
    }

    /// Whether nothing of it is different.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { fields, frontends, endpoints: Endpoints { added, removed, .. }, .. } = self;
        fields.is_empty() && frontends.is_empty() && added.is_empty() && removed.is_empty()
    }
}

/// Adds a member to a list, or counts it when the list is long.
fn push<T>(list: &mut Vec<T>, more: &mut usize, member: T) {
    if list.len() < LISTED {
        list.push(member);
    } else {
        *more += 1;
    }
}

impl Repair {
    /// Adds a Service, or counts it when the list is long.
    pub fn service(&mut self, name: ObjectName) {
        if !self.services.contains(&name) {
            push(&mut self.services, &mut self.more_services, name);
        }
    }

    /// Adds a further repair of the same kind to this one.
    pub fn add(&mut self, other: Self) {
        self.times += other.times;
        self.elements_added += other.elements_added;
        self.elements_removed += other.elements_removed;
        other.services.into_iter().for_each(|name| self.service(name));
        self.more_services += other.more_services;
    }
}

/// A text with at most `TEXT` bytes.
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
    /// About the bytes of memory that it takes, at least those that it owns.
    #[must_use]
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.what.size()
    }

    /// Whether it is about a Service of this name, `namespace/name` or the name alone, or may be: a sync that changed more Services
    /// than it lists may have changed each.
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

/// The bytes of a name, which may be shared with others; counted as if it were not.
fn name_size(name: &ObjectName) -> usize {
    const COUNTS: usize = 2 * size_of::<usize>();
    name.namespace.len() + name.name.len() + 2 * COUNTS
}
