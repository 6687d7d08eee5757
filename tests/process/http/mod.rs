//! The proxy's HTTP side as seen from outside: a running proxy is asked over sockets, and the answers are compared with those of upstream.
//!
//! Needs root, iproute2 and nft (`make deps`). Each test names the rules of `tests/BEHAVIOUR.md` that it checks.

mod checks;
mod client;
mod flood;
mod limits;
mod pages;
mod scrape;
