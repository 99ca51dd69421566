//! Sliding-window rate meter of one stream, in buckets of half a second.

use std::time::Duration;

/// Resolution of the window.
const BUCKET: Duration = Duration::from_millis(500);
/// Number of buckets in the window.
const BUCKETS: usize = 10;
/// Window over which the rate is averaged: long enough to smooth bursts, short enough to notice a stalled
/// path.
pub const RATE_WINDOW: Duration = Duration::from_secs(5);

const _: () = assert!(BUCKET.as_millis() as usize * BUCKETS == RATE_WINDOW.as_millis() as usize);

/// Counts bytes and yields their rate over the last [`RATE_WINDOW`].
#[derive(Clone, Copy, Debug)]
pub struct RateMeter {
    since: Duration,
    /// Index of the newest bucket, counted from time zero.
    newest: u64,
    bytes: [u64; BUCKETS],
}

fn bucket_index(now: Duration) -> u64 {
    (now.as_millis() / BUCKET.as_millis()) as u64
}

impl RateMeter {
    /// A meter that starts at `now`.
    pub fn new(now: Duration) -> Self {
        RateMeter { since: now, newest: bucket_index(now), bytes: [0; BUCKETS] }
    }

    /// Counts bytes that arrived at `now`.
    pub fn add(&mut self, bytes: u64, now: Duration) {
        self.expire_buckets(now);
        self.bytes[(self.newest % BUCKETS as u64) as usize] += bytes;
    }

    /// Bytes per second over the window, or since the start if that is more recent.
    pub fn rate(&mut self, now: Duration) -> f64 {
        self.expire_buckets(now);
        let seconds = now.saturating_sub(self.since).clamp(BUCKET, RATE_WINDOW).as_secs_f64();
        self.bytes.iter().sum::<u64>() as f64 / seconds
    }

    fn expire_buckets(&mut self, now: Duration) {
        let newest = bucket_index(now).max(self.newest);
        for passed in (self.newest + 1..=newest).rev().take(BUCKETS) {
            self.bytes[(passed % BUCKETS as u64) as usize] = 0;
        }
        self.newest = newest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_within_the_window_count() {
        let at = Duration::from_millis;
        let mut meter = RateMeter::new(at(10_000));
        (0..20).for_each(|step| meter.add(100, at(10_000 + step * 100)));
        assert_eq!(meter.rate(at(12_000)).round(), 1_000.0);
        (20..100).for_each(|step| meter.add(200, at(10_000 + step * 100)));
        let rate = meter.rate(at(19_999));
        assert!((1_900.0..=2_000.0).contains(&rate), "{rate}");
        assert!(meter.rate(at(23_000)) < 1_000.0);
        assert_eq!(meter.rate(at(60_000)), 0.0);
        // A clock that stands still or is slightly behind does no harm.
        meter.add(5, at(59_000));
        assert_eq!(meter.rate(at(60_000)), 1.0);
    }
}
