//! Reads the system calls of a traced process from the output of `strace`.
//!
//! Takes the text of `strace -f -e trace=execve,sendmsg,sendto`, and returns [`Call`]s. Reads only what the tests need: the name of the
//! call and, for an nfnetlink message, whether it is a batch and whether the batch is complete.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

/// Returns the arguments that make strace write to `output`; the traced program keeps the process id, and structures are written in full.
pub(crate) fn wrapper(output: &Path) -> Vec<String> {
    let output = output.to_str().expect("a temporary path is text");
    let fixed = [
        "strace",
        "-D",
        "-f",
        "-q",
        "--seccomp-bpf",
        "-e",
        "trace=execve,sendmsg,sendto",
        "-e",
        "abbrev=none",
        "-s",
        "100000",
        "-o",
    ];
    fixed.iter().map(ToString::to_string).chain([output.to_owned()]).collect()
}

/// Stops one thread at its next call to a socket, for a minute or until the returned process is killed.
pub(crate) fn hold(thread: &str) -> Child {
    const CALLS: &str = "sendmsg,sendto,recvmsg,recvfrom";
    let inject = format!("inject={CALLS}:delay_enter=60s");
    let mut strace = Command::new("strace");
    strace.args(["-q", "-p", thread, "-e", &format!("trace={CALLS}"), "-e", &inject, "-o", "/dev/null"]);
    strace.stderr(Stdio::null()).spawn().expect("strace can be run")
}

/// One system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A program was started.
    Execve,
    /// One message that is a complete nf_tables batch with at least one command.
    Batch,
    /// One message that has only a part of a batch, or several batches.
    BrokenBatch,
    /// Any other message.
    Message,
}

/// Returns the calls in a trace, in order.
pub(crate) fn calls(trace: &str) -> Vec<Call> {
    trace.lines().filter_map(call).collect()
}

/// Returns the calls that strace has written so far, as soon as two reads in a row have equally many batches and started programs. Other
/// messages do not count, because the proxy asks for the ruleset's generation all the time.
pub(crate) fn read_calls(output: &Path) -> Vec<Call> {
    let look = || calls(&fs::read_to_string(output).unwrap_or_default());
    let count = |calls: &[Call]| calls.iter().filter(|call| **call != Call::Message).count();
    let mut before = count(&look());
    loop {
        thread::sleep(std::time::Duration::from_millis(100));
        let calls = look();
        let now = count(&calls);
        if now == before {
            return calls;
        }
        before = now;
    }
}

fn call(line: &str) -> Option<Call> {
    // Lines look like `1234 sendmsg(7, ...) = 560`, or `<... sendmsg resumed>` for the rest of a call already seen.
    let (_, rest) = line.split_once(' ')?;
    let (name, arguments) = rest.trim_start().split_once('(')?;
    match name {
        "execve" => Some(Call::Execve),
        "sendmsg" | "sendto" => Some(message(arguments)),
        _ => None,
    }
}

fn message(arguments: &str) -> Call {
    let begins = count(arguments, &["NFNL_MSG_BATCH_BEGIN", "nlmsg_type=0x10 /*"]);
    let ends = count(arguments, &["NFNL_MSG_BATCH_END", "nlmsg_type=0x11 /*"]);
    let types: Vec<&str> = arguments.split("nlmsg_type=").skip(1).collect();
    let first_begins = types.first().is_some_and(|kind| is_one_of(kind, &["NFNL_MSG_BATCH_BEGIN", "0x10 "]));
    let last_ends = types.last().is_some_and(|kind| is_one_of(kind, &["NFNL_MSG_BATCH_END", "0x11 "]));
    match (begins, ends) {
        (0, 0) => Call::Message,
        // An empty batch: a reader sends it to wait until the transactions of other programs are done.
        (1, 1) if first_begins && last_ends && types.len() == 2 => Call::Message,
        (1, 1) if first_begins && last_ends => Call::Batch,
        _ => Call::BrokenBatch,
    }
}

fn count(text: &str, spellings: &[&str]) -> usize {
    spellings.iter().map(|spelling| text.matches(spelling).count()).sum()
}

fn is_one_of(text: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| text.starts_with(start))
}
