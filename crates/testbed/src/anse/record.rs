//! What the paths carried, over time.

use std::time::{Duration, Instant};

use serde::Serialize;

/// What came since the beginning, in bytes of IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    pub at_s: f64,
    /// Ours, on the shared path.
    pub shared: u64,
    /// Our bytes on the circuit.
    pub circuit: u64,
    /// Bytes of background traffic on the shared path.
    pub background: u64,
}

impl Sample {
    pub fn ours(&self) -> u64 {
        self.shared + self.circuit
    }
}

#[derive(Clone, Debug)]
pub struct Record {
    begun: Instant,
    pub samples: Vec<Sample>,
}

impl Default for Record {
    fn default() -> Self {
        Record { begun: Instant::now(), samples: vec![Sample::default()] }
    }
}

impl Record {
    pub fn now_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub fn last(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }

    /// When the next look is due, for looks at a steady pace.
    pub fn until_next(&self, every: Duration) -> Duration {
        every.saturating_mul(self.samples.len() as u32).saturating_sub(self.begun.elapsed())
    }

    /// What was counted at any time: between two looks it came evenly.
    fn at(&self, at_s: f64, count: impl Fn(&Sample) -> u64) -> f64 {
        let after = self.samples.partition_point(|sample| sample.at_s < at_s);
        let Some(next) = self.samples.get(after) else { return count(&self.last()) as f64 };
        let before = self.samples[after.saturating_sub(1)];
        let span = next.at_s - before.at_s;
        let part = if span > 0.0 { (at_s - before.at_s) / span } else { 1.0 };
        let (low, high) = (count(&before) as f64, count(next) as f64);
        low + (high - low) * part.clamp(0.0, 1.0)
    }

    /// Mbit/s between two times.
    pub fn rate(&self, from_s: f64, to_s: f64, count: impl Fn(&Sample) -> u64) -> f64 {
        let bytes = self.at(to_s, &count) - self.at(from_s, &count);
        if to_s > from_s { bytes * 8e-6 / (to_s - from_s) } else { 0.0 }
    }

    /// The longest time in which less than that of ours came, between two times, as far as looks can tell.
    pub fn longest_pause_s(&self, from_s: f64, to_s: f64, least_mbit: f64) -> f64 {
        let (mut longest, mut pause) = (0.0_f64, 0.0);
        for pair in self.samples.windows(2).filter(|pair| pair[0].at_s >= from_s && pair[1].at_s <= to_s) {
            let is_pause = self.rate(pair[0].at_s, pair[1].at_s, Sample::ours) < least_mbit;
            pause = if is_pause { pause + pair[1].at_s - pair[0].at_s } else { 0.0 };
            longest = longest.max(pause);
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(shared: &[u64]) -> Record {
        let sample =
            |(at, shared): (usize, &u64)| Sample { at_s: at as f64, shared: *shared, ..Sample::default() };
        Record { samples: shared.iter().enumerate().map(sample).collect(), ..Record::default() }
    }

    #[test]
    fn rates_are_those_between_any_two_times() {
        let record = record(&[0, 1_000_000, 3_000_000, 3_000_000]);
        assert_eq!(record.rate(0.0, 1.0, Sample::ours), 8.0);
        assert_eq!(record.rate(0.5, 1.5, Sample::ours), 12.0);
        assert_eq!(record.rate(2.0, 9.0, Sample::ours), 0.0);
        assert_eq!(record.rate(1.0, 1.0, Sample::ours), 0.0);
    }

    #[test]
    fn pauses_are_found() {
        let record = record(&[0, 5_000_000, 5_000_000, 5_000_100, 10_000_000, 10_000_000]);
        assert_eq!(record.longest_pause_s(0.0, 5.0, 1.0), 2.0);
        assert_eq!(record.longest_pause_s(3.0, 5.0, 1.0), 1.0);
    }
}
