//! The tables of iptables-legacy: their bytes as chains and rules, in a form of their own ([`Table`]) and in that of nf_tables ([`Chain`]).
//! Does no I/O; [`crate::xtables`] reads and replaces the bytes.

mod rules;
mod table;

pub use rules::{Chain, table_name};
pub use table::{Malformed, Table};
