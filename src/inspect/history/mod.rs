//! The history of what the running proxy did, for its page `/debug/changes`: entries as values, in JSON and in words.
//!
//! The proxy writes the entries; the commands `changes` and `stats` read them. Pure.

mod entry;
mod form;
mod frontend;
mod page;
mod words;

pub use entry::{
    Action, ApiServer, Change, CommitOutcome, Connection, Endpoints, Entry, EntryKind, FieldChange, Program, Repair,
    SyncRun, Trigger, TriggerKind, cut,
};
pub use frontend::{Fate, FrontendChange};
pub use page::{Page, Query};
