//! What a link has shown in the last seconds, as far as it belies what is believed of it. Beliefs follow
//! slowly, so that a bad minute does not spoil a good day; but what is given to a link that has just become
//! slow waits there.

use std::time::Duration;

use longhaul_model::Timestamp;

/// Shorter than this says nothing: some reports.
const WINDOW_MIN: Duration = Duration::from_secs(5);
/// If fewer pieces than this were to be expected, chance and the traffic of others could halve them; with 24
/// the route change of the scenario `taiwan` was told with more false ones beside it.
const EXPECTED_ARRIVALS_MIN: f64 = 60.0;
/// Only what is much less counts: links share ends, and take from each other.
const SLOW_RATE_SHARE: f64 = 0.5;
/// What nothing has come over is taken to give this part: not nothing, or nobody would ever try it again.
const RATE_FLOOR_SHARE: f64 = 0.01;
/// A link that had no more work is believed to be as slow for this long.
const SLOW_RATE_TTL: Duration = Duration::from_secs(60);
/// How much of the longest silence is remembered from one piece of news to the next.
const ARRIVAL_GAP_DECAY: f64 = 0.9;

/// What has come by then, and in how many pieces: reports and ends of files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalMark {
    pub at: Timestamp,
    pub bytes: f64,
    pub arrivals: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecentRate {
    /// Begin and middle of the time that is looked at.
    window: [ArrivalMark; 2],
    /// The last look with news, and how long that takes.
    last_arrival: ArrivalMark,
    arrival_gap: Duration,
    /// It gives so much, which is much less than was believed; as seen then.
    slow_rate: Option<(Timestamp, f64)>,
}

impl RecentRate {
    /// It has work again.
    pub(crate) fn restart(&mut self, mark: ArrivalMark) {
        self.window = [mark; 2];
        self.last_arrival = mark;
    }

    /// A link that has work, and what it is believed to give.
    pub(crate) fn update(&mut self, now: ArrivalMark, believed: f64) {
        let silence = now.at.since(self.last_arrival.at);
        if now.arrivals > self.last_arrival.arrivals {
            self.arrival_gap = self.arrival_gap.mul_f64(ARRIVAL_GAP_DECAY).max(silence);
            self.last_arrival = now;
        } else if silence <= self.arrival_gap * 2 + WINDOW_MIN {
            return; // Things come in bursts, and the next is not due.
        }
        if now.arrivals == 0 {
            return;
        }
        let expected = |since: ArrivalMark| {
            let bytes = believed * now.at.since(since.at).as_secs_f64();
            bytes * now.arrivals as f64 / now.bytes.max(1.0)
        };
        let [since, middle] = self.window;
        let took = now.at.since(since.at);
        if took >= WINDOW_MIN && expected(since) >= EXPECTED_ARRIVALS_MIN {
            let rate = (now.bytes - since.bytes) / took.as_secs_f64();
            let slow = rate < SLOW_RATE_SHARE * believed;
            self.slow_rate = slow.then_some((now.at, rate.max(RATE_FLOOR_SHARE * believed)));
        }
        if self.last_arrival.at == now.at
            && expected(middle) >= EXPECTED_ARRIVALS_MIN / 2.0
            && now.at.since(middle.at) >= WINDOW_MIN / 2
        {
            self.window = [middle, now];
        }
    }

    /// It gives no more than this.
    pub(crate) fn upper_bound(&self, now: Timestamp) -> f64 {
        self.slow_rate
            .filter(|(at, _)| now.since(*at) < SLOW_RATE_TTL)
            .map_or(f64::INFINITY, |(_, rate)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seconds: i64, come: f64, pieces: u64) -> ArrivalMark {
        ArrivalMark { at: Timestamp::from_seconds(1_800_000_000 + seconds), bytes: come, arrivals: pieces }
    }

    /// Looks each 3 s at a link that is believed to give 100 a second, by what comes in the 3 s before each
    /// and in how many pieces; returns what is found.
    fn looks(of: impl Iterator<Item = (f64, u64)>) -> Vec<bool> {
        let (mut lately, mut now) = (RecentRate::default(), mark(0, 0.0, 0));
        lately.restart(now);
        of.map(|(come, pieces)| {
            now = ArrivalMark {
                at: now.at + Duration::from_secs(3),
                bytes: now.bytes + come,
                arrivals: now.arrivals + pieces,
            };
            lately.update(now, 100.0);
            lately.upper_bound(now.at).is_finite()
        })
        .collect()
    }

    #[test]
    fn a_fall_shows_within_two_looks_and_ends_with_it() {
        let fall = 10..15;
        let found = looks((0..20).map(|look| if fall.contains(&look) { (30.0, 3) } else { (300.0, 30) }));
        let slow: Vec<usize> = (0..20).filter(|&look| found[look]).collect();
        assert_eq!(slow, [11, 12, 13, 14], "{found:?}");
    }

    #[test]
    fn bursts_and_few_large_pieces_are_no_fall() {
        // All of half a minute at once.
        let found = looks((1..100).map(|look| if look % 10 == 0 { (3_000.0, 8) } else { (0.0, 0) }));
        assert!(found[11..].iter().all(|slow| !slow), "{found:?}");
        // A large file every 9 s or so, and now and then none for long.
        let found =
            looks((1..100).map(|look| if look % 3 == 0 && look % 15 != 0 { (900.0, 1) } else { (0.0, 0) }));
        assert!(found.iter().all(|slow| !slow), "{found:?}");
    }

    #[test]
    fn silence_is_a_fall_in_the_end() {
        let found = looks((0..20).map(|look| if look < 10 { (300.0, 30) } else { (0.0, 0) }));
        assert_eq!(found.iter().position(|slow| *slow), Some(13), "{found:?}");
    }

    #[test]
    fn what_is_known_of_an_idle_link_is_forgotten() {
        let mut lately = RecentRate::default();
        lately.restart(mark(0, 0.0, 0));
        lately.update(mark(10, 50.0, 50), 100.0);
        assert_eq!(lately.upper_bound(mark(60, 0.0, 0).at), 5.0);
        assert_eq!(lately.upper_bound(mark(71, 0.0, 0).at), f64::INFINITY);
    }
}
