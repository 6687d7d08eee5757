//! Objects from a directory of manifests (`--manifests DIR`).
//!
//! Takes every `.yaml`, `.yml` and `.json` file below the directory; gives [`Event`]s in the order of their finding, then
//! [`Event::InitialListDone`], then changes as they happen. What cannot be used becomes a [`Problem`].
//!
//! The stages: `walk` finds files, `document` cuts them, `decode` reads objects, `store` compares with what was
//! there; `directory` ties these together, `watch` says when to look again, `task` runs it all on a thread.
//!
//! Invariants: what cannot be read deletes nothing; of an object in two places the one at the smallest path counts; an
//! event is sent only for an object whose meaning changed.

mod decode;
mod directory;
mod document;
mod problem;
mod store;
mod task;
mod walk;
mod watch;

#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::bail;

use super::convert::{ConvertOptions, Converter};
use crate::model::Event;

pub use problem::{Problem, Severity};
pub use task::{Handle, OnRejected, check, spawn};

/// What a file's bytes amount to, without a disk: for fuzzing and its corpus. JSON if the name ends in `.json`, YAML otherwise.
#[doc(hidden)]
#[must_use]
pub fn read_bytes(file: &Path, bytes: &[u8]) -> (Vec<Event>, Vec<Problem>) {
    let file = file.into();
    let content = decode::decode(&file, bytes, &mut Converter::default());
    let changes = store::Store::default().replace(&file, content.objects, content.broken);
    (changes.events, [content.problems, changes.duplicates].concat())
}

/// Reads a directory once: the events of all its objects, [`Event::InitialListDone`] last, and what was wrong with them.
///
/// # Errors
/// The directory itself cannot be read. Problems below it are in the second part of the result.
pub fn read_once(dir: &Path, options: ConvertOptions) -> anyhow::Result<(Vec<Event>, Vec<Problem>)> {
    let mut update = directory::Directory::new(dir, options).rescan(&mut |_| {}, &|| true);
    if update.lost {
        match update.problems.first() {
            Some(problem) => bail!("{problem}"),
            None => bail!("{} cannot be read", dir.display()),
        }
    }
    update.events.push(Event::InitialListDone);
    Ok((update.events, update.problems))
}
