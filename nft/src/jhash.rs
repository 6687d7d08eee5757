//! The hash that the kernel computes for `jhash` expressions. It tells which element of a map a packet selects: `machine` needs it to
//! follow a packet through the rules.
//!
//! Bob Jenkins' hash `lookup3`, in the form of the kernel's `linux/jhash.h`. Words are read in the byte order of this machine, as in the
//! kernel.

/// The kernel's `JHASH_INITVAL`.
const INITIAL: u32 = 0xdead_beef;

/// The hash of bytes, with a seed.
#[must_use]
pub fn jhash(bytes: &[u8], seed: u32) -> u32 {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = INITIAL.wrapping_add(len).wrapping_add(seed);
    let mut state = [start; 3];
    let mut rest = bytes;
    while rest.len() > 12 {
        let (block, behind) = rest.split_at(12);
        for (word, bytes) in state.iter_mut().zip(block.chunks_exact(4)) {
            *word = word.wrapping_add(u32::from_ne_bytes(bytes.try_into().expect("four bytes")));
        }
        mix(&mut state);
        rest = behind;
    }
    if rest.is_empty() {
        return state[2];
    }
    // The kernel reads the last bytes in little-endian order on every machine.
    for (word, bytes) in state.iter_mut().zip(rest.chunks(4)) {
        let mut last = [0; 4];
        last[..bytes.len()].copy_from_slice(bytes);
        *word = word.wrapping_add(u32::from_le_bytes(last));
    }
    finish(&mut state);
    state[2]
}

/// The number below `modulus` that a `jhash ... mod` expression computes from bytes: the kernel scales the hash, it takes no remainder.
#[must_use]
pub fn jhash_below(bytes: &[u8], seed: u32, modulus: u32) -> u32 {
    let scaled = (u64::from(jhash(bytes, seed)) * u64::from(modulus)) >> 32;
    u32::try_from(scaled).expect("less than the modulus")
}

fn mix([a, b, c]: &mut [u32; 3]) {
    *a = a.wrapping_sub(*c) ^ c.rotate_left(4);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(6);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(8);
    *b = b.wrapping_add(*a);
    *a = a.wrapping_sub(*c) ^ c.rotate_left(16);
    *c = c.wrapping_add(*b);
    *b = b.wrapping_sub(*a) ^ a.rotate_left(19);
    *a = a.wrapping_add(*c);
    *c = c.wrapping_sub(*b) ^ b.rotate_left(4);
    *b = b.wrapping_add(*a);
}

fn finish([a, b, c]: &mut [u32; 3]) {
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(14));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(11));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(25));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(16));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(4));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(14));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(24));
}

#[cfg(test)]
mod tests {
    use super::*;

    // Values that `driver5` of Bob Jenkins' own lookup3.c prints.
    #[test]
    #[cfg(target_endian = "little")]
    fn it_gives_the_values_of_lookup3() {
        assert_eq!(jhash(b"", 0), 0xdead_beef);
        assert_eq!(jhash(b"", 0xdead_beef), 0xbd5b_7dde);
        assert_eq!(jhash(b"Four score and seven years ago", 0), 0x1777_0551);
        assert_eq!(jhash(b"Four score and seven years ago", 1), 0xcd62_8161);
    }

    #[test]
    fn it_is_scaled_into_the_numbers_below_the_modulus() {
        assert_eq!(jhash_below(b"", 0, 1), 0);
        // 0xdeadbeef / 2^32 is 0.8698.
        assert_eq!(jhash_below(b"", 0, 1000), 869);
    }
}
