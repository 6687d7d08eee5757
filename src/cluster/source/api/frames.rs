//! Cuts the answer to a watch, as the network delivers it, into events: lines of JSON, or protobuf messages that follow their length.
//!
//! The module takes chunks of bytes and returns the bytes of one event after the other. It does no I/O.
//!
//! Invariant: the bytes that are kept are at most those of the longest allowed event plus one chunk, even if a message announces a larger
//! length.

use super::format::Format;

/// The memory that an empty buffer may keep, in bytes.
const KEEP: usize = 256 << 10;
/// Size in bytes of the length before each protobuf message, which is in network byte order.
const LENGTH: usize = 4;

/// The error that an event is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Cuts chunks into events.
#[derive(Debug)]
pub(super) struct FrameBuffer {
    format: Format,
    bytes: Vec<u8>,
    /// Where the next event starts.
    start: usize,
    /// The offset from which to search for the end of a line; there is no end before it.
    searched: usize,
    limit: usize,
}

impl FrameBuffer {
    /// Returns an empty buffer. `limit` is the longest event, in bytes.
    pub(super) fn new(format: Format, limit: usize) -> Self {
        Self { format, bytes: Vec::new(), start: 0, searched: 0, limit }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched = self.searched.saturating_sub(self.start);
        self.start = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEEP);
        }
        self.bytes.extend_from_slice(chunk);
    }

    /// Returns the next whole event; `None` if more bytes are needed. Blank lines and empty messages are left out.
    ///
    /// # Errors
    /// Fails if the event is longer than the limit, even before its end has arrived.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, TooLong> {
        loop {
            let Some((start, end)) = (match self.format {
                Format::Json => self.line()?,
                Format::Protobuf => self.message()?,
            }) else {
                return Ok(None);
            };
            if !self.bytes[start..end].trim_ascii().is_empty() {
                return Ok(Some(&self.bytes[start..end]));
            }
        }
    }

    /// Returns start and end of the next complete line, without the line feed.
    fn line(&mut self) -> Result<Option<(usize, usize)>, TooLong> {
        let Some(length) = memchr::memchr(b'\n', &self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            return if self.pending() > self.limit { Err(TooLong) } else { Ok(None) };
        };
        let (start, end) = (self.start, self.searched + length);
        if end - start > self.limit {
            return Err(TooLong);
        }
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some((start, end)))
    }

    /// Returns start and end of the next complete protobuf message, without the length before the message.
    fn message(&mut self) -> Result<Option<(usize, usize)>, TooLong> {
        let Some((length, rest)) = self.bytes[self.start..].split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(TooLong);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.start + LENGTH;
        self.start = start + length;
        Ok(Some((start, self.start)))
    }

    /// Returns the number of bytes of an event whose end has not arrived yet.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all events of an answer that comes in chunks of `size` bytes.
    fn cut(format: Format, answer: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut frames = FrameBuffer::new(format, 100);
        let mut found = Vec::new();
        for chunk in answer.chunks(size) {
            frames.push(chunk);
            while let Some(event) = frames.next().unwrap() {
                found.push(event.to_vec());
            }
        }
        found
    }

    #[test]
    fn chunks_may_end_anywhere_in_an_event() {
        let lines = "{\"a\":1}\n\n{\"ö\":2}\nunfinished".as_bytes();
        let messages = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x03\n\nc\0\0\0\x09unfinish";
        for size in 1..=lines.len().max(messages.len()) {
            assert_eq!(cut(Format::Json, lines, size), [&b"{\"a\":1}"[..], "{\"ö\":2}".as_bytes()], "{size}");
            assert_eq!(cut(Format::Protobuf, messages, size), [&b"ab"[..], b"\n\nc"], "{size}");
        }
    }

    #[test]
    fn an_event_has_a_limit_whether_it_ends_or_not() {
        let mut lines = FrameBuffer::new(Format::Json, 4);
        lines.push(b"1234\n12345");
        assert_eq!(lines.next(), Ok(Some(&b"1234"[..])));
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = FrameBuffer::new(Format::Json, 4);
        lines.push(b"12345\n");
        assert_eq!(lines.next(), Err(TooLong));
        let mut messages = FrameBuffer::new(Format::Protobuf, 4);
        messages.push(b"\0\0\0\x041234\xff\xff\xff\xff");
        assert_eq!(messages.next(), Ok(Some(&b"1234"[..])));
        assert_eq!(messages.next(), Err(TooLong), "before a byte of it is there");
    }

    #[test]
    fn the_memory_of_a_long_event_is_released() {
        let length = 4_u32 << 20;
        let long = vec![b'x'; 4 << 20];
        for (format, before, after) in
            [(Format::Json, vec![], &b"\n"[..]), (Format::Protobuf, length.to_be_bytes().to_vec(), b"")]
        {
            let mut frames = FrameBuffer::new(format, 8 << 20);
            frames.push(&before);
            frames.push(&long[1..]);
            assert_eq!(frames.next(), Ok(None));
            assert_eq!(frames.pending(), before.len() + (4 << 20) - 1);
            frames.push(b"x");
            frames.push(after);
            assert!(frames.next().unwrap().is_some());
            frames.push(b"y");
            assert!(frames.bytes.capacity() <= KEEP, "{}", frames.bytes.capacity());
        }
    }
}
