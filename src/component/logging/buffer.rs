//! The buffer before a stream of lines: none but for the informational lines of a log of two streams.
//!
//! Takes lines, writes them whole. Invariants: the buffer has never more than its size, and a line never comes out in two pieces: one that
//! does not fit into what is left has the buffer written first, and one that is larger than the buffer is written past it.

use std::io::{self, Write};
use std::time::Duration;

/// A stream and what waits to be written to it.
pub(super) struct Buffer<W> {
    out: W,
    /// In bytes.
    size: usize,
    flush_every: Duration,
    kept: Vec<u8>,
}

impl<W: Write> Buffer<W> {
    /// Keeps up to `size` bytes, for `flush_every` at most.
    pub(super) fn new(out: W, size: usize, flush_every: Duration) -> Self {
        Self { out, size, flush_every, kept: Vec::new() }
    }

    /// Keeps nothing.
    pub(super) fn none(out: W) -> Self {
        Self::new(out, 0, Duration::ZERO)
    }

    /// Takes a line.
    ///
    /// # Errors
    /// When the stream cannot be written to; what was to be written is lost then.
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

    /// Writes what was kept.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let written = if self.kept.is_empty() { Ok(()) } else { self.out.write_all(&self.kept) };
        self.kept.clear();
        written
    }

    /// How long what is kept may stay; `None` when nothing is.
    pub(super) fn flush_within(&self) -> Option<Duration> {
        (!self.kept.is_empty()).then_some(self.flush_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the calls.
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
