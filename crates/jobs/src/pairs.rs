//! The history of copies between pairs of storages, minute by minute: FTS's clients read it from the
//! optimizer, and brokers receive it. In memory, for as long as the service runs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::Timestamp;
use parking_lot::Mutex;

use longhaul_api::fts::PairMinute;

const MINUTE: Duration = Duration::from_secs(60);
/// Minutes of pairs in memory: a day of a few pairs, or an hour of many.
const MINUTES_MAX: usize = 10_000;
/// Minutes that are filled in after a gap without any event; those before them are left out.
const GAP_MINUTES: u32 = 60;
/// Weight of the last minute in the smoothed rate (EWMA), as in FTS.
const EMA_WEIGHT: f64 = 0.1;

/// A community's copies from one storage to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub community: String,
    pub source: String,
    pub target: String,
}

/// One minute of a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Minute {
    /// When it ended.
    pub at: Timestamp,
    pub pair: Pair,
    /// Most copies at once, and how many more than in the minute before.
    pub active: u32,
    pub more: i64,
    /// Copies that ended well, and others.
    pub done: u32,
    pub failed: u32,
    /// Bytes a second, of copies that ended well in it.
    pub rate: f64,
    pub smoothed_rate: f64,
    /// Seconds, of the same copies.
    pub duration_mean: f64,
    /// Bytes, of the same copies.
    pub size_mean: f64,
    pub size_deviation: f64,
}

#[derive(Default)]
pub struct Pairs(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the present minute began.
    since: Option<Timestamp>,
    open: BTreeMap<Pair, Open>,
    kept: VecDeque<Minute>,
}

/// The present minute of a pair that has, or had, copies in it.
#[derive(Default)]
struct Open {
    running: u32,
    most: u32,
    most_before: u32,
    sizes: Vec<u64>,
    took: Duration,
    failed: u32,
    smoothed_rate: Option<f64>,
}

impl Pairs {
    pub fn begin(&self, pair: &Pair, now: Timestamp) {
        let mut state = self.0.lock();
        state.advance(now);
        let open = state.open.entry(pair.clone()).or_default();
        open.running += 1;
        open.most = open.most.max(open.running);
    }

    /// Records the end of a copy: its bytes if it succeeded, and how long it took.
    pub fn end(&self, pair: &Pair, bytes: Option<u64>, took: Duration, now: Timestamp) {
        let mut state = self.0.lock();
        state.advance(now);
        let Some(open) = state.open.get_mut(pair) else { return };
        open.running = open.running.saturating_sub(1);
        match bytes {
            Some(bytes) => {
                open.sizes.push(bytes);
                open.took = open.took.saturating_add(took);
            }
            None => open.failed += 1,
        }
    }

    /// The last `most` minutes of the wanted pairs, newest first.
    pub fn last(&self, most: usize, now: Timestamp, wanted: impl Fn(&Pair) -> bool) -> Vec<Minute> {
        let mut state = self.0.lock();
        state.advance(now);
        state.kept.iter().rev().filter(|minute| wanted(&minute.pair)).take(most).cloned().collect()
    }

    /// The minutes that ended after `told`, in their order, each over all communities.
    pub fn after(&self, told: Timestamp, now: Timestamp) -> Vec<Minute> {
        let mut state = self.0.lock();
        state.advance(now);
        let mut whole: BTreeMap<(Timestamp, String, String), Vec<Minute>> = BTreeMap::new();
        for minute in state.kept.iter().rev().take_while(|minute| minute.at > told) {
            let place = (minute.at, minute.pair.source.clone(), minute.pair.target.clone());
            whole.entry(place).or_default().push(minute.clone());
        }
        whole.into_values().filter_map(merge_communities).collect()
    }

    /// Bytes a second from storage to storage, of those that are wanted, smoothed over the minutes in which
    /// they had copies; none in the first.
    pub fn smoothed_rates(&self, wanted: impl Fn(&Pair) -> bool) -> BTreeMap<(String, String), f64> {
        let state = self.0.lock();
        let mut rates = BTreeMap::new();
        for (pair, open) in state.open.iter().filter(|(pair, _)| wanted(pair)) {
            if let Some(rate) = open.smoothed_rate {
                *rates.entry((pair.source.clone(), pair.target.clone())).or_default() += rate;
            }
        }
        rates
    }
}

/// Merges the minutes of several communities on one pair. Sizes and durations are means over all copies, and
/// the deviation is that of all of them.
fn merge_communities(minutes: Vec<Minute>) -> Option<Minute> {
    let mut minutes = minutes.into_iter();
    let first = minutes.next()?;
    Some(minutes.fold(first, |a, b| {
        let (left, right) = (f64::from(a.done), f64::from(b.done));
        let done = (left + right).max(1.0);
        let mean = |x: f64, y: f64| (x * left + y * right) / done;
        let size_mean = mean(a.size_mean, b.size_mean);
        let spread = |one: &Minute| one.size_deviation.powi(2) + (one.size_mean - size_mean).powi(2);
        Minute {
            pair: Pair { community: String::new(), ..a.pair.clone() },
            active: a.active.saturating_add(b.active),
            more: a.more.saturating_add(b.more),
            done: a.done.saturating_add(b.done),
            failed: a.failed.saturating_add(b.failed),
            rate: a.rate + b.rate,
            smoothed_rate: a.smoothed_rate + b.smoothed_rate,
            duration_mean: mean(a.duration_mean, b.duration_mean),
            size_mean,
            size_deviation: mean(spread(&a), spread(&b)).sqrt(),
            at: a.at,
        }
    }))
}

impl State {
    /// Ends the minutes that are over. A clock that went back ends none.
    fn advance(&mut self, now: Timestamp) {
        let since = *self.since.get_or_insert(now);
        let over = now.since(since).as_secs() / MINUTE.as_secs();
        let first = over.saturating_sub(GAP_MINUTES.into());
        for minute in first..over {
            // What happened is of the minute that was open; those behind it had nothing but what runs.
            let end = if minute == first { 1 } else { minute + 1 };
            self.end_minute(since.plus(MINUTE * u32::try_from(end).unwrap_or(u32::MAX)));
        }
        if over > 0 {
            self.since = Some(since.plus(Duration::from_secs(over * MINUTE.as_secs())));
        }
    }

    fn end_minute(&mut self, at: Timestamp) {
        for (pair, open) in &mut self.open {
            self.kept.push_back(open.end(pair, at));
        }
        self.kept.drain(..self.kept.len().saturating_sub(MINUTES_MAX));
        self.open.retain(|_, open| open.most > 0);
    }
}

impl Open {
    /// Returns the minute that ends and begins the next one.
    fn end(&mut self, pair: &Pair, at: Timestamp) -> Minute {
        let sizes = std::mem::take(&mut self.sizes);
        let count = sizes.len().max(1) as f64;
        let sum: f64 = sizes.iter().map(|&size| size as f64).sum();
        let mean = sum / count;
        let variance = sizes.iter().map(|&size| (size as f64 - mean).powi(2)).sum::<f64>() / count;
        let rate = sum / MINUTE.as_secs_f64();
        let smoothed_rate = self.smoothed_rate.map_or(rate, |before| before + EMA_WEIGHT * (rate - before));
        let minute = Minute {
            at,
            pair: pair.clone(),
            active: self.most,
            more: i64::from(self.most) - i64::from(self.most_before),
            done: u32::try_from(sizes.len()).unwrap_or(u32::MAX),
            failed: std::mem::take(&mut self.failed),
            rate,
            smoothed_rate,
            duration_mean: std::mem::take(&mut self.took).as_secs_f64() / count,
            size_mean: mean,
            size_deviation: variance.sqrt(),
        };
        self.smoothed_rate = Some(smoothed_rate);
        (self.most_before, self.most) = (self.most, self.running);
        minute
    }
}

impl Minute {
    /// The minute as FTS's messages report it, with the files that wait on the pair.
    pub fn to_wire(self, waiting: Option<(u64, u64)>) -> PairMinute {
        PairMinute {
            at: self.at,
            source: self.pair.source,
            target: self.pair.target,
            active: self.active,
            more: self.more,
            done: self.done,
            failed: self.failed,
            rate: self.rate,
            smoothed_rate: self.smoothed_rate,
            duration_mean: self.duration_mean,
            size_mean: self.size_mean,
            size_deviation: self.size_deviation,
            waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(source: &str) -> Pair {
        Pair { community: "atlas".into(), source: source.into(), target: "https://b".into() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(1_000_000_000_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn a_minute_tells_what_was_in_it() {
        let pairs = Pairs::default();
        let (a, c) = (pair("https://a"), pair("https://c"));
        for second in 0..3 {
            pairs.begin(&a, at(second));
        }
        let seconds = Duration::from_secs;
        pairs.end(&a, Some(600), seconds(10), at(10));
        pairs.end(&a, Some(1_800), seconds(20), at(20));
        pairs.end(&a, None, seconds(30), at(30));
        pairs.begin(&c, at(50));
        assert!(pairs.last(50, at(59), |_| true).is_empty(), "the first is not over");
        assert_eq!(pairs.smoothed_rates(|_| true), BTreeMap::new());
        let minutes = pairs.last(50, at(60), |wanted| *wanted == a);
        let [minute] = &minutes[..] else { panic!("{minutes:?}") };
        assert_eq!((minute.active, minute.more, minute.done, minute.failed), (3, 3, 2, 1));
        assert_eq!((minute.rate, minute.smoothed_rate, minute.duration_mean), (40.0, 40.0, 15.0));
        assert_eq!((minute.size_mean, minute.size_deviation, minute.at), (1_200.0, 600.0, at(60)));
        assert_eq!(pairs.smoothed_rates(|wanted| *wanted == a), BTreeMap::new(), "it has nothing any more");
        let of_c = ((c.source.clone(), c.target.clone()), 0.0);
        assert_eq!(pairs.smoothed_rates(|_| true), BTreeMap::from([of_c]));
        let minutes = pairs.last(2, at(185), |_| true);
        assert_eq!(minutes.iter().map(|minute| &minute.pair).collect::<Vec<_>>(), [&c, &c]);
        assert_eq!((minutes[0].at, minutes[0].active, minutes[0].more), (at(180), 1, 0));
        pairs.end(&c, Some(6_000), seconds(60), at(190));
        let minute = pairs.last(1, at(240), |_| true).remove(0);
        assert_eq!((minute.rate, minute.smoothed_rate), (100.0, 10.0));
    }

    /// Brokers hear of a pair, not of whose copies these are.
    #[test]
    fn a_minute_of_several_communities_is_one() {
        let pairs = Pairs::default();
        let ours = pair("https://a");
        let theirs = Pair { community: "cms".into(), ..ours.clone() };
        for (pair, bytes, took) in [(&ours, 600, 10), (&ours, 1_800, 20), (&theirs, 1_200, 60)] {
            pairs.begin(pair, at(0));
            pairs.end(pair, Some(bytes), Duration::from_secs(took), at(10));
        }
        pairs.begin(&theirs, at(20));
        assert!(pairs.after(Timestamp::ZERO, at(59)).is_empty());
        let minutes = pairs.after(Timestamp::ZERO, at(60));
        let [minute] = &minutes[..] else { panic!("{minutes:?}") };
        assert_eq!((minute.done, minute.active, minute.failed), (3, 2, 0));
        assert_eq!((minute.rate, minute.duration_mean, minute.size_mean), (60.0, 30.0, 1_200.0));
        assert!((minute.size_deviation - 240_000f64.sqrt()).abs() < 1e-6, "{}", minute.size_deviation);
        assert!(pairs.after(at(60), at(60)).is_empty(), "it is told once");
        let minutes = pairs.after(at(60), at(180));
        assert_eq!(minutes.iter().map(|minute| minute.at).collect::<Vec<_>>(), [at(120), at(180)]);
    }

    #[test]
    fn a_long_silence_is_not_told_minute_by_minute() {
        let pairs = Pairs::default();
        pairs.begin(&pair("https://a"), at(0));
        let minutes = pairs.last(usize::MAX, at(1_000_000), |_| true);
        assert_eq!(minutes.len(), GAP_MINUTES as usize);
        assert_eq!(minutes.last().unwrap().at, at(60), "what happened is told where it was");
        assert!(minutes[0].at > at(1_000_000 - 120));
    }

    proptest! {
        /// Whatever the clock does.
        #[test]
        fn it_is_bounded_and_ends(
            steps in prop::collection::vec((0..3u8, 0..50u8, -1_000..100_000i64), 0..100),
        ) {
            let pairs = Pairs::default();
            let mut now = 0;
            for (step, which, more) in steps {
                now += more;
                let pair = pair(&format!("https://s{which}"));
                match step {
                    0 => pairs.begin(&pair, at(now)),
                    1 => pairs.end(&pair, Some(u64::MAX), Duration::MAX, at(now)),
                    _ => pairs.end(&pair, None, Duration::ZERO, at(now)),
                }
            }
            let kept = pairs.last(usize::MAX, at(now), |_| true);
            prop_assert!(kept.len() <= MINUTES_MAX);
            prop_assert!(kept.iter().all(|one| one.rate.is_finite() && one.size_deviation.is_finite()));
        }
    }
}
