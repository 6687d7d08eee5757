//! Hash functions whose results are the same on every node and in every version.

/// The 64-bit FNV-1a hash.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Mixes the bits of a number: changing one input bit changes about half of the output bits. This is the last step of `SplitMix64`.
#[must_use]
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a() {
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    // SplitMix64 with seed 0 first mixes 0x9e3779b97f4a7c15 (from the golden ratio); the expected result is its first output.
    #[test]
    fn the_mix_is_that_of_splitmix64() {
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    }
}
