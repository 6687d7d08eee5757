//! nf_tables over netlink: typed objects, one-transaction batches, dumps, and nft text.
//!
//! ```text
//!  object ──► statement ──► expr ──► encode ──► batch ──► socket ──► kernel
//!    │       (nft language) (registers)  (libnftnl)             ◄── ack, dump
//!    └──► text                           decode ◄────────────────┘
//! ```
//!
//! Takes plain values ([`Table`], [`Chain`], [`Rule`], [`Set`], [`Element`]) and gives netlink messages, and back. Rules are
//! written in the words of the nft language ([`Statement`]) and lowered to the kernel's register machine ([`Expr`]), so the same
//! value has a text form, a wire form and can be compared with what the kernel lists.
//!
//! Knows nothing of Kubernetes, async run-times, clocks or retries. The only crate of the workspace with `unsafe`; it stands in
//! `encode` (calls into libnftnl) and `socket` (system calls).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod batch;
pub mod connection;
pub mod data;
pub mod datatype;
pub mod decode;
mod encode;
pub mod expr;
pub mod field;
pub mod monitor;
pub mod object;
pub mod packed;
pub mod ruleset;
pub mod socket;
pub mod statement;
pub mod text;
mod userdata;
pub mod wire;

pub use batch::{Batch, Command, EncodeError};
pub use connection::{CommitError, Committed, Connection, ReadError, Refusal, TableDump, TableOutline};
pub use data::Data;
pub use datatype::DataType;
pub use expr::{Expr, Register};
pub use field::Field;
pub use monitor::Monitor;
pub use object::{
    BaseChain, Chain, ChainType, Element, Family, Flowtable, Hook, NamedObject, ObjectKind, Ownership, Rule, RuleDump,
    Set, SetFlags, Table, TableName, TableState, Types, Value, ValueType, Verdict,
};
pub use packed::{ElementRef, Elements};
pub use ruleset::{Ruleset, SetContent, TableContent};
pub use statement::{Operand, Statement};
