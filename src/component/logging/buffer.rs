//! The buffer of an output stream of the log. Only informational records are buffered, and only if the log has two streams (`splitStream`).
//!
//! Invariants: the buffer never holds more bytes than its size, and a line is never split: if it does not fit into the free space, the
//! buffer is flushed first, and a line that is larger than the buffer is written directly.

use std::io::{self, Write};
use std::time::Duration;

/// A stream and the bytes that wait to be written to it.
pub(super) struct Buffer<W> {
    out: W,
    /// The largest number of bytes that the buffer keeps.
    size: usize,
    flush_every: Duration,
    kept: Vec<u8>,
}

impl<W: Write> Buffer<W> {
    /// Makes a buffer that keeps up to `size` bytes. The caller flushes it when the oldest of them has been kept for `flush_every`.
    pub(super) fn new(out: W, size: usize, flush_every: Duration) -> Self {
        Self { out, size, flush_every, kept: Vec::new() }
    }

    /// Returns a buffer of size 0, which writes each line at once.
    pub(super) fn none(out: W) -> Self {
        Self::new(out, 0, Duration::ZERO)
    }

    /// Adds a line to the buffer. Writes earlier lines first if the line does not fit.
    ///
    /// # Errors
    /// Fails when the stream cannot be written to. The bytes that were to be written are then lost.
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
    /// Fails for the same reasons as [`Self::write`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let written = if self.kept.is_empty() { Ok(()) } else { self.out.write_all(&self.kept) };
        self.kept.clear();
        written
    }

    /// Returns the longest time until the buffer has to be flushed; `None` if it is empty.
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
