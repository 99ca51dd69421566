//! FTS3's transfer optimizer, for comparison (additive increase on throughput, decrease on errors; CERN FTS3,
//! optimizer mode 2, range 2 to 130): how many transfers of a link may be active, decided once a minute for
//! each link alone, from goodput (exponential moving average), success rate and queue. Used under
//! [`crate::Rules::Fts3`]; written from the description of version 3.14.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_model::Timestamp;

/// Time between decisions.
pub(crate) const DECISION_PERIOD: Duration = Duration::from_secs(60);
/// Active transfers of a storage, each of in and out.
pub(crate) const STORAGE_ACTIVE_MAX: u32 = 200;
/// Lower end of the range of slots.
const SLOTS_MIN: u32 = 2;
/// Upper end of the range of slots.
const SLOTS_MAX: u32 = 130;
/// Slots before the first decision.
pub(crate) const SLOTS_INITIAL: u32 = 2;
/// Slots added by one increase.
const SLOTS_STEP: u32 = 2;
/// Streams of one transfer, by which the optimizer bounds its slots.
const STREAMS_MAX: u32 = 16;
/// Weight of the newest minute in the moving average.
const EMA_WEIGHT: f64 = 0.1;
/// From this percentage of successes on, errors do not reduce the slots.
const SUCCESS_PERCENT_GOOD: u32 = 97;
/// From this percentage on, a rising success rate keeps the slots.
const SUCCESS_PERCENT_RECOVERING: u32 = 96;
/// Minutes of history.
const BINS_MAX: usize = 30;

/// A minute of a link.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    bytes: u64,
    finished: u32,
    finished_bytes: u64,
    finished_s: f64,
    failed: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Optimizer {
    bins: VecDeque<Bin>,
    decided: Option<u32>,
    at: Timestamp,
    success: u32,
    ema: f64,
    mean_size: f64,
    retries: u32,
}

impl Optimizer {
    pub(crate) fn slots(&self) -> u32 {
        self.decided.unwrap_or(SLOTS_INITIAL)
    }

    pub(crate) fn record_bytes(&mut self, bytes: u64) {
        let bin = self.bin();
        bin.bytes = bin.bytes.saturating_add(bytes);
    }

    pub(crate) fn record_file(&mut self, bytes: u64, took: Duration) {
        let bin = self.bin();
        bin.finished += 1;
        bin.finished_bytes = bin.finished_bytes.saturating_add(bytes);
        bin.finished_s += took.as_secs_f64();
    }

    pub(crate) fn record_failure(&mut self) {
        self.bin().failed += 1;
    }

    fn bin(&mut self) -> &mut Bin {
        if self.bins.is_empty() {
            self.bins.push_front(Bin::default());
        }
        &mut self.bins[0]
    }

    /// Once a minute, with what is active and what waits.
    pub(crate) fn decide(&mut self, active: u32, waiting: u32, now: Timestamp) {
        let all = self.sum(BINS_MAX);
        let duration = if all.finished > 0 { all.finished_s / f64::from(all.finished) } else { 0.0 };
        let minutes = match duration {
            mean if mean > 0.0 && mean < 30.0 => 5,
            mean if mean > 30.0 && mean <= 900.0 => 15,
            _ => BINS_MAX,
        };
        let seen = self.sum(minutes);
        let throughput = seen.bytes as f64 / (minutes as f64 * DECISION_PERIOD.as_secs_f64());
        let ended = seen.finished + seen.failed;
        let success = if ended == 0 { 100 } else { (100 * seen.finished).div_ceil(ended) };
        let ema =
            if throughput > 0.0 { EMA_WEIGHT * throughput + (1.0 - EMA_WEIGHT) * self.ema } else { self.ema };
        let size = seen.finished_bytes as f64 / f64::from(seen.finished.max(1));
        let next = self.next(success, ema, size, seen.failed, active, waiting, now);
        if let Some(next) = next {
            self.decided = Some(next);
            self.at = now;
        }
        self.success = success;
        self.ema = ema;
        self.mean_size = size;
        self.retries = seen.failed;
        self.bins.push_front(Bin::default());
        self.bins.truncate(BINS_MAX);
    }

    fn sum(&self, minutes: usize) -> Bin {
        self.bins.iter().take(minutes).fold(Bin::default(), |sum, bin| Bin {
            bytes: sum.bytes.saturating_add(bin.bytes),
            finished: sum.finished + bin.finished,
            finished_bytes: sum.finished_bytes.saturating_add(bin.finished_bytes),
            finished_s: sum.finished_s + bin.finished_s,
            failed: sum.failed + bin.failed,
        })
    }

    /// None: nothing is decided now.
    #[allow(clippy::too_many_arguments)]
    fn next(
        &self,
        success: u32,
        ema: f64,
        size: f64,
        retries: u32,
        active: u32,
        waiting: u32,
        now: Timestamp,
    ) -> Option<u32> {
        let Some(previous) = self.decided else {
            return Some(SLOTS_MIN + (SLOTS_MAX - SLOTS_MIN) / 2);
        };
        if success == self.success && ema == self.ema && now.since(self.at) < 5 * DECISION_PERIOD {
            return None;
        }
        let decades = |value: f64| value.max(1.0).log10().round();
        let less = previous.saturating_sub(1);
        let decision = if success < SUCCESS_PERCENT_GOOD {
            let mends =
                success > self.success && success >= SUCCESS_PERCENT_RECOVERING && retries <= self.retries;
            if mends { previous } else { less }
        } else if ema == 0.0 || waiting < previous {
            previous
        } else if ema < self.ema {
            match () {
                () if decades(size) < decades(self.mean_size) => previous + SLOTS_STEP,
                () if decades(ema) < decades(self.ema) => less,
                () => previous,
            }
        } else {
            previous + SLOTS_STEP
        };
        let decision = decision.clamp(SLOTS_MIN, SLOTS_MAX);
        let many = decision > previous && decision > (waiting + active) * STREAMS_MAX;
        Some(if many { previous } else { decision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(optimizer: &mut Optimizer, number: i64, bytes: u64, failed: u32, waiting: u32) -> u32 {
        if bytes > 0 {
            optimizer.record_bytes(bytes);
            optimizer.record_file(bytes, Duration::from_secs(20));
        }
        (0..failed).for_each(|_| optimizer.record_failure());
        optimizer.decide(10, waiting, Timestamp::from_seconds(60 * number));
        optimizer.slots()
    }

    #[test]
    fn starts_halfway_climbs_by_two_and_falls_with_errors() {
        let mut link = Optimizer::default();
        assert_eq!(link.slots(), SLOTS_INITIAL);
        assert_eq!(minute(&mut link, 1, 1_000_000, 0, 500), 66, "halfway of the range");
        assert_eq!(minute(&mut link, 2, 2_000_000, 0, 500), 68, "more than before");
        assert_eq!(minute(&mut link, 3, 4_000_000, 0, 10), 68, "the queue empties: hold on");
        assert_eq!(minute(&mut link, 4, 1_000_000, 50, 500), 67, "too many fail");
    }

    #[test]
    fn stays_within_its_range_and_waits_where_nothing_changes() {
        let mut link = Optimizer::default();
        for number in 1..200 {
            minute(&mut link, number, 1_000_000 * number as u64, 0, 10_000);
        }
        assert_eq!(link.slots(), SLOTS_MAX);
        let mut still = Optimizer::default();
        assert_eq!(minute(&mut still, 1, 0, 0, 100), 66);
        assert_eq!(minute(&mut still, 2, 0, 0, 100), 66);
    }
}
