//! Computes the commands that change a table from its present content to the wanted content. They are for one transaction; only many
//! commands that fill a table that no packet passes yet are split into several ([`transactions`]), and the deletions of a change of the
//! layout come in a second one ([`deferred`]).
//!
//! [`Records`] keeps a record for each owner (a Service, or the node): the objects that the table has for that owner. A committed record
//! is in the kernel, a new record is not yet. [`Records`] returns commands in an order that the kernel accepts: either from the committed
//! records to the new ones, or from the table that was read from the kernel to all records. Pure; does not depend on Services.
//!
//! Invariants: both kinds of commands lead to the objects of the new records; if nothing must change there are no commands; equal inputs
//! give equal commands.

mod changes;
mod commit;
mod comparison;
mod content;
mod difference;
pub mod differences;
mod kernel_state;
mod objects;
mod pairs;
mod parts;
mod plan;
mod read_view;
mod record;
mod records;
mod set_changes;
mod set_size;
mod slots;
mod totals;
mod verdicts;
mod views;
mod wanted;

use std::sync::Arc;

use nft::Data;

use crate::table::{ChainContent, StaticRules};

pub use kernel_state::Collect;
pub use objects::Objects;
pub use parts::{deferred, transactions};
pub use record::{Content, Entry, Group, Record};
pub use records::Records;
pub use views::Changed;

/// The bytes of a slot (the number of an element in its group) at the end of a key.
fn slot_number(slot: usize) -> [u8; 4] {
    u32::try_from(slot).unwrap_or(u32::MAX).to_ne_bytes()
}

/// The key `prefix . slot`; with an empty prefix, only the number.
fn slot_key(prefix: &Data, slot: usize) -> Data {
    prefix.then(u32::try_from(slot).unwrap_or(u32::MAX))
}

/// Adds the chains on demand (such as `masq-lb-3`) among `targets`, and the chains on demand that their rules go to (`lb-3`).
fn add_chains(mut targets: Vec<Arc<str>>, static_rules: &StaticRules, chains: &mut Vec<ChainContent>) {
    while let Some(target) = targets.pop() {
        let Some(content) = static_rules.on_demand.content(&target) else { continue };
        if chains.iter().all(|known| known.chain.name != target) {
            targets.extend(content.targets().cloned());
            chains.push(content);
        }
    }
}
