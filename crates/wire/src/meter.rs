//! The rate of one stream over the last seconds.

use std::time::Duration;

const BUCKET: Duration = Duration::from_millis(500);
const BUCKETS: usize = 10;
/// How far back the rate looks.
pub const WINDOW: Duration = Duration::from_secs(5);

const _: () = assert!(BUCKET.as_millis() as usize * BUCKETS == WINDOW.as_millis() as usize);

#[derive(Clone, Copy, Debug)]
pub struct Meter {
    since: Duration,
    /// The newest bucket, counted from the beginning of time.
    newest: u64,
    bytes: [u64; BUCKETS],
}

fn bucket(now: Duration) -> u64 {
    (now.as_millis() / BUCKET.as_millis()) as u64
}

impl Meter {
    pub fn new(now: Duration) -> Self {
        Meter { since: now, newest: bucket(now), bytes: [0; BUCKETS] }
    }

    pub fn add(&mut self, bytes: u64, now: Duration) {
        self.roll(now);
        self.bytes[(self.newest % BUCKETS as u64) as usize] += bytes;
    }

    /// Bytes per second, over the window or since the beginning if that is later.
    pub fn rate(&mut self, now: Duration) -> f64 {
        self.roll(now);
        let seconds = now.saturating_sub(self.since).clamp(BUCKET, WINDOW).as_secs_f64();
        self.bytes.iter().sum::<u64>() as f64 / seconds
    }

    fn roll(&mut self, now: Duration) {
        let newest = bucket(now).max(self.newest);
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
    fn looks_back_so_far_and_no_farther() {
        let at = Duration::from_millis;
        let mut meter = Meter::new(at(10_000));
        (0..20).for_each(|step| meter.add(100, at(10_000 + step * 100)));
        assert_eq!(meter.rate(at(12_000)).round(), 1_000.0);
        (20..100).for_each(|step| meter.add(200, at(10_000 + step * 100)));
        let rate = meter.rate(at(19_999));
        assert!((1_900.0..=2_000.0).contains(&rate), "{rate}");
        assert!(meter.rate(at(23_000)) < 1_000.0);
        assert_eq!(meter.rate(at(60_000)), 0.0);
        // A clock that stands still or is a little behind harms nothing.
        meter.add(5, at(59_000));
        assert_eq!(meter.rate(at(60_000)), 1.0);
    }
}
