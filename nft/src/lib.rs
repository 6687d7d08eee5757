//! nf_tables over netlink: typed objects, batches that are one transaction each, dumps, and nft text.
//!
//! ```text
//! machine · iptables                what rules do with a packet · tables of iptables-legacy as chains and rules
//!   │
//! connection                        commits a batch, reads a table
//!   │
//! batch · monitor                   encodes a transaction · notices the transactions of other programs
//!   │
//! text · encode · decode · socket   nft syntax · values to bytes · bytes to values · netlink sockets
//!   │
//! command · userdata                one change · comments and types that nft keeps with an object
//!   │
//! packed · raise                    elements as bytes · expressions back to statements
//!   │
//! object                            chains, rules, sets, elements, whole tables
//!   │
//! statement                         the statements of rules, as nft has them
//!   │
//! field                             what a rule reads from a packet, such as `ip daddr`
//!   │
//! expr                              the kernel's instructions, into which statements are lowered
//!   │
//! data · datatype · table · wire    bytes and verdicts · nft's types · families and names · netlink messages
//! xtables · jhash                   tables of iptables-legacy as blocks of bytes · the kernel's hash
//! memory · signals                  the allocator: frees large blocks, reports lack of memory · unblocks signals
//! ```
//!
//! A module uses only modules below the line in which it stands, but some modules of the last three lines use each other; the constant
//! `NFT` in `tests/project/walls.rs` of the workspace has the exact list.
//!
//! Encodes plain values ([`Table`], [`Chain`], [`Rule`], [`Set`], [`Element`]) as netlink messages, and decodes netlink messages into plain
//! values. A rule is a list of nft statements ([`Statement`]), which are lowered to the kernel's expressions ([`Expr`]). So a value can be
//! printed as nft text, sent to the kernel, and compared with what the kernel lists.
//!
//! Knows nothing of Kubernetes and of async run-times. This is the only crate of the workspace with `unsafe` code outside of tests; the
//! code is in `encode` (calls of libnftnl), `socket` (system calls), `memory` (the allocator), `signals` and `xtables` (socket options).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at an unexpected value"))]

mod batch;
mod command;
pub mod connection;
mod data;
mod datatype;
pub mod decode;
mod encode;
pub mod expr;
mod field;
pub mod iptables;
mod jhash;
pub mod machine;
pub mod memory;
pub mod monitor;
mod object;
pub mod packed;
mod raise;
pub mod signals;
pub mod socket;
pub mod statement;
mod table;
mod text;
mod userdata;
pub mod wire;
pub mod xtables;

pub use batch::{Batch, EncodeError};
pub use command::Command;
pub use connection::{
    CommitError, Committed, Connection, HookedChain, Item, ReadError, Refusal, TableAhead, TableDump, TableOutline,
    Walked,
};
pub use data::{Data, Value, Verdict};
pub use datatype::DataType;
pub use expr::Expr;
pub use field::{Field, Hashed};
pub use jhash::{jhash, jhash_below};
pub use monitor::Monitor;
pub use object::{
    BaseChain, Chain, ChainType, Element, Flowtable, Hook, NamedObject, ObjectKind, Rule, RuleDump, Ruleset, Set,
    SetContent, SetFlags, TableContent, Types, ValueType,
};
pub use packed::{ElementRef, Elements};
pub use raise::Part;
pub use statement::{Operand, Statement};
pub use table::{Family, Ownership, Table, TableName, TableState};
