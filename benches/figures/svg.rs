//! Draws lines over two logarithmic axes as an SVG that is light or dark as the reader's screen is.
//!
//! Takes a [`Plot`] and gives the text of a file. Pure, and the same for equal plots. Colours come from CSS variables, which
//! `prefers-color-scheme` sets, so that one file serves both. Each line has its name at its end, so that nobody has to match colours.

use std::fmt::Write as _;

/// The size of the picture, and the margins around the axes.
const SIZE: (f64, f64) = (800.0, 420.0);
const LEFT: f64 = 76.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// The most marks of an axis.
const MARKS: usize = 8;
/// The least distance between the names of two lines.
const LINE: f64 = 16.0;
/// The colours of the lines on a light and on a dark ground; readers with colour blindness can tell them apart.
const COLOURS: [(&str, &str); 8] = [
    ("#0060b0", "#56b4e9"),
    ("#c04a00", "#ff8a3c"),
    ("#00805c", "#2fd3a3"),
    ("#a8488a", "#e79cc9"),
    ("#7a5c00", "#f0d24c"),
    ("#444444", "#bbbbbb"),
    ("#5a3fb0", "#b6a4ff"),
    ("#b00030", "#ff7a90"),
];

/// Lines over an axis of Services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

/// A line, and the name at its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// The number of its colour.
    pub(crate) colour: usize,
    /// Number of Services and seconds, in the order of the Services.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A logarithmic axis: its ends, and the values that have a mark.
struct Axis {
    from: f64,
    to: f64,
    marks: Vec<f64>,
}

impl Axis {
    /// Returns an axis around these positive values, with marks at 1, 2 and 5 times a power of ten, or at powers of ten where these would
    /// be too many.
    fn around(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min) * 1.000_001;
        let most = values.fold(f64::MIN_POSITIVE, f64::max) * 0.999_999;
        let powers = || (-9..=9).map(|exponent| 10_f64.powi(exponent));
        let steps: Vec<f64> = powers().flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * power)).collect();
        let from = steps.iter().copied().rfind(|step| *step <= least).unwrap_or(least);
        let to = steps.iter().copied().find(|step| *step >= most && *step > from * 1.5).unwrap_or(most);
        let within = |step: &f64| (from..=to).contains(step);
        let all: Vec<f64> = steps.into_iter().filter(within).collect();
        let marks = if all.len() > MARKS { powers().filter(within).collect() } else { all };
        Self { from, to, marks }
    }

    /// Returns where a value is: 0 at the begin of the axis, 1 at its end.
    fn place(&self, value: f64) -> f64 {
        (value / self.from).log10() / (self.to / self.from).log10()
    }
}

/// Returns the picture of a plot that has at least one point.
pub(crate) fn draw(plot: &Plot) -> String {
    let all = || plot.lines.iter().flat_map(|line| line.points.iter());
    let (across, up) = (Axis::around(all().map(|point| point.0)), Axis::around(all().map(|point| point.1)));
    let x = |value: f64| LEFT + across.place(value) * (SIZE.0 - LEFT - RIGHT);
    let y = |value: f64| SIZE.1 - BOTTOM - up.place(value) * (SIZE.1 - TOP - BOTTOM);
    let mut svg = head(&plot.title);
    for mark in &up.marks {
        let (at, right) = (y(*mark), SIZE.0 - RIGHT);
        line(&mut svg, "grid", &format!("M{LEFT:.1} {at:.1}H{right:.1}"));
        text(&mut svg, "end", LEFT - 8.0, at + 4.0, &super::time_mark(*mark));
    }
    for mark in &across.marks {
        let (at, bottom) = (x(*mark), SIZE.1 - BOTTOM);
        line(&mut svg, "grid", &format!("M{at:.1} {TOP:.1}V{bottom:.1}"));
        text(&mut svg, "middle", at, bottom + 20.0, &thousands(*mark));
    }
    text(&mut svg, "middle", (LEFT + SIZE.0 - RIGHT) / 2.0, SIZE.1 - 10.0, "Services");
    let ends = plot.lines.iter().map(|line| line.points.last().map_or(SIZE.1, |point| y(point.1))).collect();
    for (each, label) in plot.lines.iter().zip(apart(ends)) {
        let colour = each.colour % COLOURS.len();
        let places: Vec<String> = each.points.iter().map(|(a, b)| format!("{:.1} {:.1}", x(*a), y(*b))).collect();
        line(&mut svg, &format!("line c{colour}"), &format!("M{}", places.join("L")));
        for (a, b) in &each.points {
            let (services, time) = (thousands(*a), super::time(*b));
            let _infallible = writeln!(
                svg,
                "<circle class=\"dot c{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {services} Services, {time}</title></circle>",
                x(*a),
                y(*b),
                escaped(&each.name),
            );
        }
        if let Some(last) = each.points.last() {
            let name = format!("{}, {}", each.name, super::time(last.1));
            line(
                &mut svg,
                &format!("lead c{colour}"),
                &format!("M{:.1} {:.1}L{:.1} {label:.1}", x(last.0) + 4.0, y(last.1), SIZE.0 - RIGHT + 14.0),
            );
            text(&mut svg, &format!("start c{colour}"), SIZE.0 - RIGHT + 18.0, label + 4.0, &name);
        }
    }
    svg + "</svg>\n"
}

/// Moves heights apart so that names at them do not cover each other, and keeps their order. Names that touch each other form a group whose
/// middle stays where the middle of its heights was, within the picture.
fn apart(heights: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|one, other| heights[*one].total_cmp(&heights[*other]));
    // Each group has its members, in order, and the sum of their heights.
    let mut groups: Vec<(Vec<usize>, f64)> = Vec::new();
    for index in order {
        groups.push((vec![index], heights[index]));
        while let [.., above, below] = &groups[..]
            && top(below) < top(above) + size(above)
        {
            let (members, sum) = groups.pop().unwrap_or_default();
            if let Some(last) = groups.last_mut() {
                last.0.extend(members);
                last.1 += sum;
            }
        }
    }
    let mut moved = heights;
    for group in &groups {
        let mut at = top(group) + LINE / 2.0;
        for index in &group.0 {
            moved[*index] = at;
            at += LINE;
        }
    }
    moved
}

fn size(group: &(Vec<usize>, f64)) -> f64 {
    group.0.iter().map(|_| LINE).sum()
}

/// Returns the upper end of a group, within the axes.
fn top(group: &(Vec<usize>, f64)) -> f64 {
    let middle = group.1 * LINE / size(group);
    let lowest = (SIZE.1 - BOTTOM + LINE - size(group)).max(0.0);
    (middle - size(group) / 2.0).clamp((TOP - LINE).min(lowest), lowest)
}

fn head(title: &str) -> String {
    let (width, height) = SIZE;
    let colours = |of: fn(&(&'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().enumerate().map(|(n, pair)| format!("--c{n}:{};", of(pair))).collect()
    };
    let classes: String = (0..COLOURS.len())
        .map(|n| format!("path.c{n}{{stroke:var(--c{n})}}circle.c{n},text.c{n}{{fill:var(--c{n})}}\n"))
        .collect();
    let (light, dark) = (colours(|pair| pair.0), colours(|pair| pair.1));
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">
<style>
svg{{--ground:#ffffff;--ink:#1f2328;--grid:#d8dee4;{light}font:13px system-ui,sans-serif}}
@media (prefers-color-scheme:dark){{svg{{--ground:#0d1117;--ink:#e6edf3;--grid:#30363d;{dark}}}}}
rect{{fill:var(--ground)}}text{{fill:var(--ink)}}path{{fill:none}}
.grid{{stroke:var(--grid)}}.line{{stroke-width:2.5}}.lead{{stroke-width:0.75}}
.start{{text-anchor:start}}.middle{{text-anchor:middle}}.end{{text-anchor:end}}.title{{font-size:16px;font-weight:600}}
{classes}</style>
<rect width=\"{width}\" height=\"{height}\"/>
<text class=\"title\" x=\"16\" y=\"26\">{title}</text>
"
    )
}

fn line(svg: &mut String, class: &str, path: &str) {
    let _infallible = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let _infallible = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a whole number with commas: 20,000.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}
