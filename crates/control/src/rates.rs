//! Goodput over time: what was verified and written, in bins of a second, ten seconds and five minutes. Pure.

use std::collections::VecDeque;

use longhaul_model::Timestamp;

/// `(seconds of a bin, bins kept)`: a quarter of an hour, an hour, a day; 13 kB per link.
const RINGS: [(i64, usize); 3] = [(1, 900), (10, 360), (300, 288)];
/// What "now" means for a rate.
pub const NOW_S: i64 = 10;

/// Bytes in consecutive bins of `step_s`, at most `bins` of them.
#[derive(Clone, Debug)]
struct Ring {
    step_s: i64,
    capacity: usize,
    /// Index of the bin at the back: seconds since the epoch over `step_s`.
    newest: i64,
    bins: VecDeque<u64>,
}

impl Ring {
    fn new(step_s: i64, capacity: usize) -> Self {
        Ring { step_s, capacity, newest: i64::MIN, bins: VecDeque::new() }
    }

    fn advance(&mut self, now: Timestamp) {
        let bin = now.0.div_euclid(1_000_000).div_euclid(self.step_s);
        if self.newest == i64::MIN || bin - self.newest.min(bin) > self.capacity as i64 {
            self.bins.clear();
            self.bins.push_back(0);
            self.newest = bin;
        }
        while self.newest < bin {
            self.newest += 1;
            self.bins.push_back(0);
            if self.bins.len() > self.capacity {
                self.bins.pop_front();
            }
        }
    }

    fn add(&mut self, bytes: u64, now: Timestamp) {
        self.advance(now);
        if let Some(bin) = self.bins.back_mut() {
            *bin = bin.saturating_add(bytes);
        }
    }

    /// Bytes per second, oldest first; the bin under way is left out.
    fn rates(&self, now: Timestamp, bins: usize) -> Vec<f64> {
        let mut ring = self.clone();
        ring.advance(now);
        let complete = ring.bins.len().saturating_sub(1);
        let skip = complete.saturating_sub(bins);
        ring.bins.iter().take(complete).skip(skip).map(|&bytes| bytes as f64 / self.step_s as f64).collect()
    }

    fn rate_now(&self, now: Timestamp) -> f64 {
        let mut ring = self.clone();
        ring.advance(now);
        let rates = ring.rates(now, NOW_S as usize);
        if rates.is_empty() {
            // All that there is came in this second.
            return ring.bins.back().map_or(0.0, |&bytes| bytes as f64);
        }
        rates.iter().sum::<f64>() / rates.len() as f64
    }
}

/// Goodput of a subscription, of which there may be many.
#[derive(Clone, Debug)]
pub struct Meter {
    seconds: Ring,
}

impl Default for Meter {
    fn default() -> Self {
        Meter { seconds: Ring::new(1, NOW_S as usize + 2) }
    }
}

impl Meter {
    pub fn add(&mut self, bytes: u64, now: Timestamp) {
        self.seconds.add(bytes, now);
    }

    /// Bytes per second over the last [`NOW_S`] seconds, or since the first byte if that is later.
    pub fn rate_now(&self, now: Timestamp) -> f64 {
        self.seconds.rate_now(now)
    }

    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.rate_now(now) == 0.0
    }
}

/// The plot of a link, or of the whole deployment.
#[derive(Clone, Debug)]
pub struct History {
    rings: [Ring; RINGS.len()],
}

impl Default for History {
    fn default() -> Self {
        History { rings: RINGS.map(|(step_s, bins)| Ring::new(step_s, bins + 1)) }
    }
}

impl History {
    pub fn add(&mut self, bytes: u64, now: Timestamp) {
        for ring in &mut self.rings {
            ring.add(bytes, now);
        }
    }

    /// The last `seconds` in the finest bins that reach so far: `(seconds of a bin, bytes per second)`.
    /// Padded with zeros in front, so that plots of several links fit each other.
    pub fn over(&self, seconds: u32, now: Timestamp) -> (u32, Vec<f64>) {
        let reaches = |(step_s, bins): &(i64, usize)| i64::from(seconds) <= step_s * *bins as i64;
        let place = RINGS.iter().position(reaches).unwrap_or(RINGS.len() - 1);
        let (step_s, bins) = RINGS[place];
        let wanted = (i64::from(seconds).div_euclid(step_s).max(1) as usize).min(bins);
        let known = self.rings[place].rates(now, wanted);
        let mut rates = vec![0.0; wanted - known.len()];
        rates.extend(known);
        (step_s as u32, rates)
    }

    /// Bytes per second over the last [`NOW_S`] seconds, or since the first byte if that is later.
    pub fn rate_now(&self, now: Timestamp) -> f64 {
        self.rings[0].rate_now(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_700_000_000 + seconds)
    }

    #[test]
    fn the_rate_is_of_the_last_ten_seconds() {
        let mut meter = Meter::default();
        assert_eq!(meter.rate_now(at(0)), 0.0);
        for second in 0..20 {
            meter.add(100, at(second));
        }
        assert_eq!(meter.rate_now(at(20)), 100.0);
        assert_eq!(meter.rate_now(at(25)), 50.0);
        assert!(meter.is_idle(at(60)));
    }

    #[test]
    fn a_young_meter_does_not_divide_by_ten() {
        let mut meter = Meter::default();
        meter.add(100, at(0));
        assert_eq!(meter.rate_now(at(0)), 100.0);
        meter.add(100, at(1));
        assert_eq!(meter.rate_now(at(2)), 100.0);
    }

    #[test]
    fn history_has_gaps_where_nothing_moved_and_survives_clock_jumps() {
        let mut history = History::default();
        history.add(10, at(0));
        history.add(30, at(2));
        assert_eq!(history.over(4, at(3)), (1, vec![0.0, 10.0, 0.0, 30.0]));
        history.add(5, at(-3_600));
        assert_eq!(history.over(3, at(3)), (1, vec![10.0, 0.0, 35.0]));
        assert_eq!(history.over(60, at(1_000_000)), (1, vec![0.0; 60]));
        assert_eq!(history.over(86_400, at(10)).0, 300);
        assert_eq!(history.over(u32::MAX, at(10)).1.len(), 288);
    }
}
