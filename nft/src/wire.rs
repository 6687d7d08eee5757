//! Netlink messages and their attributes: type, length and value.
//!
//! Headers of messages and attributes are in host order, the numbers that nf_tables puts into attributes in network order. Every attribute
//! is padded to four bytes. Its length has 16 bits, so an attribute that holds other attributes is shorter than 64 KiB.

/// Flag of an attribute that holds attributes (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;
/// The bits of an attribute's type that are flags.
const FLAGS: u16 = 0xc000;
/// Bytes of an attribute's header.
const HEADER: usize = 4;

/// Flags of a message (`linux/netlink.h`).
pub(crate) mod flag {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const ACK: u16 = 4;
    pub(crate) const DUMP: u16 = 0x300;
    pub(crate) const CREATE: u16 = 0x400;
}

/// `NFNL_SUBSYS_NFTABLES`: the upper byte of the type of each nf_tables message.
pub(crate) const SUBSYSTEM: u16 = 10;

/// The lower byte of the type of each nf_tables message (`enum nf_tables_msg_types` in `linux/netfilter/nf_tables.h`).
pub(crate) mod kind {
    pub(crate) const NEW_TABLE: u16 = 0;
    pub(crate) const GET_TABLE: u16 = 1;
    pub(crate) const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub(crate) const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DELETE_ELEMENTS: u16 = 14;
    pub(crate) const NEW_GENERATION: u16 = 15;
    pub(crate) const GET_GENERATION: u16 = 16;
    pub(crate) const TRACE: u16 = 17;
    pub(crate) const NEW_OBJECT: u16 = 18;
    pub(crate) const GET_OBJECT: u16 = 19;
    pub(crate) const DELETE_OBJECT: u16 = 20;
    pub(crate) const NEW_FLOWTABLE: u16 = 22;
    pub(crate) const GET_FLOWTABLE: u16 = 23;
    pub(crate) const DELETE_FLOWTABLE: u16 = 24;
    pub(crate) const DESTROY_ELEMENTS: u16 = 30;
}

/// Writes messages and attributes to the end of a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// An attribute that [`Writer::open`] began and [`Writer::close`] must end.
#[must_use]
#[derive(Debug)]
pub struct Nest(usize);

impl Writer {
    /// An empty buffer with room for this many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// The bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The buffer's content.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a message of nf_tables in an empty buffer: `nlmsghdr` and `nfgenmsg`. Its length, sequence number and port are 0.
    pub(crate) fn begin(&mut self, kind: u16, flags: u16, family: u8) {
        self.raw(&[0; 4]);
        self.raw(&(SUBSYSTEM << 8 | kind).to_ne_bytes());
        self.raw(&flags.to_ne_bytes());
        self.raw(&[0; 8]);
        self.raw(&[family, 0, 0, 0]);
    }

    /// The message that [`Self::begin`] began, with its length in its header.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        set_len(&mut self.bytes);
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

    /// Appends an attribute with text and a terminating zero.
    pub fn str(&mut self, kind: u16, text: &str) {
        self.header(kind, text.len() + 1);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends an attribute with a 32-bit number in network order.
    pub fn u32(&mut self, kind: u16, number: u32) {
        self.attr(kind, &number.to_be_bytes());
    }

    /// Appends an attribute with a 64-bit number in network order.
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

    /// Ends a nested attribute: writes its length into its header.
    ///
    /// # Panics
    /// When the attribute has 64 KiB or more; callers split their lists before that.
    #[inline]
    pub fn close(&mut self, nest: Nest) {
        let len = narrow::<u16>(self.bytes.len() - nest.0, "nested attributes are split below 64 KiB");
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn header(&mut self, kind: u16, payload: usize) {
        let len = narrow::<u16>(HEADER + payload, "attributes are shorter than 64 KiB");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Converts a number to the width of a field in a netlink message. `bound` says why the number fits.
///
/// # Panics
/// When it does not fit, with `bound` as the message: a caller has broken its own limit.
#[inline]
#[track_caller]
pub(crate) fn narrow<Field>(number: impl TryInto<Field>, bound: &str) -> Field {
    number.try_into().unwrap_or_else(|_| panic!("{bound}"))
}

/// Writes a message's length into its header.
pub(crate) fn set_len(message: &mut [u8]) {
    let len = narrow::<u32>(message.len(), "a message is much shorter than 4 GiB");
    message[..4].copy_from_slice(&len.to_ne_bytes());
}

/// One attribute of a received message. The methods that read its content give `None` when it is too short.
#[derive(Clone, Copy, Debug)]
pub struct Attr<'a> {
    /// Its type, without flags.
    pub kind: u16,
    /// Its content, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    /// The attributes within this attribute.
    #[must_use]
    pub fn nested(&self) -> Attrs<'a> {
        Attrs { bytes: self.payload }
    }

    /// The first byte.
    #[must_use]
    pub fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// A 32-bit number in network order.
    #[must_use]
    pub fn u32(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.get(..4)?.try_into().ok()?))
    }

    /// A 64-bit number in network order.
    #[must_use]
    pub fn u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.payload.get(..8)?.try_into().ok()?))
    }

    /// Text up to the terminating zero, or to the end; `None` when it is not UTF-8.
    #[must_use]
    pub fn str(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|b| *b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }
}

/// Iterates over attributes; ends at the first attribute that is longer than the bytes that are left.
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
