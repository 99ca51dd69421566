//! First-byte latency of a source (exponentially weighted moving averages, as RFC 6298 takes them of round
//! trips): a tape is mounted and wound, a
//! disk pool fetches the file from another. A file that waits there takes nothing from anybody else, so more
//! files are leased than would otherwise pay: while some arrive, the next are made ready.

use longhaul_model::Timestamp;

/// A source is slow to open if first bytes take at least this long, which is longer than any agent takes to
/// report them.
const FIRST_BYTE_S_MIN: f64 = 30.0;
/// A source is slow to open if its files wait for at least this share of their whole time.
const FIRST_BYTE_SHARE_MIN: f64 = 0.5;
/// Files leased at once from a source that is slow to open: as many as an agent opens per link whatever
/// their size. More would wait at the agent.
const SLOW_SOURCE_FILES_MIN: u32 = 4;
/// Weight of the newest file in the moving averages.
const EWMA_WEIGHT: f64 = 0.25;

/// Moving averages over recent files: seconds to the first byte, and to the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SourceLatency {
    first_byte_s: f64,
    file_s: f64,
}

impl SourceLatency {
    /// The first bytes of a file arrived.
    pub(crate) fn record_first_byte(&mut self, began: Timestamp, now: Timestamp) {
        update_ewma(&mut self.first_byte_s, began, now);
    }

    pub(crate) fn record_file(&mut self, began: Timestamp, now: Timestamp) {
        update_ewma(&mut self.file_s, began, now);
    }

    fn is_long(&self) -> bool {
        self.first_byte_s >= FIRST_BYTE_S_MIN && self.first_byte_s >= FIRST_BYTE_SHARE_MIN * self.file_s
    }

    /// Files to lease at once where `that_pay` would be enough otherwise.
    pub(crate) fn limit(&self, that_pay: u32) -> u32 {
        if self.is_long() { that_pay.max(SLOW_SOURCE_FILES_MIN) } else { that_pay }
    }

    /// Why the limit is higher, if it is; follows the number in a sentence.
    pub(crate) fn explain(&self, that_pay: u32) -> Option<String> {
        let more = self.limit(that_pay) > that_pay;
        more.then(|| {
            format!("since files wait {:.0} s at their source before anything comes", self.first_byte_s)
        })
    }
}

fn update_ewma(mean: &mut f64, began: Timestamp, now: Timestamp) {
    *mean += EWMA_WEIGHT * (now.since(began).as_secs_f64() - *mean);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many files, one after another, each of which waits and then moves for so many seconds.
    fn files(opening: &mut SourceLatency, count: u32, waits: i64, moves: i64) {
        for _ in 0..count {
            let at = |seconds: i64| Timestamp::from_seconds(1_800_000_000 + seconds);
            opening.record_first_byte(at(0), at(waits));
            opening.record_file(at(0), at(waits + moves));
        }
    }

    #[test]
    fn where_files_wait_longer_than_they_move_more_are_given() {
        let mut opening = SourceLatency::default();
        assert_eq!(opening.limit(2), 2, "nothing is known");
        files(&mut opening, 20, 90, 3);
        assert_eq!((opening.limit(2), opening.limit(20)), (SLOW_SOURCE_FILES_MIN, 20));
        assert!(opening.explain(2).unwrap().contains("90 s"), "{opening:?}");
        assert_eq!(opening.explain(20), None);
        files(&mut opening, 20, 0, 3);
        assert_eq!((opening.limit(2), opening.explain(2)), (2, None), "they come at once now");
    }

    #[test]
    fn large_files_and_short_waits_are_no_reason() {
        for (waits, moves) in [(40, 60), (20, 0)] {
            let mut opening = SourceLatency::default();
            files(&mut opening, 20, waits, moves);
            assert_eq!(opening.limit(2), 2, "{waits} s of {}", waits + moves);
        }
    }
}
