//! Round-robin archive of a link's rate, as in RRDtool: one day in five-minute bins, the two days before in
//! hours, two bytes per bin.

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Length of a fine bin: five minutes, the interval at which routers are usually polled.
pub(crate) const BIN_S: i64 = 300;
/// Fine bins kept: one day.
const DAY_BINS: usize = 288;
/// Hourly bins kept: two days.
const HOUR_BINS: usize = 48;
/// Fine bins that one hourly bin consolidates.
const BINS_PER_HOUR: i64 = 12;
/// Steps of the busy share, stored in five bits.
const BUSY_STEPS: f64 = 31.0;
/// Steps of the logarithm of the rate, stored in eleven bits: 1.7 % per step.
const LOG_STEPS: f64 = 2_047.0;
/// Largest logarithm that can be stored: e³⁵ bytes per second is beyond any link.
const LOG_MAX: f64 = 35.0;

/// One bin of a link's history in which it had work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bin {
    pub from: Timestamp,
    pub seconds: u32,
    pub bytes_per_s: f64,
    /// Share of the time in which the link had work.
    pub busy: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RateHistory {
    /// Number of the bin being filled, counted from 1970.
    number: i64,
    sum: f32,
    weight: f32,
    /// Closed bins by number modulo their count; empty until the first one is closed.
    day: Box<[u16]>,
    hours: Box<[u16]>,
}

fn pack(mean: f64, share: f64) -> u16 {
    let share = (share * BUSY_STEPS).ceil().clamp(1.0, BUSY_STEPS) as u16;
    let log = (mean.clamp(0.0, LOG_MAX) / LOG_MAX * LOG_STEPS).round() as u16;
    share << 11 | log
}

fn unpack(bin: u16) -> Option<(f64, f64)> {
    let share = bin >> 11;
    let log = f64::from(bin & 0x7ff) / LOG_STEPS * LOG_MAX;
    (share > 0).then(|| (log, f64::from(share) / BUSY_STEPS))
}

impl RateHistory {
    /// Adds a measurement. Returns the mean of the bin that this closed, if that bin held more than 1 % of
    /// its time.
    pub(crate) fn add(&mut self, log: f64, seconds: f64, now: Timestamp) -> Option<f64> {
        let number = now.as_micros().div_euclid(BIN_S * 1_000_000);
        let closed = if number > self.number { self.close(number) } else { None };
        // A clock that was set back by more than a bin starts the archive anew.
        if number < self.number - 1 {
            *self = RateHistory { number, ..RateHistory::default() };
        }
        if log.is_finite() && seconds.is_finite() && seconds > 0.0 {
            let seconds = seconds.min(BIN_S as f64) as f32;
            self.sum += log as f32 * seconds;
            self.weight += seconds;
        }
        closed
    }

    fn close(&mut self, next: i64) -> Option<f64> {
        let mean = (self.weight > 0.0).then(|| f64::from(self.sum / self.weight));
        let share = f64::from(self.weight) / BIN_S as f64;
        if let Some(mean) = mean {
            if self.day.is_empty() {
                self.day = vec![0; DAY_BINS].into_boxed_slice();
            }
            self.store(self.number, pack(mean, share.min(1.0)));
        }
        // The bins in between had no work; more than a day of them need not be cleared.
        for empty in (self.number + 1..next).take(DAY_BINS) {
            self.store(empty, 0);
        }
        (self.number, self.sum, self.weight) = (next, 0.0, 0.0);
        mean.filter(|_| share > 0.01)
    }

    /// Stores a bin and consolidates the one of a day ago, whose slot it takes, into its hour.
    fn store(&mut self, number: i64, bin: u16) {
        let Some(slot) = self.day.get_mut(number.rem_euclid(DAY_BINS as i64) as usize) else { return };
        let old = std::mem::replace(slot, bin);
        let Some((log, share)) = unpack(old) else { return };
        let hour = (number - DAY_BINS as i64).div_euclid(BINS_PER_HOUR);
        if self.hours.is_empty() {
            self.hours = vec![0; HOUR_BINS].into_boxed_slice();
        }
        let first = (number - DAY_BINS as i64).rem_euclid(BINS_PER_HOUR) == 0;
        if let Some(slot) = self.hours.get_mut(hour.rem_euclid(HOUR_BINS as i64) as usize) {
            let (known, weight) = unpack(*slot).filter(|_| !first).unwrap_or((0.0, 0.0));
            let more = share / BINS_PER_HOUR as f64;
            *slot = pack((known * weight + log * more) / (weight + more), weight + more);
        }
    }

    /// All closed bins, oldest first.
    pub(crate) fn list(&self) -> Vec<Bin> {
        let bin = |number: i64, seconds: i64, value: u16| {
            let (log, busy) = unpack(value)?;
            let from = Timestamp::from_seconds(number.saturating_mul(seconds));
            Some(Bin { from, seconds: seconds as u32, bytes_per_s: log.exp(), busy })
        };
        let day_begins = self.number - DAY_BINS as i64;
        let hour_ends = day_begins.div_euclid(BINS_PER_HOUR);
        let hours = (hour_ends - HOUR_BINS as i64 + 1..=hour_ends).filter_map(|hour| {
            let value = *self.hours.get(hour.rem_euclid(HOUR_BINS as i64) as usize)?;
            bin(hour, BIN_S * BINS_PER_HOUR, value)
        });
        let day = (day_begins..self.number).filter_map(|number| {
            let value = *self.day.get(number.rem_euclid(DAY_BINS as i64) as usize)?;
            bin(number, BIN_S, value)
        });
        hours.chain(day).collect()
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.day.len() + self.hours.len()) * size_of::<u16>()
    }

    /// Makes deserialised numbers valid.
    pub(crate) fn sanitized(self) -> Self {
        let sized = |list: &[u16], full: usize| list.is_empty() || list.len() == full;
        let numbers = self.sum.is_finite() && self.weight.is_finite() && self.weight >= 0.0;
        // Far from the ends of the range of timestamps.
        let sane = (0..1 << 40).contains(&self.number);
        if numbers && sane && sized(&self.day, DAY_BINS) && sized(&self.hours, HOUR_BINS) {
            self
        } else {
            RateHistory::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    #[test]
    fn a_day_is_in_bins_and_older_history_in_hours() {
        let mut bins = RateHistory::default();
        for bin in 0..4 * DAY_BINS as i64 {
            let rate: f64 = if bin < 2 * DAY_BINS as i64 { 10e6 } else { 100e6 };
            bins.add(rate.ln(), 150.0, at(bin * BIN_S));
        }
        let list = bins.list();
        assert_eq!(list.iter().filter(|bin| bin.seconds == 300).count(), DAY_BINS);
        assert!(
            (46..=48).contains(&list.iter().filter(|bin| bin.seconds == 3_600).count()),
            "{}",
            list.len()
        );
        assert!((list[3].bytes_per_s / 10e6 - 1.0).abs() < 0.02, "{:?}", list[3]);
        assert!((list[list.len() - 1].bytes_per_s / 100e6 - 1.0).abs() < 0.02);
        assert!((list[list.len() - 1].busy - 0.5).abs() < 0.04);
        assert!(list.windows(2).all(|pair| pair[0].from < pair[1].from));
        assert_eq!(bins.heap_bytes(), 672);
    }

    #[test]
    fn a_long_pause_empties_the_day() {
        let mut bins = RateHistory::default();
        bins.add(10.0, 100.0, at(0));
        bins.add(11.0, 100.0, at(300));
        bins.add(11.0, 100.0, at(90 * 86_400));
        bins.add(11.0, 100.0, at(90 * 86_400 + 300));
        assert_eq!(bins.list().iter().filter(|bin| bin.seconds == 300).count(), 1);
    }

    proptest! {
        #[test]
        fn no_clock_breaks_it(steps in proptest::collection::vec((any::<f64>(), any::<f64>(), any::<i64>()),
            0..40)) {
            let mut bins = RateHistory::default();
            for (log, seconds, now) in steps {
                bins.add(log, seconds, Timestamp(now));
                prop_assert!(bins.list().iter().all(|bin| bin.bytes_per_s.is_finite() && bin.busy <= 1.0));
            }
        }
    }
}
