//! Recent rate of a link: an upper bound from the last seconds, where they contradict the long-term estimate.
//! Estimates follow slowly, so that a bad minute does not spoil a good day; but work given to a link that has
//! just become slow waits there.

use std::time::Duration;

use longhaul_model::Timestamp;

/// Minimum window for a rate estimate (a few reports).
const WINDOW_MIN: Duration = Duration::from_secs(5);
/// A window counts if at least this many arrivals were to be expected in it: chance and the traffic of
/// others could halve fewer. With 24 the route change of the scenario `taiwan` came with more false alarms.
const EXPECTED_ARRIVALS_MIN: f64 = 60.0;
/// A link is slow below this share of its estimate; smaller drops are normal, since links share their ends.
const SLOW_RATE_SHARE: f64 = 0.5;
/// A link without any arrivals is taken to give this share of its estimate: not nothing, or it would never
/// be tried again.
const RATE_FLOOR_SHARE: f64 = 0.01;
/// A link that had no more work stays slow for this long.
const SLOW_RATE_TTL: Duration = Duration::from_secs(60);
/// The longest gap between arrivals decays by this factor with each arrival.
const ARRIVAL_GAP_DECAY: f64 = 0.9;

/// Cumulative arrivals at a moment: bytes, and the number of reports and ends of files that brought them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalMark {
    pub at: Timestamp,
    pub bytes: f64,
    pub arrivals: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecentRate {
    /// Begin and middle of the window.
    window: [ArrivalMark; 2],
    /// The last update with new arrivals, and the decaying longest gap between such updates.
    last_arrival: ArrivalMark,
    arrival_gap: Duration,
    /// A rate far below the estimate, and when it was seen.
    slow_rate: Option<(Timestamp, f64)>,
}

impl RecentRate {
    /// Begins a new window: the link has work again.
    pub(crate) fn restart(&mut self, mark: ArrivalMark) {
        self.window = [mark; 2];
        self.last_arrival = mark;
    }

    /// Updates a link that has work; `believed` is its estimated rate.
    pub(crate) fn update(&mut self, now: ArrivalMark, believed: f64) {
        let silence = now.at.since(self.last_arrival.at);
        if now.arrivals > self.last_arrival.arrivals {
            self.arrival_gap = self.arrival_gap.mul_f64(ARRIVAL_GAP_DECAY).max(silence);
            self.last_arrival = now;
        } else if silence <= self.arrival_gap * 2 + WINDOW_MIN {
            return; // Arrivals come in bursts, and the next is not due.
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

    /// The link gives no more than this; infinite without evidence.
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
