//! Measures what the schedulers cost: elements, the first sync, a change, and new connections.

use rules::ruleset::Layout;

use crate::cluster::{Shape, scheduled};
use crate::fresh;
use crate::measure::{Bench, permille};
use crate::packets;
use crate::table::Table;

const SCHEDULERS: [&str; 3] = ["random", "source-hash", "maglev"];
const CHANGES: u32 = 200;

/// Adds rows for each scheduler, for Services with 2, 10 and 15 endpoints.
pub(crate) fn rows(table: &mut Table, services: u32, quick: bool) {
    for endpoints in if quick { vec![10] } else { vec![2, 10, 15] } {
        let shape = Shape::plain(services, endpoints);
        for scheduler in SCHEDULERS {
            let config = scheduled(scheduler);
            let run = || {
                let mut bench = Bench::new(&config, Layout::Maps, shape);
                let (full, kernel, elements) = (bench.full, bench.report.kernel_time, bench.report.added);
                let (changes, written) = bench.written(|bench| bench.replacements(shape, CHANGES));
                (full, kernel, elements, changes, written)
            };
            // The best of three: in a virtual machine, memory that is used for the first time takes most of the time.
            let (full, kernel, elements, changes, written) = (0..3).map(|_| fresh(run)).min().unwrap_or_default();
            let what = format!("{scheduler}, {services} Services with {endpoints} endpoints");
            table.time(&format!("first sync, {what}"), full, "");
            table.time("  the kernel's part", kernel, "");
            table.text("  elements", &elements.to_string(), "");
            table.time("  one endpoint replaced, median", permille(&changes, 500), "");
            table.text("    elements written and deleted for it", &(written / u64::from(CHANGES)).to_string(), "");
        }
    }
    packets::of_schedulers(table, &SCHEDULERS, &[2, 10]);
}
