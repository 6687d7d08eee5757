//! Plans each Service that is to be written: computes its size, its effects such as health checks, and its records: a record has the rules
//! and elements of one Service in one table.
//!
//! Takes the state, the tables and names; returns a [`Planned`] for each name, in the same order. Pure: no plan depends on another
//! Service's plan, so two threads share the work if there are many Services. The selection of a Service's endpoints is dropped as soon as
//! the Service is planned, to save memory.

use std::panic::resume_unwind;
use std::thread::{self, available_parallelism};

use super::budget;
use super::effects::Effects;
use super::no_local_endpoints;
use super::tables::{ServiceRecords, Tables};
use component::supervise;
use rules::endpoints::Gathered;
use rules::model::{ObjectName, State};

/// From this number of Services on, a second thread helps: with fewer Services, its start may cost more than it saves.
const MANY: usize = 256;
/// Callers plan at most this many Services in one call of [`all`]. Each plan has effects besides its records, and is needed for a moment only,
/// so the plans of all Services of a large cluster at once would raise the peak memory.
pub(super) const AT_ONCE: usize = 4096;

/// The plan for one Service.
pub(super) struct Planned {
    /// About how many elements its rules need.
    pub(super) size: u64,
    /// Whether its size is within the limit. If not, its effects and records are empty.
    pub(super) fits: bool,
    /// The effects of its endpoints beyond its rules.
    pub(super) effects: Effects,
    /// The records that the tables should hold for it.
    pub(super) records: ServiceRecords,
}

/// Plans each Service in `names`. `limit` is the number of elements that a Service may have.
pub(super) fn all(state: &State, tables: &Tables, limit: u64, names: &[ObjectName]) -> Vec<Planned> {
    map(names, |name| one(state, tables, limit, name))
}

fn one(state: &State, tables: &Tables, limit: u64, name: &ObjectName) -> Planned {
    let gathered = Gathered::of(state, name);
    let size = budget::size(&gathered, tables.layout(), tables.balancing());
    let fits = size <= limit;
    let selection = if fits { gathered.select() } else { None };
    let records = tables.records_for(name, selection.as_ref());
    let has_udp_endpoints = fits.then(|| gathered.has_udp_endpoints());
    let mut effects = Effects { has_udp_endpoints, ..Effects::default() };
    if let Some(selection) = selection {
        effects.no_local_endpoints = no_local_endpoints::counts(Some(&selection));
        effects.localhost = tables.localhost_node_ports(&selection);
        effects.health_checks = selection.health_checks;
    }
    Planned { size, fits, effects, records }
}

/// Applies a function to each item; returns the results in the order of the items. A second thread takes half of many items, if there is a
/// second processor and the thread can be started.
fn map<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < MANY || available_parallelism().map_or(1, usize::from) < 2 {
        return items.iter().map(each).collect();
    }
    let (first, second) = items.split_at(items.len() / 2);
    let of_second = || second.iter().map(&each).collect::<Vec<R>>();
    thread::scope(|scope| {
        let other = supervise::scoped(scope, "records", of_second);
        let mut results = Vec::with_capacity(items.len());
        results.extend(first.iter().map(&each));
        match other {
            Ok(other) => results.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))),
            Err(_) => results.extend(of_second()),
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items_whether_few_or_many() {
        for count in [0, 1, MANY - 1, MANY, MANY + 1, 10 * MANY + 3] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "of the second half")]
    fn a_panic_of_the_second_thread_is_one_of_the_first() {
        let items: Vec<usize> = (0..2 * MANY).collect();
        map(&items, |item| assert!(*item < 2 * MANY - 1, "of the second half"));
    }
}
