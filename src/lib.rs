//! A drop-in kube-proxy for Linux nodes that programs Services into nf_tables over netlink.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect"))]

pub mod model;
pub mod source;
