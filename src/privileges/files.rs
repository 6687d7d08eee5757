//! No file can be written, made, moved or removed any more. What is open already, such as the log, stays writable.

use landlock::{ABI, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetError, RulesetStatus};

use super::Step;

/// The newest set of rights that this program knows; an older kernel takes what it knows of it.
const RIGHTS: ABI = ABI::V5;

/// Takes every right to write from this thread.
pub(super) fn make_read_only() -> Result<Step, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    // A right that is handled and granted nowhere is gone everywhere.
    let status = ruleset.handle_access(AccessFs::from_write(RIGHTS))?.create()?.restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Step::Done,
        RulesetStatus::NotEnforced => Step::Unavailable,
    })
}
