//! The tests of `neighbours.rs` with the rules in layout `chains` (see `support::proxy::layout`).

#[path = "neighbours.rs"]
mod neighbours;
