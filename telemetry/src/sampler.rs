//! Samples segments by the random bits of their names. All processes with the same ratio sample the same segments, and a greater
//! ratio includes those of a smaller one.
//!
//! This is OpenTelemetry's consistent probability sampling: it samples a trace unless its randomness, the last 56 bits of its
//! id, is below a threshold.

use ulid::Ulid;

/// Number of values of the randomness.
const VALUES: u64 = 1 << 56;

/// Samples a fraction of the traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sampler {
    threshold: u64,
}

impl Sampler {
    /// Samples this fraction of the traces, 0 to 1.
    pub(crate) fn new(ratio: f64) -> Sampler {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a ratio gives 0 to 2^56, and a cast saturates"
        )]
        let threshold = ((1.0 - ratio) * VALUES as f64).round() as u64;
        Sampler {
            threshold: threshold.min(VALUES),
        }
    }

    pub(crate) fn takes(self, segment: Ulid) -> bool {
        u128::from(self.threshold) <= segment.0 % u128::from(VALUES)
    }

    /// The threshold in `tracestate`, which tells how many spans each sampled one represents.
    pub(crate) fn state(self) -> String {
        let digits = format!("{:014x}", self.threshold.min(VALUES - 1));
        let digits = match digits.trim_end_matches('0') {
            "" => "0",
            digits => digits,
        };
        format!("ot=th:{digits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ratios_0_and_1_take_none_and_all() {
        for bits in [0, 1, u128::MAX, u128::from(VALUES - 1), u128::from(VALUES)] {
            assert!(Sampler::new(1.0).takes(Ulid(bits)));
            assert!(!Sampler::new(0.0).takes(Ulid(bits)));
        }
    }

    #[test]
    fn the_state_follows_the_specification() {
        // The examples of OpenTelemetry's "TraceState: Probability Sampling".
        for (ratio, state) in [
            (1.0, "ot=th:0"),
            (0.5, "ot=th:8"),
            (0.25, "ot=th:c"),
            (0.0625, "ot=th:f"),
        ] {
            assert_eq!(Sampler::new(ratio).state(), state);
        }
    }

    proptest! {
        #[test]
        fn a_greater_ratio_takes_what_a_smaller_takes(bits: u128, one in 0.0..=1.0, other in 0.0..=1.0) {
            let (small, great) = (f64::min(one, other), f64::max(one, other));
            let takes = |ratio| Sampler::new(ratio).takes(Ulid(bits));
            prop_assert!(!takes(small) || takes(great));
        }

        #[test]
        fn it_takes_the_upper_part_of_the_random_bits_whatever_the_time(
            time in 0..1_u64 << 48, upper in 0..1_u128 << 24, random in 0..VALUES, ratio in 0.01..0.99,
        ) {
            let segment = Ulid::from_parts(time, (upper << 56) | u128::from(random));
            let over: f64 = random as f64 / VALUES as f64 - (1.0 - ratio);
            let (taken, near) = (over >= 0.0, over.abs() < 1e-12);
            prop_assert!(near || Sampler::new(ratio).takes(segment) == taken);
        }
    }
}
