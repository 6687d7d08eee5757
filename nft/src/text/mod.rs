//! The nft syntax of every object.
//!
//! Takes values and gives text that nft 1.0.6 both lists and loads: [`TableContent`] and [`Ruleset`] print as
//! `nft --stateless list ruleset` does, [`crate::Command`] prints a line of `nft -f` input, [`crate::Expr`] prints in the style of
//! `nft --debug=netlink`.
//!
//! The names of objects are written as they are, because the caller has chosen valid ones. Comments and names of interfaces come from
//! outside: whatever characters they have, their text stays between its quotation marks and on its line.

mod chain;
mod command;
mod element;
mod expr;
mod flowtable;
mod foreign;
mod set;
mod statement;
mod words;

use std::fmt;

use crate::object::{Chain, Rule, Ruleset, TableContent};
use statement::Scope;
use words::quoted;

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
        for (set, elements) in &self.sets {
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
            writeln!(f, "\t\t{}", Scope::table(self.table.name.family).rule(rule))?;
        }
        f.write_str("\t}\n")
    }
}

/// The rule as nft lists it in an `ip` or `ip6` table.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Scope::default().rule(self))
    }
}
