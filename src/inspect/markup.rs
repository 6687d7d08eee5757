//! Writes HTML and SVG.
//!
//! Takes names of elements and attributes, which are literals of this program, and values and texts from anywhere; returns well-formed
//! markup. Invariant: every value and every text passes [`escaped`], so that no name of an object, comment of a rule or word of a user becomes
//! markup. Pure.

use std::fmt::Display;

use crate::output::Tone;
use component::logging;

/// An attribute of an element.
pub(crate) type Attribute<'a> = (&'static str, &'a dyn Display);

/// Markup that is being written.
#[derive(Debug, Default)]
pub(crate) struct Markup(String);

impl Markup {
    /// Writes an element with what `fill` writes in it.
    pub(crate) fn element(&mut self, name: &'static str, attributes: &[Attribute<'_>], fill: impl FnOnce(&mut Self)) {
        self.start(name, attributes);
        self.0.push('>');
        fill(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    /// Writes an element with a text in it.
    pub(crate) fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: impl Display) {
        self.element(name, attributes, |element| element.text(text));
    }

    /// Writes an element that has no content.
    pub(crate) fn void(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.start(name, attributes);
        self.0.push_str("/>");
    }

    /// Writes a text, with its special characters escaped.
    pub(crate) fn text(&mut self, text: impl Display) {
        self.0.push_str(&escaped(&text.to_string()));
    }

    /// Writes markup that is a literal of this program.
    pub(crate) fn literal(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Writes other markup.
    pub(crate) fn append(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    fn start(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
    }
}

/// A text in which no character has a meaning in HTML or XML, between tags or in a quoted attribute. Control characters, most of which XML
/// does not allow, and characters that change the direction of writing are shown as their escapes.
fn escaped(text: &str) -> String {
    // `logging::escaped` removes spaces at the end. They are kept here, because they separate the text from the element behind it.
    let end = text.trim_end_matches(' ').len();
    let visible = logging::escaped(&text[..end]) + &text[end..];
    let mut safe = String::with_capacity(visible.len());
    for c in visible.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML does not allow these two characters.
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The class of elements whose text has this tone; `colours.css` has the colours.
pub(crate) const fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Strong => "strong",
        Tone::Faint => "faint",
        Tone::Good => "good",
        Tone::Warning => "warn",
        Tone::Bad => "bad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_values_never_become_markup() {
        let mut markup = Markup::default();
        let name = "</p><script>alert('1')</script>\" onload=\"x&amp;";
        markup.leaf("p", &[("title", &name)], name);
        let safe = "&lt;/p&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=&quot;x&amp;amp;";
        assert_eq!(markup.into_string(), format!("<p title=\"{safe}\">{safe}</p>"));
    }

    #[test]
    fn control_characters_and_marks_of_direction_are_shown() {
        assert_eq!(escaped(" a  "), " a  ");
        assert_eq!(escaped("a\0\u{1b}[2J\u{202e}b\nc\u{ffff}"), "a\\u{0}\\u{1b}[2J\\u{202e}b\\nc\u{fffd}");
    }

    #[test]
    fn elements_are_closed_in_order() {
        let mut markup = Markup::default();
        markup.element("p", &[("class", &"a")], |p| {
            p.void("br", &[]);
            p.literal("<i>x</i>");
            p.text(1);
        });
        assert_eq!(markup.into_string(), "<p class=\"a\"><br/><i>x</i>1</p>");
    }
}
