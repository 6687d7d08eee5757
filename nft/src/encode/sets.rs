//! Sets and maps as libnftnl objects.

use std::ffi::{CString, NulError};
use std::sync::Arc;

use nftnl::MsgType;
use nftnl::nftnl_sys as sys;
use nftnl::set::SetKey;

use super::{Encoder, SetId, anonymous_name, nftnl_family, nftnl_table};
use crate::datatype::DataType;
use crate::object::{Set, SetFlags, TableName, Types, ValueType};
use crate::userdata;

/// `enum nft_set_flags`.
mod flag {
    pub(super) const ANONYMOUS: u32 = 1 << 0;
    pub(super) const CONSTANT: u32 = 1 << 1;
    pub(super) const INTERVAL: u32 = 1 << 2;
    pub(super) const MAP: u32 = 1 << 3;
    pub(super) const TIMEOUT: u32 = 1 << 4;
    pub(super) const EVAL: u32 = 1 << 5;
    pub(super) const CONCAT: u32 = 1 << 7;
}

/// `NFT_DATA_VERDICT`: the data type of verdict maps.
const DATA_VERDICT: u32 = 0xffff_ff00;
/// Size of the kernel's `struct nft_verdict`, which nft sends as the data length of verdict maps.
const VERDICT_LEN: u32 = 16;

/// The `nftnl` crate asks for a key type at compile time; the real one is set on the object.
struct AnyKey;

impl SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        Box::new([])
    }
}

impl Encoder {
    pub(super) fn set(&mut self, table: &TableName, set: &Set, kind: MsgType) -> Result<Vec<u8>, NulError> {
        let id = u32::try_from(self.set_ids.len() + 1).expect("a batch has fewer than 2^32 sets");
        let object_table = nftnl_table(table)?;
        // `describe` gives libnftnl nothing else of variable length.
        let room = table.name.len() + set.name.len() + userdata::of_set(set).len() + 8 * set.key.data_types().len();
        let name = if set.flags.anonymous { anonymous_name(set.value.is_some()) } else { &*set.name };
        let object =
            nftnl::set::Set::<AnyKey>::new_named(&CString::new(name)?, id, &object_table, nftnl_family(table.family));
        if matches!(kind, MsgType::Add) {
            let entry = SetId { id, anonymous: set.flags.anonymous, is_map: set.value.is_some() };
            self.set_ids.insert((table.clone(), Arc::clone(&set.name)), entry);
            describe(&object, set);
        }
        Ok(self.write(&object, kind, room))
    }

    /// The name and id under which a set's elements are sent.
    pub(super) fn set_reference(&self, table: &TableName, set: &Set) -> (Arc<str>, Option<u32>) {
        self.reference(table, &set.name)
    }
}

/// The six-bit codes of a type's fields, first field in the highest bits, as nft packs them.
fn packed_type(types: &[DataType]) -> u32 {
    types.iter().fold(0, |packed, t| packed << 6 | t.id())
}

fn wire_flags(set: &Set) -> u32 {
    let SetFlags { interval, dynamic, timeout, constant, anonymous } = set.flags;
    [
        (anonymous, flag::ANONYMOUS),
        (constant, flag::CONSTANT),
        (interval, flag::INTERVAL),
        (set.value.is_some(), flag::MAP),
        (timeout, flag::TIMEOUT),
        (dynamic, flag::EVAL),
        (set.is_concat_interval(), flag::CONCAT),
    ]
    .into_iter()
    .filter_map(|(on, bit)| on.then_some(bit))
    .sum()
}

fn length(types: &Types) -> u32 {
    u32::try_from(types.data_len()).expect("at most Data::MAX_LEN")
}

fn describe(object: &nftnl::set::Set<'_, AnyKey>, set: &Set) {
    let key = set.key.data_types();
    number(object, sys::NFTNL_SET_FLAGS, wire_flags(set));
    number(object, sys::NFTNL_SET_KEY_TYPE, packed_type(&key));
    number(object, sys::NFTNL_SET_KEY_LEN, length(&set.key));
    match &set.value {
        None => {}
        Some(ValueType::Verdict) => {
            number(object, sys::NFTNL_SET_DATA_TYPE, DATA_VERDICT);
            number(object, sys::NFTNL_SET_DATA_LEN, VERDICT_LEN);
        }
        Some(ValueType::Data(types)) => {
            number(object, sys::NFTNL_SET_DATA_TYPE, packed_type(&types.data_types()));
            number(object, sys::NFTNL_SET_DATA_LEN, length(types));
        }
    }
    if let Some(size) = set.size {
        number(object, sys::NFTNL_SET_DESC_SIZE, size);
    }
    if let Some(timeout) = set.timeout {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        // SAFETY: the object is alive; the attribute is a u64 in libnftnl's `set.h`.
        unsafe { sys::nftnl_set_set_u64(object.as_ptr().as_ptr(), attribute(sys::NFTNL_SET_TIMEOUT), ms) };
    }
    if set.is_concat_interval() {
        let sizes: Vec<u8> = key.iter().map(|t| u8::try_from(t.size()).expect("at most 16")).collect();
        bytes(object, sys::NFTNL_SET_DESC_CONCAT, &sizes);
    }
    let data = userdata::of_set(set);
    if !data.is_empty() {
        bytes(object, sys::NFTNL_SET_USERDATA, &data);
    }
}

fn attribute(number: u32) -> u16 {
    u16::try_from(number).expect("attribute numbers are small")
}

fn number(object: &nftnl::set::Set<'_, AnyKey>, attr: u32, value: u32) {
    // SAFETY: the object is alive; the attributes passed here are u32 in libnftnl's `set.h`.
    unsafe { sys::nftnl_set_set_u32(object.as_ptr().as_ptr(), attribute(attr), value) };
}

fn bytes(object: &nftnl::set::Set<'_, AnyKey>, attr: u32, value: &[u8]) {
    let len = u32::try_from(value.len()).expect("descriptions are short");
    // SAFETY: the object is alive; libnftnl copies `len` bytes from the slice before it returns. A failed allocation leaves the
    // attribute unset, which the kernel then refuses or lists without the description.
    unsafe { sys::nftnl_set_set_data(object.as_ptr().as_ptr(), attribute(attr), value.as_ptr().cast(), len) };
}
