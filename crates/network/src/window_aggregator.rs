//! Aggregates measurement windows of a link until their mean is representative.
//!
//! A file may be reported only when it is complete, so that a single window credits whole files of which it
//! saw a part, and nothing of others: with four files under way it is off by a factor of two and more.
//! Consecutive windows cancel these errors, since what one has too much another lacks.

use crate::goodput_meter::Sample;

/// Reports needed per square root of the files under way: enough that what is not reported yet is less than
/// half of what is.
const REPORTS_PER_SQRT_FILES: f32 = 2.5;
/// Offset of that rule: one report is enough for one file.
const REPORTS_OFFSET: f32 = 1.5;
/// Fewer bytes than this are not representative, unless the time is long enough.
const AGGREGATE_BYTES_MIN: f32 = 20e6;
/// Less time than this is not representative, unless the bytes are enough.
const AGGREGATE_S_MIN: f32 = 20.0;
/// After so many seconds the aggregate is complete, whatever came.
const AGGREGATE_S_MAX: f32 = 300.0;

/// The aggregate so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WindowAggregator {
    bytes: f32,
    /// Sum of the squared bytes of each report: many small reports beside a large one count as one (effective
    /// sample size, Kish, 1965).
    squares: f32,
    seconds: f32,
    /// Files times seconds.
    load: f32,
    /// Bytes through the source and into the target meanwhile.
    ends: [f32; 2],
}

/// Mean over an aggregate of windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AggregatedWindow {
    pub bytes_per_s: f64,
    /// Mean number of files under way.
    pub files: f64,
    pub ends_per_s: [f64; 2],
}

impl WindowAggregator {
    /// Adds a window; `ends` are the bytes of both ends meanwhile, `starts` the factor by which more would
    /// have come without the start-up of files. Returns the aggregate when it is complete.
    pub(crate) fn add(&mut self, sample: &Sample, starts: f64, ends: [f64; 2]) -> Option<AggregatedWindow> {
        let seconds = sample.seconds as f32;
        self.bytes += (sample.bytes_per_s * starts) as f32 * seconds;
        self.squares += sample.squares as f32;
        self.seconds += seconds;
        self.load += sample.files as f32 * seconds;
        for (sum, bytes) in self.ends.iter_mut().zip(ends) {
            *sum += bytes as f32;
        }
        if !self.is_complete() {
            return None;
        }
        let whole = std::mem::take(self);
        let per_s = |sum: f32| f64::from(sum / whole.seconds);
        Some(AggregatedWindow {
            bytes_per_s: per_s(whole.bytes),
            files: per_s(whole.load),
            ends_per_s: whole.ends.map(per_s),
        })
    }

    fn is_complete(&self) -> bool {
        if self.seconds <= 0.0 || !(self.bytes.is_finite() && self.squares.is_finite()) {
            return false;
        }
        let under_way = (self.load / self.seconds).max(1.0);
        let wanted = REPORTS_PER_SQRT_FILES * under_way.sqrt() - REPORTS_OFFSET;
        // A few small files show start-up cost rather than the link.
        let telling = self.bytes >= AGGREGATE_BYTES_MIN || self.seconds >= AGGREGATE_S_MIN;
        self.seconds >= AGGREGATE_S_MAX || telling && self.bytes * self.bytes >= wanted * self.squares * 0.999
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of a second with one report.
    fn window(bytes: f64, files: f64) -> Sample {
        Sample {
            bytes_per_s: bytes,
            files_per_s: 1.0,
            squares: bytes * bytes,
            files,
            seconds: 1.0,
            informative: true,
            weight: 1.0,
        }
    }

    fn windows(bytes: f64, files: f64) -> usize {
        let mut gather = WindowAggregator::default();
        (1..).find(|_| gather.add(&window(bytes, files), 1.0, [0.0; 2]).is_some()).unwrap_or(0)
    }

    #[test]
    fn more_concurrent_files_need_more_reports() {
        assert_eq!([1.0, 4.0, 16.0, 64.0].map(|files| windows(1e9, files)), [1, 4, 9, 19]);
    }

    #[test]
    fn small_files_beside_a_large_one_do_not_complete_the_aggregate() {
        let mut gather = WindowAggregator::default();
        assert_eq!(gather.add(&window(1e9, 4.0), 1.0, [0.0; 2]), None);
        (0..10).for_each(|_| assert_eq!(gather.add(&window(1e6, 4.0), 1.0, [0.0; 2]), None));
        assert_eq!(windows(1e3, 1.0), AGGREGATE_S_MIN as usize, "little says something when it was long");
    }

    #[test]
    fn errors_of_single_windows_cancel_in_the_aggregate() {
        let mut gather = WindowAggregator::default();
        let rates = [3.6e9, 0.2e9, 0.1e9, 0.1e9].into_iter().cycle();
        let whole = rates.into_iter().find_map(|rate| gather.add(&window(rate, 1.0), 2.0, [5e9, 1e9]));
        assert_eq!(whole.map(|whole| whole.files), Some(1.0));
        assert!(whole.is_some_and(|whole| (whole.bytes_per_s / 7.2e9 - 1.0).abs() < 1e-3), "{whole:?}");
    }
}
