//! Commands that look at a node, on a terminal.

mod top;
