//! The commands that look at a node, beside a running proxy and on a terminal.

mod changes;
mod top;
