//! Deterministic random numbers from a seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), with the few
//! distributions that worlds need (normal by Box-Muller).
//!
//! Each purpose has a stream of its own ([`Random::stream`]), so that a new purpose changes no other.

#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

/// The finaliser of SplitMix64: every bit of the input reaches every bit of the result.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in 0..1 that belongs to three others for good: whether a replica is bad, say.
pub fn uniform_for(seed: u64, first: u64, second: u64) -> f64 {
    to_unit(mix(seed ^ mix(first ^ mix(second))))
}

fn to_unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Random { state: mix(seed) }
    }

    /// An independent stream for one purpose.
    pub fn stream(seed: u64, purpose: &str) -> Self {
        let tag = purpose.bytes().fold(0u64, |tag, byte| mix(tag ^ u64::from(byte)));
        Random::new(seed ^ tag)
    }

    pub fn bits(&mut self) -> u64 {
        let value = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        value
    }

    /// In 0..1.
    pub fn uniform(&mut self) -> f64 {
        to_unit(self.bits())
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// In 0..bound; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.uniform() < share
    }

    /// Mean 0, deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    pub fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }

    /// `count` different places out of `weights.len()`, likelier where the weight is higher.
    pub fn sample_weighted(&mut self, weights: &[f64], count: usize) -> Vec<usize> {
        let mut left: Vec<(usize, f64)> = weights.iter().copied().enumerate().collect();
        let mut chosen = Vec::with_capacity(count.min(left.len()));
        while chosen.len() < count && !left.is_empty() {
            let sum: f64 = left.iter().map(|(_, weight)| weight).sum();
            let mut rest = self.uniform() * sum;
            let found = left.iter().position(|(_, weight)| {
                rest -= weight;
                rest < 0.0
            });
            chosen.push(left.swap_remove(found.unwrap_or(left.len() - 1)).0);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let (mut one, mut same) = (Random::stream(7, "files"), Random::stream(7, "files"));
        let mut other = Random::stream(7, "failures");
        let first: Vec<u64> = (0..4).map(|_| one.bits()).collect();
        assert_eq!(first, (0..4).map(|_| same.bits()).collect::<Vec<_>>());
        assert_ne!(first[0], other.bits());
    }

    #[test]
    fn distributions_have_their_means() {
        let mut random = Random::new(1);
        let count = 20_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Random) -> f64| {
            (0..count).map(|_| draw(&mut random)).sum::<f64>() / f64::from(count)
        };
        assert!((mean(&mut |random| random.uniform()) - 0.5).abs() < 0.01);
        assert!(mean(&mut |random| random.normal()).abs() < 0.03);
        assert!((mean(&mut |random| random.exponential(3.0)) - 3.0).abs() < 0.1);
        assert!((mean(&mut |random| random.lognormal(2.0, 0.5)) - 2.0 * 0.125f64.exp()).abs() < 0.05);
    }

    #[test]
    fn choices_differ_from_each_other() {
        let mut random = Random::new(3);
        for _ in 0..100 {
            let mut chosen = random.sample_weighted(&[1.0, 0.0, 5.0, 2.0], 3);
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), 3);
        }
        assert_eq!(random.sample_weighted(&[1.0], 5), [0]);
    }
}
