//! A batch: any number of changes to any number of tables that the kernel makes at once, or not at all.
//!
//! Takes [`Command`]s in the order in which the kernel shall check them, gives the bytes of one netlink datagram in a few large
//! pages: the kernel takes at most 1,024 (`UIO_MAXIOV`) in one call. Only the frame of the batch asks for an acknowledgement; errors
//! come without asking, and [`Batch::origin`] tells what each is about.
//!
//! Invariants: a message lies within one page; every message begins at a multiple of four bytes of the datagram (`NLMSG_ALIGNTO`).

use std::ffi::NulError;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use crate::decode::Messages;
use crate::encode::{Encoder, Message};
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
    /// Adds a table without content that only this connection can change, and that the kernel removes when the connection ends. Refused
    /// with `EPERM` while another connection has one of that name, and with `EOPNOTSUPP` when it exists without an owner. Kernel 5.12
    /// and later.
    LockTable(Table),
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
    /// Deletes those of these elements that exist; only their keys count. Linux 6.3 and later, also where a distribution has it in
    /// an older one; other kernels refuse it with `EINVAL`, as a message that they do not know.
    DestroyElements(TableName, Arc<Set>, Vec<Element>),
}

impl Command {
    /// The table it is about.
    #[must_use]
    pub fn table(&self) -> &TableName {
        match self {
            Self::AddTable(table) | Self::OwnTable(table) | Self::LockTable(table) => &table.name,
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
            | Self::DeleteElements(table, _, _)
            | Self::DestroyElements(table, _, _) => table,
        }
    }

    /// Number of elements it adds or deletes.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::AddElements(_, _, list) | Self::DeleteElements(_, _, list) | Self::DestroyElements(_, _, list) => {
                list.len()
            }
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
    pages: Pages,
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
        Self::encode_for(commands, *FRAME_ACKS)
    }

    /// The same for a kernel that acknowledges the frame of a batch, or one that does not: then the last message must ask for that.
    fn encode_for(commands: &[Command], frame_acks: bool) -> Result<Self, EncodeError> {
        let first_sequence = if frame_acks { 2 } else { 1 };
        let mut building = Building { pages: Pages::default(), origins: Vec::new(), next: first_sequence, bytes: 0 };
        building.pages.push(&frame(BATCH_BEGIN, frame_acks.then_some(1)));
        let mut encoder = Encoder::new();
        for (command, item) in commands.iter().enumerate() {
            encoder.messages(item, &mut |message| {
                building.push(&message, Origin { command, first_element: message.first_element });
            })?;
        }
        if !frame_acks && !building.origins.is_empty() {
            building.pages.acknowledge_newest();
        }
        building.pages.push(&frame(BATCH_END, frame_acks.then_some(building.next)));
        let count = u32::try_from(building.origins.len()).expect("a batch has fewer than 2^32 messages");
        let end_sequence = frame_acks.then_some(first_sequence + count);
        Ok(Self {
            pages: building.pages,
            origins: building.origins,
            first_sequence,
            end_sequence,
            bytes: building.bytes,
        })
    }

    /// The pages to send in one datagram.
    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.pages.pages.iter().map(Vec::as_slice)
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
        let (Command::AddElements(_, set, list)
        | Command::DeleteElements(_, set, list)
        | Command::DestroyElements(_, set, list)) = command
        else {
            return None;
        };
        if set.flags.interval {
            return None;
        }
        // A batch may have one command an element, and nearly as many refusals: the message need not be looked for.
        if list.len() == 1 {
            return Some(0);
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

/// A batch that is being filled.
struct Building {
    pages: Pages,
    origins: Vec<Origin>,
    /// The next sequence number.
    next: u32,
    bytes: usize,
}

impl Building {
    fn push(&mut self, message: &Message, origin: Origin) {
        let bytes = self.pages.push(&message.bytes);
        bytes[SEQUENCE].copy_from_slice(&self.next.to_ne_bytes());
        set_acknowledged(bytes, false);
        self.next = self.next.checked_add(1).expect("a batch has fewer than 2^32 messages");
        self.bytes += message.bytes.len();
        self.origins.push(origin);
    }
}

/// Where the header of a message has its flags and its sequence number (`struct nlmsghdr`).
const FLAGS: Range<usize> = 6..8;
const SEQUENCE: Range<usize> = 8..12;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END` (`linux/netfilter/nfnetlink.h`).
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// The first or the last message of a batch. It has a sequence number only if it is to be acknowledged.
fn frame(kind: u16, sequence: Option<u32>) -> [u8; 20] {
    /// `NFNL_SUBSYS_NFTABLES`, in network order behind the family and the version of `struct nfgenmsg`.
    const SUBSYSTEM: [u8; 4] = [0, 0, 0, 10];
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&20_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[FLAGS].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes[SEQUENCE].copy_from_slice(&sequence.unwrap_or(0).to_ne_bytes());
    bytes[16..].copy_from_slice(&SUBSYSTEM);
    set_acknowledged(&mut bytes, sequence.is_some());
    bytes
}

/// Has the kernel acknowledge a message also when it finds no fault in it, or not.
fn set_acknowledged(message: &mut [u8], acknowledged: bool) {
    let flags = u16::from_ne_bytes([message[FLAGS.start], message[FLAGS.start + 1]]);
    let flags = if acknowledged { flags | NLM_F_ACK } else { flags & !NLM_F_ACK };
    message[FLAGS].copy_from_slice(&flags.to_ne_bytes());
}

/// Messages one after the other, in buffers that are never moved: growing one of 400 MB would take twice as much for a moment.
#[derive(Default)]
struct Pages {
    pages: Vec<Vec<u8>>,
    /// Where the newest message begins in the last page.
    newest: usize,
}

impl Pages {
    /// Each page has room for twice as much as the one before, from the first to the largest: a change of one endpoint takes
    /// little memory, and a datagram of 2 GiB, the most that the kernel takes, has some 500 pages.
    const FIRST: usize = 4096;
    const LARGEST: usize = 4 << 20;

    /// Appends a message and the padding behind it; gives the message.
    fn push(&mut self, message: &[u8]) -> &mut [u8] {
        let len = message.len().next_multiple_of(4);
        let last = self.pages.last();
        if last.is_none_or(|page| page.capacity() - page.len() < len) {
            let room = last.map_or(Self::FIRST, |page| (page.capacity() * 2).min(Self::LARGEST));
            self.pages.push(Vec::with_capacity(room.max(len)));
        }
        let page = self.pages.last_mut().expect("a page with room was just made");
        self.newest = page.len();
        page.extend_from_slice(message);
        page.resize(self.newest + len, 0);
        &mut page[self.newest..self.newest + message.len()]
    }

    /// Has the newest message acknowledged.
    fn acknowledge_newest(&mut self) {
        if let Some(page) = self.pages.last_mut() {
            set_acknowledged(&mut page[self.newest..], true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Family, TableName};

    fn add(tables: usize) -> Vec<Command> {
        let table = |n| Table { name: TableName::new(Family::Ip, &format!("t{n}")), comment: None };
        (0..tables).map(|n| Command::AddTable(table(n))).collect()
    }

    /// Type, sequence number, and whether it asks for an acknowledgement, of each message.
    fn headers(batch: &Batch) -> Vec<(u16, u32, bool)> {
        let header = |message: &[u8]| {
            let number = |range: Range<usize>| u16::from_ne_bytes(message[range].try_into().unwrap());
            (number(4..6), message_sequence(message).unwrap(), number(FLAGS) & NLM_F_ACK != 0)
        };
        batch.pages().flat_map(Messages::new).map(header).collect()
    }

    #[test]
    fn where_the_frame_is_acknowledged_nothing_else_is() {
        let batch = Batch::encode_for(&add(2), true).unwrap();
        let table = 10 << 8;
        assert_eq!(headers(&batch), [(16, 1, true), (table, 2, false), (table, 3, false), (17, 4, true)]);
        assert_eq!((batch.commit_sequence(), batch.origin(1), batch.origin(4)), (4, None, None));
        assert_eq!(batch.origin(3).map(|origin| origin.command), Some(1));
    }

    #[test]
    fn elsewhere_the_last_message_within_the_frame_is_acknowledged() {
        let batch = Batch::encode_for(&add(2), false).unwrap();
        let table = 10 << 8;
        assert_eq!(headers(&batch), [(16, 0, false), (table, 1, false), (table, 2, true), (17, 0, false)]);
        assert_eq!(batch.commit_sequence(), 2);
        let empty = Batch::encode_for(&[], false).unwrap();
        assert_eq!(headers(&empty), [(16, 0, false), (17, 0, false)]);
    }

    #[test]
    fn messages_are_aligned_and_lie_within_pages_of_growing_size() {
        let mut pages = Pages::default();
        let lens = (0..5000).map(|n| 20 + n * 37 % 65_000).collect::<Vec<usize>>();
        for len in &lens {
            assert_eq!(pages.push(&vec![1; *len]).len(), *len);
            assert!(pages.newest.is_multiple_of(4));
        }
        let total: usize = lens.iter().map(|len| len.next_multiple_of(4)).sum();
        assert_eq!(pages.pages.iter().map(Vec::len).sum::<usize>(), total);
        assert!(pages.pages.iter().all(|page| page.len().is_multiple_of(4)));
        let capacities: Vec<usize> = pages.pages.iter().map(Vec::capacity).collect();
        assert!(capacities.is_sorted() && capacities.last() == Some(&Pages::LARGEST), "{capacities:?}");
        // What the kernel takes at most in one call, for the most bytes that it takes.
        assert!(total / pages.pages.len() > i32::MAX as usize / 1024, "{total} bytes in {} pages", pages.pages.len());
    }
}
