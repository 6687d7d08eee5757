//! The tests of `strangers.rs` with the rules in layout `chains` (see `support::proxy::layout`).

#[path = "strangers.rs"]
mod strangers;
