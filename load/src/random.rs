//! Pseudorandom numbers that depend only on their argument, so that record n is the same in every run with the same
//! seed.

/// The finaliser of SplitMix64: a bijection whose outputs pass for random.
pub(crate) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
