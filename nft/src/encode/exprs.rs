//! Expressions as objects of libnftnl: each has a name and a list of attributes.

use std::ffi::{CStr, CString, NulError, c_void};
use std::ptr::NonNull;

use nftnl::expr::Expression;
use nftnl::nftnl_sys as sys;

use crate::data::{Data, Verdict};
use crate::expr::{CtKey, Expr, FibAddress, LookupResult, RejectWith};

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
            set(expr, u16::try_from(*attribute).expect("attribute numbers are small"), value);
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
                let len = u32::try_from(bytes.len()).expect("at most Data::MAX_LEN");
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
/// `NFT_DYNSET_OP_UPDATE`.
const DYNSET_UPDATE: u32 = 1;
/// `NFT_NAT_DNAT`.
const NAT_DESTINATION: u32 = 1;

impl Built {
    /// At least as many bytes as the expression takes in a message.
    pub(super) fn room(&self) -> usize {
        /// Headers of the attributes around an expression and its name, and around a value: at most three, each with padding.
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
        use Attribute::U32;
        let (name, attributes) = match expr {
            Expr::Payload { base, offset, len, dreg } => (
                c"payload",
                vec![
                    (sys::NFTNL_EXPR_PAYLOAD_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_PAYLOAD_BASE, U32(base.number())),
                    (sys::NFTNL_EXPR_PAYLOAD_OFFSET, U32(*offset)),
                    (sys::NFTNL_EXPR_PAYLOAD_LEN, U32(*len)),
                ],
            ),
            Expr::MetaLoad { key, dreg } => (
                c"meta",
                vec![(sys::NFTNL_EXPR_META_KEY, U32(key.number())), (sys::NFTNL_EXPR_META_DREG, U32(dreg.to_wire()))],
            ),
            Expr::MetaSet { key, sreg } => (
                c"meta",
                vec![(sys::NFTNL_EXPR_META_KEY, U32(key.number())), (sys::NFTNL_EXPR_META_SREG, U32(sreg.to_wire()))],
            ),
            Expr::Ct { key, dreg } => (c"ct", ct(*key, dreg.to_wire())),
            Expr::Fib { address, dreg } => (c"fib", fib(*address, dreg.to_wire())),
            Expr::Cmp { op, sreg, data } => (
                c"cmp",
                vec![
                    (sys::NFTNL_EXPR_CMP_SREG, U32(sreg.to_wire())),
                    (sys::NFTNL_EXPR_CMP_OP, U32(op.number())),
                    (sys::NFTNL_EXPR_CMP_DATA, Attribute::Data(*data)),
                ],
            ),
            Expr::Bitwise { sreg, dreg, mask, xor } => (
                c"bitwise",
                vec![
                    (sys::NFTNL_EXPR_BITWISE_SREG, U32(sreg.to_wire())),
                    (sys::NFTNL_EXPR_BITWISE_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_BITWISE_LEN, U32(length(mask))),
                    (sys::NFTNL_EXPR_BITWISE_MASK, Attribute::Data(*mask)),
                    (sys::NFTNL_EXPR_BITWISE_XOR, Attribute::Data(*xor)),
                ],
            ),
            Expr::HostToNetwork { sreg, dreg, len } => {
                (c"byteorder", host_to_network(sreg.to_wire(), dreg.to_wire(), *len))
            }
            Expr::Immediate { dreg, data } => (
                c"immediate",
                vec![
                    (sys::NFTNL_EXPR_IMM_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_IMM_DATA, Attribute::Data(*data)),
                ],
            ),
            Expr::ImmediateVerdict(verdict) => (c"immediate", immediate_verdict(verdict)?),
            Expr::Lookup { set, sreg, result } => (c"lookup", lookup(set, sreg.to_wire(), *result)?),
            Expr::Numgen { dreg, modulus } => (
                c"numgen",
                vec![
                    (sys::NFTNL_EXPR_NG_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_NG_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_NG_TYPE, U32(NUMGEN_RANDOM)),
                ],
            ),
            Expr::Dynset { set, key, data, timeout_ms } => {
                let mut list = vec![
                    (sys::NFTNL_EXPR_DYNSET_OP, U32(DYNSET_UPDATE)),
                    (sys::NFTNL_EXPR_DYNSET_SET_NAME, Attribute::Str(CString::new(&**set)?)),
                    (sys::NFTNL_EXPR_DYNSET_SREG_KEY, U32(key.to_wire())),
                ];
                list.extend(timeout_ms.map(|ms| (sys::NFTNL_EXPR_DYNSET_TIMEOUT, Attribute::U64(ms))));
                list.extend(data.map(|register| (sys::NFTNL_EXPR_DYNSET_SREG_DATA, U32(register.to_wire()))));
                (c"dynset", list)
            }
            Expr::Nat { family, address, port } => (
                c"nat",
                vec![
                    (sys::NFTNL_EXPR_NAT_TYPE, U32(NAT_DESTINATION)),
                    (sys::NFTNL_EXPR_NAT_FAMILY, U32(u32::from(family.number()))),
                    (sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, U32(address.to_wire())),
                    (sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, U32(port.to_wire())),
                ],
            ),
            Expr::Masquerade { flags } => {
                (c"masq", Vec::from_iter((*flags != 0).then_some((sys::NFTNL_EXPR_MASQ_FLAGS, U32(*flags)))))
            }
            Expr::Reject(with) => (c"reject", reject(*with)),
            Expr::Counter => (c"counter", vec![]),
            Expr::FlowOffload(flowtable) => (c"flow_offload", flow_offload(flowtable)?),
            Expr::Unknown(name) => unreachable!("no statement lowers to the unknown expression {name}"),
        };
        Ok(Self { name, attributes })
    }
}

type Attributes = Vec<(u32, Attribute)>;

fn length(data: &Data) -> u32 {
    u32::try_from(data.len()).expect("at most Data::MAX_LEN")
}

fn host_to_network(sreg: u32, dreg: u32, len: u32) -> Attributes {
    vec![
        (sys::NFTNL_EXPR_BYTEORDER_SREG, Attribute::U32(sreg)),
        (sys::NFTNL_EXPR_BYTEORDER_DREG, Attribute::U32(dreg)),
        (sys::NFTNL_EXPR_BYTEORDER_OP, Attribute::U32(HTON)),
        (sys::NFTNL_EXPR_BYTEORDER_LEN, Attribute::U32(len)),
        (sys::NFTNL_EXPR_BYTEORDER_SIZE, Attribute::U32(len)),
    ]
}

fn flow_offload(flowtable: &str) -> Result<Attributes, NulError> {
    Ok(vec![(sys::NFTNL_EXPR_FLOW_TABLE_NAME, Attribute::Str(CString::new(flowtable)?))])
}

fn ct(key: CtKey, dreg: u32) -> Attributes {
    const ORIGINAL: u8 = 0;
    let (number, directed) = key.number();
    let mut list =
        vec![(sys::NFTNL_EXPR_CT_KEY, Attribute::U32(number)), (sys::NFTNL_EXPR_CT_DREG, Attribute::U32(dreg))];
    list.extend(directed.then_some((sys::NFTNL_EXPR_CT_DIR, Attribute::U8(ORIGINAL))));
    list
}

fn fib(address: FibAddress, dreg: u32) -> Attributes {
    /// `NFT_FIB_RESULT_ADDRTYPE`.
    const ADDRESS_TYPE: u32 = 3;
    // `NFTA_FIB_F_SADDR`, `NFTA_FIB_F_DADDR`.
    let flags = match address {
        FibAddress::Source => 1,
        FibAddress::Destination => 2,
    };
    vec![
        (sys::NFTNL_EXPR_FIB_DREG, Attribute::U32(dreg)),
        (sys::NFTNL_EXPR_FIB_RESULT, Attribute::U32(ADDRESS_TYPE)),
        (sys::NFTNL_EXPR_FIB_FLAGS, Attribute::U32(flags)),
    ]
}

fn lookup(set: &str, sreg: u32, result: LookupResult) -> Result<Attributes, NulError> {
    let mut list = vec![
        (sys::NFTNL_EXPR_LOOKUP_SREG, Attribute::U32(sreg)),
        (sys::NFTNL_EXPR_LOOKUP_SET, Attribute::Str(CString::new(set)?)),
    ];
    list.extend(match result {
        LookupResult::Member => None,
        LookupResult::NotMember => Some((sys::NFTNL_EXPR_LOOKUP_FLAGS, Attribute::U32(LOOKUP_INVERTED))),
        LookupResult::Verdict => Some((sys::NFTNL_EXPR_LOOKUP_DREG, Attribute::U32(REG_VERDICT))),
        LookupResult::Load(register) => Some((sys::NFTNL_EXPR_LOOKUP_DREG, Attribute::U32(register.to_wire()))),
    });
    Ok(list)
}

fn reject(with: RejectWith) -> Attributes {
    // `enum nft_reject_types`.
    let (kind, code) = match with {
        RejectWith::Icmp(code) => (0, code),
        RejectWith::Icmpx(code) => (2, code),
    };
    vec![(sys::NFTNL_EXPR_REJECT_TYPE, Attribute::U32(kind)), (sys::NFTNL_EXPR_REJECT_CODE, Attribute::U8(code))]
}

fn immediate_verdict(verdict: &Verdict) -> Result<Attributes, NulError> {
    let mut list = vec![
        (sys::NFTNL_EXPR_IMM_DREG, Attribute::U32(REG_VERDICT)),
        (sys::NFTNL_EXPR_IMM_VERDICT, Attribute::U32(verdict.number())),
    ];
    if let Some(chain) = verdict.chain() {
        list.push((sys::NFTNL_EXPR_IMM_CHAIN, Attribute::Str(CString::new(&**chain)?)));
    }
    Ok(list)
}
