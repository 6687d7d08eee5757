//! The tests of `inspection.rs` with the rules in layout `chains` (see `support::proxy::layout`).

#[path = "inspection.rs"]
mod inspection;
