//! Draws the way of a packet through the hooks and chains, as SVG.
//!
//! ```text
//! packet ─► hook: its chains as boxes, each with the steps in it ─► next hook ─► verdict, endpoints with their shares
//! ```
//!
//! Takes an [`Explanation`], returns markup: for a page, which has the style sheet [`STYLE`], or a file that stands alone. The words are those
//! that `explain` prints, and the numbers of the steps too. The drawing goes from top to bottom and is only 400 pixels wide, for telephones.
//! Pure. Invariant: size is bounded by [`MOST_ENDPOINTS`] and the steps of the explanation.

use std::fmt::Display;
use std::net::SocketAddr;

use nft::machine::Packet;

use super::print::{arrival, masquerading, tone, tone_of};
use super::verdict::{EffectiveRule, Endpoint, Explanation, Verdict};
use super::words;
use crate::markup::{Markup, class};
use component::terminal::broken;
use rules::ruleset::flowtable;
use rules::ruleset::names::TABLE;

/// The style sheet of drawings, without the colours.
pub(crate) const STYLE: &str = include_str!("drawing.css");
/// The colours of drawings and pages, light and dark.
pub(crate) const COLOURS: &str = include_str!("../colours.css");

/// The most endpoints that are drawn; the others are counted.
const MOST_ENDPOINTS: usize = 24;

const WIDTH: u32 = 400;
/// The space between the edge of the drawing and a hook, and between a hook and its chains.
const MARGIN: u32 = 8;
const GAP: u32 = 10;
/// The height of a line of text.
const LINE: u32 = 16;
/// The length of an arrow.
const ARROW: u32 = 18;
/// The number of characters of text that fit a line of a chain, of a box of full width, and of a name in monospace.
const IN_CHAIN: usize = 46;
const IN_BOX: usize = 54;
const IN_NAME: usize = 38;

/// The drawing as a file of its own.
pub(super) fn file(packet: &Packet, pod: Option<&str>, explanation: &Explanation) -> String {
    let mut file = Markup::default();
    drawn(packet, pod, explanation).write(&mut file, true);
    file.into_string() + "\n"
}

/// Writes the drawing into a page.
pub(crate) fn draw(page: &mut Markup, packet: &Packet, pod: Option<&str>, explanation: &Explanation) {
    drawn(packet, pod, explanation).write(page, false);
}

fn drawn(packet: &Packet, pod: Option<&str>, explanation: &Explanation) -> Canvas {
    let pod = pod.map_or_else(String::new, |pod| format!(" ({pod})"));
    let way = format!("{}{pod} -> {}", words::source(packet), words::target(packet));
    let mut canvas = Canvas {
        title: format!("The way of a packet {way}"),
        text: format!("{}: {}", explanation.verdict, explanation.reason),
        shapes: Markup::default(),
        y: MARGIN,
    };
    let lines = [lines(&way, IN_BOX, "title"), lines(&arrival(packet), IN_BOX, "faint")].concat();
    canvas.panel("packet", &lines);
    let numbered: Vec<(usize, &EffectiveRule)> = (1..).zip(&explanation.steps).collect();
    for hook in numbered.chunk_by(|(_, a), (_, b)| (a.hook, &a.endpoints) == (b.hook, &b.endpoints)) {
        canvas.arrow();
        canvas.hook(hook);
    }
    canvas.arrow();
    canvas.end(explanation);
    canvas.y += MARGIN;
    canvas
}

/// A line of text and its class.
type TextLine = (String, &'static str);

/// Breaks a text into lines of this many characters.
fn lines(text: &str, width: usize, class: &'static str) -> Vec<TextLine> {
    let broken = broken(text, width, 0, 0);
    let cut = |line: &str| -> Vec<String> {
        let chars: Vec<char> = line.trim_end().chars().collect();
        chars.chunks(width).map(|part| part.iter().collect()).collect()
    };
    broken.lines().flat_map(cut).map(|line| (line, class)).collect()
}

/// A name that fits the line, with dots in place of its middle if it is longer.
fn fitted(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= IN_NAME {
        return name.to_owned();
    }
    let half = (IN_NAME - 1) / 2;
    chars[..half].iter().chain(&['…']).chain(&chars[chars.len() - half..]).collect()
}

/// What is drawn so far.
struct Canvas {
    title: String,
    /// The drawing in one sentence, for those who do not see it.
    text: String,
    shapes: Markup,
    /// The height of what is drawn.
    y: u32,
}

impl Canvas {
    fn write(&self, out: &mut Markup, alone: bool) {
        let size = format!("0 0 {WIDTH} {}", self.y);
        let role = [("class", &"way" as &dyn Display), ("role", &"img"), ("aria-labelledby", &"way-title way-text")];
        let place = [("viewBox", &size as &dyn Display), ("width", &WIDTH), ("height", &self.y)];
        let space = [("xmlns", &"http://www.w3.org/2000/svg" as &dyn Display)];
        let attributes = [&space[..usize::from(alone)], &role, &place].concat();
        out.element("svg", &attributes, |svg| {
            svg.leaf("title", &[("id", &"way-title")], &self.title);
            svg.leaf("desc", &[("id", &"way-text")], &self.text);
            if alone {
                svg.element("style", &[], |style| {
                    style.literal(COLOURS);
                    style.literal(STYLE);
                });
                svg.void("rect", &[("class", &"paper"), ("width", &"100%"), ("height", &"100%"), ("rx", &8)]);
            }
            svg.append(&self.shapes);
        });
    }

    fn rect(&mut self, class: &str, x: u32, y: u32, width: u32, height: u32) {
        let (corner, place) =
            (if height < 10 { 3 } else { 6 }, [("x", x), ("y", y), ("width", width), ("height", height)]);
        let [x, y, width, height] = place.each_ref().map(|(name, value)| (*name, value as &dyn Display));
        self.shapes.void("rect", &[("class", &class), x, y, width, height, ("rx", &corner)]);
    }

    /// Writes one line of text, which has its top at `y`.
    fn write_line(&mut self, class: &str, x: u32, y: u32, text: &str) {
        self.shapes.leaf("text", &[("class", &class), ("x", &x), ("y", &(y + 12))], text);
    }

    /// Writes lines below each other from `y` on. Returns where the next one would be.
    fn write_lines(&mut self, x: u32, mut y: u32, lines: &[TextLine]) -> u32 {
        for (text, class) in lines {
            self.write_line(class, x, y, text);
            y += LINE;
        }
        y
    }

    /// A box of full width with lines in it.
    fn panel(&mut self, class: &str, lines: &[TextLine]) {
        let height = LINE * count(lines) + 2 * GAP - 2;
        self.rect(class, MARGIN, self.y, WIDTH - 2 * MARGIN, height);
        self.write_lines(MARGIN + GAP + 2, self.y + GAP - 1, lines);
        self.y += height;
    }

    fn arrow(&mut self) {
        let (x, from, to) = (WIDTH / 2, self.y + 2, self.y + ARROW - 2);
        let path = format!("M{x} {from}V{to}m-4 -5l4 5l4 -5");
        self.shapes.void("path", &[("class", &"arrow"), ("d", &path)]);
        self.y += ARROW;
    }

    /// A hook with the chains whose rules had an effect on the packet there.
    fn hook(&mut self, steps: &[(usize, &EffectiveRule)]) {
        let Some((_, first)) = steps.first() else { return };
        let about = about(&first.endpoints);
        let name = first.hook.map_or_else(|| "hook not known".to_owned(), |hook| format!("hook {hook}"));
        let heading = lines(&(name + &about), IN_BOX, "faint");
        let chains: Vec<ChainBox> =
            steps.chunk_by(|(_, a), (_, b)| (&a.table, &a.chain) == (&b.table, &b.chain)).map(ChainBox::of).collect();
        let boxes: u32 = chains.iter().map(|chain| chain.height() + MARGIN).sum();
        let height = LINE * count(&heading) + 6 + boxes;
        self.rect("hook", MARGIN, self.y, WIDTH - 2 * MARGIN, height);
        let mut y = self.write_lines(MARGIN + GAP, self.y + 4, &heading) + 2;
        for chain in &chains {
            self.chain(chain, y);
            y += chain.height() + MARGIN;
        }
        self.y += height;
    }

    fn chain(&mut self, chain: &ChainBox, y: u32) {
        let (x, width) = (2 * MARGIN, WIDTH - 4 * MARGIN);
        self.rect("box", x, y, width, chain.height());
        let top = y + 5;
        let mut y = self.write_lines(x + GAP, top, &chain.heading) + 2;
        if chain.steps.iter().any(|step| step.decides) {
            self.write_line("accent right", x + width - GAP, top, "decides");
        }
        for step in &chain.steps {
            let height = LINE * count(&step.lines);
            if step.decides {
                self.rect("mark", x + 4, y - 1, width - 8, height + 2);
                self.rect("edge", x + 1, y - 1, 3, height + 2);
            }
            self.write_line("number", x + 28, y, &step.number.to_string());
            self.write_lines(x + 34, y, &step.lines);
            y += height;
        }
    }

    /// What becomes of the packet, and where it may go.
    fn end(&mut self, explanation: &Explanation) {
        let word = explanation.verdict.to_string().to_uppercase();
        let masquerading = masquerading(explanation).map(|text| lines(&text, IN_BOX, "faint"));
        let texts = [
            lines(&word, IN_BOX, "title"),
            lines(&explanation.reason, IN_BOX, "plain"),
            masquerading.unwrap_or_default(),
        ];
        self.panel(&format!("end {}", class(tone_of(explanation))), &texts.concat());
        if explanation.endpoints.is_empty() {
            return;
        }
        self.arrow();
        let shown = &explanation.endpoints[..explanation.endpoints.len().min(MOST_ENDPOINTS)];
        let more = explanation.endpoints.len() - shown.len();
        let rows = u32::try_from(shown.len() + usize::from(more > 0)).unwrap_or(0);
        self.rect("box", MARGIN, self.y, WIDTH - 2 * MARGIN, rows * ENDPOINT + GAP);
        self.y += GAP / 2;
        shown.iter().for_each(|endpoint| self.endpoint(endpoint));
        if more > 0 {
            let rest: f64 = explanation.endpoints[MOST_ENDPOINTS..].iter().map(|endpoint| endpoint.probability).sum();
            self.share(&format!("{more} more endpoints"), "faint", rest, "");
        }
        self.y += GAP / 2;
    }

    fn endpoint(&mut self, endpoint: &Endpoint) {
        let address = SocketAddr::new(endpoint.address, endpoint.port).to_string();
        let is_reached = endpoint.verdict == Verdict::Translated;
        let address = if is_reached { address } else { format!("{address} {}", endpoint.verdict) };
        let tone = if is_reached { "" } else { class(tone(endpoint.verdict)) };
        self.share(&address, "address", endpoint.probability, tone);
    }

    /// A row with a name, a share as a percentage, and a bar whose length shows the share.
    fn share(&mut self, name: &str, style: &str, share: f64, tone: &str) {
        let (x, width) = (MARGIN + GAP + 2, WIDTH - 2 * MARGIN - 2 * GAP - 4);
        let length = (share.clamp(0.0, 1.0) * f64::from(width)).round();
        self.write_line(&format!("{style} {tone}"), x, self.y + 4, name);
        self.write_line("right", x + width, self.y + 4, &format!("{:.1}%", share * 100.0));
        self.rect("rail", x, self.y + 22, width, 5);
        let class = format!("share {tone}");
        let y = self.y + 22;
        self.shapes
            .void("rect", &[("class", &class), ("x", &x), ("y", &y), ("width", &length), ("height", &5), ("rx", &3)]);
        self.y += ENDPOINT;
    }
}

/// The height of the row of an endpoint.
const ENDPOINT: u32 = 34;

fn count(lines: &[TextLine]) -> u32 {
    u32::try_from(lines.len()).unwrap_or(u32::MAX)
}

/// Which endpoints steps are about, if not about all of the packet's.
fn about(endpoints: &[SocketAddr]) -> String {
    match endpoints {
        [] => String::new(),
        [only] => format!(", to {only}"),
        [first, others @ ..] => format!(", to {first} and {} more", others.len()),
    }
}

/// A chain with the steps in it.
struct ChainBox {
    heading: Vec<TextLine>,
    steps: Vec<StepLines>,
}

struct StepLines {
    number: usize,
    decides: bool,
    lines: Vec<TextLine>,
}

impl ChainBox {
    fn of(steps: &[(usize, &EffectiveRule)]) -> Self {
        let (table, chain) = steps.first().map_or(("", ""), |(_, rule)| (&rule.table, &rule.chain));
        let mut heading = vec![(fitted(chain), "name")];
        if table.split_once(' ').is_none_or(|(_, name)| ![TABLE, flowtable::TABLE].contains(&name)) {
            heading.push((fitted(&format!("table {table} of another program")), "warn"));
        }
        let steps = steps.iter().map(|(number, rule)| {
            let style = if rule.decides { "strong" } else { "plain" };
            StepLines { number: *number, decides: rule.decides, lines: lines(&rule.text, IN_CHAIN, style) }
        });
        Self { heading, steps: steps.collect() }
    }

    fn height(&self) -> u32 {
        let lines: u32 = self.steps.iter().map(|step| count(&step.lines)).sum();
        LINE * (count(&self.heading) + lines) + 12
    }
}

#[cfg(test)]
mod tests {
    use nft::Hook;
    use nft::machine::{Link, protocol};

    use super::*;

    fn rule(hook: Hook, chain: &str, decides: bool) -> EffectiveRule {
        EffectiveRule {
            table: "ip kube-proxy".to_owned(),
            chain: chain.to_owned(),
            rule: String::new(),
            text: format!("words of {chain}"),
            endpoints: Vec::new(),
            hook: Some(hook),
            decides,
            is_policy: false,
        }
    }

    fn endpoint(n: u8, probability: f64, verdict: Verdict) -> Endpoint {
        Endpoint { address: [10, 244, 1, n].into(), port: 8080, probability, masquerade: false, verdict }
    }

    fn drawing(explanation: &Explanation) -> String {
        let packet = Packet::new(
            ("203.0.113.7".parse().unwrap(), None),
            "192.0.2.2:30080".parse().unwrap(),
            protocol::TCP,
            Link::Known(2, "<eth0>".into()),
        );
        file(&packet, Some("shop/\"pod\""), explanation)
    }

    fn translated(endpoints: Vec<Endpoint>) -> Explanation {
        let steps = vec![
            rule(Hook::Prerouting, "nat-prerouting", false),
            rule(Hook::Prerouting, "choose", true),
            rule(Hook::Forward, "filter-forward", false),
            rule(Hook::Postrouting, "nat-postrouting", false),
        ];
        let reason = "shop/web sends it to one of 2 endpoints".to_owned();
        Explanation { endpoints, steps, ..Explanation::new(Verdict::Translated, Some("shop/web".to_owned()), reason) }
    }

    // Hooks, chains and endpoints are in order, and the rule that decides is marked (Q14).
    #[test]
    fn hooks_and_chains_are_in_order_and_the_rule_that_decides_is_marked_once() {
        let svg =
            drawing(&translated(vec![endpoint(1, 0.75, Verdict::Translated), endpoint(2, 0.25, Verdict::Dropped)]));
        let order = [
            "203.0.113.7",
            "&gt; 192.0.2.2:30080/TCP",
            "arrives at &lt;eth0&gt;",
            ">hook prerouting<",
            ">nat-prerouting<",
            ">choose<",
            ">decides<",
            "words of choose",
            ">hook forward<",
            ">filter-forward<",
            ">hook postrouting<",
            ">nat-postrouting<",
            ">TRANSLATED<",
            "10.244.1.1:8080<",
            ">75.0%<",
            "10.244.1.2:8080 dropped<",
            ">25.0%<",
        ];
        let body = svg.split_once("</style>").unwrap().1;
        let places: Vec<usize> =
            order.iter().map(|word| body.find(word).unwrap_or_else(|| panic!("no {word}: {body}"))).collect();
        assert!(places.is_sorted(), "{places:?}: {body}");
        assert_eq!((svg.matches("class=\"mark\"").count(), svg.matches(">decides<").count()), (1, 1));
        // The bars of 75 and 25 percent of 360 pixels.
        assert!(svg.contains("width=\"270\" height=\"5\"") && svg.contains("class=\"share bad\" x=\"20\""), "{svg}");
    }

    #[test]
    fn a_drawing_is_well_formed_and_has_a_title() {
        let mut explanation = translated(Vec::new());
        explanation.verdict = Verdict::Dropped;
        explanation.reason = "<script>&\"\u{1b}".to_owned();
        let svg = drawing(&explanation);
        assert!(
            !svg.contains("<script>")
                && svg.contains("<title id=\"way-title\">The way of a packet 203.0.113.7 (shop/&quot;pod&quot;)")
        );
        assert!(svg.contains("<desc id=\"way-text\">dropped: &lt;script&gt;&amp;&quot;"), "{svg}");
        for element in ["svg", "title", "desc", "style", "text"] {
            let (opened, closed) = (
                svg.matches(&format!("<{element} ")).count() + svg.matches(&format!("<{element}>")).count(),
                svg.matches(&format!("</{element}>")).count(),
            );
            assert_eq!(opened, closed, "{element}");
        }
    }

    #[test]
    fn a_drawing_of_very_many_endpoints_is_bounded() {
        let many: Vec<Endpoint> = (0..200).map(|n| endpoint(n, 0.005, Verdict::Translated)).collect();
        let svg = drawing(&translated(many));
        assert!(svg.contains(">176 more endpoints<") && svg.contains(">88.0%<"), "{svg}");
        assert!(svg.len() < 16_000, "{}", svg.len());
    }

    #[test]
    fn no_line_is_wider_than_the_drawing() {
        let name = "x".repeat(120);
        let mut explanation = translated(vec![endpoint(1, 1.0, Verdict::Translated)]);
        explanation.steps[0].chain = name.clone();
        explanation.steps[0].text = format!("{name} {}", "word ".repeat(30));
        let svg = drawing(&explanation);
        let texts = svg.split("<text ").skip(1).filter_map(|rest| rest.split_once('>')?.1.split_once('<'));
        let widest = texts
            .map(|(text, _)| text.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", "\"").chars().count())
            .max();
        assert!(widest <= Some(IN_BOX) && svg.contains("x…x"), "{widest:?} in {svg}");
    }
}
