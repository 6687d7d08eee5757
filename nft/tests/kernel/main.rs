//! Tests of the crate on the real kernel.
//!
//! Each test that talks to the kernel runs again as a child in a network namespace of its own, so no test changes the rules of this
//! machine. The tests need root (or `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`), `unshare` of util-linux, and nft 1.0.6 or newer; without these
//! they fail.

mod commit;
mod dumps;
mod fixtures;
mod large;
mod listing;
mod look;
mod ownership;
mod refusal;
mod support;
