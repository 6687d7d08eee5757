//! Encodes sets and maps as objects of libnftnl.

use std::ffi::{CString, NulError};

use nftnl::MsgType;
use nftnl::nftnl_sys as sys;
use nftnl::set::SetKey;

use super::attribute_number;
use crate::datatype::DataType;
use crate::object::{Set, SetFlags, Types, ValueType};
use crate::userdata;
use crate::wire::narrow;

/// `enum nft_set_flags`.
mod flag {
    pub(super) const CONSTANT: u32 = 1 << 1;
    pub(super) const INTERVAL: u32 = 1 << 2;
    pub(super) const MAP: u32 = 1 << 3;
    pub(super) const TIMEOUT: u32 = 1 << 4;
    pub(super) const EVAL: u32 = 1 << 5;
    pub(super) const CONCAT: u32 = 1 << 7;
}

/// `NFT_DATA_VERDICT`: the data type of the values of verdict maps.
const DATA_VERDICT: u32 = 0xffff_ff00;
/// The size of the kernel's `struct nft_verdict` in bytes on 64-bit machines: the length of the values of verdict maps.
const VERDICT_LEN: u32 = 16;

/// A key type for the `nftnl` crate, which needs one at compile time; [`describe`] sets the real type on the object.
pub(super) struct AnyKey;

impl SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        Box::new([])
    }
}

/// Makes the object of libnftnl for a set. Only a set that is to be added gets its types, flags and other properties.
///
/// # Errors
/// When the name contains a zero byte.
pub(super) fn object<'a>(
    table: &'a nftnl::Table,
    family: nftnl::ProtoFamily,
    set: &Set,
    id: u32,
    kind: &MsgType,
) -> Result<nftnl::set::Set<'a, AnyKey>, NulError> {
    let object = nftnl::set::Set::<AnyKey>::new_named(&CString::new(&*set.name)?, id, table, family);
    if matches!(kind, MsgType::Add) {
        describe(&object, set);
    }
    Ok(object)
}

/// An upper limit for the bytes that the name and the description of a set take in a message.
pub(super) fn room(set: &Set) -> usize {
    // `describe` sets no other attributes of variable length.
    set.name.len() + userdata::of_set(set).len() + 8 * set.key.data_types().len()
}

/// The type number of a list of types: six bits for each, the first one in the highest bits, as nft writes it.
fn packed_type(types: &[DataType]) -> u32 {
    types.iter().fold(0, |packed, t| packed << 6 | t.id())
}

fn wire_flags(set: &Set) -> u32 {
    // An anonymous set belongs to a rule that is added in the same batch; this crate makes no rules with anonymous sets.
    let SetFlags { interval, dynamic, timeout, constant, anonymous: _ } = set.flags;
    [
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
    narrow::<u32>(types.data_len(), "at most Data::MAX_LEN")
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
        // SAFETY: `object` owns the set that its pointer refers to and lives until the end of this function. libnftnl stores the
        // number by value; it has 64 bits for this attribute (`nftnl_set_set_data` in its `src/set.c`).
        unsafe { sys::nftnl_set_set_u64(object.as_ptr().as_ptr(), attribute_number(sys::NFTNL_SET_TIMEOUT), ms) };
    }
    if set.is_concat_interval() {
        let sizes: Vec<u8> = key.iter().map(|t| narrow::<u8>(t.size(), "at most 16")).collect();
        bytes(object, sys::NFTNL_SET_DESC_CONCAT, &sizes);
    }
    if set.counter {
        count(object);
    }
    let data = userdata::of_set(set);
    if !data.is_empty() {
        bytes(object, sys::NFTNL_SET_USERDATA, &data);
    }
}

/// Makes the kernel give each element a counter.
fn count(object: &nftnl::set::Set<'_, AnyKey>) {
    // SAFETY: `nftnl_expr_alloc` reads a string up to its zero byte, which a literal `CStr` has, keeps no pointer to it, and gives a new
    // object or null. `nftnl_set_add_expr` takes the object over; `nftnl_set_free` frees it with the set that `object` owns, whose
    // pointer is valid during the call. Nothing else refers to the expression.
    unsafe {
        let counter = sys::nftnl_expr_alloc(c"counter".as_ptr());
        assert!(!counter.is_null(), "libnftnl is out of memory");
        sys::nftnl_set_add_expr(object.as_ptr().as_ptr(), counter);
    }
}

fn number(object: &nftnl::set::Set<'_, AnyKey>, attr: u32, value: u32) {
    // SAFETY: `object` owns the set that its pointer refers to and is borrowed during the call. libnftnl stores the number by value;
    // it has 32 bits for each attribute that the callers pass (`nftnl_set_set_data` in its `src/set.c`).
    unsafe { sys::nftnl_set_set_u32(object.as_ptr().as_ptr(), attribute_number(attr), value) };
}

fn bytes(object: &nftnl::set::Set<'_, AnyKey>, attr: u32, value: &[u8]) {
    let len = narrow::<u32>(value.len(), "descriptions are short");
    // SAFETY: `object` owns the set that its pointer refers to and is borrowed during the call. libnftnl copies `len` bytes from the
    // start of the slice before it returns, and keeps no pointer to it. When it has no memory for the copy it leaves the attribute
    // unset; then the kernel refuses the set or lists it without the description.
    unsafe { sys::nftnl_set_set_data(object.as_ptr().as_ptr(), attribute_number(attr), value.as_ptr().cast(), len) };
}
