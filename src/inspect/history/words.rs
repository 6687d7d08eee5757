//! Entries in words, for the log and for people.

use std::fmt;

use super::entry::{
    Action, ApiServer, Change, CommitOutcome, Connection, Endpoints, Entry, EntryKind, FieldChange, Program, Repair,
    SyncRun, Trigger, TriggerKind,
};
use super::frontend::{Fate, FrontendChange};
use crate::output::written_as_json;
use rules::model::{Destination, Family};

written_as_json!(TriggerKind, CommitOutcome, Fate);

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Some(object) => write!(f, "{} {object}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        write!(f, "{} {} -> {}", self.field, value(&self.before), value(&self.after))
    }
}

impl fmt::Display for FrontendChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.frontend.protocol.api_name();
        let port = self.frontend.port;
        let name = match self.frontend.destination {
            Destination::Address(address) => format!("{}/{protocol}", std::net::SocketAddr::new(address, port)),
            Destination::NodePort(Family::V4) => format!("*:{port}/{protocol}"),
            Destination::NodePort(Family::V6) => format!("[*]:{port}/{protocol}"),
        };
        match (self.before, self.after) {
            (None, Some(Fate::Served)) => write!(f, "+{name}"),
            (None, Some(after)) => write!(f, "+{name} ({after})"),
            (Some(_), None) => write!(f, "-{name}"),
            (Some(before), Some(after)) => write!(f, "{name} {before} -> {after}"),
            (None, None) => f.write_str(&name),
        }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoints {} -> {}:", self.before, self.after)?;
        self.added.iter().try_for_each(|endpoint| write!(f, " +{endpoint}"))?;
        and_more(f, "+", self.more_added)?;
        self.removed.iter().try_for_each(|endpoint| write!(f, " -{endpoint}"))?;
        and_more(f, "-", self.more_removed)
    }
}

fn and_more(f: &mut fmt::Formatter<'_>, sign: &str, more: usize) -> fmt::Result {
    if more > 0 { write!(f, " {sign}{more} more") } else { Ok(()) }
}

impl fmt::Display for Change {
    /// Describes the change, without the name of the Service.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.action {
            Action::Added => parts.push("added".to_owned()),
            Action::Removed => parts.push("removed".to_owned()),
            Action::Changed | Action::Kept => {}
        }
        parts.extend(self.fields.iter().map(ToString::to_string));
        let Endpoints { added, removed, .. } = &self.endpoints;
        if !added.is_empty() || !removed.is_empty() {
            parts.push(self.endpoints.to_string());
        }
        let frontends: Vec<String> = self.frontends.iter().map(ToString::to_string).collect();
        if !frontends.is_empty() {
            let more =
                if self.more_frontends > 0 { format!(" and {} more", self.more_frontends) } else { String::new() };
            parts.push(format!("frontends: {}{more}", frontends.join(" ")));
        }
        if let Some(error) = &self.error {
            parts.push(error.clone());
        }
        if parts.is_empty() {
            parts.push("details that are no endpoint, frontend or policy".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

impl fmt::Display for SyncRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { services, unlisted, elements_added, elements_removed, .. } = self;
        let name = if self.trigger.kind == TriggerKind::Start { "first sync" } else { "sync" };
        if let Some(error) = &self.error {
            return write!(f, "{name} failed, the rules from before stay in force: {error}");
        }
        let plural = if *services == 1 { "" } else { "s" };
        write!(f, "{name} of {services} Service{plural}: +{elements_added} -{elements_removed} elements")?;
        if *unlisted > 0 {
            write!(f, "; {unlisted} more changed than are listed")?;
        }
        Ok(())
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by: Vec<String> = self.by.iter().map(Program::to_string).collect();
        let by = if by.is_empty() { "another program".to_owned() } else { by.join(", ") };
        write!(f, "{by} had changed the tables")?;
        if !self.services.is_empty() {
            let services: Vec<String> = self.services.iter().map(ToString::to_string).collect();
            write!(f, " of {}", services.join(", "))?;
        }
        if self.more_services > 0 {
            write!(f, " and {} more", self.more_services)?;
        }
        write!(f, "; repaired: +{} -{} elements", self.elements_added, self.elements_removed)?;
        if self.times > 1 {
            write!(f, ", {} times", self.times)?;
        }
        self.found.iter().try_for_each(|found| write!(f, "; {found}"))
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            Connection::Lost => {
                write!(f, "API server lost ({}): {}", self.resource, self.error.as_deref().unwrap_or_default())
            }
            Connection::Found => {
                let lasted = self.lasted.unwrap_or_default().as_secs_f64();
                write!(f, "API server found again after {lasted:.1} s ({})", self.resource)
            }
        }
    }
}

impl fmt::Display for EntryKind {
    /// Describes the entry; a change without the name of its Service.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(change) => change.fmt(f),
            Self::Sync(run) => run.fmt(f),
            Self::Repair(repair) => repair.fmt(f),
            Self::ApiServer(server) => server.fmt(f),
        }
    }
}

impl Entry {
    /// What triggered it; `None` for an event of the connection to the API server.
    #[must_use]
    pub fn trigger(&self) -> Option<Trigger> {
        match &self.what {
            EntryKind::Service(change) => Some(change.trigger.clone()),
            EntryKind::Sync(run) => Some(run.trigger.clone()),
            EntryKind::Repair(_) => Some(Trigger::of(TriggerKind::Repair)),
            EntryKind::ApiServer(_) => None,
        }
    }

    /// The result of its transaction; `None` for an entry without a transaction.
    #[must_use]
    pub fn result(&self) -> Option<CommitOutcome> {
        match &self.what {
            EntryKind::Service(change) => Some(change.result),
            EntryKind::Sync(run) => Some(run.result),
            EntryKind::Repair(_) => Some(CommitOutcome::Committed),
            EntryKind::ApiServer(_) => None,
        }
    }
}
