//! The proxy's HTTP side as seen from outside: a running proxy is asked over sockets, and the answers are held against surface.md.
//!
//! Needs root, iproute2 and nft (`make deps`). Each test names the section of the surface or the rule that it checks.

mod checks;
mod client;
mod flood;
mod limits;
mod pages;
mod scrape;
