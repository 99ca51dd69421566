//! What a link has shown in the last seconds, as far as it belies what is believed of it. Beliefs follow
//! slowly, so that a bad minute does not spoil a good day; but what is given to a link that has just become
//! slow waits there.

use std::time::Duration;

use longhaul_model::Timestamp;

/// Shorter than this says nothing: some reports.
const LEAST: Duration = Duration::from_secs(5);
/// If fewer pieces than this were to be expected, chance and the traffic of others could halve them; with 24
/// the route change of the scenario `taiwan` was told with more false ones beside it.
const PIECES: f64 = 60.0;
/// Only what is much less counts: links share ends, and take from each other.
const MUCH_LESS: f64 = 0.5;
/// What nothing has come over is taken to give this part: not nothing, or nobody would ever try it again.
const LEAST_PART: f64 = 0.01;
/// A link that had no more work is believed to be as slow for this long.
const KEPT: Duration = Duration::from_secs(60);
/// How much of the longest silence is remembered from one piece of news to the next.
const RHYTHM_KEPT: f64 = 0.9;

/// What has come by then, and in how many pieces: reports and ends of files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub at: Timestamp,
    pub come: f64,
    pub pieces: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lately {
    /// Begin and middle of the time that is looked at.
    marks: [Mark; 2],
    /// The last look with news, and how long that takes.
    heard: Mark,
    rhythm: Duration,
    /// It gives so much, which is much less than was believed; as seen then.
    slow: Option<(Timestamp, f64)>,
}

impl Lately {
    /// It has work again.
    pub(crate) fn begin(&mut self, mark: Mark) {
        self.marks = [mark; 2];
        self.heard = mark;
    }

    /// A link that has work, and what it is believed to give.
    pub(crate) fn look(&mut self, now: Mark, believed: f64) {
        let silence = now.at.since(self.heard.at);
        if now.pieces > self.heard.pieces {
            self.rhythm = self.rhythm.mul_f64(RHYTHM_KEPT).max(silence);
            self.heard = now;
        } else if silence <= self.rhythm * 2 + LEAST {
            return; // Things come in bursts, and the next is not due.
        }
        if now.pieces == 0 {
            return;
        }
        let expected = |since: Mark| {
            let bytes = believed * now.at.since(since.at).as_secs_f64();
            bytes * now.pieces as f64 / now.come.max(1.0)
        };
        let [since, middle] = self.marks;
        let took = now.at.since(since.at);
        if took >= LEAST && expected(since) >= PIECES {
            let rate = (now.come - since.come) / took.as_secs_f64();
            let slow = rate < MUCH_LESS * believed;
            self.slow = slow.then_some((now.at, rate.max(LEAST_PART * believed)));
        }
        if self.heard.at == now.at && expected(middle) >= PIECES / 2.0 && now.at.since(middle.at) >= LEAST / 2
        {
            self.marks = [middle, now];
        }
    }

    /// It gives no more than this.
    pub(crate) fn at_most(&self, now: Timestamp) -> f64 {
        self.slow.filter(|(at, _)| now.since(*at) < KEPT).map_or(f64::INFINITY, |(_, rate)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seconds: i64, come: f64, pieces: u64) -> Mark {
        Mark { at: Timestamp::from_seconds(1_800_000_000 + seconds), come, pieces }
    }

    /// Looks each 3 s at a link that is believed to give 100 a second, by what comes in the 3 s before each
    /// and in how many pieces; returns what is found.
    fn looks(of: impl Iterator<Item = (f64, u64)>) -> Vec<bool> {
        let (mut lately, mut now) = (Lately::default(), mark(0, 0.0, 0));
        lately.begin(now);
        of.map(|(come, pieces)| {
            now = Mark {
                at: now.at + Duration::from_secs(3),
                come: now.come + come,
                pieces: now.pieces + pieces,
            };
            lately.look(now, 100.0);
            lately.at_most(now.at).is_finite()
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
        let mut lately = Lately::default();
        lately.begin(mark(0, 0.0, 0));
        lately.look(mark(10, 50.0, 50), 100.0);
        assert_eq!(lately.at_most(mark(60, 0.0, 0).at), 5.0);
        assert_eq!(lately.at_most(mark(71, 0.0, 0).at), f64::INFINITY);
    }
}
