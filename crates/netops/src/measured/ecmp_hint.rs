//! Whether some source ports of a look take longer than others: members of a bond, or equal paths, are chosen
//! by ports, and one of them that is loaded or longer shows in the round trips of those that fall on it. A
//! hint, no more. Pure.

/// Each group has at least so many, or one slow packet would be a group.
const GROUP_MIN: usize = 2;
/// The groups are so far apart, …
const GAP_US_MIN: u32 = 1_000;
const GAP_SHARE_MIN: f64 = 0.2;
/// … and each is closer together than this part of it.
const SPREAD_SHARE_MAX: f64 = 0.5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EcmpHint {
    slow: usize,
    all: usize,
    fast_us: u32,
    slow_us: u32,
}

impl EcmpHint {
    pub fn words(&self) -> String {
        let EcmpHint { slow, all, fast_us, slow_us } = self;
        let ms = |us: &u32| f64::from(*us) / 1e3;
        format!(
            "{slow} of {all} source ports take {:.1} ms and the others {:.1} ms, look after look: one member \
                of a bond or one of several equal paths may be loaded or longer",
            ms(slow_us),
            ms(fast_us)
        )
    }
}

/// Two groups of round trips, if that is what they are: split where the gap is widest.
pub fn find(rtts_us: &[u32]) -> Option<EcmpHint> {
    let mut sorted = rtts_us.to_vec();
    sorted.sort_unstable();
    let gap_at = |at: usize| sorted[at] - sorted[at - 1];
    let split = (1..sorted.len()).max_by_key(|&at| gap_at(at))?;
    let (fast, slow) = sorted.split_at(split);
    if fast.len() < GROUP_MIN || slow.len() < GROUP_MIN {
        return None;
    }
    let gap = gap_at(split);
    let width = |group: &[u32]| f64::from(group[group.len() - 1] - group[0]);
    let apart = gap >= GAP_US_MIN && f64::from(gap) >= GAP_SHARE_MIN * f64::from(fast[0]);
    let close = width(fast).max(width(slow)) <= SPREAD_SHARE_MAX * f64::from(gap);
    (apart && close).then(|| EcmpHint {
        slow: slow.len(),
        all: sorted.len(),
        fast_us: fast[fast.len() / 2],
        slow_us: slow[slow.len() / 2],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_groups_are_told_from_one_that_is_wide() {
        let bond = find(&[20_100, 32_000, 20_000, 32_400, 20_300, 20_200, 32_100, 20_050]).unwrap();
        assert!(
            bond.words().starts_with("3 of 8 source ports take 32.1 ms and the others 20.1 ms"),
            "{}",
            bond.words()
        );
        for even in [
            &[][..],
            &[5],
            &[20_000; 8],
            &[20_000, 20_100, 20_200, 20_300, 20_400, 20_500, 20_600, 20_700],
            // One packet that waited.
            &[20_000, 20_000, 20_000, 20_000, 20_000, 20_000, 20_000, 90_000],
            // Spread all over: a busy host.
            &[20_000, 24_000, 29_000, 33_000, 38_000, 41_000, 47_000, 50_000],
            // Near each other: what a switch queues.
            &[100, 110, 120, 130, 600, 610, 620, 630],
        ] {
            assert_eq!(find(even), None, "{even:?}");
        }
    }
}
