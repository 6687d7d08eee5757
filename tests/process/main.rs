//! The program as a process: its command line, start and end, its HTTP pages and log, and what it does with its input.
//!
//! Needs root and the packages of `make deps`: most tests run the program in a network namespace.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

mod api;
mod bad_input;
mod budget;
mod claims;
mod cleanup;
mod cli;
mod death;
mod exhaustion;
mod first_sync;
mod http;
mod inspect;
mod log_lines;
mod logs;
mod panics;
mod refusals;
mod render;
mod runner;
mod secrets;
mod signals;
mod startup;
mod syscalls;
mod twins;
