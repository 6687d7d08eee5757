//! From what a table holds to what it should hold, in one transaction.
//!
//! [`Records`] keeps what stands in the table for each Service, and gives commands in an order that the kernel accepts: the difference
//! of new and committed records, or of all records and what was read from the kernel. Pure; knows nothing of Services.
//!
//! Invariants: both ways lead to the same table; nothing to change gives no commands; equal inputs give equal commands.

mod changes;
mod comparison;
pub mod differences;
mod kept;
mod objects;
mod plan;
mod record;
mod records;
mod room;
mod slots;
mod totals;
mod views;

use std::sync::Arc;

use nft::Data;

use crate::table::{ChainContent, Program};

pub use kept::Collect;
pub use objects::Objects;
pub use record::{Content, Entry, Group, Record};
pub use records::Records;
pub use views::Changed;

/// The number of a slot as the end of a key.
fn slot_number(slot: usize) -> [u8; 4] {
    u32::try_from(slot).unwrap_or(u32::MAX).to_ne_bytes()
}

/// The key of a slot, or of a number without a prefix.
fn slot_key(prefix: &Data, slot: usize) -> Data {
    prefix.then(u32::try_from(slot).unwrap_or(u32::MAX))
}

/// Adds those of the chains that are made on demand, and those that they lead to.
fn add_chains(mut targets: Vec<Arc<str>>, program: &Program, chains: &mut Vec<ChainContent>) {
    while let Some(target) = targets.pop() {
        let Some(content) = (program.on_demand)(&target) else { continue };
        if chains.iter().all(|known| known.chain.name != target) {
            targets.extend(content.targets().cloned());
            chains.push(content);
        }
    }
}
