//! Logs the last record of a process that ends because an allocation failed.
//!
//! Writes one line in the format of the log. No function of this module may allocate memory: the line is made on the stack, and written
//! directly to standard error after the queued lines. The module waits at most three times for a slow reader, each time for at most
//! [`FLUSH_TIMEOUT`].

use std::fmt;
use std::io;
use std::process;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::record::{Place, Record};
use super::{ERRORS, FLUSH_TIMEOUT, FORM, Form, INFOS, json, now, text};
use crate::config::LogFormat;

const MESSAGE: &str = "The process ends because it ran out of memory";
/// What the operator can do. It does not mention the memory limit of a container, because the kernel kills a process at that limit, and no
/// allocation fails.
const REASON: &str = "the system refused memory; raise the limit of the address space (RLIMIT_AS, `ulimit -v`, LimitAS= of systemd), \
                      or give the node more memory if vm.overcommit_memory is 2";

/// Logs that the process ends because the system refused to allocate this many bytes. Allocates no memory.
pub fn out_of_memory(bytes: usize) {
    [&ERRORS, &INFOS].into_iter().for_each(|queue| queue.drain_if_free(FLUSH_TIMEOUT));
    let mut line = Line::default();
    // Ignore the error: a line that is too long is cut.
    let _ = write_line(&mut line, FORM.get(), now(), process::id(), bytes);
    let stderr = io::stderr();
    // Write only if that does not block, because a full pipe would keep the process from ending.
    let timeout = Timespec::try_from(FLUSH_TIMEOUT).ok();
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], timeout.as_ref()) == Ok(1) {
        let _ = rustix::io::write(&stderr, line.bytes());
    }
}

/// Writes the line in the format of the log. Writes it as plain text for a terminal if the log was not started.
fn write_line(out: &mut impl fmt::Write, form: Option<&Form>, time: Timestamp, pid: u32, bytes: usize) -> fmt::Result {
    let place = Place { file: file!(), line: line!() };
    match form {
        None => writeln!(out, "kube-proxy: {REASON} (bytes: {bytes})"),
        Some(Form { format: LogFormat::Text, zone, .. }) => {
            // A record without message and fields allocates no memory.
            text::header(out, &Record::error(time, place, ""), zone, pid)?;
            writeln!(out, "\"{MESSAGE}\" err=\"{REASON}\" bytes={bytes}")
        }
        Some(Form { format: LogFormat::Json, .. }) => {
            let (ts, file, line) = (json::milliseconds(time.as_nanosecond()), json::short(place.file), place.line);
            write!(out, "{{\"ts\":{ts},\"caller\":\"{file}:{line}\",\"msg\":\"{MESSAGE}\"")?;
            writeln!(out, ",\"bytes\":{bytes},\"err\":\"{REASON}\"}}")
        }
    }
}

/// A line on the stack. Text that does not fit is cut off.
struct Line {
    text: [u8; 512],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { text: [0; 512], len: 0 }
    }
}

impl Line {
    fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.text.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::config::LoggingConfig;

    fn line(form: Option<&Form>) -> String {
        let mut line = Line::default();
        write_line(&mut line, form, Timestamp::UNIX_EPOCH, u32::MAX, usize::MAX).unwrap();
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    fn form(format: LogFormat) -> Form {
        Form { zone: TimeZone::UTC, ..Form::new(&LoggingConfig { format, ..LoggingConfig::default() }) }
    }

    #[test]
    fn the_longest_line_fits_and_is_what_the_log_makes_of_such_a_record() {
        // The record on the stack is equal to the record that the log would write (O19).
        for format in [LogFormat::Text, LogFormat::Json] {
            let made = line(Some(&form(format)));
            let at = made.split("out_of_memory.rs:").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next();
            let place = Place { file: file!(), line: at.unwrap().parse().unwrap() };
            let mut record = Record::error(Timestamp::UNIX_EPOCH, place, MESSAGE);
            record.fields = vec![("bytes", usize::MAX.into()), ("err", REASON.into())];
            let whole = match format {
                LogFormat::Text => text::record(&record, &TimeZone::UTC, u32::MAX),
                LogFormat::Json => json::record(&record),
            };
            assert_eq!(made, whole);
        }
        assert!(line(None).starts_with("kube-proxy: the system refused memory"));
    }
}
