//! The plots of the pages: which rows each one shows, and its file.
//!
//! Takes rows and gives files by their names. A series that was not measured, or not at some number of Services, has no line or a shorter
//! one; a plot of which nothing was measured has no file.

use super::Row;
use super::svg::{Line, Plot, draw};

/// A plot: its name, which is that of its file and of its points, and its title.
struct Kind {
    name: &'static str,
    title: &'static str,
}

/// The series in the order of their colours, the same in each plot.
const SERIES: [&str; 8] = [
    "this program",
    "upstream nftables",
    "upstream iptables",
    "upstream ipvs",
    "layout chains",
    "one rule that translates",
    "chains of Services only",
    "no proxy",
];

const KINDS: [Kind; 4] = [
    Kind { name: "start", title: "Process start to the first answered connection" },
    Kind { name: "change", title: "One endpoint, from the API server's answer to a packet, median" },
    Kind { name: "connect-p50", title: "Time to connect to the Service that was programmed last, median" },
    Kind { name: "connect-p99", title: "Time to connect to the Service that was programmed last, p99" },
];

/// Returns each file of a plot: its name without the folder, the plot's title, and the content.
pub(crate) fn files(rows: &[Row]) -> Vec<(String, &'static str, String)> {
    let drawn = KINDS.iter().filter_map(|kind| {
        let lines = lines(rows, kind.name);
        let plot = Plot { title: kind.title.to_owned(), lines };
        (!plot.lines.is_empty()).then(|| (format!("{}.svg", kind.name), kind.title, draw(&plot)))
    });
    drawn.collect()
}

/// Returns the lines of a plot, in the order of [`SERIES`], each with its colour; others come behind.
fn lines(rows: &[Row], plot: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(point) = row.point.as_ref().filter(|point| point.plot == plot) else { continue };
        let Some(height) = row.value.as_f64().filter(|height| *height > 0.0) else { continue };
        let index = lines.iter().position(|line| line.name == point.series).unwrap_or_else(|| {
            let colour = SERIES.iter().position(|series| *series == point.series).unwrap_or(SERIES.len());
            lines.push(Line { name: point.series.clone(), colour, points: Vec::new() });
            lines.len() - 1
        });
        lines[index].points.push((f64::from(point.services), height));
    }
    let numbers: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
    let numbers = || numbers.iter().copied().filter(|number| *number > 0.0);
    let (least, most) = (numbers().fold(f64::INFINITY, f64::min), numbers().fold(0.0, f64::max));
    for line in &mut lines {
        if let [(number, height)] = line.points[..]
            && number < 1.0
        {
            line.points = vec![(least, height), (most, height)];
        }
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines.sort_by_key(|line| line.colour);
    lines.retain(|line| line.points.iter().all(|point| point.0.is_finite() && point.0 > 0.0));
    lines
}
