//! A simulated network: messages in one queue, each with a latency by the seed.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bounds of a message's latency.
const LATENCY_MS_MIN: u64 = 5;
const LATENCY_MS_MAX: u64 = 60;

/// Messages on their way, by the time of their arrival.
pub struct Network<M> {
    random: u64,
    sent: u64,
    messages: BTreeMap<(Duration, u64), M>,
}

impl<M> Network<M> {
    pub fn new(seed: u64) -> Network<M> {
        Network { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, sent: 0, messages: BTreeMap::new() }
    }

    pub fn send(&mut self, now: Duration, message: M) {
        self.sent += 1;
        let latency = LATENCY_MS_MIN + self.draw() % (LATENCY_MS_MAX - LATENCY_MS_MIN);
        self.messages.insert((now + Duration::from_millis(latency), self.sent), message);
    }

    pub fn next_arrival(&self) -> Option<Duration> {
        self.messages.keys().next().map(|(time, _)| *time)
    }

    /// The next message that has arrived by `now`.
    pub fn receive(&mut self, now: Duration) -> Option<M> {
        let entry = self.messages.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// xorshift64 (Marsaglia 2003).
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
