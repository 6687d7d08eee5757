//! The tools that other tests rely on: a tool that cannot see a wrong outcome proves nothing.

mod apiserver;
mod harness;
