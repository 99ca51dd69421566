//! Pairs of storages whose servers do not copy between themselves: not asked again for a while (circuit
//! breaker, Nygard, Release It!, 2007).

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{StorageName, Timestamp};

/// Consecutive refusals after which a pair is left alone.
const REFUSALS_MAX: u32 = 3;
/// For how long.
const REST: Duration = Duration::from_secs(600);

/// Source and target.
pub(super) type StoragePair = (StorageName, StorageName);

#[derive(Default)]
struct PairRecord {
    /// Since the last copy that worked.
    refusals: u32,
    rests_until: Timestamp,
}

#[derive(Default)]
pub(super) struct StoragePairs(BTreeMap<StoragePair, PairRecord>);

impl StoragePairs {
    /// Whether the servers are to be asked.
    pub(super) fn may_copy(&self, pair: &StoragePair, now: Timestamp) -> bool {
        self.0.get(pair).is_none_or(|record| now >= record.rests_until)
    }

    pub(super) fn note_copied(&mut self, pair: &StoragePair) {
        self.0.remove(pair);
    }

    /// Leaves the pair alone at once: its source's agent gives no access to its files.
    pub(super) fn rest(&mut self, pair: &StoragePair, now: Timestamp) {
        let record = self.0.entry(pair.clone()).or_default();
        (record.refusals, record.rests_until) = (REFUSALS_MAX, now + REST);
    }

    /// True if the pair is left alone from now on. After a rest a single refusal is enough.
    pub(super) fn note_refused(&mut self, pair: &StoragePair, now: Timestamp) -> bool {
        let record = self.0.entry(pair.clone()).or_default();
        record.refusals = record.refusals.saturating_add(1);
        let rests = record.refusals >= REFUSALS_MAX && now >= record.rests_until;
        if rests {
            record.rests_until = now + REST;
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_rests_after_refusals_and_is_tried_again() {
        let pair = ("dav".parse().unwrap(), "disk".parse().unwrap());
        let (mut pairs, start) = (StoragePairs::default(), Timestamp(0));
        assert!(!pairs.note_refused(&pair, start) && !pairs.note_refused(&pair, start));
        pairs.note_copied(&pair);
        let told: Vec<bool> = (0..4).map(|_| pairs.note_refused(&pair, start)).collect();
        assert_eq!(told, [false, false, true, false], "it is told once");
        assert!(!pairs.may_copy(&pair, start));
        let later = start + REST;
        assert!(pairs.may_copy(&pair, later));
        assert!(pairs.note_refused(&pair, later), "one is enough then");
        pairs.note_copied(&pair);
        assert!(pairs.may_copy(&pair, later));
        pairs.rest(&pair, later);
        assert!(!pairs.may_copy(&pair, later) && pairs.may_copy(&pair, later + REST));
    }
}
