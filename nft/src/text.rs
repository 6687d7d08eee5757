//! The nft syntax of every object.
//!
//! Takes values and gives text that nft 1.0.6 both lists and loads: [`TableContent`] and [`Ruleset`] print as
//! `nft --stateless list ruleset` does, [`command`] prints single lines of `nft -f` input, [`crate::Expr`] prints in the style of
//! `nft --debug=netlink`.
//!
//! Names of objects are written as they are; whoever makes them validates them. Comments and names of interfaces are foreign: whatever
//! they hold, they stay between their quotation marks and on their line.

mod chain;
pub mod command;
mod element;
mod expr;
mod flowtable;
mod set;
mod statement;

use std::fmt;
use std::time::Duration;

use crate::object::{Chain, Rule};
use crate::ruleset::{Ruleset, SetContent, TableContent};
use statement::Scope;

/// ` comment "..."`, or nothing.
fn comment(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" comment {}", quoted(text)))
}

/// A comment between quotation marks, cut to what nft loads.
fn quoted(text: &str) -> String {
    format!("\"{}\"", harmless(crate::userdata::cut(text)))
}

/// Text for between quotation marks. nft has no escapes, so what would end the string or the line is replaced, and what turns the
/// direction of writing, which a terminal would follow.
fn harmless(text: &str) -> String {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let replace = |c: char| match c {
        '"' => '\'',
        c if c.is_control() || turns(c) => ' ',
        c => c,
    };
    text.chars().map(replace).collect()
}

/// The name of an interface; the kernel refuses few characters in one. A `*` at its end would make it the start of a name.
pub(crate) fn interface(name: &str) -> String {
    let name = harmless(name);
    match name.strip_suffix('*') {
        Some(start) => format!("\"{start}\\*\""),
        None => format!("\"{name}\""),
    }
}

/// The start of the name of an interface.
fn interface_start(start: &str) -> String {
    format!("\"{}*\"", harmless(start))
}

/// A time-out as nft writes it: `3h`, `1m30s`, `1d2h`.
fn duration(time: Duration) -> String {
    const UNITS: [(u128, &str); 5] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let mut rest = time.as_millis();
    let mut text = String::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            text += &format!("{}{name}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl fmt::Display for TableContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {{", self.table.name)?;
        if let Some(text) = &self.table.comment {
            writeln!(f, "\tcomment {}", quoted(text))?;
        }
        let mut separator = "";
        for (set, elements) in self.sets.iter().filter(|(set, _)| !set.flags.anonymous) {
            f.write_str(separator)?;
            set::write(f, set, elements)?;
            separator = "\n";
        }
        for flowtable in &self.flowtables {
            f.write_str(separator)?;
            flowtable::write(f, flowtable)?;
            separator = "\n";
        }
        for (chain, rules) in &self.chains {
            f.write_str(separator)?;
            self.write_chain(f, chain, rules)?;
            separator = "\n";
        }
        f.write_str("}\n")
    }
}

impl TableContent {
    fn write_chain(&self, f: &mut fmt::Formatter<'_>, chain: &Chain, rules: &[Rule]) -> fmt::Result {
        writeln!(f, "\tchain {} {{", chain.name)?;
        chain::properties(chain).iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
        for rule in rules {
            writeln!(f, "\t\t{}", Scope::table(self.table.name.family, &self.sets).rule(rule))?;
        }
        f.write_str("\t}\n")
    }
}

/// The rule alone: references to anonymous sets stay names, and the table is taken to be of the family `ip` or `ip6`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Scope::default().rule(self))
    }
}

/// The set of a name, when it is anonymous.
fn anonymous<'a>(sets: &'a [SetContent], name: &str) -> Option<&'a SetContent> {
    sets.iter().find(|(set, _)| set.flags.anonymous && &*set.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_as_nft_writes_them() {
        assert_eq!(duration(Duration::from_secs(10_800)), "3h");
        assert_eq!(duration(Duration::from_secs(90)), "1m30s");
        assert_eq!(duration(Duration::from_millis(93_600_001)), "1d2h1ms");
        assert_eq!(duration(Duration::ZERO), "0s");
    }

    #[test]
    fn the_name_of_an_interface_does_not_end_its_string() {
        assert_eq!(interface("a\";\u{1b}b"), "\"a'; b\"");
        assert_eq!([interface("br*"), interface("b*r")], ["\"br\\*\"", "\"b*r\""]);
        assert_eq!(interface_start("a\"}"), "\"a'}*\"");
    }

    #[test]
    fn a_comment_does_not_end_its_string() {
        assert_eq!(quoted("a\"b\nc"), "\"a'b c\"");
        assert_eq!(quoted("\u{2028}\u{202e}\u{1b}"), "\"   \"");
        assert_eq!(quoted(&"é".repeat(100)).len(), 126 + 2, "cut at a character's end");
    }
}
