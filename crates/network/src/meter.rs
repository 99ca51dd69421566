//! Measures what arrives while there is work: the goodput of a link, or of everything into or out of a storage.

use std::time::Duration;

use longhaul_model::Timestamp;

/// Shorter windows show the grouping of reports rather than the rate.
const WINDOW: Duration = Duration::from_millis(250);
/// Arrivals closer than this are one report, which belongs into one window.
const REPORT: Duration = Duration::from_millis(5);
/// A window with less than this tells about start-up costs rather than about the link, unless it was long.
const TELLING_BYTES: u64 = 1_000_000;
const TELLING_FILES: u32 = 20;
const TELLING_TIME: Duration = Duration::from_secs(5);
const UNTELLING_WEIGHT: f64 = 0.05;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Meter {
    /// Attempts that have work for it now.
    active: u32,
    /// Up to when `busy` is counted.
    counted: Timestamp,
    busy: Duration,
    /// The part of `busy` up to the last arrival, and when that was.
    busy_arrived: Duration,
    arrived: Timestamp,
    bytes: u64,
    files: u32,
}

/// What one window showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
    /// Seconds of observation it is worth.
    pub weight: f64,
}

impl Meter {
    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    pub(crate) fn began(&mut self, now: Timestamp) {
        self.count(now);
        self.active = self.active.saturating_add(1);
    }

    pub(crate) fn ended(&mut self, now: Timestamp) {
        self.count(now);
        self.active = self.active.saturating_sub(1);
    }

    /// Bytes and files arrived. A window ends only with the first report after it: silence may just mean that no
    /// report came, and the parts of one report must not fall into two windows.
    pub(crate) fn arrived(&mut self, bytes: u64, files: u32, now: Timestamp) -> Option<Sample> {
        self.count(now);
        let sample = (self.busy_arrived >= WINDOW && now.since(self.arrived) > REPORT).then(|| self.close());
        self.bytes = self.bytes.saturating_add(bytes);
        self.files = self.files.saturating_add(files);
        self.busy_arrived = self.busy;
        self.arrived = now;
        sample
    }

    fn close(&mut self) -> Sample {
        let seconds = self.busy_arrived.as_secs_f64();
        let telling =
            self.bytes >= TELLING_BYTES || self.files >= TELLING_FILES || self.busy_arrived >= TELLING_TIME;
        let sample = Sample {
            bytes_per_s: self.bytes as f64 / seconds,
            files_per_s: f64::from(self.files) / seconds,
            weight: if telling { seconds } else { seconds.min(1.0) * UNTELLING_WEIGHT },
        };
        self.busy = self.busy.saturating_sub(self.busy_arrived);
        self.bytes = 0;
        self.files = 0;
        sample
    }

    fn count(&mut self, now: Timestamp) {
        if self.active > 0 {
            self.busy = self.busy.saturating_add(now.since(self.counted));
        }
        self.counted = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + ms * 1_000)
    }

    #[test]
    fn parallel_small_files_and_one_large_one_measure_the_same() {
        let mut many = Meter::default();
        (0..100).for_each(|_| many.began(at(0)));
        let mut one = Meter::default();
        one.began(at(0));
        let mut sample = None;
        for step in 1..=100 {
            sample = many.arrived(1_000_000, 1, at(10 * step)).or(sample);
            many.ended(at(10 * step));
        }
        one.arrived(100_000_000, 1, at(1_000));
        let whole = one.arrived(0, 0, at(1_010)).unwrap();
        assert!((whole.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
        assert!((sample.unwrap().bytes_per_s / 100e6 - 1.0).abs() < 0.05);
    }

    #[test]
    fn the_parts_of_one_report_are_one_sample() {
        let mut meter = Meter::default();
        (0..60).for_each(|_| meter.began(at(0)));
        (0..30).for_each(|_| assert!(meter.arrived(1_000_000, 1, at(300)).is_none()));
        let sample = meter.arrived(1_000_000, 1, at(600)).unwrap();
        assert!((sample.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut meter = Meter::default();
        meter.began(at(0));
        assert!(meter.arrived(10_000_000, 1, at(100)).is_none());
        meter.ended(at(100));
        meter.began(at(100_000));
        meter.arrived(20_000_000, 1, at(100_200));
        let sample = meter.arrived(0, 0, at(100_210)).unwrap();
        assert!((sample.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn one_small_file_says_little_and_a_clock_that_goes_back_nothing() {
        let mut meter = Meter::default();
        meter.began(at(0));
        meter.arrived(1_000, 1, at(400));
        assert!(meter.arrived(1_000, 1, at(500)).unwrap().weight < 0.1);
        assert!(meter.arrived(1_000, 1, at(-5_000)).is_none());
    }
}
