//! Netlink attributes: the type-length-value coding that everything travels in.
//!
//! Attribute headers are in host order, nf_tables' numbers in network order. Every attribute is padded to four bytes; a nested
//! one has a 16-bit length, so it holds less than 64 KiB.

/// Flag of an attribute that holds attributes (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;
/// The bits of the type that are flags.
const FLAGS: u16 = 0xc000;
const HEADER: usize = 4;

/// Writes attributes to the end of a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// An attribute that has been opened and must be closed with [`Writer::close`].
#[must_use]
#[derive(Debug)]
pub struct Nest(usize);

impl Writer {
    /// An empty buffer with room for this many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// What was written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends bytes that are not an attribute.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    #[inline]
    pub fn attr(&mut self, kind: u16, payload: &[u8]) {
        self.header(kind, payload.len());
        self.bytes.extend_from_slice(payload);
        self.pad();
    }

    /// Appends an attribute with text and its terminating zero.
    pub fn str(&mut self, kind: u16, text: &str) {
        self.header(kind, text.len() + 1);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends an attribute with a number in network order.
    pub fn u32(&mut self, kind: u16, number: u32) {
        self.attr(kind, &number.to_be_bytes());
    }

    /// Appends an attribute with a long number in network order.
    pub fn u64(&mut self, kind: u16, number: u64) {
        self.attr(kind, &number.to_be_bytes());
    }

    /// Begins an attribute that holds attributes.
    #[inline]
    pub fn open(&mut self, kind: u16) -> Nest {
        let start = self.bytes.len();
        self.header(kind | NESTED, 0);
        Nest(start)
    }

    /// Fills in the length of a nested attribute.
    ///
    /// # Panics
    /// When it is 64 KiB or longer: callers split before that.
    #[inline]
    pub fn close(&mut self, nest: Nest) {
        let len = u16::try_from(self.bytes.len() - nest.0).expect("nested attributes are split below 64 KiB");
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn header(&mut self, kind: u16, payload: usize) {
        let len = u16::try_from(HEADER + payload).expect("attributes are shorter than 64 KiB");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One attribute of a received message.
#[derive(Clone, Copy, Debug)]
pub struct Attr<'a> {
    /// Its type, without flags.
    pub kind: u16,
    /// Its content, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    /// The attributes within this one.
    #[must_use]
    pub fn nested(&self) -> Attrs<'a> {
        Attrs { bytes: self.payload }
    }

    /// A byte.
    #[must_use]
    pub fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// A number in network order.
    #[must_use]
    pub fn u32(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.get(..4)?.try_into().ok()?))
    }

    /// A long number in network order.
    #[must_use]
    pub fn u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.payload.get(..8)?.try_into().ok()?))
    }

    /// Text up to the terminating zero.
    #[must_use]
    pub fn str(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|b| *b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }
}

/// Walks attributes; ends at the first that does not fit its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Attrs<'a> {
    bytes: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// The attributes in these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The first attribute of a kind.
    #[must_use]
    pub fn find(mut self, kind: u16) -> Option<Attr<'a>> {
        self.by_ref().find(|attr| attr.kind == kind)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let (header, _) = self.bytes.split_first_chunk::<HEADER>()?;
        let [l0, l1, k0, k1] = *header;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let payload = self.bytes.get(HEADER..len)?;
        self.bytes = self.bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Attr { kind: u16::from_ne_bytes([k0, k1]) & !FLAGS, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        writer.str(1, "kube-proxy");
        let nest = writer.open(3);
        writer.u32(2, 7);
        writer.u64(4, 9);
        writer.close(nest);
        let attrs: Vec<Attr<'_>> = Attrs::new(writer.bytes()).collect();
        assert_eq!(attrs[0].str(), Some("kube-proxy"));
        assert_eq!(attrs[1].kind, 3);
        assert_eq!(attrs[1].nested().find(2).unwrap().u32(), Some(7));
        assert_eq!(attrs[1].nested().find(4).unwrap().u64(), Some(9));
    }

    #[test]
    fn a_length_beyond_the_buffer_ends_the_walk() {
        assert_eq!(Attrs::new(&[200, 0, 1, 0, 1]).count(), 0);
        assert_eq!(Attrs::new(&[2, 0, 1, 0]).count(), 0, "shorter than its own header");
        assert_eq!(Attrs::new(&[8, 0]).count(), 0);
    }
}
