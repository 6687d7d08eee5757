//! Expressions as libnftnl objects: a name and a list of attributes each.

use std::ffi::{CStr, CString, NulError, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use nftnl::expr::Expression;
use nftnl::nftnl_sys as sys;

use crate::data::Data;
use crate::expr::{CmpOp, CtKey, DynsetOp, Expr, FibAddress, LookupResult, MetaKey, NatType, PayloadBase, RejectWith};
use crate::object::Verdict;

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
        // SAFETY: the name is a terminated string; libnftnl copies what it needs of it.
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
    // SAFETY: `expr` was allocated by libnftnl and is not yet owned by a rule; each value lives over its call, which copies it, and
    // its type is the one that libnftnl documents for the attribute (`libnftnl/expr.h`).
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
/// The verdict register.
const REG_VERDICT: u32 = 0;
/// `NFT_BYTEORDER_HTON`.
const HTON: u32 = 1;

impl Built {
    /// At least as many bytes as the expression takes in a message.
    pub(super) fn room(&self) -> usize {
        /// Attributes around an expression and its name, and around a value: three at most, each with padding.
        const AROUND: usize = 3 * 8;
        let value = |value: &Attribute| match value {
            Attribute::U8(_) | Attribute::U32(_) | Attribute::U64(_) => size_of::<u64>(),
            Attribute::Str(text) => text.as_bytes_with_nul().len(),
            Attribute::Data(data) => data.len(),
        };
        let values = self.attributes.iter().map(|(_, attribute)| AROUND + value(attribute)).sum::<usize>();
        2 * AROUND + self.name.count_bytes() + values
    }

    /// Describes an expression. `reference` gives the name and, within this batch, the id of a set.
    pub(super) fn new(expr: &Expr, reference: impl Fn(&Arc<str>) -> (Arc<str>, Option<u32>)) -> Result<Self, NulError> {
        use Attribute::U32;
        let (name, attributes) = match expr {
            Expr::Payload { base, offset, len, dreg } => (
                c"payload",
                vec![
                    (sys::NFTNL_EXPR_PAYLOAD_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_PAYLOAD_BASE, U32(payload_base(*base))),
                    (sys::NFTNL_EXPR_PAYLOAD_OFFSET, U32(*offset)),
                    (sys::NFTNL_EXPR_PAYLOAD_LEN, U32(*len)),
                ],
            ),
            Expr::MetaLoad { key, dreg } => (
                c"meta",
                vec![(sys::NFTNL_EXPR_META_KEY, U32(meta_key(*key))), (sys::NFTNL_EXPR_META_DREG, U32(dreg.to_wire()))],
            ),
            Expr::MetaSet { key, sreg } => (
                c"meta",
                vec![(sys::NFTNL_EXPR_META_KEY, U32(meta_key(*key))), (sys::NFTNL_EXPR_META_SREG, U32(sreg.to_wire()))],
            ),
            Expr::Ct { key, dreg } => (c"ct", ct(*key, dreg.to_wire())),
            Expr::Fib { address, dreg } => (c"fib", fib(*address, dreg.to_wire())),
            Expr::Cmp { op, sreg, data } => (
                c"cmp",
                vec![
                    (sys::NFTNL_EXPR_CMP_SREG, U32(sreg.to_wire())),
                    (sys::NFTNL_EXPR_CMP_OP, U32(cmp_op(*op))),
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
            Expr::Lookup { set, sreg, result } => (c"lookup", lookup(reference(set), sreg.to_wire(), *result)?),
            Expr::Numgen { dreg, modulus, random } => (
                c"numgen",
                vec![
                    (sys::NFTNL_EXPR_NG_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_NG_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_NG_TYPE, U32(u32::from(*random))),
                ],
            ),
            Expr::Jhash { sreg, dreg, len, modulus, seed } => (
                c"hash",
                vec![
                    (sys::NFTNL_EXPR_HASH_SREG, U32(sreg.to_wire())),
                    (sys::NFTNL_EXPR_HASH_DREG, U32(dreg.to_wire())),
                    (sys::NFTNL_EXPR_HASH_LEN, U32(*len)),
                    (sys::NFTNL_EXPR_HASH_MODULUS, U32(*modulus)),
                    (sys::NFTNL_EXPR_HASH_SEED, U32(*seed)),
                    (sys::NFTNL_EXPR_HASH_TYPE, U32(0)),
                ],
            ),
            Expr::Dynset { set, op, key, data, timeout_ms } => {
                let mut list = dynset(reference(set), *op, *timeout_ms)?;
                list.push((sys::NFTNL_EXPR_DYNSET_SREG_KEY, U32(key.to_wire())));
                list.extend(data.map(|register| (sys::NFTNL_EXPR_DYNSET_SREG_DATA, U32(register.to_wire()))));
                (c"dynset", list)
            }
            Expr::Nat { kind, family, address, port, flags } => {
                let mut list = vec![
                    (sys::NFTNL_EXPR_NAT_TYPE, U32(nat_type(*kind))),
                    (sys::NFTNL_EXPR_NAT_FAMILY, U32(u32::from(family.number()))),
                    (sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, U32(address.to_wire())),
                ];
                list.extend(port.map(|register| (sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, U32(register.to_wire()))));
                list.extend((*flags != 0).then_some((sys::NFTNL_EXPR_NAT_FLAGS, U32(*flags))));
                (c"nat", list)
            }
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

/// `enum nft_payload_bases`.
const fn payload_base(base: PayloadBase) -> u32 {
    match base {
        PayloadBase::Network => 1,
        PayloadBase::Transport => 2,
    }
}

/// `enum nft_meta_keys`.
const fn meta_key(key: MetaKey) -> u32 {
    match key {
        MetaKey::Mark => 3,
        MetaKey::IifName => 6,
        MetaKey::OifName => 7,
        MetaKey::NfProto => 15,
        MetaKey::L4Proto => 16,
    }
}

/// `enum nft_cmp_ops`.
const fn cmp_op(op: CmpOp) -> u32 {
    match op {
        CmpOp::Eq => 0,
        CmpOp::Ne => 1,
        CmpOp::Gt => 4,
    }
}

/// `enum nft_nat_types`.
const fn nat_type(kind: NatType) -> u32 {
    match kind {
        NatType::Source => 0,
        NatType::Destination => 1,
    }
}

/// `enum nft_ct_keys`; the keys of the original direction need it said.
fn ct(key: CtKey, dreg: u32) -> Attributes {
    const ORIGINAL: u8 = 0;
    let (number, directed) = match key {
        CtKey::State => (0, false),
        CtKey::Status => (2, false),
        CtKey::Mark => (3, false),
        CtKey::Packets => (14, false),
        CtKey::OriginalDstPort => (12, true),
        CtKey::OriginalDstIpv4 => (20, true),
        CtKey::OriginalDstIpv6 => (22, true),
    };
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

fn lookup((set, id): (Arc<str>, Option<u32>), sreg: u32, result: LookupResult) -> Result<Attributes, NulError> {
    let mut list = vec![
        (sys::NFTNL_EXPR_LOOKUP_SREG, Attribute::U32(sreg)),
        (sys::NFTNL_EXPR_LOOKUP_SET, Attribute::Str(CString::new(&*set)?)),
    ];
    list.extend(id.map(|id| (sys::NFTNL_EXPR_LOOKUP_SET_ID, Attribute::U32(id))));
    list.extend(match result {
        LookupResult::Member => None,
        LookupResult::NotMember => Some((sys::NFTNL_EXPR_LOOKUP_FLAGS, Attribute::U32(LOOKUP_INVERTED))),
        LookupResult::Verdict => Some((sys::NFTNL_EXPR_LOOKUP_DREG, Attribute::U32(REG_VERDICT))),
        LookupResult::Load(register) => Some((sys::NFTNL_EXPR_LOOKUP_DREG, Attribute::U32(register.to_wire()))),
    });
    Ok(list)
}

fn dynset((set, id): (Arc<str>, Option<u32>), op: DynsetOp, timeout_ms: Option<u64>) -> Result<Attributes, NulError> {
    // `enum nft_dynset_ops`.
    let op = match op {
        DynsetOp::Add => 0,
        DynsetOp::Update => 1,
    };
    let mut list = vec![
        (sys::NFTNL_EXPR_DYNSET_OP, Attribute::U32(op)),
        (sys::NFTNL_EXPR_DYNSET_SET_NAME, Attribute::Str(CString::new(&*set)?)),
    ];
    list.extend(id.map(|id| (sys::NFTNL_EXPR_DYNSET_SET_ID, Attribute::U32(id))));
    list.extend(timeout_ms.map(|ms| (sys::NFTNL_EXPR_DYNSET_TIMEOUT, Attribute::U64(ms))));
    Ok(list)
}

fn reject(with: RejectWith) -> Attributes {
    // `enum nft_reject_types`.
    let (kind, code) = match with {
        RejectWith::Icmp(code) => (0, code),
        RejectWith::TcpReset => (1, 0),
        RejectWith::Icmpx(code) => (2, code),
    };
    vec![(sys::NFTNL_EXPR_REJECT_TYPE, Attribute::U32(kind)), (sys::NFTNL_EXPR_REJECT_CODE, Attribute::U8(code))]
}

/// The number of a verdict (`NF_*`, `enum nft_verdicts`); negative numbers are two's complement.
pub(super) const fn verdict_code(verdict: &Verdict) -> u32 {
    match verdict {
        Verdict::Drop => 0,
        Verdict::Accept => 1,
        Verdict::Jump(_) => (-3_i32).cast_unsigned(),
        Verdict::Goto(_) => (-4_i32).cast_unsigned(),
        Verdict::Return => (-5_i32).cast_unsigned(),
    }
}

fn immediate_verdict(verdict: &Verdict) -> Result<Attributes, NulError> {
    let mut list = vec![
        (sys::NFTNL_EXPR_IMM_DREG, Attribute::U32(REG_VERDICT)),
        (sys::NFTNL_EXPR_IMM_VERDICT, Attribute::U32(verdict_code(verdict))),
    ];
    if let Some(chain) = verdict.chain() {
        list.push((sys::NFTNL_EXPR_IMM_CHAIN, Attribute::Str(CString::new(&**chain)?)));
    }
    Ok(list)
}
