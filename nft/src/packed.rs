//! Elements packed into bytes, to save memory: a large cluster has hundreds of thousands, and an [`Element`] has fields that few of them
//! use.
//!
//! Packs [`Element`]s and unpacks them; the encoder reads the packed bytes directly. Invariants: equal elements have equal bytes, and
//! nothing is lost, so packed elements are compared as bytes.
//!
//! An element is a byte of flags, the key, and the parts that the flags announce: the last key of a range, a value or the number of a
//! verdict and its chain, a time-out in nanoseconds, a comment. Keys and values have a byte of length before them, texts have two.

use std::time::Duration;

use crate::data::{Data, Value, Verdict};
use crate::object::Element;
use crate::wire::narrow;

/// Flags of a packed element.
const HAS_KEY_END: u8 = 1;
const HAS_DATA: u8 = 2;
const HAS_VERDICT: u8 = 4;
const HAS_TIMEOUT: u8 = 8;
const HAS_COMMENT: u8 = 16;
const HAS_CHAIN: u8 = 32;

/// Elements of one set or map.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Elements {
    /// The elements, each after its length.
    bytes: Vec<u8>,
    len: usize,
}

/// Where a list ended at some moment: the number of its bytes and of its elements.
#[derive(Clone, Copy)]
pub(crate) struct End {
    bytes: usize,
    len: usize,
}

/// A packed element.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ElementRef<'a>(&'a [u8]);

/// Where an element is in its list: a quarter of the size of an [`ElementRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// The parts of a packed element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The key; the first key of the range in an interval set.
    pub key: &'a [u8],
    /// The last key of the range in an interval set.
    pub key_end: Option<&'a [u8]>,
    /// The map's value for the key.
    pub value: ValueRef<'a>,
    /// How long the element lives; `None` for the set's own time-out, if it has one.
    pub timeout: Option<Duration>,
    /// The comment that `nft` lists with it, kept in its user data; `None` without one.
    pub comment: Option<&'a str>,
}

/// The value of a packed element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// Nothing: an element of a set.
    None,
    /// Data.
    Data(&'a [u8]),
    /// A verdict: its number on the wire, and the chain that it jumps or goes to.
    Verdict(u32, Option<&'a str>),
}

/// Appends an element to packed bytes.
pub fn pack(bytes: &mut Vec<u8>, element: &Element) {
    pack_parts(bytes, Parts::of(element));
}

/// Appends an element, given its parts, to packed bytes.
fn pack_parts(bytes: &mut Vec<u8>, parts: Parts<'_>) {
    let Parts { key, key_end, value, timeout, comment } = parts;
    let of_value = match value {
        ValueRef::None => 0,
        ValueRef::Data(_) => HAS_DATA,
        ValueRef::Verdict(_, Some(_)) => HAS_VERDICT | HAS_CHAIN,
        ValueRef::Verdict(_, None) => HAS_VERDICT,
    };
    let flag = |flag, present| if present { flag } else { 0 };
    let rest = flag(HAS_KEY_END, key_end.is_some()) | flag(HAS_TIMEOUT, timeout.is_some());
    bytes.push(of_value | rest | flag(HAS_COMMENT, comment.is_some()));
    data(bytes, key);
    if let Some(end) = key_end {
        data(bytes, end);
    }
    match value {
        ValueRef::None => {}
        ValueRef::Data(value) => data(bytes, value),
        ValueRef::Verdict(number, chain) => {
            bytes.extend_from_slice(&number.to_ne_bytes());
            chain.into_iter().for_each(|chain| text(bytes, chain));
        }
    }
    if let Some(timeout) = timeout {
        let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        bytes.extend_from_slice(&nanoseconds.to_ne_bytes());
    }
    if let Some(comment) = comment {
        text(bytes, comment);
    }
}

fn data(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.push(narrow::<u8>(value.len(), "Data is short"));
    bytes.extend_from_slice(value);
}

/// Appends a text, after its length in two bytes.
///
/// # Panics
/// When the text has 64 KiB or more: a name or comment of that length fits into no message.
fn text(bytes: &mut Vec<u8>, text: &str) {
    let len = narrow::<u16>(text.len(), "names and comments are shorter than 64 KiB");
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// Reads packed bytes from front to back.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn data(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(usize::from(len))
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("as many bytes were taken")
    }

    fn text(&mut self) -> &'a str {
        let len = u16::from_ne_bytes(self.number());
        std::str::from_utf8(self.take(usize::from(len))).expect("packed from text")
    }

    fn value(&mut self, flags: u8) -> ValueRef<'a> {
        if flags & HAS_DATA != 0 {
            return ValueRef::Data(self.data());
        }
        if flags & HAS_VERDICT == 0 {
            return ValueRef::None;
        }
        let number = u32::from_ne_bytes(self.number());
        ValueRef::Verdict(number, (flags & HAS_CHAIN != 0).then(|| self.text()))
    }
}

impl<'a> ElementRef<'a> {
    /// The element in these bytes, which [`pack`] must have written: for other bytes the methods panic.
    #[must_use]
    pub const fn from_packed(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that [`pack`] wrote for the element.
    #[must_use]
    pub const fn packed(self) -> &'a [u8] {
        self.0
    }

    /// The key; the first key of the range in an interval set.
    #[must_use]
    #[inline]
    pub fn key(self) -> &'a [u8] {
        Reader(&self.0[1..]).data()
    }

    /// Whether its value is data.
    #[must_use]
    #[inline]
    pub fn has_data(self) -> bool {
        self.0[0] & HAS_DATA != 0
    }

    /// All parts of the element.
    #[must_use]
    pub fn parts(self) -> Parts<'a> {
        let mut reader = Reader(self.0);
        let flags = reader.byte();
        let key = reader.data();
        let key_end = (flags & HAS_KEY_END != 0).then(|| reader.data());
        let value = reader.value(flags);
        let timeout = (flags & HAS_TIMEOUT != 0).then(|| Duration::from_nanos(u64::from_ne_bytes(reader.number())));
        let comment = (flags & HAS_COMMENT != 0).then(|| reader.text());
        Parts { key, key_end, value, timeout, comment }
    }

    /// The chain that the element's verdict jumps or goes to.
    #[must_use]
    pub fn target(self) -> Option<&'a str> {
        if self.0[0] & HAS_CHAIN == 0 {
            return None;
        }
        match self.parts().value {
            ValueRef::Verdict(_, chain) => chain,
            ValueRef::None | ValueRef::Data(_) => None,
        }
    }

    /// The unpacked element.
    #[must_use]
    pub fn element(self) -> Element {
        self.parts().element()
    }
}

impl<'a> Parts<'a> {
    /// The parts of an element.
    fn of(element: &'a Element) -> Self {
        let Element { key, key_end, value, timeout, comment } = element;
        Self {
            key: key.as_slice(),
            key_end: key_end.as_ref().map(|end| end.as_slice()),
            value: match value {
                Value::None => ValueRef::None,
                Value::Data(value) => ValueRef::Data(value.as_slice()),
                Value::Verdict(verdict) => ValueRef::Verdict(verdict.number(), verdict.chain().map(|chain| &**chain)),
            },
            timeout: *timeout,
            comment: comment.as_deref(),
        }
    }

    /// The element with these parts. Panics if a key or value is longer than an [`Element`] can hold, and as [`ValueRef::value`].
    pub(crate) fn element(self) -> Element {
        let Parts { key, key_end, value, timeout, comment } = self;
        let data = |bytes| Data::from_bytes(bytes).expect("a part of an element");
        let key_end = key_end.map(|end| Box::new(data(end)));
        Element { key: data(key), key_end, value: value.value(), timeout, comment: comment.map(Into::into) }
    }
}

impl ValueRef<'_> {
    /// The value. Panics if it is longer than [`Data`] can hold, or a verdict that this crate does not know.
    #[must_use]
    pub fn value(self) -> Value {
        match self {
            ValueRef::None => Value::None,
            ValueRef::Data(bytes) => Value::Data(Data::from_bytes(bytes).expect("a part of an element")),
            ValueRef::Verdict(number, chain) => Value::Verdict(verdict(number, chain)),
        }
    }
}

/// The verdict with a number on the wire.
fn verdict(number: u32, chain: Option<&str>) -> Verdict {
    let chains = chain.into_iter().flat_map(|chain| [Verdict::Jump(chain.into()), Verdict::Goto(chain.into())]);
    let mut verdicts = [Verdict::Accept, Verdict::Drop, Verdict::Return].into_iter().chain(chains);
    verdicts.find(|verdict| verdict.number() == number).expect("packed from a verdict")
}

impl Elements {
    /// A list without elements.
    pub const EMPTY: &'static Self = &Self { bytes: Vec::new(), len: 0 };

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every element in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter(Reader(&self.bytes))
    }

    /// The element at an index, `None` beyond the end. It reads all elements before it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<ElementRef<'_>> {
        self.iter().nth(index)
    }

    /// The place of every element in order.
    ///
    /// # Panics
    /// When the list has 4 GiB or more.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let mut rest = self.iter();
        std::iter::from_fn(move || {
            let start = self.bytes.len() - rest.0.0.len();
            rest.next().map(|_| Place(narrow(start, "the elements of a set take less than 4 GiB")))
        })
    }

    /// The element at a place that [`Self::places`] of this list returned; panics for another place.
    #[must_use]
    #[inline]
    pub fn at(&self, place: Place) -> ElementRef<'_> {
        let start = narrow::<usize>(place.0, "usize has at least 32 bits");
        Iter(Reader(&self.bytes[start..])).next().expect("a place of an element")
    }

    /// Appends an element.
    pub fn push(&mut self, element: &Element) {
        self.append(|bytes| pack(bytes, element));
    }

    /// Appends an element, given its parts.
    pub(crate) fn push_parts(&mut self, parts: Parts<'_>) {
        self.append(|bytes| pack_parts(bytes, parts));
    }

    /// The end of the list, for [`Self::cut`].
    pub(crate) const fn end(&self) -> End {
        End { bytes: self.bytes.len(), len: self.len }
    }

    /// Removes the elements that were appended since [`Self::end`] returned this end.
    pub(crate) fn cut(&mut self, end: End) {
        self.bytes.truncate(end.bytes);
        self.len = end.len;
    }

    /// Releases the memory that the list has reserved beyond its elements.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Appends a packed element.
    pub fn push_packed(&mut self, element: ElementRef<'_>) {
        self.append(|bytes| bytes.extend_from_slice(element.0));
    }

    /// Appends an element. Its key is the two parts of `key`, one after the other; its value is data, or none.
    pub fn push_joined(&mut self, key: [&[u8]; 2], value: Option<&[u8]>) {
        self.append(|bytes| {
            bytes.push(if value.is_some() { HAS_DATA } else { 0 });
            let start = bytes.len();
            data(bytes, key[0]);
            bytes.extend_from_slice(key[1]);
            bytes[start] = narrow::<u8>(key[0].len() + key[1].len(), "Data is short");
            if let Some(value) = value {
                data(bytes, value);
            }
        });
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH]);
        write(&mut self.bytes);
        let len = narrow::<u32>(self.bytes.len() - start - LENGTH, "an element is short");
        self.bytes[start..start + LENGTH].copy_from_slice(&len.to_ne_bytes());
        self.len += 1;
    }

    /// A copy of the list, ordered by key.
    #[must_use]
    pub fn sorted(&self) -> Self {
        let mut elements: Vec<ElementRef<'_>> = self.iter().collect();
        elements.sort_by_key(|element| element.key());
        elements.into_iter().collect()
    }
}

/// The size of the length before each element of a list, in bytes.
const LENGTH: usize = 4;

/// Iterates over a list of packed elements.
pub struct Iter<'a>(Reader<'a>);

impl<'a> Iterator for Iter<'a> {
    type Item = ElementRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<ElementRef<'a>> {
        if self.0.0.is_empty() {
            return None;
        }
        let len = u32::from_ne_bytes(self.0.number());
        Some(ElementRef(self.0.take(narrow::<usize>(len, "usize has at least 32 bits"))))
    }
}

impl<'a> IntoIterator for &'a Elements {
    type Item = ElementRef<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> FromIterator<ElementRef<'a>> for Elements {
    fn from_iter<I: IntoIterator<Item = ElementRef<'a>>>(elements: I) -> Self {
        let mut list = Self::default();
        elements.into_iter().for_each(|element| list.push_packed(element));
        list
    }
}

impl FromIterator<Element> for Elements {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        let mut list = Self::default();
        elements.into_iter().for_each(|element| list.push(&element));
        list
    }
}

impl From<Vec<Element>> for Elements {
    fn from(elements: Vec<Element>) -> Self {
        elements.into_iter().collect()
    }
}

impl From<&[Element]> for Elements {
    fn from(elements: &[Element]) -> Self {
        let mut list = Self::default();
        elements.iter().for_each(|element| list.push(element));
        list
    }
}

impl std::fmt::Debug for Elements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl std::fmt::Debug for ElementRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements() -> Vec<Element> {
        let key = Data::from(7_u32);
        let plain = Element::new(key);
        let all = Element {
            key_end: Some(Box::new(Data::from(9_u32))),
            value: Value::Data(Data::from(8_u16)),
            timeout: Some(Duration::from_millis(3)),
            comment: Some("a/b".into()),
            ..plain.clone()
        };
        let verdicts =
            [Verdict::Accept, Verdict::Drop, Verdict::Return, Verdict::Jump("a".into()), Verdict::Goto("lb-3".into())];
        let verdicts = verdicts.map(|verdict| Element::mapping(Data::from(5_u32), Value::Verdict(verdict)));
        [plain, all].into_iter().chain(verdicts).collect()
    }

    #[test]
    fn nothing_is_lost_by_packing() {
        let packed: Elements = elements().into();
        let unpacked: Vec<Element> = packed.iter().map(ElementRef::element).collect();
        assert_eq!((unpacked, packed.len()), (elements(), 7));
        assert_eq!(packed.get(6).and_then(ElementRef::target), Some("lb-3"));
        assert_eq!((packed.get(1).and_then(ElementRef::target), packed.get(7)), (None, None));
    }

    #[test]
    fn each_element_is_at_its_place() {
        let packed: Elements = elements().into();
        assert_eq!(packed.places().map(|place| packed.at(place)).collect::<Elements>(), packed);
        assert_eq!(Elements::default().places().count(), 0);
    }

    #[test]
    fn lists_are_sorted_by_their_keys() {
        let sorted = Elements::from(elements()).sorted();
        let keys: Vec<&[u8]> = sorted.iter().map(ElementRef::key).collect();
        assert!(keys.is_sorted() && keys.len() == 7, "{sorted:?}");
        assert_eq!(sorted.get(5).map(ElementRef::element), Some(Element::new(Data::from(7_u32))));
    }

    #[test]
    fn a_key_in_two_parts_is_one_key() {
        let mut joined = Elements::default();
        joined.push_joined([&[1, 2, 3, 4], &[5, 0, 0, 0]], Some(&[9]));
        joined.push_joined([&[1, 2, 3, 4], &[5, 0, 0, 0]], None);
        let key = Data::from_bytes(&[1, 2, 3, 4, 5, 0, 0, 0]).unwrap();
        let mapping = Element::mapping(key, Value::Data(Data::from(9_u8)));
        assert_eq!(joined, Elements::from(vec![mapping, Element::new(key)]));
    }
}
