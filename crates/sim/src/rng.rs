//! The one source of chance in a run: xoshiro256**, filled from the seed by splitmix64.
//!
//! Written here so that a seed means the same run with every version of every library.

/// Draws numbers; the same seed gives the same numbers.
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed;
        let mut split = || {
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = mixed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self { state: [split(), split(), split(), split()] }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let drawn = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        drawn
    }

    /// 128 bits, for an id.
    pub(crate) fn id(&mut self) -> u128 {
        (u128::from(self.bits()) << 64) | u128::from(self.bits())
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range, {low} to {high}");
        // The ranges are tiny next to 2^64: that some numbers come a hair more often does not matter.
        low + self.bits() % (high - low + 1)
    }

    /// An index into something of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("a length fits");
        usize::try_from(self.between(0, length - 1)).expect("less than a length")
    }

    /// True in so many of a thousand cases.
    pub(crate) fn chance(&mut self, in_a_thousand: u64) -> bool {
        self.between(0, 999) < in_a_thousand
    }

    /// One of them, or none where there are none.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.index(from.len())]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_numbers() {
        let mut rng = Rng::new(1);
        let drawn = [rng.bits(), rng.bits(), rng.bits()];
        let again = [0xb3f2_af6d_0fc7_10c5, 0x853b_5596_4736_4cea, 0x92f8_9756_082a_4514];
        assert_eq!(drawn, again);
    }

    #[test]
    fn ranges_are_kept_and_used_up() {
        let mut rng = Rng::new(7);
        let drawn: std::collections::BTreeSet<_> = (0..200).map(|_| rng.between(3, 6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert!(!rng.chance(0));
        assert!(rng.chance(1_000));
    }
}
