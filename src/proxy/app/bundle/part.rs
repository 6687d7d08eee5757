//! The parts of a bundle: each is work that writes a file, with a limit on time and on size.
//!
//! Invariant: a part that fails, panics or hangs does not affect other parts. Its file then has the content written so far, followed by the
//! reason why the rest is missing.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use component::redact::redact;
use component::supervise;

/// The most bytes that the work of one part may write.
const MOST: usize = 64 << 20;

/// A file of the bundle, with the work that writes its content.
pub(super) struct Part {
    name: &'static str,
    work: Box<dyn FnOnce(Content) -> Result<()> + Send>,
}

impl Part {
    /// A part from the work that writes its content.
    pub(super) fn new(name: &'static str, work: impl FnOnce(Content) -> Result<()> + Send + 'static) -> Self {
        Self { name, work: Box::new(work) }
    }
}

/// A file of the bundle whose work has ended or was given up.
pub(super) struct Done {
    pub(super) name: &'static str,
    /// The content, in which what looks like a secret is hidden.
    pub(super) text: String,
    /// Why the content is not complete; `None` if it is.
    pub(super) error: Option<String>,
}

/// Does the work of all parts at the same time. Returns their files when all have ended, or after `patience`.
pub(super) fn gather(parts: Vec<Part>, patience: Duration) -> Vec<Done> {
    let deadline = Instant::now() + patience;
    let running: Vec<_> = parts.into_iter().map(start).collect();
    running.into_iter().map(|(name, content, outcome)| end(name, &content, &outcome, deadline, patience)).collect()
}

fn start(part: Part) -> (&'static str, Content, Receiver<Result<()>>) {
    let (sender, receiver) = channel();
    let (content, work) = (Content::default(), part.work);
    let own = content.clone();
    // The thread is not joined, so a part that hangs delays the command by no more than the time limit; its thread ends with the process. The
    // receiver notices that the sender is dropped, after a panic or if the system starts no thread.
    let _ = supervise::thread("bundle-part", move || sender.send(work(own)));
    (part.name, content, receiver)
}

fn end(
    name: &'static str,
    content: &Content,
    outcome: &Receiver<Result<()>>,
    deadline: Instant,
    patience: Duration,
) -> Done {
    use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
    let outcome = match outcome.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(outcome) => outcome,
        Err(Timeout) => Err(anyhow!("cannot gather this part within {patience:?}; what follows is missing")),
        Err(Disconnected) => Err(anyhow!(
            "cannot gather this part: a panic, which is a mistake of this program, or the system starts no thread"
        )),
    };
    let Written { bytes, is_cut } = std::mem::take(&mut *content.lock());
    let mut text = redact(&String::from_utf8_lossy(&bytes));
    let error = match outcome {
        _ if is_cut => Some(format!("cut at {} MiB", MOST >> 20)),
        outcome => outcome.err().map(|error| redact(format!("{error:#}").trim_end())),
    };
    if let Some(error) = &error {
        text.push_str(&format!("{}{error}\n", if text.is_empty() || text.ends_with('\n') { "" } else { "\n" }));
    }
    Done { name, text, error }
}

/// The content of a file that is being written, which takes at most [`MOST`] bytes.
#[derive(Clone, Default)]
pub(super) struct Content(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Content {
    fn lock(&self) -> std::sync::MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.lock();
        let room = MOST - written.bytes.len().min(MOST);
        written.is_cut |= room < bytes.len();
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::other("the file is full"));
        }
        let taken = &bytes[..bytes.len().min(room)];
        written.bytes.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_hangs_or_panics_spoils_no_other() {
        let parts = vec![
            Part::new("fine", |mut content| Ok(writeln!(content, "at http://u:p@h")?)),
            Part::new("fails", |mut content| {
                content.write_all(b"half")?;
                Err(anyhow!("cannot read http://u:p@h"))
            }),
            Part::new("hangs", |mut content| {
                content.write_all(b"so far\n")?;
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            }),
            Part::new("panics", |_| panic!("on purpose")),
            Part::new("huge", |mut content| {
                loop {
                    content.write_all(&[b'x'; 1 << 20])?;
                }
            }),
        ];
        let done = gather(parts, Duration::from_secs(5));
        let text = |name: &str| done.iter().find(|done| done.name == name).map(|done| done.text.as_str()).unwrap();
        assert_eq!(text("fine"), "at http://***@h\n");
        assert_eq!(text("fails"), "half\ncannot read http://***@h\n");
        assert_eq!(text("hangs"), "so far\ncannot gather this part within 5s; what follows is missing\n");
        assert!(text("panics").contains("a panic"));
        assert!(text("huge").len() < MOST + 100 && text("huge").ends_with("\ncut at 64 MiB\n"));
        assert_eq!(done.iter().filter(|done| done.error.is_some()).count(), 4);
    }
}
