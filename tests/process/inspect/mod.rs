//! The commands that look at a node, beside a running proxy, after one, and on a terminal.

mod browser;
mod bundle;
pub(crate) mod changes;
mod check;
mod completion;
mod configured;
mod names;
mod screen;
mod services;
mod stats;
mod top;
mod verify;

use std::process::Output;

use serde_json::Value;

use crate::support::netns::Namespace;
use crate::support::proxy::binary;

/// What became of `kube-proxy ARGS` on a node: exit code, standard output, standard error.
fn run(node: &Namespace, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = node.command(binary()).args(args).output().expect("the binary can be run");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    (status.code(), text(stdout), text(stderr))
}

/// The exit code and the document of a command that prints JSON.
fn json(node: &Namespace, args: &[&str]) -> (Option<i32>, Value) {
    let (code, stdout, stderr) = run(node, &[args, &["-o", "json"]].concat());
    let document = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    (code, document)
}
