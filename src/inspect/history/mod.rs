//! What the running proxy did, as its page `/debug/changes` has it: entries, as values, in JSON and in words.
//!
//! The proxy writes them and the command `changes` reads them. Pure: clocks are handed in.

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
