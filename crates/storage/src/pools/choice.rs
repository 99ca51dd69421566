//! Which pool takes a new file: one with nothing to do if there is any, else the one that is expected to have
//! the file first (never queue, then shortest expected delay: Shenker and Weinrib, 1989). A pool counts as
//! slower the less space it has left.
//!
//! ```text
//! delay of a pool = (bytes that it still has to take + size of the file) / its measured rate
//! weight          = delay / (its free space / the largest free space of all)
//! ```
//!
//! The lowest weight takes the file. Pools that have nothing to do fill evenly that way, and one of a quarter
//! of the speed of the others gets a quarter of the bytes while all are busy. By the delay alone a slow pool
//! would stand idle as long as the others have little to do, and its rate would be lost. What a pool has
//! promised counts from the moment of the choice, so that no two choices in a row find the same pool idle.

/// A pool with less free space in relation to the emptiest counts as one with this share of it: a nearly full
/// one is still better than one that has minutes of writing ahead.
const FREE_SHARE_MIN: f64 = 0.02;
/// Steps of the share of free space in which pools are compared.
const FREE_SHARE_STEPS: f64 = 100.0;
/// Part of a pool that stays free, and the most of it.
const MARGIN_DIVISOR: u64 = 100;
const MARGIN_BYTES_MAX: u64 = 256 << 20;

/// What is known of a pool that takes files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
    /// Promised to files that are being written, and not yet written.
    pub(super) waiting_bytes: u64,
    /// Measured while it had something to do; none before that.
    pub(super) bytes_per_s: Option<f64>,
}

impl Candidate {
    /// Whether a file fits. What waits has its space already: files reserve it when they are created.
    fn has_room(&self, size: u64) -> bool {
        let margin = (self.total_bytes / MARGIN_DIVISOR).min(MARGIN_BYTES_MAX);
        self.free_bytes >= size.saturating_add(margin)
    }
}

/// The places of the pools that have room for a file, the best one first. Among equals, `random` decides.
pub(super) fn rank(candidates: &[Candidate], size: u64, random: u64) -> Vec<usize> {
    let known: Vec<f64> = candidates.iter().filter_map(|pool| pool.bytes_per_s).collect();
    let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
    let most_free = candidates.iter().map(|pool| pool.free_bytes).max().unwrap_or_default().max(1) as f64;
    let weight = |pool: &Candidate| {
        let rate = pool.bytes_per_s.unwrap_or(mean).max(1.0);
        let delay_s = pool.waiting_bytes.saturating_add(size).max(1) as f64 / rate;
        // In steps: pools that differ by a trifle take turns.
        let free_share = (pool.free_bytes as f64 / most_free * FREE_SHARE_STEPS).round() / FREE_SHARE_STEPS;
        delay_s / free_share.max(FREE_SHARE_MIN)
    };
    let count = candidates.len().max(1);
    let first = (random % count as u64) as usize;
    let mut ranked: Vec<(bool, f64, usize)> = (0..candidates.len())
        .map(|place| (first + place) % count)
        .filter(|place| candidates[*place].has_room(size))
        .map(|place| (candidates[place].waiting_bytes > 0, weight(&candidates[place]), place))
        .collect();
    ranked.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    ranked.into_iter().map(|(_, _, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GB: u64 = 1_000_000_000;

    fn idle(free_bytes: u64) -> Candidate {
        Candidate { free_bytes, total_bytes: 1_000 * GB, waiting_bytes: 0, bytes_per_s: None }
    }

    #[test]
    fn the_emptiest_of_idle_pools_takes_a_file() {
        assert_eq!(rank(&[idle(10 * GB), idle(30 * GB), idle(20 * GB)], GB, 0), [1, 2, 0]);
    }

    #[test]
    fn a_slow_pool_with_nothing_to_do_takes_a_file_when_all_others_have() {
        let pool = |waiting_bytes, bytes_per_s| Candidate {
            waiting_bytes,
            bytes_per_s: Some(bytes_per_s),
            ..idle(500 * GB)
        };
        assert_eq!(rank(&[pool(1, 400e6), pool(0, 100e6)], GB, 0), [1, 0]);
        assert_eq!(rank(&[pool(0, 100e6), pool(0, 400e6)], GB, 0), [1, 0], "the faster of two");
        assert_eq!(rank(&[pool(GB, 400e6), pool(1, 100e6)], GB, 0), [0, 1]);
    }

    #[test]
    fn a_pool_without_room_takes_none() {
        let small = Candidate { total_bytes: 10 * GB, ..idle(2 * GB) };
        assert_eq!(rank(&[small, idle(3 * GB)], 2 * GB, 0), [1], "a hundredth stays free");
        assert_eq!(rank(&[small, idle(3 * GB)], 19 * GB / 10, 0).len(), 2);
        assert!(rank(&[small], u64::MAX, 0).is_empty() && rank(&[], 1, 7).is_empty());
    }

    #[test]
    fn busy_pools_share_by_their_rates() {
        let pool = |bytes_per_s| Candidate { bytes_per_s: Some(bytes_per_s), ..idle(500 * GB) };
        let mut pools = [pool(400e6), pool(400e6), pool(100e6)];
        let mut taken = [0_u64; 3];
        for number in 0..900 {
            let place = rank(&pools, GB / 10, number)[0];
            pools[place].waiting_bytes += GB / 10;
            taken[place] += 1;
        }
        assert_eq!(taken, [400, 400, 100]);
    }

    #[test]
    fn chance_decides_among_equals() {
        let pools = [10_000, 10_001, 10_002, 10_003].map(|mb| idle(mb * GB / 1_000));
        let mut first: Vec<usize> = (0..4).map(|random| rank(&pools, GB, random)[0]).collect();
        first.sort();
        assert_eq!(first, [0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn each_pool_with_room_is_ranked_once(
            pools in proptest::collection::vec(
                (any::<u64>(), any::<u64>(), any::<u64>(), proptest::option::of(-1e3..1e12)), 0..9,
            ),
            size in any::<u64>(),
            random in any::<u64>(),
        ) {
            let pools: Vec<Candidate> = pools
                .into_iter()
                .map(|(free_bytes, total_bytes, waiting_bytes, bytes_per_s)| Candidate {
                    free_bytes, total_bytes, waiting_bytes, bytes_per_s,
                })
                .collect();
            let mut ranked = rank(&pools, size, random);
            ranked.sort();
            let fitting: Vec<usize> = (0..pools.len()).filter(|place| pools[*place].has_room(size)).collect();
            prop_assert_eq!(ranked, fitting);
        }
    }
}
