//! The buffer of an output stream of the log. Only the informational records of a log with two streams are buffered.
//!
//! Invariants: the buffer never holds more bytes than its size, and a line is never split: if it does not fit into the free space, the
//! buffer is flushed first, and a line that is larger than the buffer is written directly.

use std::io::{self, Write};
use std::time::Duration;

/// A stream and the bytes that wait to be written to it.
pub(super) struct Buffer<W> {
    out: W,
    /// The most bytes that are kept.
    size: usize,
    flush_every: Duration,
    kept: Vec<u8>,
}

impl<W: Write> Buffer<W> {
    /// Keeps up to `size` bytes, for `flush_every` at most.
    pub(super) fn new(out: W, size: usize, flush_every: Duration) -> Self {
        Self { out, size, flush_every, kept: Vec::new() }
    }

    /// A buffer that keeps nothing: each line is written at once.
    pub(super) fn none(out: W) -> Self {
        Self::new(out, 0, Duration::ZERO)
    }

    /// Takes a line.
    ///
    /// # Errors
    /// When the stream cannot be written to; the bytes to be written are lost then.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.kept.len() + line.len() > self.size {
            self.flush()?;
        }
        if line.len() > self.size {
            return self.out.write_all(line);
        }
        self.kept.extend_from_slice(line);
        Ok(())
    }

    /// Writes the kept bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let written = if self.kept.is_empty() { Ok(()) } else { self.out.write_all(&self.kept) };
        self.kept.clear();
        written
    }

    /// How long the kept bytes may stay; `None` if there are none.
    pub(super) fn flush_within(&self) -> Option<Duration> {
        (!self.kept.is_empty()).then_some(self.flush_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the bytes of each call to `write`.
    #[derive(Default)]
    struct Calls(Vec<String>);

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(size: usize, lines: &[&str]) -> Vec<String> {
        let mut buffer = Buffer::new(Calls::default(), size, Duration::ZERO);
        lines.iter().for_each(|line| buffer.write(line.as_bytes()).unwrap());
        buffer.flush().unwrap();
        assert_eq!(buffer.flush_within(), None);
        buffer.out.0
    }

    #[test]
    fn lines_come_out_whole_and_the_buffer_has_never_more_than_its_size() {
        assert_eq!(written(0, &["a\n", "b\n"]), ["a\n", "b\n"]);
        assert_eq!(written(4, &["a\n", "b\n", "c\n"]), ["a\nb\n", "c\n"]);
        assert_eq!(written(3, &["a\n", "b\n", "long line\n", "c\n"]), ["a\n", "b\n", "long line\n", "c\n"]);
    }
}
