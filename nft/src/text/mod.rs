//! The nft syntax of every object.
//!
//! Takes values and gives text that nft 1.0.6 both lists and loads: [`TableContent`] and [`Ruleset`] print as
//! `nft --stateless list ruleset` does, [`crate::Command`] prints a line of `nft -f` input, [`crate::Expr`] prints in the style of
//! `nft --debug=netlink`.
//!
//! The names of tables, chains, sets and flowtables are written as they are. Comments and names of interfaces may come from anywhere:
//! whatever characters they have, their text stays between its quotation marks and on its line.

mod chain;
mod command;
mod element;
mod expr;
mod flowtable;
mod foreign;
pub(crate) mod set;
mod statement;
mod words;

use std::fmt;

use crate::object::{Chain, Rule, Ruleset, TableContent};
use crate::table::Table;
use statement::Scope;
use words::quoted;

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl fmt::Display for TableContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scope = Scope::table(self.table.name.family);
        begin(f, &self.table, false)?;
        let mut separator = "";
        for (set, elements) in &self.sets {
            f.write_str(std::mem::replace(&mut separator, "\n"))?;
            set::write(f, set, elements.iter())?;
        }
        for flowtable in &self.flowtables {
            f.write_str(std::mem::replace(&mut separator, "\n"))?;
            flowtable::write(f, flowtable)?;
        }
        for (chain, rules) in &self.chains {
            f.write_str(std::mem::replace(&mut separator, "\n"))?;
            write_chain(f, chain, rules.iter().map(|rule| scope.rule(rule)))?;
        }
        f.write_str("}\n")
    }
}

/// Writes the first lines of a table.
pub(crate) fn begin(f: &mut fmt::Formatter<'_>, table: &Table, is_dormant: bool) -> fmt::Result {
    writeln!(f, "table {} {{", table.name)?;
    if let Some(text) = &table.comment {
        writeln!(f, "\tcomment {}", quoted(text))?;
    }
    if is_dormant { f.write_str("\tflags dormant\n") } else { Ok(()) }
}

/// Writes a chain with its rules, which are text already.
pub(crate) fn write_chain(
    f: &mut fmt::Formatter<'_>,
    chain: &Chain,
    mut rules: impl Iterator<Item = String>,
) -> fmt::Result {
    writeln!(f, "\tchain {} {{", chain.name)?;
    chain::properties(chain).iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
    rules.try_for_each(|rule| writeln!(f, "\t\t{rule}"))?;
    f.write_str("\t}\n")
}

/// The rule as nft lists it in an `ip` table.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Scope::default().rule(self))
    }
}
