//! A batch: changes to any number of tables, of which the kernel makes all or none.
//!
//! Encodes [`Command`]s, in their order, into one netlink datagram. The datagram is kept in a few large pages (buffers), because the kernel
//! accepts at most 1,024 buffers (`UIO_MAXIOV`) in one call. Only the first and the last message of the batch ask for an acknowledgement;
//! before Linux 6.10, only the last command does. The kernel reports errors without being asked, and [`Batch::origin`] gives the command
//! that an error is about.
//!
//! Invariants: a message lies within one page; each begins at a multiple of four bytes in the datagram (`NLMSG_ALIGNTO`).

use std::ffi::NulError;
use std::ops::Range;
use std::sync::LazyLock;

use crate::command::Command;
use crate::decode::{Messages, sequence};
use crate::encode::{Encoder, Message};
use crate::wire::{Attrs, SUBSYSTEM, flag, narrow};

/// Whether the kernel acknowledges the first and the last message of a batch (6.10 and later). The crate `nftnl` finds this out from the
/// kernel's version: its batches, even an empty one, have sequence numbers in these two messages only if the kernel acknowledges them.
static FRAME_ACKS: LazyLock<bool> = LazyLock::new(|| !nftnl::Batch::new().finalize().sequence_numbers().is_empty());

/// The commands cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[error("a name contains a zero byte")]
pub struct EncodeError(#[from] NulError);

/// A finished batch.
pub struct Batch {
    pages: Pages,
    /// The command that each message is part of, in the order of the messages.
    origins: Vec<Origin>,
    first_sequence: u32,
    end_sequence: Option<u32>,
    bytes: usize,
}

/// The command that a message of a batch is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The index of the command in the batch.
    pub(crate) command: usize,
    /// The index, within the command, of the first element in the message.
    pub(crate) first_element: usize,
}

impl Batch {
    /// Encodes commands.
    ///
    /// # Errors
    /// When a name contains a zero byte.
    pub fn encode(commands: &[Command]) -> Result<Self, EncodeError> {
        Self::encode_for(commands, *FRAME_ACKS)
    }

    /// Encodes commands. `frame_acks`: whether the kernel acknowledges the first and the last message of a batch; if not, the last
    /// command's last message asks for an acknowledgement.
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
        let count = narrow::<u32>(building.origins.len(), "a batch has fewer than 2^32 messages");
        let end_sequence = frame_acks.then_some(first_sequence + count);
        Ok(Self {
            pages: building.pages,
            origins: building.origins,
            first_sequence,
            end_sequence,
            bytes: building.bytes,
        })
    }

    /// The pages of the datagram, in their order.
    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.pages.pages.iter().map(Vec::as_slice)
    }

    /// The command that the message with a sequence number is part of; `None` for the first and the last message of the batch.
    pub(crate) fn origin(&self, sequence: u32) -> Option<Origin> {
        let index = usize::try_from(sequence.checked_sub(self.first_sequence)?).ok()?;
        self.origins.get(index).copied()
    }

    /// The index, within the command, of the element at an offset in the message with sequence number `number`.
    ///
    /// `None` for messages without elements, and for interval sets, where a range can be two elements of the message.
    pub(crate) fn element_at(&self, origin: Origin, number: u32, offset: u32, command: &Command) -> Option<usize> {
        let (Command::AddElements(_, set, list)
        | Command::DeleteElements(_, set, list)
        | Command::DestroyElements(_, set, list)) = command
        else {
            return None;
        };
        if set.flags.interval {
            return None;
        }
        // No search for the message: in a batch with one command per element, all of them refused, a search through all messages for each
        // refusal would take quadratic time.
        if list.len() == 1 {
            return Some(0);
        }
        let message = self.pages().flat_map(Messages::new).find(|m| sequence(m) == Some(number))?;
        let offset = usize::try_from(offset).ok()?;
        Some(origin.first_element + element_number(message, offset)?)
    }

    /// The sequence number whose acknowledgement means that the kernel has made all changes.
    pub(crate) fn commit_sequence(&self) -> u32 {
        let last = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        self.end_sequence.unwrap_or(self.first_sequence + last.saturating_sub(1))
    }

    /// The number of messages, without the batch's first and last message.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.origins.len()
    }

    /// The number of bytes of the datagram: all messages with their padding, also the batch's first and last message.
    #[must_use]
    pub fn datagram_len(&self) -> usize {
        self.pages().map(<[u8]>::len).sum()
    }

    /// The number of bytes of all messages, without the batch's first and last message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The index of the element at an offset in a message that holds elements.
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

/// The byte ranges of the flags and of the sequence number in a message's header (`struct nlmsghdr`).
const FLAGS: Range<usize> = 6..8;
const SEQUENCE: Range<usize> = 8..12;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END` (`linux/netfilter/nfnetlink.h`).
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// A batch without a command, which asks for no acknowledgement: the kernel takes its commit mutex and changes nothing.
pub(crate) fn empty() -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..20].copy_from_slice(&frame(BATCH_BEGIN, None));
    bytes[20..].copy_from_slice(&frame(BATCH_END, None));
    bytes
}

/// The first or the last message of a batch. It has a sequence number only if the kernel shall acknowledge it.
fn frame(kind: u16, sequence: Option<u32>) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&20_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[FLAGS].copy_from_slice(&flag::REQUEST.to_ne_bytes());
    bytes[SEQUENCE].copy_from_slice(&sequence.unwrap_or(0).to_ne_bytes());
    // The family and the version of `struct nfgenmsg` are 0; the subsystem's number is in network order.
    bytes[18..].copy_from_slice(&SUBSYSTEM.to_be_bytes());
    set_acknowledged(&mut bytes, sequence.is_some());
    bytes
}

/// Sets or clears the flag that makes the kernel acknowledge a message also when there is no error.
fn set_acknowledged(message: &mut [u8], acknowledged: bool) {
    let flags = u16::from_ne_bytes([message[FLAGS.start], message[FLAGS.start + 1]]);
    let flags = if acknowledged { flags | flag::ACK } else { flags & !flag::ACK };
    message[FLAGS].copy_from_slice(&flags.to_ne_bytes());
}

/// Messages one after the other, in several buffers: a single buffer that grows may reserve twice as much memory as it needs, which is much
/// for a large batch.
#[derive(Default)]
struct Pages {
    pages: Vec<Vec<u8>>,
    /// The offset of the newest message in the last page.
    newest: usize,
}

impl Pages {
    /// The sizes of the first and of the largest page, in bytes. In between, each page is twice as long as the one before. So a small batch
    /// takes little memory, and a datagram of 2 GiB, the longest that the kernel accepts, has some 500 pages.
    const FIRST: usize = 4096;
    const LARGEST: usize = 4 << 20;

    /// Appends a message with its padding, and gives the message's bytes in the page.
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

    /// Makes the kernel acknowledge the newest message.
    fn acknowledge_newest(&mut self) {
        if let Some(page) = self.pages.last_mut() {
            set_acknowledged(&mut page[self.newest..], true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Family, Table, TableName};

    fn add(tables: usize) -> Vec<Command> {
        let table = |n| Table { name: TableName::new(Family::Ip, &format!("t{n}")), comment: None };
        (0..tables).map(|n| Command::AddTable(table(n))).collect()
    }

    /// Returns the type, the sequence number and the acknowledgement flag of each message.
    fn headers(batch: &Batch) -> Vec<(u16, u32, bool)> {
        let header = |message: &[u8]| {
            let number = |range: Range<usize>| u16::from_ne_bytes(message[range].try_into().unwrap());
            (number(4..6), sequence(message).unwrap(), number(FLAGS) & flag::ACK != 0)
        };
        batch.pages().flat_map(Messages::new).map(header).collect()
    }

    #[test]
    fn kernels_that_acknowledge_the_end_of_a_batch_are_asked_for_nothing_else() {
        let batch = Batch::encode_for(&add(2), true).unwrap();
        let table = 10 << 8;
        assert_eq!(headers(&batch), [(16, 1, true), (table, 2, false), (table, 3, false), (17, 4, true)]);
        assert_eq!((batch.commit_sequence(), batch.origin(1), batch.origin(4)), (4, None, None));
        assert_eq!(batch.origin(3).map(|origin| origin.command), Some(1));
    }

    #[test]
    fn older_kernels_are_asked_to_acknowledge_the_last_command() {
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
        // The longest datagram has fewer pages than the kernel accepts in one call.
        assert!(total / pages.pages.len() > i32::MAX as usize / 1024, "{total} bytes in {} pages", pages.pages.len());
    }
}
