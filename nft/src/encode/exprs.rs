//! Encodes expressions as objects of libnftnl: each has a name and a list of attributes.

use std::ffi::{CStr, CString, NulError, c_void};
use std::ptr::NonNull;

use nftnl::expr::Expression;
use nftnl::nftnl_sys as sys;

use super::attribute_number;
use crate::data::{Data, Verdict};
use crate::expr::{CmpOp, CtKey, Expr, FibAddress, LookupResult, MetaKey, PayloadBase, Register, RejectWith};
use crate::table::Family;
use crate::wire::narrow;

/// The value of an attribute.
enum Attribute {
    U8(u8),
    U32(u32),
    U64(u64),
    Str(CString),
    Data(Data),
}

/// An expression ready to be handed to libnftnl.
pub(super) struct Built {
    name: &'static CStr,
    attributes: Vec<(u32, Attribute)>,
}

impl Expression for Built {
    fn to_expr(&self, _rule: &nftnl::Rule<'_>) -> NonNull<sys::nftnl_expr> {
        // SAFETY: `nftnl_expr_alloc` reads a string up to its zero byte, which a `CStr` has, and keeps no pointer to it. The caller,
        // `nftnl::Rule::add_expr`, hands the new object over to a rule, which frees it.
        let expr = unsafe { sys::nftnl_expr_alloc(self.name.as_ptr()) };
        let expr = NonNull::new(expr).expect("libnftnl knows every expression named in this file, or is out of memory");
        for (attribute, value) in &self.attributes {
            set(expr, attribute_number(*attribute), value);
        }
        expr
    }
}

fn set(expr: NonNull<sys::nftnl_expr>, attribute: u16, value: &Attribute) {
    let expr = expr.as_ptr();
    // SAFETY: `expr` was allocated by `nftnl_expr_alloc`, no rule owns it yet, and no other reference to it exists. Each value is
    // alive during its call, which copies it: a number, a string with its zero byte, or `len` bytes from the start of a slice. Its type
    // is the one that libnftnl has for the attribute (`libnftnl/expr.h` and the files of `src/expr`).
    unsafe {
        match value {
            Attribute::U8(number) => sys::nftnl_expr_set_u8(expr, attribute, *number),
            Attribute::U32(number) => sys::nftnl_expr_set_u32(expr, attribute, *number),
            Attribute::U64(number) => sys::nftnl_expr_set_u64(expr, attribute, *number),
            Attribute::Str(text) => {
                sys::nftnl_expr_set_str(expr, attribute, text.as_ptr());
            }
            Attribute::Data(data) => {
                let bytes = data.as_slice();
                let len = narrow::<u32>(bytes.len(), "at most Data::MAX_LEN");
                sys::nftnl_expr_set(expr, attribute, bytes.as_ptr().cast::<c_void>(), len);
            }
        }
    }
}

/// `NFT_LOOKUP_F_INV`: the rule goes on when the key is not in the set.
const LOOKUP_INVERTED: u32 = 1;
/// `NFT_REG_VERDICT`.
const REG_VERDICT: u32 = 0;
/// `NFT_BYTEORDER_HTON`.
const HTON: u32 = 1;
/// `NFT_NG_RANDOM`.
const NUMGEN_RANDOM: u32 = 1;
/// `NFT_HASH_JENKINS`.
const HASH_JENKINS: u32 = 0;
/// `NFT_DYNSET_OP_UPDATE`.
const DYNSET_UPDATE: u32 = 1;
/// `NFT_NAT_DNAT`.
const NAT_DESTINATION: u32 = 1;

impl Built {
    /// An upper limit for the bytes that the expression takes in a message.
    pub(super) fn room(&self) -> usize {
        /// The bytes of at most three attribute headers, with padding: those around an expression and its name, or those around a value.
        const AROUND: usize = 3 * 8;
        let value = |value: &Attribute| match value {
            Attribute::U8(_) | Attribute::U32(_) | Attribute::U64(_) => size_of::<u64>(),
            Attribute::Str(text) => text.as_bytes_with_nul().len(),
            Attribute::Data(data) => data.len(),
        };
        let values = self.attributes.iter().map(|(_, attribute)| AROUND + value(attribute)).sum::<usize>();
        2 * AROUND + self.name.count_bytes() + values
    }

    /// Describes an expression.
    ///
    /// # Errors
    /// When a name contains a zero byte.
    pub(super) fn new(expr: &Expr) -> Result<Self, NulError> {
        let (name, attributes) = match expr {
            Expr::Payload { base, offset, len, dreg } => (c"payload", payload(*base, *offset, *len, *dreg)),
            Expr::MetaLoad { key, dreg } => (c"meta", meta(*key, sys::NFTNL_EXPR_META_DREG, *dreg)),
            Expr::MetaSet { key, sreg } => (c"meta", meta(*key, sys::NFTNL_EXPR_META_SREG, *sreg)),
            Expr::Ct { key, dreg } => (c"ct", ct(*key, *dreg)),
            Expr::Fib { address, dreg } => (c"fib", fib(*address, *dreg)),
            Expr::Cmp { op, sreg, data } => (c"cmp", cmp(*op, *sreg, data)),
            Expr::Bitwise { sreg, dreg, mask, xor } => (c"bitwise", bitwise(*sreg, *dreg, mask, xor)),
            Expr::HostToNetwork { sreg, dreg, len } => (c"byteorder", host_to_network(*sreg, *dreg, *len)),
            Expr::Immediate { dreg, data } => (c"immediate", immediate(*dreg, data)),
            Expr::ImmediateVerdict(verdict) => (c"immediate", immediate_verdict(verdict)?),
            Expr::Lookup { set, sreg, result } => (c"lookup", lookup(set, *sreg, *result)?),
            Expr::Numgen { dreg, modulus } => (c"numgen", numgen(*dreg, *modulus)),
            Expr::Jhash { sreg, dreg, len, modulus, seed, offset } => {
                (c"hash", jhash((*sreg, *dreg), *len, *modulus, (*seed, *offset)))
            }
            Expr::Dynset { set, key, data, timeout_ms } => (c"dynset", dynset(set, *key, *data, *timeout_ms)?),
            Expr::Nat { family, address, port } => (c"nat", nat(*family, *address, *port)),
            Expr::Masquerade { flags } => (c"masq", masquerade(*flags)),
            Expr::Reject(with) => (c"reject", reject(*with)),
            Expr::Counter => (c"counter", vec![]),
            Expr::Limit { per_second, burst } => (c"limit", limit(*per_second, *burst)),
            Expr::FlowOffload(flowtable) => (c"flow_offload", flow_offload(flowtable)?),
            Expr::Foreign(foreign) => unreachable!("no statement lowers to {foreign:?}"),
            Expr::Unknown(name) => unreachable!("no statement lowers to the unknown expression {name}"),
        };
        Ok(Self { name, attributes })
    }
}

type Attributes = Vec<(u32, Attribute)>;

fn number(attribute: u32, number: u32) -> (u32, Attribute) {
    (attribute, Attribute::U32(number))
}

fn register(attribute: u32, register: Register) -> (u32, Attribute) {
    number(attribute, register.to_wire())
}

fn data(attribute: u32, data: &Data) -> (u32, Attribute) {
    (attribute, Attribute::Data(*data))
}

/// An attribute with a text.
///
/// # Errors
/// When the text contains a zero byte.
fn text(attribute: u32, text: &str) -> Result<(u32, Attribute), NulError> {
    Ok((attribute, Attribute::Str(CString::new(text)?)))
}

fn payload(base: PayloadBase, offset: u32, len: u32, dreg: Register) -> Attributes {
    vec![
        register(sys::NFTNL_EXPR_PAYLOAD_DREG, dreg),
        number(sys::NFTNL_EXPR_PAYLOAD_BASE, base.number()),
        number(sys::NFTNL_EXPR_PAYLOAD_OFFSET, offset),
        number(sys::NFTNL_EXPR_PAYLOAD_LEN, len),
    ]
}

/// Expression `meta`, which loads into a register or sets from it: `attribute` is the attribute of the destination or the source.
fn meta(key: MetaKey, attribute: u32, value: Register) -> Attributes {
    vec![number(sys::NFTNL_EXPR_META_KEY, key.number()), register(attribute, value)]
}

fn cmp(op: CmpOp, sreg: Register, value: &Data) -> Attributes {
    vec![
        register(sys::NFTNL_EXPR_CMP_SREG, sreg),
        number(sys::NFTNL_EXPR_CMP_OP, op.number()),
        data(sys::NFTNL_EXPR_CMP_DATA, value),
    ]
}

fn bitwise(sreg: Register, dreg: Register, mask: &Data, xor: &Data) -> Attributes {
    let len = narrow::<u32>(mask.len(), "at most Data::MAX_LEN");
    vec![
        register(sys::NFTNL_EXPR_BITWISE_SREG, sreg),
        register(sys::NFTNL_EXPR_BITWISE_DREG, dreg),
        number(sys::NFTNL_EXPR_BITWISE_LEN, len),
        data(sys::NFTNL_EXPR_BITWISE_MASK, mask),
        data(sys::NFTNL_EXPR_BITWISE_XOR, xor),
    ]
}

fn host_to_network(sreg: Register, dreg: Register, len: u32) -> Attributes {
    vec![
        register(sys::NFTNL_EXPR_BYTEORDER_SREG, sreg),
        register(sys::NFTNL_EXPR_BYTEORDER_DREG, dreg),
        number(sys::NFTNL_EXPR_BYTEORDER_OP, HTON),
        number(sys::NFTNL_EXPR_BYTEORDER_LEN, len),
        number(sys::NFTNL_EXPR_BYTEORDER_SIZE, len),
    ]
}

fn immediate(dreg: Register, value: &Data) -> Attributes {
    vec![register(sys::NFTNL_EXPR_IMM_DREG, dreg), data(sys::NFTNL_EXPR_IMM_DATA, value)]
}

fn numgen(dreg: Register, modulus: u32) -> Attributes {
    vec![
        register(sys::NFTNL_EXPR_NG_DREG, dreg),
        number(sys::NFTNL_EXPR_NG_MODULUS, modulus),
        number(sys::NFTNL_EXPR_NG_TYPE, NUMGEN_RANDOM),
    ]
}

fn jhash((sreg, dreg): (Register, Register), len: u32, modulus: u32, (seed, offset): (u32, u32)) -> Attributes {
    vec![
        register(sys::NFTNL_EXPR_HASH_SREG, sreg),
        register(sys::NFTNL_EXPR_HASH_DREG, dreg),
        number(sys::NFTNL_EXPR_HASH_LEN, len),
        number(sys::NFTNL_EXPR_HASH_MODULUS, modulus),
        number(sys::NFTNL_EXPR_HASH_SEED, seed),
        number(sys::NFTNL_EXPR_HASH_OFFSET, offset),
        number(sys::NFTNL_EXPR_HASH_TYPE, HASH_JENKINS),
    ]
}

fn dynset(set: &str, key: Register, value: Option<Register>, timeout_ms: Option<u64>) -> Result<Attributes, NulError> {
    let mut list = vec![
        number(sys::NFTNL_EXPR_DYNSET_OP, DYNSET_UPDATE),
        text(sys::NFTNL_EXPR_DYNSET_SET_NAME, set)?,
        register(sys::NFTNL_EXPR_DYNSET_SREG_KEY, key),
    ];
    list.extend(timeout_ms.map(|ms| (sys::NFTNL_EXPR_DYNSET_TIMEOUT, Attribute::U64(ms))));
    list.extend(value.map(|value| register(sys::NFTNL_EXPR_DYNSET_SREG_DATA, value)));
    Ok(list)
}

fn nat(family: Family, address: Register, port: Option<Register>) -> Attributes {
    let mut list = vec![
        number(sys::NFTNL_EXPR_NAT_TYPE, NAT_DESTINATION),
        number(sys::NFTNL_EXPR_NAT_FAMILY, u32::from(family.number())),
        register(sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, address),
    ];
    list.extend(port.map(|port| register(sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, port)));
    list
}

fn masquerade(flags: u32) -> Attributes {
    Vec::from_iter((flags != 0).then_some(number(sys::NFTNL_EXPR_MASQ_FLAGS, flags)))
}

fn limit(per_second: u64, burst: u32) -> Attributes {
    /// `NFT_LIMIT_PKTS`.
    const PACKETS: u32 = 0;
    /// The unit of the rate, in seconds.
    const SECOND: u64 = 1;
    vec![
        (sys::NFTNL_EXPR_LIMIT_RATE, Attribute::U64(per_second)),
        (sys::NFTNL_EXPR_LIMIT_UNIT, Attribute::U64(SECOND)),
        number(sys::NFTNL_EXPR_LIMIT_BURST, burst),
        number(sys::NFTNL_EXPR_LIMIT_TYPE, PACKETS),
    ]
}

fn flow_offload(flowtable: &str) -> Result<Attributes, NulError> {
    Ok(vec![text(sys::NFTNL_EXPR_FLOW_TABLE_NAME, flowtable)?])
}

fn ct(key: CtKey, dreg: Register) -> Attributes {
    const ORIGINAL: u8 = 0;
    let (key, directed) = key.number();
    let mut list = vec![number(sys::NFTNL_EXPR_CT_KEY, key), register(sys::NFTNL_EXPR_CT_DREG, dreg)];
    list.extend(directed.then_some((sys::NFTNL_EXPR_CT_DIR, Attribute::U8(ORIGINAL))));
    list
}

fn fib(address: FibAddress, dreg: Register) -> Attributes {
    /// `NFT_FIB_RESULT_ADDRTYPE`.
    const ADDRESS_TYPE: u32 = 3;
    // `NFTA_FIB_F_SADDR`, `NFTA_FIB_F_DADDR`.
    let flags = match address {
        FibAddress::Source => 1,
        FibAddress::Destination => 2,
    };
    vec![
        register(sys::NFTNL_EXPR_FIB_DREG, dreg),
        number(sys::NFTNL_EXPR_FIB_RESULT, ADDRESS_TYPE),
        number(sys::NFTNL_EXPR_FIB_FLAGS, flags),
    ]
}

fn lookup(set: &str, sreg: Register, result: LookupResult) -> Result<Attributes, NulError> {
    let mut list = vec![register(sys::NFTNL_EXPR_LOOKUP_SREG, sreg), text(sys::NFTNL_EXPR_LOOKUP_SET, set)?];
    list.extend(match result {
        LookupResult::Member => None,
        LookupResult::NotMember => Some(number(sys::NFTNL_EXPR_LOOKUP_FLAGS, LOOKUP_INVERTED)),
        LookupResult::Verdict => Some(number(sys::NFTNL_EXPR_LOOKUP_DREG, REG_VERDICT)),
        LookupResult::Load(dreg) => Some(register(sys::NFTNL_EXPR_LOOKUP_DREG, dreg)),
    });
    Ok(list)
}

fn reject(with: RejectWith) -> Attributes {
    // `enum nft_reject_types`.
    let (kind, code) = match with {
        RejectWith::Icmp(code) => (0, Some(code)),
        RejectWith::TcpReset => (1, None),
        RejectWith::Icmpx(code) => (2, Some(code)),
    };
    let mut list = vec![number(sys::NFTNL_EXPR_REJECT_TYPE, kind)];
    list.extend(code.map(|code| (sys::NFTNL_EXPR_REJECT_CODE, Attribute::U8(code))));
    list
}

fn immediate_verdict(verdict: &Verdict) -> Result<Attributes, NulError> {
    let mut list =
        vec![number(sys::NFTNL_EXPR_IMM_DREG, REG_VERDICT), number(sys::NFTNL_EXPR_IMM_VERDICT, verdict.number())];
    if let Some(chain) = verdict.chain() {
        list.push(text(sys::NFTNL_EXPR_IMM_CHAIN, chain)?);
    }
    Ok(list)
}
