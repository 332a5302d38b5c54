//! Numbers of 256 bits, from their digits.

const LIMBS: usize = 4;
pub(super) const WIDTH: usize = 32;

/// The little-endian bytes of a number in decimal digits, with its sign apart. `None` if it does not fit.
pub(super) fn bytes(negative: bool, digits: &str, signed: bool) -> Option<[u8; WIDTH]> {
    let mut limbs = [0u64; LIMBS];
    if digits.is_empty() {
        return None;
    }
    for byte in digits.bytes() {
        if !byte.is_ascii_digit() {
            return None;
        }
        let mut carry = u128::from(byte - b'0');
        for limb in &mut limbs {
            carry += u128::from(*limb) * 10;
            *limb = low(carry);
            carry >>= 64;
        }
        if carry != 0 {
            return None;
        }
    }
    if negative {
        let mut carry = 1u128;
        for limb in &mut limbs {
            carry += u128::from(!*limb);
            *limb = low(carry);
            carry >>= 64;
        }
    }
    let is_zero = limbs == [0; LIMBS];
    let top_bit = limbs[LIMBS - 1] >> 63 == 1;
    let fits = is_zero || if signed { top_bit == negative } else { !negative };
    if !fits {
        return None;
    }
    let mut bytes = [0; WIDTH];
    for (to, limb) in bytes.chunks_exact_mut(8).zip(limbs) {
        to.copy_from_slice(&limb.to_le_bytes());
    }
    Some(bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "the rest is the carry")]
fn low(sum: u128) -> u64 {
    sum as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_256_bits_fits_or_does_not() {
        const MAX: &str = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        const MIN: &str = "57896044618658097711785492504343953926634992332820282019728792003956564819968";
        assert_eq!(bytes(false, MAX, false), Some([255; WIDTH]));
        assert_eq!(bytes(true, "1", true), Some([255; WIDTH]));
        let mut least = [0; WIDTH];
        least[WIDTH - 1] = 0x80;
        assert_eq!(bytes(true, MIN, true), Some(least));
        assert_eq!(bytes(true, "0", false), Some([0; WIDTH]));
        for (negative, digits, signed) in [
            (false, &*format!("{}6", &MAX[..MAX.len() - 1]), false),
            (false, MIN, true),
            (true, &format!("{}9", &MIN[..MIN.len() - 1]), true),
            (true, "1", false),
            (false, "", true),
            (false, "1.0", true),
            (false, &"9".repeat(1_000), false),
        ] {
            assert_eq!(bytes(negative, digits, signed), None, "{negative} {digits}");
        }
    }
}
