//! Interval set of the bytes of a file that are present, with their digests.
//!
//! Adjacent runs merge by combining their checksums (CRC combination, as in zlib's `crc32_combine`), so a
//! file written in any order ends as one run whose digest is the file's.

use std::collections::BTreeMap;

use longhaul_model::digest::PartDigest;

/// Runs by offset; they neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    runs: BTreeMap<u64, PartDigest>,
}

impl Coverage {
    /// Adds a run. Returns false, and changes nothing, if it overlaps an existing run or ends beyond the
    /// largest offset.
    pub fn add(&mut self, offset: u64, part: PartDigest) -> bool {
        if part.len == 0 {
            return true;
        }
        let Some(end) = offset.checked_add(part.len) else { return false };
        let before = self.runs.range(..=offset).next_back().map(|(&start, &run)| (start, run));
        let after = self.runs.range(offset..).next().map(|(&start, &run)| (start, run));
        if before.is_some_and(|(start, run)| start + run.len > offset)
            || after.is_some_and(|(start, _)| start < end)
        {
            return false;
        }
        let (mut start, mut run) = (offset, part);
        if let Some((left, left_run)) = before.filter(|(left, left_run)| left + left_run.len == offset) {
            start = left;
            run = left_run.then(run);
        }
        if let Some((right, right_run)) = after.filter(|(right, _)| *right == end) {
            self.runs.remove(&right);
            run = run.then(right_run);
        }
        self.runs.insert(start, run);
        true
    }

    /// Number of bytes that are present.
    pub fn covered_bytes(&self) -> u64 {
        self.runs.values().map(|run| run.len).sum()
    }

    /// The digest of the whole file, once all of its `size` bytes are covered.
    pub fn whole(&self, size: u64) -> Option<PartDigest> {
        if size == 0 {
            return Some(PartDigest::EMPTY);
        }
        self.runs.get(&0).copied().filter(|run| run.len == size)
    }

    /// The missing ranges of a file of `size` bytes, as (offset, length).
    pub fn gaps(&self, size: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (&start, run) in &self.runs {
            if start > at {
                gaps.push((at, start.min(size) - at));
            }
            at = start + run.len;
            if at >= size {
                return gaps;
            }
        }
        if at < size {
            gaps.push((at, size - at));
        }
        gaps
    }

    /// All runs as (offset, digest), by offset.
    pub fn runs(&self) -> impl Iterator<Item = (u64, PartDigest)> {
        self.runs.iter().map(|(&start, &run)| (start, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlapping_runs_are_refused() {
        let mut coverage = Coverage::default();
        assert!(coverage.add(10, PartDigest::compute(b"abc")));
        assert!(!coverage.add(12, PartDigest::compute(b"x")));
        assert!(!coverage.add(8, PartDigest::compute(b"xyz")));
        assert!(!coverage.add(u64::MAX, PartDigest::compute(b"xy")));
        assert!(coverage.add(13, PartDigest::compute(b"d")));
        assert_eq!(coverage.runs().collect::<Vec<_>>(), vec![(10, PartDigest::compute(b"abcd"))]);
        assert_eq!(coverage.gaps(20), vec![(0, 10), (14, 6)]);
        assert_eq!(coverage.gaps(12), vec![(0, 10)]);
        assert_eq!(Coverage::default().whole(0), Some(PartDigest::EMPTY));
    }

    proptest! {
        #[test]
        fn runs_added_in_any_order_combine_to_the_whole_digest(
                                     bytes in proptest::collection::vec(any::<u8>(), 1..500),
                                     cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
                                     order in any::<u64>()) {
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0,
                bytes.len()]).collect();
            borders.sort_unstable();
            borders.dedup();
            let mut parts: Vec<(usize, usize)> = borders.windows(2).map(|pair| (pair[0], pair[1])).collect();
            parts.sort_by_key(|part| (part.0 as u64 + 1).wrapping_mul(order | 1));
            let mut coverage = Coverage::default();
            let mut covered = 0;
            for (start, end) in parts {
                prop_assert_eq!(coverage.whole(bytes.len() as u64), None);
                let missing: u64 = coverage.gaps(bytes.len() as u64).iter().map(|gap| gap.1).sum();
                prop_assert_eq!(missing + covered, bytes.len() as u64);
                prop_assert!(coverage.add(start as u64, PartDigest::compute(&bytes[start..end])));
                covered += (end - start) as u64;
                prop_assert_eq!(coverage.covered_bytes(), covered);
            }
            prop_assert_eq!(coverage.whole(bytes.len() as u64), Some(PartDigest::compute(&bytes)));
            prop_assert!(coverage.gaps(bytes.len() as u64).is_empty());
        }
    }
}
