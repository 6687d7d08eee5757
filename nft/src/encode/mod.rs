//! Commands -> netlink messages.
//!
//! Tables, chains, rules and sets are built by libnftnl through the `nftnl` crate; what its safe API lacks is set through
//! `nftnl-sys` on the same objects, or appended to the finished message. Elements, of which there are hundreds of thousands, are
//! written directly (`elements`): eight times faster, and the kernel checks both alike.
//!
//! Messages come out without `NLM_F_ACK` and with sequence number 0; [`crate::batch`] fills both in.

mod elements;
mod exprs;
mod flowtables;
mod objects;
mod sets;

use std::collections::HashMap;
use std::ffi::{CString, NulError};
use std::sync::Arc;

use nftnl::{MsgType, NlMsg};

use self::elements::Kind;
use crate::batch::Command;
use crate::object::{BaseChain, Chain, ChainType, Family, Hook, Rule, Table, TableName};
use crate::userdata;

/// Attributes that the `nftnl` crate cannot set (`linux/netfilter/nf_tables.h`).
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_TABLE_USERDATA: u16 = 6;
/// `NFT_TABLE_F_OWNER`, `NFT_TABLE_F_PERSIST`.
const OWNER: u32 = 2;
const PERSIST: u32 = 4;
const NFTA_CHAIN_USERDATA: u16 = 12;
const NFTA_RULE_HANDLE: u16 = 3;

/// One finished message, or how many elements it covers, for finding out what an error is about.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Index of the first element in the command, for messages of elements.
    pub(crate) first_element: usize,
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, first_element: 0 }
    }
}

/// Turns commands into messages. Remembers the sets of its batch: rules refer to anonymous ones by their id in the batch.
pub(crate) struct Encoder {
    /// Where libnftnl writes; all zero in between. 64-bit words, because it writes structures, which must be aligned.
    buffer: Vec<u64>,
    set_ids: HashMap<(TableName, Arc<str>), SetId>,
}

/// A set that was added in this batch.
#[derive(Clone, Copy)]
struct SetId {
    id: u32,
    anonymous: bool,
    is_map: bool,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self { buffer: Vec::new(), set_ids: HashMap::new() }
    }

    /// Hands over the messages of a command, one after the other: those of a large one take too much memory together.
    ///
    /// # Errors
    /// When a name contains a zero byte.
    pub(crate) fn messages(&mut self, command: &Command, sink: &mut dyn FnMut(Message)) -> Result<(), NulError> {
        let mut one = |bytes: Vec<u8>| {
            sink(bytes.into());
            Ok(())
        };
        match command {
            Command::AddTable(table) => {
                let mut bytes = self.table(table, MsgType::Add)?;
                // Without it, the flags of a table that exists stay as they are.
                append(&mut bytes, NFTA_TABLE_FLAGS, &0_u32.to_be_bytes());
                one(bytes)
            }
            Command::OwnTable(table) => {
                let mut bytes = self.table(table, MsgType::Add)?;
                append(&mut bytes, NFTA_TABLE_FLAGS, &(OWNER | PERSIST).to_be_bytes());
                one(bytes)
            }
            Command::LockTable(table) => {
                let mut bytes = self.table(table, MsgType::Add)?;
                append(&mut bytes, NFTA_TABLE_FLAGS, &OWNER.to_be_bytes());
                one(bytes)
            }
            Command::DeleteTable(name) => {
                let table = Table { name: name.clone(), comment: None };
                one(self.table(&table, MsgType::Del)?)
            }
            Command::AddChain(table, chain) => one(self.chain(table, chain, MsgType::Add)?),
            Command::DeleteChain(table, name) => {
                let chain = Chain { name: Arc::clone(name), base: None, comment: None };
                one(self.chain(table, &chain, MsgType::Del)?)
            }
            Command::FlushChain(table, chain) => one(self.rule(table, chain, &Rule::new([]), MsgType::Del)?),
            Command::DeleteRule(table, chain, handle) => {
                let mut bytes = self.rule(table, chain, &Rule::new([]), MsgType::Del)?;
                append(&mut bytes, NFTA_RULE_HANDLE, &handle.to_be_bytes());
                one(bytes)
            }
            Command::AddRule(table, chain, rule) => one(self.rule(table, chain, rule, MsgType::Add)?),
            Command::AddSet(table, set) => one(self.set(table, set, MsgType::Add)?),
            Command::DeleteSet(table, set) => one(self.set(table, set, MsgType::Del)?),
            Command::AddFlowtable(table, flowtable) => {
                flowtables::messages(table, flowtable)?.into_iter().for_each(sink);
                Ok(())
            }
            Command::DeleteObject(table, object) => one(objects::deletion(table, object)?),
            Command::AddElements(table, set, list) => {
                elements::messages(self, table, set, list, Kind::Add, sink);
                Ok(())
            }
            Command::DeleteElements(table, set, list) => {
                elements::messages(self, table, set, list, Kind::Delete, sink);
                Ok(())
            }
            Command::DestroyElements(table, set, list) => {
                elements::messages(self, table, set, list, Kind::Destroy, sink);
                Ok(())
            }
        }
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
            let expr = exprs::Built::new(expr, |set| self.reference(table, set))?;
            room += expr.room();
            object.add_expr(&expr);
        }
        let mut bytes = self.write(&object, kind, room);
        if let Some(text) = &rule.comment {
            const NFTA_RULE_USERDATA: u16 = 7;
            append(&mut bytes, NFTA_RULE_USERDATA, &userdata::comment(userdata::COMMENT, text));
        }
        Ok(bytes)
    }

    /// How a message of this batch names a set: an anonymous one by the kernel's pattern and its id.
    fn reference(&self, table: &TableName, set: &Arc<str>) -> (Arc<str>, Option<u32>) {
        match self.set_ids.get(&(table.clone(), Arc::clone(set))) {
            Some(SetId { id, anonymous: true, is_map }) => (anonymous_name(*is_map).into(), Some(*id)),
            Some(SetId { id, .. }) => (Arc::clone(set), Some(*id)),
            None => (Arc::clone(set), None),
        }
    }

    /// Has libnftnl build the message of an object, whose names, data and expressions take `room` bytes.
    fn write(&mut self, object: &impl NlMsg, kind: MsgType, room: usize) -> Vec<u8> {
        /// More than the two headers and all attributes of fixed length, of which no object has a hundred, take.
        const FIXED: usize = 4096;
        let least = usize::try_from(nftnl::nft_nlmsg_maxsize()).expect("usize has at least 32 bits");
        let words = (FIXED + room).max(least).div_ceil(size_of::<u64>());
        self.buffer.resize(words.max(self.buffer.len()), 0);
        // SAFETY: `NlMsg::write` asks for room for `nft_nlmsg_maxsize()` bytes, which `buffer` has. libnftnl keeps to no limit but
        // writes what it is given: headers and attributes of fixed length, below `FIXED`, and what `room` counts; `buffer` has
        // room for both. It is aligned as `nlmsghdr` and `nlattr` are, which hold nothing wider than 32 bits. Nothing else refers to it.
        unsafe { object.write(self.buffer.as_mut_ptr().cast(), 0, kind) };
        let len = self.buffer.first().map_or(0, |word| message_len(&word.to_ne_bytes()));
        let mut bytes = Vec::with_capacity(len.next_multiple_of(size_of::<u64>()));
        // All zero for the next object again, so that no padding holds anything.
        for word in &mut self.buffer[..len.div_ceil(size_of::<u64>())] {
            bytes.extend_from_slice(&std::mem::take(word).to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The kernel replaces `%d` by a number of its own.
const fn anonymous_name(is_map: bool) -> &'static str {
    if is_map { "__map%d" } else { "__set%d" }
}

fn nftnl_table(name: &TableName) -> Result<nftnl::Table, NulError> {
    Ok(nftnl::Table::new(CString::new(&*name.name)?, nftnl_family(name.family)))
}

pub(crate) const fn nftnl_family(family: Family) -> nftnl::ProtoFamily {
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

/// The length in a message's header.
fn message_len(message: &[u8]) -> usize {
    let len = message.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    usize::try_from(len).expect("usize has at least 32 bits")
}

/// Appends an attribute to a finished message.
fn append(message: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    let mut writer = crate::wire::Writer::default();
    writer.attr(kind, payload);
    message.extend_from_slice(writer.bytes());
    set_message_len(message);
}

/// Writes a message's length into its header.
fn set_message_len(message: &mut [u8]) {
    let len = u32::try_from(message.len()).expect("a message is much shorter than 4 GiB");
    message[..4].copy_from_slice(&len.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use crate::field::Field;
    use crate::statement::{Operand, Statement};

    #[test]
    fn a_rule_longer_than_libnftnls_limit_for_a_message_has_room() {
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
            Statement::Verdict(crate::object::Verdict::Goto(name)),
        ];
        for statement in statements {
            let rule = |times| Rule::new(vec![statement.clone(); times]);
            let len = |times| {
                let mut encoder = Encoder::new();
                encoder.rule(&table, "c", &rule(times), MsgType::Add).unwrap().len()
            };
            let built = rule(1).to_dump(Family::Ip6).exprs;
            let room = |expr| exprs::Built::new(expr, |set| (Arc::clone(set), Some(1))).unwrap().room();
            let (room, taken): (usize, usize) = (built.iter().map(room).sum(), len(2) - len(1));
            assert!((taken..10 * taken).contains(&room), "{statement:?} takes {taken} of {room} bytes");
        }
    }
}
