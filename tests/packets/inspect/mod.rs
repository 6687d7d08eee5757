//! The commands that look at a node, beside a running proxy, and beside tables that nft has loaded.

mod causes;
mod explain;
mod network;
mod others;
mod probe;
mod services;
mod states;
mod trace;

pub(crate) use states::said;

use std::process::{Command, Output};

use crate::support::netns::Namespace;
use crate::support::proxy::binary;

/// `kube-proxy ARGS` on a node.
pub(crate) fn command(node: &Namespace, args: &[&str]) -> Command {
    let mut command = node.command(binary());
    command.args(args);
    command
}

/// What became of it: exit code, standard output, standard error.
pub(crate) fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary can be run");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    (status.code(), text(stdout), text(stderr))
}

/// Standard output of a command that finds nothing wrong.
fn printed(node: &Namespace, args: &[&str]) -> String {
    let (code, stdout, stderr) = outcome(&mut command(node, args));
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}: {stdout}");
    stdout
}
