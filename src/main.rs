//! The `kube-proxy` binary.

#![forbid(unsafe_code)]

fn main() {}
