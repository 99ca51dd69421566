//! How long files of a link wait at their source before anything of them comes: a tape is mounted and wound,
//! a pool brings them from another. What waits there takes nothing from anybody else, so more files are given
//! than pay otherwise: while some come, the next are made ready.

use longhaul_model::Timestamp;

/// Where files wait for at least so long, which is longer than any agent takes to tell of its first bytes, …
const FIRST_BYTE_S_MIN: f64 = 30.0;
/// … and for this part of all the time that they take, …
const FIRST_BYTE_SHARE_MIN: f64 = 0.5;
/// … so many are leased at least: as many as an agent opens of a link however large they are. More would wait
/// at the agent.
const SLOW_SOURCE_FILES_MIN: u32 = 4;
/// Weight of what is new.
const EWMA_WEIGHT: f64 = 0.25;

/// In the mean of the last files, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SourceLatency {
    first_byte_s: f64,
    file_s: f64,
}

impl SourceLatency {
    /// The first of a file has come that began then.
    pub(crate) fn record_first_byte(&mut self, began: Timestamp, now: Timestamp) {
        update_ewma(&mut self.first_byte_s, began, now);
    }

    pub(crate) fn record_file(&mut self, began: Timestamp, now: Timestamp) {
        update_ewma(&mut self.file_s, began, now);
    }

    fn is_long(&self) -> bool {
        self.first_byte_s >= FIRST_BYTE_S_MIN && self.first_byte_s >= FIRST_BYTE_SHARE_MIN * self.file_s
    }

    /// How many are leased at once where so many pay.
    pub(crate) fn limit(&self, that_pay: u32) -> u32 {
        if self.is_long() { that_pay.max(SLOW_SOURCE_FILES_MIN) } else { that_pay }
    }

    /// Why they are more, in words, if they are; follows the number.
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
