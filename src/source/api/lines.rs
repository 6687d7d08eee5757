//! Lines from chunks of bytes.
//!
//! Takes chunks as the network cuts them, gives whole lines. Pure.
//!
//! Invariant: memory is bounded by the limit for a line plus one chunk.

/// A line is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Memory that an idle buffer may keep.
const KEEP: usize = 256 << 10;

/// Bytes on their way to becoming lines.
#[derive(Debug)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Where the next line starts.
    start: usize,
    /// Up to where no line ends.
    searched: usize,
    limit: usize,
}

impl Lines {
    /// An empty buffer. `limit` is the longest line, in bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    /// Adds a chunk.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEEP);
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// The next whole line without its end; `None` if more bytes are needed.
    ///
    /// # Errors
    /// What was started is too long for a line.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched - self.start > self.limit { Err(TooLong) } else { Ok(None) };
        };
        let (start, end) = (self.start, self.searched + length);
        if end - start > self.limit {
            return Err(TooLong);
        }
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some(&self.bytes[start..end]))
    }

    /// Bytes of a line that is not whole.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines of a text that comes in chunks of a size.
    fn cut(text: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut lines = Lines::new(100);
        let mut found = Vec::new();
        for chunk in text.chunks(size) {
            lines.push(chunk);
            while let Some(line) = lines.next().unwrap() {
                found.push(line.to_vec());
            }
        }
        found
    }

    #[test]
    fn chunks_may_end_anywhere() {
        let text = "{\"a\":1}\n\n{\"ö\":2}\nunfinished".as_bytes();
        for size in 1..=text.len() {
            assert_eq!(cut(text, size), [&b"{\"a\":1}"[..], b"", "{\"ö\":2}".as_bytes()], "{size}");
        }
    }

    #[test]
    fn a_line_has_a_limit_whether_it_ends_or_not() {
        let mut lines = Lines::new(4);
        lines.push(b"1234\n12345");
        assert_eq!(lines.next(), Ok(Some(&b"1234"[..])));
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = Lines::new(4);
        lines.push(b"12345\n");
        assert_eq!(lines.next(), Err(TooLong));
    }

    #[test]
    fn memory_is_given_back() {
        let mut lines = Lines::new(8 << 20);
        lines.push(&vec![b'x'; 4 << 20]);
        assert_eq!(lines.next(), Ok(None));
        assert_eq!(lines.pending(), 4 << 20);
        lines.push(b"\n");
        assert!(lines.next().unwrap().is_some());
        lines.push(b"y");
        assert!(lines.bytes.capacity() <= KEEP, "{}", lines.bytes.capacity());
    }
}
