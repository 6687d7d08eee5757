//! Chunks: the items of a long JSON list, some at a time, each chunk with a text of its own.
//!
//! Takes the text of a file and the places of the items in it, and returns the chunks. Threads read and drop them one by one, so the text of
//! a large file and all of its objects are never in memory at the same time. It does no I/O.

use std::ops::Range;

/// The number of items of each chunk but the last.
pub(super) const ITEMS: usize = 500;

/// Some items of a list that follow each other.
pub(super) struct Chunk {
    text: String,
    /// The places of the items in the text, in bytes.
    places: Vec<Range<usize>>,
}

impl Chunk {
    /// The texts of the items, in the order of the list.
    pub(super) fn items(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| &self.text[place.clone()])
    }
}

/// Cuts a text into chunks with the items at these places, which are in the order of the text and do not overlap.
pub(super) fn cut(mut text: String, items: &[Range<usize>]) -> Vec<Chunk> {
    // From the end, so that each step copies only one chunk.
    let last = |items: &[Range<usize>]| {
        let start = items.first().map_or(0, |item| item.start);
        let of_items = text.split_off(start);
        text.shrink_to_fit();
        Chunk { text: of_items, places: items.iter().map(|item| item.start - start..item.end - start).collect() }
    };
    let mut chunks: Vec<_> = items.chunks(ITEMS).rev().map(last).collect();
    chunks.reverse();
    chunks
}

/// Returns the place of `part`, which must be a part of `text`, in bytes.
pub(super) fn place_in(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - text.as_ptr().addr();
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_all_items_in_order() {
        for count in [0, 1, ITEMS, ITEMS + 1, 3 * ITEMS - 1] {
            let items: Vec<String> = (0..count).map(|n| format!("\u{e9}{n}")).collect();
            let text = format!("[{}]", items.join(" , "));
            let places: Vec<_> = text[1..text.len() - 1]
                .split(" , ")
                .filter(|item| !item.is_empty())
                .map(|item| place_in(&text, item))
                .collect();
            let chunks = cut(text, &places);
            assert_eq!(chunks.len(), count.div_ceil(ITEMS));
            assert_eq!(chunks.iter().flat_map(Chunk::items).collect::<Vec<_>>(), items);
        }
    }
}
