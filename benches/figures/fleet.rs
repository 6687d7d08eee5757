//! The sums for a cluster of many nodes, from the figures of one node.
//!
//! Takes the rows of the part `fleet`; gives the table of `deploy/FLEET.md`. The sums assume that a node of a large cluster costs the API
//! server as much as one of the measured processes: each node has its own watches, and the server encodes an event once for all of them.

use std::collections::BTreeSet;

use super::pages::{markdown, source, sources};
use super::svg::thousands;
use super::{Row, significant};

const NODES: f64 = 5_000.0;
/// A rolling update of a pod changes slices three times: the new pod is ready, the old one terminates, the old one is gone.
const CHANGES: f64 = 3.0 * 1_000.0;

/// The events of the table: label, the start of the row's name, and how many of these a cluster of [`NODES`] nodes has.
const EVENTS: [(&str, &str, f64); 3] = [
    ("all nodes start, as in a roll-out without a limit", "fleet, start of a node, ", NODES),
    ("a rolling update of 1,000 pods", "fleet, a change of an endpoint for a node, ", NODES * CHANGES),
    ("the API server restarts, and all nodes list again", "fleet, a node after a restart of the API server, ", NODES),
];

/// Returns the table.
pub(super) fn page(rows: &[Row]) -> String {
    let mut runs = BTreeSet::new();
    let mut lines = Vec::new();
    for (label, start, times) in EVENTS {
        for (what, within, unit) in [
            ("requests", " > requests", Unit::Requests),
            ("bytes from the API server", "", Unit::Kilobytes),
            ("processor time of the API server", " > processor time of the API server", Unit::Seconds),
        ] {
            let cells: Vec<String> = ["ours", "upstream"]
                .iter()
                .map(|who| {
                    let ends = format!(", {who}{within}");
                    let row = rows.iter().find(|row| row.what.starts_with(start) && row.what.ends_with(&ends));
                    let value = row.and_then(|row| row.value.as_f64());
                    runs.extend(row.map(source));
                    value.map_or_else(|| "-".to_owned(), |value| unit.text(value * times))
                })
                .collect();
            if cells.iter().any(|cell| !["-", "0"].contains(&cell.as_str())) {
                lines.push((format!("{label}: {what}"), cells));
            }
        }
    }
    if lines.is_empty() {
        return "Not measured yet: `make bench` and `make plots` write this table.\n".to_owned();
    }
    let head = vec!["this program".to_owned(), "upstream, mode nftables".to_owned()];
    format!("{}\n{}", markdown(&head, &lines), sources(&runs))
}

/// The unit of a row.
#[derive(Clone, Copy)]
enum Unit {
    Requests,
    Kilobytes,
    Seconds,
}

impl Unit {
    fn text(self, sum: f64) -> String {
        match self {
            _ if sum <= 0.0 => "0".to_owned(),
            Self::Requests if sum >= 1e6 => format!("{} million", significant(sum / 1e6)),
            Self::Requests => thousands(sum),
            Self::Kilobytes if sum >= 1e6 => format!("{} GB", significant(sum / 1e6)),
            Self::Kilobytes => format!("{} MB", significant(sum / 1e3)),
            Self::Seconds if sum >= 1e3 => format!("{} s", thousands(sum)),
            Self::Seconds => format!("{} s", significant(sum)),
        }
    }
}
