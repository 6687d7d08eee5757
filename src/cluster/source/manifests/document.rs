//! Splits a YAML stream into documents, so that a broken document does not affect the others.
//!
//! The module takes the text of a file and returns its non-empty documents as slices of the text. It does no I/O. YAML forbids `---` and
//! `...` at the start of a line inside any scalar, so the module finds the ends of documents from the starts of lines alone.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// The number of the document in the stream, from 1; empty documents count.
    pub(super) number: usize,
    /// The number of lines of the stream before the document.
    pub(super) lines_before: u64,
    /// The text of the document, with its directives and its `---`.
    pub(super) text: &'a str,
}

/// Returns the documents of a stream that have content.
pub(super) fn documents(stream: &str) -> impl Iterator<Item = Document<'_>> {
    let mut cutter = Cutter { stream, ..Cutter::default() };
    // The empty string marks the end of the stream, because `split_inclusive` never returns an empty string.
    stream.split_inclusive('\n').chain([""]).filter_map(move |line| match line {
        "" => cutter.finish_document(stream.len(), cutter.lines),
        _ => cutter.line(line),
    })
}

#[derive(Default)]
struct Cutter<'a> {
    stream: &'a str,
    /// The number of documents that have ended.
    ended: usize,
    /// Offset and number of the current line.
    offset: usize,
    lines: u64,
    /// Offset and line at which the current document starts.
    start: usize,
    start_line: u64,
    /// Whether `---` of the current document has been read.
    explicit: bool,
    /// Whether the current document has text other than comments and directives.
    content: bool,
}

impl<'a> Cutter<'a> {
    /// Reads the next line. Returns the document that ends before or with this line.
    fn line(&mut self, line: &str) -> Option<Document<'a>> {
        let (end, next_line) = (self.offset + line.len(), self.lines + 1);
        let mut ended = None;
        if let Some(rest) = after_marker(line, "---") {
            if self.explicit || self.content {
                ended = self.finish_document(self.offset, self.lines);
            }
            // Comments and directives that came before belong to this document.
            self.explicit = true;
            self.content = has_content(rest);
        } else if after_marker(line, "...").is_some() {
            ended = self.finish_document(end, next_line);
        } else if self.explicit || self.content || !line.starts_with('%') {
            self.content |= has_content(line);
        }
        (self.offset, self.lines) = (end, next_line);
        ended
    }

    /// Ends the current document at an offset, at which the next document starts. Returns the ended document if it has content.
    fn finish_document(&mut self, end: usize, next_line: u64) -> Option<Document<'a>> {
        if self.explicit || self.content {
            self.ended += 1;
        }
        let text = &self.stream[self.start..end];
        let document = Document { number: self.ended, lines_before: self.start_line, text };
        let document = self.content.then_some(document);
        (self.start, self.start_line) = (end, next_line);
        (self.explicit, self.content) = (false, false);
        document
    }
}

/// Returns the rest of a line that starts with a marker, if nothing or white space follows the marker.
fn after_marker<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(marker)?;
    rest.chars().next().is_none_or(char::is_whitespace).then_some(rest)
}

fn has_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(stream: &str) -> Vec<(usize, u64, &str)> {
        documents(stream).map(|document| (document.number, document.lines_before, document.text)).collect()
    }

    #[test]
    fn one_document_needs_no_marker() {
        assert_eq!(cut("a: 1\nb: 2"), [(1, 0, "a: 1\nb: 2")]);
        assert_eq!(cut(""), []);
        assert_eq!(cut("# only a comment\n\n"), []);
    }

    #[test]
    fn a_leading_marker_starts_the_first_document() {
        assert_eq!(cut("# c\n---\na: 1\n---\nb: 2\n"), [(1, 0, "# c\n---\na: 1\n"), (2, 3, "---\nb: 2\n")]);
    }

    #[test]
    fn empty_documents_count_but_are_not_given() {
        assert_eq!(cut("---\n---\n# c\n---\na: 1\n---\n"), [(3, 3, "---\na: 1\n")]);
        assert_eq!(cut("a: 1\n---\n---\nb: 2"), [(1, 0, "a: 1\n"), (3, 2, "---\nb: 2")]);
    }

    #[test]
    fn markers_must_stand_alone_at_the_start_of_a_line() {
        let text = "a: |\n  ---\n  ...\nb: '----'\n---x: 1\n";
        assert_eq!(cut(text), [(1, 0, text)]);
        assert_eq!(cut("a: 1\r\n---\r\nb: 2\r\n"), [(1, 0, "a: 1\r\n"), (2, 1, "---\r\nb: 2\r\n")]);
    }

    #[test]
    fn a_document_may_start_on_the_marker_line() {
        assert_eq!(cut("--- {a: 1}\n--- # c\n--- b\n"), [(1, 0, "--- {a: 1}\n"), (3, 2, "--- b\n")]);
    }

    #[test]
    fn directives_belong_to_the_document_after_them() {
        assert_eq!(
            cut("%YAML 1.2\n---\na: 1\n...\n%YAML 1.2\n---\nb: 2"),
            [(1, 0, "%YAML 1.2\n---\na: 1\n...\n"), (2, 4, "%YAML 1.2\n---\nb: 2")]
        );
        assert_eq!(cut("a: 1\n...\n...\nb: 2"), [(1, 0, "a: 1\n...\n"), (2, 3, "b: 2")]);
    }
}
