//! Encodes commands as netlink messages.
//!
//! libnftnl writes tables, chains, rules and sets, through the `nftnl` crate. Attributes that the crate cannot set are set through
//! `nftnl-sys` on the same objects, or appended to the finished message. Elements, of which a large cluster has hundreds of thousands,
//! flowtables and the deletion of objects are written without libnftnl.
//!
//! The messages have sequence number 0; the batch writes the real number. The batch also decides which messages the kernel acknowledges.

mod elements;
mod exprs;
mod flowtables;
mod objects;
mod sets;

use std::ffi::{CString, NulError};
use std::sync::Arc;

use nftnl::{MsgType, NlMsg};

use self::elements::Kind;
use crate::command::Command;
use crate::object::{BaseChain, Chain, ChainType, Hook, Rule, Set};
use crate::table::{Family, Table, TableName};
use crate::userdata;
use crate::wire::{Writer, narrow, set_len};

pub(crate) use elements::Message;

/// Attributes that the `nftnl` crate cannot set (`linux/netfilter/nf_tables.h`).
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_USERDATA: u16 = 6;
/// `NFT_TABLE_F_OWNER`, `NFT_TABLE_F_PERSIST`.
const OWNER: u32 = 2;
const PERSIST: u32 = 4;
const NFTA_CHAIN_USERDATA: u16 = 12;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_USERDATA: u16 = 7;

/// Turns the commands of one batch into messages.
pub(crate) struct Encoder {
    /// The buffer into which libnftnl writes; all bytes are zero between two messages. Its 64-bit words align the structures that
    /// libnftnl writes.
    buffer: Vec<u64>,
    /// The number of sets in the batch so far, added or deleted. It is also the id of the newest set, because ids must be unique in the
    /// batch.
    sets: u32,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self { buffer: Vec::new(), sets: 0 }
    }

    /// Calls `sink` with each message of a command, because all messages of a large command at once would take much memory.
    ///
    /// # Errors
    /// When a name contains a zero byte.
    pub(crate) fn messages(&mut self, command: &Command, sink: &mut dyn FnMut(Message)) -> Result<(), NulError> {
        let bytes = match command {
            // Flags 0 are sent too: without the attribute, the kernel leaves the flags of a table that exists as they are.
            Command::AddTable(table) => self.flagged_table(table, 0)?,
            Command::OwnTable(table) => self.flagged_table(table, OWNER | PERSIST)?,
            Command::LockTable(table) => self.flagged_table(table, OWNER)?,
            Command::DeleteTable(name) => self.table(&Table { name: name.clone(), comment: None }, MsgType::Del)?,
            Command::AddChain(table, chain) => self.chain(table, chain, MsgType::Add)?,
            Command::DeleteChain(table, name) => {
                let chain = Chain { name: Arc::clone(name), base: None, comment: None };
                self.chain(table, &chain, MsgType::Del)?
            }
            Command::FlushChain(table, chain) => self.rule(table, chain, &Rule::new([]), MsgType::Del)?,
            Command::DeleteRule(table, chain, handle) => {
                let mut bytes = self.rule(table, chain, &Rule::new([]), MsgType::Del)?;
                append(&mut bytes, NFTA_RULE_HANDLE, &handle.to_be_bytes());
                bytes
            }
            Command::AddRule(table, chain, rule) => self.rule(table, chain, rule, MsgType::Add)?,
            Command::AddSet(table, set) => self.set(table, set, MsgType::Add)?,
            Command::DeleteSet(table, set) => self.set(table, set, MsgType::Del)?,
            Command::DeleteObject(table, object) => objects::deletion(table, object)?,
            Command::AddFlowtable(table, flowtable) => {
                let messages = flowtables::messages(table, flowtable)?;
                messages.into_iter().for_each(|bytes| sink(Message { bytes, first_element: 0 }));
                return Ok(());
            }
            Command::AddElements(table, set, list) => {
                elements::messages(table, set, list, Kind::Add, sink);
                return Ok(());
            }
            Command::DeleteElements(table, set, list) => {
                elements::messages(table, set, list, Kind::Delete, sink);
                return Ok(());
            }
            Command::DestroyElements(table, set, list) => {
                elements::messages(table, set, list, Kind::Destroy, sink);
                return Ok(());
            }
        };
        sink(Message { bytes, first_element: 0 });
        Ok(())
    }

    /// The message that adds a table with these flags.
    fn flagged_table(&mut self, table: &Table, flags: u32) -> Result<Vec<u8>, NulError> {
        let mut bytes = self.table(table, MsgType::Add)?;
        append(&mut bytes, NFTA_TABLE_FLAGS, &flags.to_be_bytes());
        Ok(bytes)
    }

    fn table(&mut self, table: &Table, kind: MsgType) -> Result<Vec<u8>, NulError> {
        let mut bytes = self.write(&nftnl_table(&table.name)?, kind, table.name.name.len());
        if let Some(text) = &table.comment {
            append(&mut bytes, NFTA_TABLE_USERDATA, &userdata::comment(userdata::COMMENT, text));
        }
        Ok(bytes)
    }

    fn chain(&mut self, table: &TableName, chain: &Chain, kind: MsgType) -> Result<Vec<u8>, NulError> {
        let room = table.name.len() + chain.name.len();
        let table = nftnl_table(table)?;
        let mut object = nftnl::Chain::new(CString::new(&*chain.name)?, &table);
        if let Some(base) = &chain.base {
            set_base(&mut object, base);
        }
        let mut bytes = self.write(&object, kind, room);
        if let Some(text) = &chain.comment {
            append(&mut bytes, NFTA_CHAIN_USERDATA, &userdata::comment(userdata::COMMENT, text));
        }
        Ok(bytes)
    }

    fn rule(&mut self, table: &TableName, chain: &str, rule: &Rule, kind: MsgType) -> Result<Vec<u8>, NulError> {
        let nftnl_table = nftnl_table(table)?;
        let nftnl_chain = nftnl::Chain::new(CString::new(chain)?, &nftnl_table);
        let mut object = nftnl::Rule::new(&nftnl_chain);
        let mut room = table.name.len() + chain.len();
        for expr in &rule.to_dump(table.family).exprs {
            let expr = exprs::Built::new(expr)?;
            room += expr.room();
            object.add_expr(&expr);
        }
        let mut bytes = self.write(&object, kind, room);
        if let Some(text) = &rule.comment {
            append(&mut bytes, NFTA_RULE_USERDATA, &userdata::comment(userdata::COMMENT, text));
        }
        Ok(bytes)
    }

    fn set(&mut self, table: &TableName, set: &Set, kind: MsgType) -> Result<Vec<u8>, NulError> {
        self.sets = self.sets.checked_add(1).expect("a batch has fewer than 2^32 sets");
        let nftnl_table = nftnl_table(table)?;
        let object = sets::object(&nftnl_table, nftnl_family(table.family), set, self.sets, &kind)?;
        Ok(self.write(&object, kind, table.name.len() + sets::room(set)))
    }

    /// The message of an object, written by libnftnl. The object's names, data and expressions take at most `room` bytes.
    fn write(&mut self, object: &impl NlMsg, kind: MsgType, room: usize) -> Vec<u8> {
        /// More than the two headers and all attributes of fixed length take together: no object has a hundred such attributes.
        const FIXED: usize = 4096;
        let least = narrow::<usize>(nftnl::nft_nlmsg_maxsize(), "usize has at least 32 bits");
        let words = (FIXED + room).max(least).div_ceil(size_of::<u64>());
        self.buffer.resize(words.max(self.buffer.len()), 0);
        // SAFETY: `NlMsg::write` needs a pointer to at least `nft_nlmsg_maxsize()` writable bytes; `buffer` has at least `words` words of 8
        // bytes, which are at least that many bytes. libnftnl checks no limit: it writes headers and attributes of fixed length, together
        // shorter than `FIXED`, and the parts that `room` counts; the buffer has at least `FIXED + room` bytes. The words are aligned for
        // `nlmsghdr` and `nlattr`, whose widest fields have 32 bits. `self` is borrowed mutably, so no other reference to the buffer exists
        // during the call.
        unsafe { object.write(self.buffer.as_mut_ptr().cast(), 0, kind) };
        let len = self.buffer.first().map_or(0, |word| message_len(&word.to_ne_bytes()));
        let mut bytes = Vec::with_capacity(len.next_multiple_of(size_of::<u64>()));
        // The words become zero again, so that the padding in the next message is zero.
        for word in &mut self.buffer[..len.div_ceil(size_of::<u64>())] {
            bytes.extend_from_slice(&std::mem::take(word).to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

fn nftnl_table(name: &TableName) -> Result<nftnl::Table, NulError> {
    Ok(nftnl::Table::new(CString::new(&*name.name)?, nftnl_family(name.family)))
}

const fn nftnl_family(family: Family) -> nftnl::ProtoFamily {
    match family {
        Family::Ip => nftnl::ProtoFamily::Ipv4,
        Family::Ip6 => nftnl::ProtoFamily::Ipv6,
        Family::Inet => nftnl::ProtoFamily::Inet,
    }
}

fn set_base(object: &mut nftnl::Chain<'_>, base: &BaseChain) {
    let hook = match base.hook {
        Hook::Prerouting => nftnl::Hook::PreRouting,
        Hook::Input => nftnl::Hook::In,
        Hook::Forward => nftnl::Hook::Forward,
        Hook::Output => nftnl::Hook::Out,
        Hook::Postrouting => nftnl::Hook::PostRouting,
    };
    object.set_hook(hook, base.priority);
    object.set_type(match base.kind {
        ChainType::Filter => nftnl::ChainType::Filter,
        ChainType::Nat => nftnl::ChainType::Nat,
        ChainType::Route => nftnl::ChainType::Route,
    });
    object.set_policy(nftnl::Policy::Accept);
}

/// The number of an attribute of libnftnl in the width that its functions take.
fn attribute_number(number: u32) -> u16 {
    narrow(number, "attribute numbers are small")
}

/// The length in a message's header.
fn message_len(message: &[u8]) -> usize {
    let len = message.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    narrow::<usize>(len, "usize has at least 32 bits")
}

/// Appends an attribute to a finished message.
fn append(message: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let mut writer = Writer::default();
    writer.attr(kind, payload);
    message.extend_from_slice(writer.bytes());
    set_len(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use crate::field::Field;
    use crate::statement::{Operand, Statement};

    #[test]
    fn the_buffer_has_room_for_a_rule_that_is_longer_than_libnftnls_limit() {
        let limit = usize::try_from(nftnl::nft_nlmsg_maxsize()).unwrap();
        let is_tcp = || Statement::Match(vec![Field::L4Proto], Operand::Is(Data::from(6_u8)));
        let mut lens = Vec::new();
        let mut encoder = Encoder::new();
        let table = TableName::new(Family::Ip, "t");
        for statements in [1, 2000, 1] {
            let rule = Rule::new((0..statements).map(|_| is_tcp()).collect::<Vec<_>>());
            let command = Command::AddRule(table.clone(), "c".into(), rule);
            encoder.messages(&command, &mut |message| lens.push(message.bytes.len())).unwrap();
        }
        assert!(lens[1] > limit && encoder.buffer.len() * 8 > lens[1], "{lens:?}, {limit}");
        assert_eq!(lens[0], lens[2], "nothing of the long one is left");
        assert!(encoder.buffer.iter().all(|word| *word == 0));
    }

    #[test]
    fn the_room_of_an_expression_is_at_least_what_it_takes() {
        use Statement::{Counter, DnatToMap, DnatToMapAndPort, FibLocal, FlowAdd, Reject, Vmap};
        let (table, name): (_, Arc<str>) = (TableName::new(Family::Ip6, "t"), "n".repeat(255).into());
        let key = vec![Field::Ip6Daddr, Field::L4Proto, Field::ThDport, Field::NumgenRandom(9)];
        let (set, value) = (Arc::clone(&name), vec![Field::Ip6Daddr]);
        let timeout = Some(std::time::Duration::from_secs(9));
        let statements = [
            Statement::Match(vec![Field::L4Proto], Operand::Is(Data::from(6_u8))),
            Vmap(key.clone(), Arc::clone(&name)),
            DnatToMap(key.clone(), Arc::clone(&name)),
            DnatToMapAndPort(vec![Field::Ip6Saddr], Arc::clone(&name), 80),
            Statement::Update { set, key, value, timeout },
            FibLocal(crate::expr::FibAddress::Source),
            Reject,
            Counter,
            FlowAdd(Arc::clone(&name)),
            Statement::Verdict(crate::data::Verdict::Goto(name)),
        ];
        for statement in statements {
            let rule = |times| Rule::new(vec![statement.clone(); times]);
            let len = |times| {
                let mut encoder = Encoder::new();
                encoder.rule(&table, "c", &rule(times), MsgType::Add).unwrap().len()
            };
            let built = rule(1).to_dump(Family::Ip6).exprs;
            let room = |expr| exprs::Built::new(expr).unwrap().room();
            let (room, taken): (usize, usize) = (built.iter().map(room).sum(), len(2) - len(1));
            assert!((taken..10 * taken).contains(&room), "{statement:?} takes {taken} of {room} bytes");
        }
    }
}
