//! Whole nodes: two of them on one network, a VXLAN overlay between their pods, and a proxy on each.
//!
//! Needs root, iproute2 and nft (`make deps`). Tests that need more than every machine has are ignored here and run in virtual
//! machines (`vm-tests/run`), which load the modules first.

mod health;
mod overlay;
mod rootless;
mod scale;
mod sctp;
mod traffic;
mod udp;
