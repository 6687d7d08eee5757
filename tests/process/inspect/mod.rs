//! The commands that look at a node, beside a running proxy.

mod changes;
