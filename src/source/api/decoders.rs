//! What the bytes of an API server amount to, without a connection and a clock.
//!
//! Takes bytes, gives words. For fuzzing and its corpus: what `follow` does with an answer, up to where it would send events.

use serde_json::value::RawValue;

use super::frame::{self, Frame};
use super::lines::Lines;
use super::resource::Resource;
use crate::model::Event;
use crate::source::convert::Converter;

/// What an answer amounts to.
#[derive(Debug, Default, PartialEq)]
pub struct Meaning {
    /// The events of its objects.
    pub events: Vec<Event>,
    /// What would be logged, and where the answer stops making sense.
    pub words: Vec<String>,
}

/// Number of the kinds that are followed.
pub const KINDS: usize = Resource::ALL.len();

/// The answer to a watch of a kind (below [`KINDS`]) that comes in chunks of a size, with lines of at most `limit` bytes.
#[must_use]
pub fn watch(kind: usize, bytes: &[u8], chunk: usize, limit: usize) -> Meaning {
    let (mut lines, mut reader) = (Lines::new(limit), Reader::new(kind));
    for chunk in bytes.chunks(chunk.max(1)) {
        lines.push(chunk);
        loop {
            match lines.next() {
                Ok(None) => break,
                Ok(Some(line)) if line.trim_ascii().is_empty() => {}
                Ok(Some(line)) => match frame::watch_line(line) {
                    Ok(frame) => reader.frame(&frame),
                    Err(problem) => return reader.stopped(problem),
                },
                Err(too_long) => return reader.stopped(format!("{too_long:?}")),
            }
        }
    }
    reader.meaning.words.push(format!("{} bytes of a line", lines.pending()));
    reader.meaning
}

/// A page of a list of a kind (below [`KINDS`]).
#[must_use]
pub fn page(kind: usize, bytes: &[u8]) -> Meaning {
    let mut reader = Reader::new(kind);
    match frame::page(bytes, reader.resource.kind()) {
        Ok(page) => {
            page.items.into_iter().for_each(|object| reader.applied(object));
            reader.meaning.words.push(format!("page of version {:?}, next {:?}", page.version, page.next));
            reader.meaning
        }
        // What is no list may be words about a failure.
        Err(problem) => reader.stopped(format!("{problem}, {:?}", frame::status(bytes))),
    }
}

struct Reader {
    resource: Resource,
    converter: Converter,
    meaning: Meaning,
}

impl Reader {
    fn new(kind: usize) -> Self {
        Self { resource: Resource::ALL[kind % KINDS], converter: Converter::default(), meaning: Meaning::default() }
    }

    fn frame(&mut self, frame: &Frame<'_>) {
        match frame {
            Frame::Applied(object) => self.applied(object),
            Frame::Deleted(object) => match self.resource.identify(object) {
                Some((key, version)) => {
                    self.meaning.events.push(key.deletion());
                    self.meaning.words.push(format!("version {version:?}"));
                }
                None => self.meaning.words.push("a deletion of an object without a name".to_owned()),
            },
            Frame::Bookmark { .. } | Frame::Error(_) => self.meaning.words.push(format!("{frame:?}")),
        }
    }

    fn applied(&mut self, object: &RawValue) {
        match self.resource.decode(&mut self.converter, object) {
            Ok(decoded) => {
                self.meaning.events.extend(decoded.converted.event);
                self.meaning.words.extend(decoded.converted.notices.iter().map(ToString::to_string));
                self.meaning.words.push(format!("version {:?}", decoded.version));
            }
            Err(broken) => {
                self.meaning.words.push(format!("{:?} of version {:?}: {}", broken.key, broken.version, broken.notice));
            }
        }
    }

    fn stopped(mut self, problem: String) -> Meaning {
        self.meaning.words.push(problem);
        self.meaning
    }
}
