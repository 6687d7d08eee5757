//! A batch: any number of changes to any number of tables that the kernel makes at once, or not at all.
//!
//! Takes [`Command`]s in the order in which the kernel shall check them, gives the pages of one netlink datagram. Only the frame of
//! the batch asks for an acknowledgement; errors come without asking, and [`Batch::origin`] tells what each is about.

use std::ffi::{NulError, c_void};
use std::sync::{Arc, LazyLock};

use nftnl::{MsgType, NlMsg};

use crate::decode::Messages;
use crate::encode::{Encoder, message_len};
use crate::object::{Chain, Element, Flowtable, NamedObject, Rule, Set, Table, TableName};
use crate::wire::Attrs;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a table unless it exists. One that is dormant is so no more.
    AddTable(Table),
    /// Adds a table that only this connection can change and that stays when the connection ends, or takes over one whose owner
    /// is gone. A table that anybody may change is refused. Kernel 6.9 and later.
    OwnTable(Table),
    /// Deletes a table with everything in it. It must exist.
    DeleteTable(TableName),
    /// Adds a chain unless it exists.
    AddChain(TableName, Chain),
    /// Deletes an empty chain that nothing refers to.
    DeleteChain(TableName, Arc<str>),
    /// Deletes all rules of a chain.
    FlushChain(TableName, Arc<str>),
    /// Deletes the rule with a handle from a chain.
    DeleteRule(TableName, Arc<str>, u64),
    /// Appends a rule to a chain.
    AddRule(TableName, Arc<str>, Rule),
    /// Adds a set unless it exists.
    AddSet(TableName, Arc<Set>),
    /// Deletes a set that no rule refers to.
    DeleteSet(TableName, Arc<Set>),
    /// Adds a flowtable, or these interfaces to one that exists. Kernels before 5.8 cannot do the latter.
    AddFlowtable(TableName, Flowtable),
    /// Deletes an object with a name, or a flowtable, that nothing refers to.
    DeleteObject(TableName, NamedObject),
    /// Adds elements. One whose key exists with another value is refused.
    AddElements(TableName, Arc<Set>, Vec<Element>),
    /// Deletes elements, which must exist.
    DeleteElements(TableName, Arc<Set>, Vec<Element>),
}

impl Command {
    /// The table it is about.
    #[must_use]
    pub fn table(&self) -> &TableName {
        match self {
            Self::AddTable(table) | Self::OwnTable(table) => &table.name,
            Self::DeleteTable(table)
            | Self::AddChain(table, _)
            | Self::DeleteChain(table, _)
            | Self::FlushChain(table, _)
            | Self::DeleteRule(table, _, _)
            | Self::AddRule(table, _, _)
            | Self::AddSet(table, _)
            | Self::DeleteSet(table, _)
            | Self::AddFlowtable(table, _)
            | Self::DeleteObject(table, _)
            | Self::AddElements(table, _, _)
            | Self::DeleteElements(table, _, _) => table,
        }
    }

    /// Number of elements it adds or deletes.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::AddElements(_, _, list) | Self::DeleteElements(_, _, list) => list.len(),
            _ => 0,
        }
    }
}

/// Whether the frame of a batch is acknowledged (kernel 6.10 and later): then nftnl gives it sequence numbers, even in an empty one.
static FRAME_ACKS: LazyLock<bool> = LazyLock::new(|| !nftnl::Batch::new().finalize().sequence_numbers().is_empty());

/// The commands could not be written down.
#[derive(Debug, thiserror::Error)]
#[error("a name contains a zero byte")]
pub struct EncodeError(#[from] NulError);

/// A finished batch.
pub struct Batch {
    pages: nftnl::FinalizedBatch,
    /// For each message, the command it came from and the first element it carries.
    origins: Vec<Origin>,
    first_sequence: u32,
    end_sequence: Option<u32>,
    bytes: usize,
}

/// What a message of a batch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the command.
    pub command: usize,
    /// Index of the first element in the message.
    pub first_element: usize,
}

impl Batch {
    /// Encodes commands.
    ///
    /// # Errors
    /// When a name contains a zero byte.
    pub fn encode(commands: &[Command]) -> Result<Self, EncodeError> {
        // Where the end of a batch is not acknowledged, its last message must ask for that.
        let frame_acks = *FRAME_ACKS;
        let first_sequence = if frame_acks { 2 } else { 1 };
        let mut building = Building { batch: nftnl::Batch::new(), origins: Vec::new(), held_back: None, bytes: 0 };
        let mut encoder = Encoder::new();
        for (command, item) in commands.iter().enumerate() {
            for message in encoder.messages(item)? {
                let origin = Origin { command, first_element: message.first_element };
                building.push(message.bytes, origin);
            }
        }
        building.flush(!frame_acks);
        let count = u32::try_from(building.origins.len()).expect("a batch has fewer than 2^32 messages");
        let end_sequence = frame_acks.then_some(first_sequence + count);
        Ok(Self {
            pages: building.batch.finalize(),
            origins: building.origins,
            first_sequence,
            end_sequence,
            bytes: building.bytes,
        })
    }

    /// The pages to send in one datagram.
    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.pages.iter()
    }

    /// What the message with a sequence number is about; `None` for the frame of the batch.
    #[must_use]
    pub fn origin(&self, sequence: u32) -> Option<Origin> {
        let index = usize::try_from(sequence.checked_sub(self.first_sequence)?).ok()?;
        self.origins.get(index).copied()
    }

    /// Index, within the command, of the element at an offset of the message with a sequence number.
    ///
    /// `None` for other messages, and for ranges, whose two halves travel as two elements.
    #[must_use]
    pub(crate) fn element_at(&self, origin: Origin, sequence: u32, offset: u32, command: &Command) -> Option<usize> {
        let (Command::AddElements(_, set, _) | Command::DeleteElements(_, set, _)) = command else { return None };
        if set.flags.interval {
            return None;
        }
        let message = self.pages().flat_map(Messages::new).find(|m| message_sequence(m) == Some(sequence))?;
        let offset = usize::try_from(offset).ok()?;
        Some(origin.first_element + element_number(message, offset)?)
    }

    /// The sequence number whose acknowledgement means that everything is committed.
    #[must_use]
    pub fn commit_sequence(&self) -> u32 {
        let last = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        self.end_sequence.unwrap_or(self.first_sequence + last.saturating_sub(1))
    }

    /// Number of messages, without the frame.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.origins.len()
    }

    /// Number of bytes, without the frame.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn message_sequence(message: &[u8]) -> Option<u32> {
    message.get(8..12)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Which element of a message of elements an offset lies in.
fn element_number(message: &[u8], offset: usize) -> Option<usize> {
    const HEADERS: usize = 20;
    const ELEMENTS: u16 = 3;
    let list = Attrs::new(message.get(HEADERS..)?).find(ELEMENTS)?;
    let place = |part: &[u8]| part.as_ptr().addr() - message.as_ptr().addr();
    list.nested().position(|element| place(element.payload) + element.payload.len() > offset)
}

/// A batch that is being filled. The newest message is held back until it is known whether it is the last.
struct Building {
    batch: nftnl::Batch,
    origins: Vec<Origin>,
    held_back: Option<Vec<u8>>,
    bytes: usize,
}

impl Building {
    fn push(&mut self, message: Vec<u8>, origin: Origin) {
        self.flush(false);
        self.bytes += message.len();
        self.origins.push(origin);
        self.held_back = Some(message);
    }

    fn flush(&mut self, acknowledge: bool) {
        if let Some(bytes) = self.held_back.take() {
            debug_assert_eq!(message_len(&bytes), bytes.len());
            self.batch.add(&Finished { bytes, acknowledge }, MsgType::Add);
        }
    }
}

/// A message whose content is complete but for flags and sequence number.
struct Finished {
    bytes: Vec<u8>,
    acknowledge: bool,
}

// SAFETY: `write` copies at most `nft_nlmsg_maxsize()` bytes, which it checks: libnftnl keeps to that limit for the objects it
// writes, and `encode::elements` closes its only long attribute below 64 KiB, with a page of room for the short ones before it.
unsafe impl NlMsg for Finished {
    unsafe fn write(&self, buffer: *mut c_void, sequence: u32, _: MsgType) {
        const FLAGS: std::ops::Range<usize> = 6..8;
        const SEQUENCE: std::ops::Range<usize> = 8..12;
        const NLM_F_ACK: u16 = 4;
        let limit = usize::try_from(nftnl::nft_nlmsg_maxsize()).expect("usize has at least 32 bits");
        assert!(self.bytes.len() <= limit, "a netlink message is longer than libnftnl's limit");
        // SAFETY: the caller promises `nft_nlmsg_maxsize()` writable bytes at `buffer`, which no reference covers; the length was
        // just checked against that.
        let target = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), self.bytes.len()) };
        target.copy_from_slice(&self.bytes);
        let flags = u16::from_ne_bytes([target[FLAGS.start], target[FLAGS.start + 1]]);
        let flags = if self.acknowledge { flags | NLM_F_ACK } else { flags & !NLM_F_ACK };
        target[FLAGS].copy_from_slice(&flags.to_ne_bytes());
        target[SEQUENCE].copy_from_slice(&sequence.to_ne_bytes());
    }
}
