//! Splits received bytes into netlink messages, and reads a message's header.

/// Bytes of a `nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// `NLM_F_DUMP_INTR`.
const DUMP_INTERRUPTED: u16 = 0x10;

/// A message's header and what follows it.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    /// The message type.
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// The port of the socket whose request or transaction the message is about.
    pub(super) port: u32,
    /// The length of the message that the header claims, header included. In a header that an answer quotes, it may exceed the number of
    /// quoted bytes.
    pub(super) len: usize,
    pub(super) payload: &'a [u8],
}

impl<'a> Header<'a> {
    /// The message at the start of the bytes; `None` when there are fewer bytes than its header claims.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let header = Self::read_quoted(bytes)?;
        Some(Self { payload: bytes.get(HEADER..header.len)?, ..header })
    }

    /// The header at the start of the bytes; its message may be cut off.
    pub(super) fn read_quoted(bytes: &'a [u8]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        Some(Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
            len: usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?,
            payload,
        })
    }
}

/// The messages in a receive buffer, each from its `nlmsghdr` on. Ends at the first message that is longer than the bytes that are left.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    bytes: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Splits the bytes that one call of `recv` gave.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = Header::read(self.bytes)?.len;
        let message = self.bytes.get(..len)?;
        self.bytes = self.bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// The sequence number of a message.
#[must_use]
pub fn sequence(bytes: &[u8]) -> Option<u32> {
    Header::read(bytes).map(|header| header.sequence)
}

/// Whether a message has the flag of an interrupted dump: what the kernel lists may have changed meanwhile, so the dump may miss objects.
#[must_use]
pub fn dump_interrupted(bytes: &[u8]) -> bool {
    Header::read(bytes).is_some_and(|header| header.flags & DUMP_INTERRUPTED != 0)
}
