//! The registers of the interpreter: sixteen words of four bytes. Each byte may be unknown.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::ops::Range;

use crate::data::Data;
use crate::expr::Register;
use crate::jhash::jhash_below;

use super::packet::Loaded;
use super::{Effect, Fate, Flow, MOST_VALUES, Thread, go_on};

impl Thread {
    /// The first bytes of a register; `None` when one of them is not known, or when they reach beyond the last register.
    pub(super) fn known(&self, register: Register, len: usize) -> Option<&[u8]> {
        let place = range(register, len);
        let is_known = self.unknown & bits(&place) == 0;
        self.registers.get(place).filter(|_| is_known)
    }

    /// Loads bytes into a register, and fills the rest of the last word with zeros.
    pub(super) fn load(&mut self, register: Register, loaded: Loaded) -> Flow {
        let (bytes, is_known) = match loaded {
            Loaded::Bytes(bytes) => (bytes, true),
            Loaded::Nothing => return Flow::Break,
            Loaded::Unknown(what, len) => {
                self.why = what;
                (vec![0; len], false)
            }
        };
        let place = range(register, bytes.len());
        let words = range(register, bytes.len().next_multiple_of(4));
        let Some(registers) = self.registers.get_mut(words.clone()) else { return Flow::Break };
        registers.fill(0);
        registers[..bytes.len()].copy_from_slice(&bytes);
        self.unknown &= !bits(&words);
        if !is_known {
            self.unknown |= bits(&place);
        }
        Flow::Next
    }

    /// Compares the start of a register with data, as far as its bytes are known (see [`Compared`]).
    pub(super) fn compare(&self, register: Register, data: &Data) -> Compared {
        let place = range(register, data.len());
        let start = place.start;
        let Some(bytes) = self.registers.get(place) else { return Compared::Unknown };
        let is_known = |index: usize| self.unknown & bits(&(start + index..start + index + 1)) == 0;
        let mut order = Compared::Is(Ordering::Equal);
        for (index, (byte, wanted)) in bytes.iter().zip(data.as_slice()).enumerate() {
            match (is_known(index), &order) {
                (true, Compared::Is(Ordering::Equal)) => order = Compared::Is(byte.cmp(wanted)),
                (true, Compared::Unknown) if byte != wanted => order = Compared::Differs,
                (false, Compared::Is(Ordering::Equal)) => order = Compared::Unknown,
                _ => {}
            }
        }
        order
    }

    /// Goes on with the next expression or the next rule. Stuck when it is not known whether the comparison holds.
    pub(super) fn decide(&self, holds: Option<bool>) -> Flow {
        holds.map_or_else(|| Flow::Stuck(self.why.to_owned()), go_on)
    }

    /// `dreg = (sreg & mask) ^ xor`; a byte that the mask clears is known.
    pub(super) fn bitwise(&mut self, sreg: Register, dreg: Register, mask: &Data, xor: &Data) -> Flow {
        let place = range(sreg, mask.len());
        let unknown = self.unknown >> place.start;
        let Some(bytes) = self.registers.get(place) else { return Flow::Break };
        let masks = || mask.as_slice().iter().enumerate();
        let bytes = bytes.iter().zip(mask.as_slice()).zip(xor.as_slice());
        let bytes = bytes.map(|((byte, mask), xor)| byte & mask ^ xor).collect();
        let left = masks().filter(|(index, mask)| **mask != 0 && unknown >> index & 1 != 0);
        let left = left.map(|(index, _)| 1 << index).fold(0_u64, |all, bit| all | bit);
        let flow = self.load(dreg, Loaded::Bytes(bytes));
        self.unknown |= left << (dreg.index() * 4);
        flow
    }

    /// Evaluates `jhash` over `len` bytes. If some of them are unknown and `offset` is 0, the result is a random number: the proxy's rules
    /// then use one hash of the packet, so every value is equally likely. With an offset, they use several hashes of the same bytes one
    /// after the other; these depend on each other, so the endpoint is unknown.
    pub(super) fn hash(
        &mut self,
        (sreg, len): (Register, usize),
        dreg: Register,
        (modulus, seed, offset): (u32, u32, u32),
    ) -> Flow {
        match self.known(sreg, len) {
            Some(bytes) => {
                let number = jhash_below(bytes, seed, modulus).wrapping_add(offset);
                self.load(dreg, Loaded::Bytes(number.to_ne_bytes().to_vec()))
            }
            None if offset == 0 && (1..=MOST_VALUES).contains(&modulus) => Flow::Random(modulus, dreg),
            None => {
                let why = format!("the endpoint depends on {}, which was not given", self.why);
                self.effects.push(Effect::Assumed(why.clone()));
                Flow::End(Fate::Unknown(why))
            }
        }
    }

    /// The address at the start of a register.
    pub(super) fn address(&self, register: Register, is_v4: bool) -> Option<IpAddr> {
        Some(if is_v4 {
            IpAddr::from(<[u8; 4]>::try_from(self.known(register, 4)?).ok()?)
        } else {
            IpAddr::from(<[u8; 16]>::try_from(self.known(register, 16)?).ok()?)
        })
    }

    pub(super) fn port(&self, register: Register) -> Option<u16> {
        self.known(register, 2)?.try_into().ok().map(u16::from_be_bytes)
    }
}

/// The positions of the first `len` bytes of a register.
fn range(register: Register, len: usize) -> Range<usize> {
    let start = register.index() * 4;
    start..start + len
}

/// A bit for each byte of a range.
fn bits(range: &Range<usize>) -> u64 {
    range.clone().filter(|index| *index < 64).fold(0, |bits, index| bits | 1 << index)
}

/// The result of a comparison in which some bytes may be unknown.
pub(super) enum Compared {
    /// All bytes that decide the comparison are known. This is the order of the register's bytes relative to the data.
    Is(Ordering),
    /// The values differ, but their order is not known.
    Differs,
    Unknown,
}

impl Compared {
    pub(super) fn is_equal(&self) -> Option<bool> {
        match self {
            Self::Is(order) => Some(order.is_eq()),
            Self::Differs => Some(false),
            Self::Unknown => None,
        }
    }

    pub(super) fn order(&self) -> Option<Ordering> {
        match self {
            Self::Is(order) => Some(*order),
            Self::Differs | Self::Unknown => None,
        }
    }
}

pub(super) fn within(bytes: &[u8], first: &Data, last: &Data) -> bool {
    (first.as_slice()..=last.as_slice()).contains(&bytes)
}
