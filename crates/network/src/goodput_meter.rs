//! Goodput of a link, or of one direction of a storage, while it has work (busy-time average).

use std::time::Duration;

use longhaul_model::Timestamp;

/// Shorter windows show how reports are grouped rather than the rate.
const WINDOW_MIN: Duration = Duration::from_millis(250);
/// Arrivals closer than this belong to one report, and so to one window.
const REPORT_GAP_MAX: Duration = Duration::from_millis(5);
/// A window with fewer bytes is not informative: it shows start-up cost rather than the link.
const INFORMATIVE_BYTES_MIN: u64 = 1_000_000;
/// A window with so many files is informative even with few bytes.
const INFORMATIVE_FILES_MIN: u32 = 20;
/// A window of this length is informative whatever came.
const INFORMATIVE_TIME_MIN: Duration = Duration::from_secs(5);
/// Weight of a window that is not informative, per second.
const UNINFORMATIVE_WEIGHT: f64 = 0.05;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GoodputMeter {
    /// Attempts under way.
    active: u32,
    /// Time up to which `busy` is counted.
    counted: Timestamp,
    busy: BusyMicros,
    /// Part of `busy` up to the last arrival, in seconds.
    busy_arrived: f32,
    arrived: Timestamp,
    bytes: u64,
    /// Sum of the squared bytes of each report.
    squares: f32,
    report: f32,
    files: u32,
    /// Attempts times seconds, over `busy`.
    load: f32,
}

/// Microseconds, in half the size of a [`Duration`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct BusyMicros(u64);

impl BusyMicros {
    fn add(&mut self, more: Duration) {
        self.0 = self.0.saturating_add(u64::try_from(more.as_micros()).unwrap_or(u64::MAX));
    }

    fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// Measurement of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
    /// Sum of the squared bytes of each report.
    pub squares: f64,
    /// Mean number of attempts under way.
    pub files: f64,
    pub seconds: f64,
    /// Whether it shows the rate: it has many bytes or files, or is long.
    pub informative: bool,
    /// Seconds of observation that it is worth.
    pub weight: f64,
}

impl GoodputMeter {
    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// The attempts under way, as if they had begun now.
    pub(crate) fn restarted(&self, now: Timestamp) -> GoodputMeter {
        GoodputMeter { active: self.active, counted: now, ..GoodputMeter::default() }
    }

    /// Drops what came since the last window.
    pub(crate) fn forget_window(&mut self) {
        *self = self.restarted(self.counted);
    }

    pub(crate) fn attempt_began(&mut self, now: Timestamp) {
        self.count_busy_time(now);
        self.active = self.active.saturating_add(1);
    }

    pub(crate) fn attempt_ended(&mut self, now: Timestamp) {
        self.count_busy_time(now);
        self.active = self.active.saturating_sub(1);
    }

    /// Records bytes and files that arrived. A window closes only with the first report after it: silence may
    /// just mean that no report came, and one report must not be split over two windows.
    pub(crate) fn record_arrival(&mut self, bytes: u64, files: u32, now: Timestamp) -> Option<Sample> {
        self.count_busy_time(now);
        let sample = (self.busy_arrived >= WINDOW_MIN.as_secs_f32()
            && now.since(self.arrived) > REPORT_GAP_MAX)
            .then(|| self.close());
        self.bytes = self.bytes.saturating_add(bytes);
        let more = bytes as f32;
        // Arrivals of one report were under way together.
        let before = if now.since(self.arrived) > REPORT_GAP_MAX { 0.0 } else { self.report };
        self.squares += more * (more + 2.0 * before);
        self.report = before + more;
        self.files = self.files.saturating_add(files);
        self.busy_arrived = self.busy.as_secs_f64() as f32;
        self.arrived = now;
        sample
    }

    /// Drops the time since the last arrival from the rate.
    pub(crate) fn discard_silence(&mut self, now: Timestamp) {
        self.count_busy_time(now);
        let arrived = BusyMicros((f64::from(self.busy_arrived) * 1e6) as u64);
        if arrived.0 < self.busy.0 {
            self.load *= (arrived.as_secs_f64() / self.busy.as_secs_f64()) as f32;
            self.busy = arrived;
        }
    }

    fn close(&mut self) -> Sample {
        let seconds = f64::from(self.busy_arrived);
        let telling = self.bytes >= INFORMATIVE_BYTES_MIN
            || self.files >= INFORMATIVE_FILES_MIN
            || self.busy_arrived >= INFORMATIVE_TIME_MIN.as_secs_f32();
        let sample = Sample {
            bytes_per_s: self.bytes as f64 / seconds,
            files_per_s: f64::from(self.files) / seconds,
            squares: f64::from(self.squares),
            files: f64::from(self.load) / self.busy.as_secs_f64().max(seconds),
            seconds,
            informative: telling,
            weight: if telling { seconds } else { seconds.min(1.0) * UNINFORMATIVE_WEIGHT },
        };
        let left = BusyMicros(self.busy.0.saturating_sub((seconds * 1e6) as u64));
        self.load *= (left.as_secs_f64() / self.busy.as_secs_f64().max(seconds)) as f32;
        self.busy = left;
        self.bytes = 0;
        (self.squares, self.report) = (0.0, 0.0);
        self.files = 0;
        sample
    }

    fn count_busy_time(&mut self, now: Timestamp) {
        if self.active > 0 {
            let passed = now.since(self.counted);
            self.busy.add(passed);
            self.load += self.active as f32 * passed.as_secs_f32();
        }
        self.counted = now;
    }
}

/// Bytes through both ends of a link while it had work, in wrapping units of 64 KiB: distinguishes a slow
/// link from one whose ends were busy with others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EndpointCounters {
    mark: [u32; 2],
    moved: [u32; 2],
    /// Part of `moved` up to the last arrival.
    arrived: [u32; 2],
}

impl EndpointCounters {
    const UNIT: u64 = 65_536;

    /// Called at every event of the link with the total bytes of its ends and whether the link had work.
    pub(crate) fn count(&mut self, moved: [u64; 2], active: bool) {
        let now = moved.map(|moved| (moved / Self::UNIT) as u32);
        if active {
            for (sum, (now, mark)) in self.moved.iter_mut().zip(now.into_iter().zip(self.mark)) {
                *sum = sum.wrapping_add(now.wrapping_sub(mark));
            }
        }
        self.mark = now;
    }

    /// Bytes of each end in the window that ends with the last arrival; starts the next window there.
    pub(crate) fn close(&mut self) -> [f64; 2] {
        let bytes = self.arrived.map(|units| f64::from(units) * Self::UNIT as f64);
        for (moved, arrived) in self.moved.iter_mut().zip(self.arrived) {
            *moved = moved.wrapping_sub(arrived);
        }
        bytes
    }

    pub(crate) fn mark_arrival(&mut self) {
        self.arrived = self.moved;
    }

    /// Drops what the ends moved since the last arrival.
    pub(crate) fn discard_silence(&mut self) {
        self.moved = self.arrived;
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
        let mut many = GoodputMeter::default();
        (0..100).for_each(|_| many.attempt_began(at(0)));
        let mut one = GoodputMeter::default();
        one.attempt_began(at(0));
        let mut sample = None;
        for step in 1..=100 {
            sample = many.record_arrival(1_000_000, 1, at(10 * step)).or(sample);
            many.attempt_ended(at(10 * step));
        }
        one.record_arrival(100_000_000, 1, at(1_000));
        let whole = one.record_arrival(0, 0, at(1_010)).unwrap();
        assert!((whole.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
        assert!((sample.unwrap().bytes_per_s / 100e6 - 1.0).abs() < 0.05);
    }

    #[test]
    fn the_parts_of_one_report_are_one_sample() {
        let mut meter = GoodputMeter::default();
        (0..60).for_each(|_| meter.attempt_began(at(0)));
        (0..30).for_each(|_| assert!(meter.record_arrival(1_000_000, 1, at(300)).is_none()));
        let sample = meter.record_arrival(1_000_000, 1, at(600)).unwrap();
        assert!((sample.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut meter = GoodputMeter::default();
        meter.attempt_began(at(0));
        assert!(meter.record_arrival(10_000_000, 1, at(100)).is_none());
        meter.attempt_ended(at(100));
        meter.attempt_began(at(100_000));
        meter.record_arrival(20_000_000, 1, at(100_200));
        let sample = meter.record_arrival(0, 0, at(100_210)).unwrap();
        assert!((sample.bytes_per_s / 100e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn discarded_silence_counts_in_no_window() {
        let mut meter = GoodputMeter::default();
        meter.attempt_began(at(0));
        assert!(meter.record_arrival(100_000_000, 0, at(1_000)).is_none());
        meter.discard_silence(at(11_000));
        meter.record_arrival(100_000_000, 0, at(12_000));
        let sample = meter.record_arrival(0, 0, at(12_010)).unwrap();
        assert!((sample.bytes_per_s / 100e6 - 1.0).abs() < 0.01, "{sample:?}");
        assert!((sample.files - 1.0).abs() < 0.01, "{sample:?}");
    }

    #[test]
    fn a_small_file_weighs_little_and_a_clock_step_back_nothing() {
        let mut meter = GoodputMeter::default();
        meter.attempt_began(at(0));
        meter.record_arrival(1_000, 1, at(400));
        assert!(meter.record_arrival(1_000, 1, at(500)).unwrap().weight < 0.1);
        assert!(meter.record_arrival(1_000, 1, at(-5_000)).is_none());
    }
}
