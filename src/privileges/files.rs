//! No file can be written, made, moved or removed any more, and no other process signalled or talked to over an abstract Unix socket.
//! What is open already, such as the log, stays writable.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};

use super::Step;

/// The newest set of rights that this program knows; an older kernel takes what it knows of it.
const RIGHTS: ABI = ABI::V6;

/// Takes every right to write from this thread, and keeps it within this process and those that it starts (ABI 6, Linux 6.12).
pub(super) fn make_read_only() -> Result<Step, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    // A right that is handled and granted nowhere is gone everywhere.
    let ruleset = ruleset.handle_access(AccessFs::from_write(RIGHTS))?.scope(Scope::from_all(RIGHTS))?;
    let status = ruleset.create()?.restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Step::Done,
        RulesetStatus::NotEnforced => Step::Unavailable,
    })
}
