//! What a pool has to do, and how fast it does it.

use std::time::Duration;

use parking_lot::Mutex;

/// Time of work after which the rate is measured anew: long enough to have flushes in it.
const SAMPLE_BUSY_TIME: Duration = Duration::from_millis(500);
/// Weight of a new sample in the exponentially weighted mean of the rate.
const SAMPLE_WEIGHT: f64 = 0.3;

/// Writes and flushes of one pool.
#[derive(Default)]
pub(super) struct PoolLoad(Mutex<Load>);

#[derive(Default)]
struct Load {
    /// Promised to files that are being written, and not yet written.
    waiting_bytes: u64,
    /// Writes and flushes under way.
    running: usize,
    busy_since: Duration,
    busy_time: Duration,
    /// Written in the busy time.
    bytes: u64,
    bytes_per_s: Option<f64>,
}

impl PoolLoad {
    pub(super) fn promise(&self, bytes: u64) {
        let mut load = self.0.lock();
        load.waiting_bytes = load.waiting_bytes.saturating_add(bytes);
    }

    /// A promise is fulfilled, or nothing becomes of it.
    pub(super) fn release(&self, bytes: u64) {
        let mut load = self.0.lock();
        load.waiting_bytes = load.waiting_bytes.saturating_sub(bytes);
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.0.lock().waiting_bytes
    }

    /// Bytes per second of the time in which the pool had something to do.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        self.0.lock().bytes_per_s
    }

    /// A write or a flush begins.
    pub(super) fn begin(&self, now: Duration) {
        let mut load = self.0.lock();
        if load.running == 0 {
            load.busy_since = now;
        }
        load.running += 1;
    }

    /// A write of so many bytes has ended; a flush has written none.
    pub(super) fn end(&self, bytes: u64, now: Duration) {
        let mut load = self.0.lock();
        load.running = load.running.saturating_sub(1);
        load.bytes = load.bytes.saturating_add(bytes);
        let busy_since = std::mem::replace(&mut load.busy_since, now);
        load.busy_time += now.saturating_sub(busy_since);
        if load.busy_time < SAMPLE_BUSY_TIME {
            return;
        }
        let sample = load.bytes as f64 / load.busy_time.as_secs_f64();
        let before = load.bytes_per_s.unwrap_or(sample);
        load.bytes_per_s = Some(before + SAMPLE_WEIGHT * (sample - before));
        (load.bytes, load.busy_time) = (0, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_time_with_something_to_do() {
        let (load, ms) = (PoolLoad::default(), Duration::from_millis);
        load.begin(ms(1_000));
        // Two at a time are not twice as fast.
        load.begin(ms(1_100));
        load.end(20_000_000, ms(1_300));
        load.end(20_000_000, ms(1_400));
        assert_eq!(load.bytes_per_s(), None, "too short");
        load.begin(ms(9_000));
        load.end(0, ms(9_100));
        assert_eq!(load.bytes_per_s(), Some(80e6), "40 MB in half a second");
        load.begin(ms(20_000));
        load.end(40_000_000, ms(21_000));
        assert_eq!(load.bytes_per_s(), Some(68e6), "three tenths of the way to 40 MB/s");
    }

    #[test]
    fn what_is_promised_waits_until_it_is_released() {
        let load = PoolLoad::default();
        load.promise(10);
        load.promise(u64::MAX);
        load.release(5);
        assert_eq!(load.waiting_bytes(), u64::MAX - 5);
        load.release(u64::MAX);
        assert_eq!(load.waiting_bytes(), 0);
    }
}
