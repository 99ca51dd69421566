//! Everything believed about links, and the questions asked of it.

use std::collections::BTreeMap;

use longhaul_model::{StorageId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::belief::{ASSUMED_BYTES_PER_S, Belief};
use crate::meter::{Meter, Sample};

/// Links remembered: all pairs of 300 storages. Beyond it the longest unused go.
pub const LINKS_MAX: usize = 90_000;
/// Seconds of a link's own observation that weigh as much as what its ends suggest.
const PRIOR_WEIGHT: f64 = 1.0;
/// Spread of the logarithm without own observation: a factor of 2 either way within a deployment, 4 without.
const PRIOR_VARIANCE: f64 = 0.3;
const ASSUMED_VARIANCE: f64 = 1.2;
/// The 10 % point of a normal distribution.
const TENTH: f64 = 1.2816;
/// Failures count half after this; attempts beyond the most recent so many do not count.
const FAILURE_HALF_LIFE_S: f64 = 600.0;
const FAILURE_TRIES_MAX: f64 = 100.0;
/// Trust in a link before its first attempts, in attempts that succeeded.
const FAILURE_PRIOR_TRIES: f64 = 3.0;
/// An end that gives this part of its usual total is busy; …
const BUSY_SHARE: f64 = 0.7;
/// … with others, if it gives this many times what the link gives: …
const OTHERS_FACTOR: f64 = 1.3;
/// … what one of its links gets less meanwhile counts so much: it is believed only when it lasts.
const TURNS_WEIGHT: f64 = 0.1;
/// A rate measured longer ago is not "now".
const RECENT_S: f64 = 15.0;

/// From one storage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    pub source: StorageId,
    pub target: StorageId,
}

/// A belief about a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// As likely less as more.
    pub bytes_per_s: f64,
    /// One in ten is less.
    pub low: f64,
    /// One in ten is more.
    pub high: f64,
    /// Standard deviation of the logarithm.
    pub spread: f64,
    pub basis: Basis,
}

/// What an estimate rests on most, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The link itself.
    Measured,
    /// Other links of its source and target.
    Endpoints,
    AllLinks,
    /// Nothing was ever measured.
    Assumed,
}

/// How an attempt ended, as far as the link is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Arrived,
    /// Source or network are to blame.
    Failed,
    /// Cancelled, or somebody else is to blame.
    Void,
}

/// What a target took lately; follows a rise at once and a fall slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    pub bytes_per_s: f64,
    pub files_per_s: f64,
}

impl Pace {
    fn follow(&mut self, sample: Sample) {
        let next = |old: f64, new: f64| if new > old { new } else { 0.7 * old + 0.3 * new };
        self.bytes_per_s = next(self.bytes_per_s, sample.bytes_per_s);
        self.files_per_s = next(self.files_per_s, sample.files_per_s);
    }
}

/// All of it. Serialises without what is under way: after a restart attempts begin anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Knowledge {
    links: BTreeMap<Link, LinkState>,
    sources: BTreeMap<StorageId, EndState>,
    targets: BTreeMap<StorageId, EndState>,
    all: Belief,
}

#[derive(Clone, Copy, Debug, Default)]
struct LinkState {
    belief: Belief,
    meter: Meter,
    trouble: Trouble,
    rate_last: f64,
}

/// One side of a storage.
#[derive(Clone, Copy, Debug, Default)]
struct EndState {
    /// What one link of it gives.
    typical: Belief,
    /// What all its links give together.
    total: Belief,
    meter: Meter,
    total_last: f64,
    pace: Pace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Trouble {
    tries: f64,
    failures: f64,
    last: Timestamp,
}

impl Knowledge {
    /// An attempt over the link got its lease.
    pub fn began(&mut self, link: Link, now: Timestamp) {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&link) {
            self.forget_oldest();
        }
        self.links.entry(link).or_default().meter.began(now);
        self.sources.entry(link.source).or_default().meter.began(now);
        self.targets.entry(link.target).or_default().meter.began(now);
    }

    /// Bytes of a running attempt arrived.
    pub fn arrived(&mut self, link: Link, bytes: u64, now: Timestamp) {
        self.credit(link, bytes, 0, now);
    }

    /// An attempt ended, with `bytes` that [`Knowledge::arrived`] was not told of.
    pub fn ended(&mut self, link: Link, bytes: u64, end: End, now: Timestamp) {
        self.credit(link, bytes, u32::from(end == End::Arrived), now);
        if let Some(state) = self.links.get_mut(&link) {
            state.meter.ended(now);
            match end {
                End::Arrived => state.trouble.count(false, now),
                End::Failed => state.trouble.count(true, now),
                End::Void => {}
            }
        }
        if let Some(state) = self.sources.get_mut(&link.source) {
            state.meter.ended(now);
        }
        if let Some(state) = self.targets.get_mut(&link.target) {
            state.meter.ended(now);
        }
    }

    fn credit(&mut self, link: Link, bytes: u64, files: u32, now: Timestamp) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let mut sample = state.meter.arrived(bytes, files, now);
        if let Some(sample) = &mut sample {
            state.rate_last = sample.bytes_per_s;
            sample.weight *= self.telling(link, sample.bytes_per_s, now);
            self.all.observe(sample.bytes_per_s, sample.weight, now);
            if let Some(state) = self.links.get_mut(&link) {
                state.belief.observe(sample.bytes_per_s, sample.weight, now);
            }
        }
        for end in
            [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)].into_iter().flatten()
        {
            if let Some(sample) = sample {
                end.typical.observe(sample.bytes_per_s, sample.weight, now);
            }
            if let Some(sample) = end.meter.arrived(bytes, files, now) {
                end.total.observe(sample.bytes_per_s, sample.weight, now);
                end.total_last = sample.bytes_per_s;
                end.pace.follow(sample);
            }
        }
    }

    /// How much a measurement tells about the link itself. Less than expected, while one of its ends was kept busy
    /// by other links as well as ever, only tells that the end took its turns.
    fn telling(&self, link: Link, rate: f64, now: Timestamp) -> f64 {
        let busy_elsewhere = |end: Option<&EndState>| {
            end.is_some_and(|end| {
                let others = end.total_last > OTHERS_FACTOR * rate;
                others && end.total_last >= BUSY_SHARE * end.total.mean().exp()
            })
        };
        let elsewhere =
            busy_elsewhere(self.sources.get(&link.source)) || busy_elsewhere(self.targets.get(&link.target));
        if elsewhere && rate < self.rate(link, now).bytes_per_s { TURNS_WEIGHT } else { 1.0 }
    }

    /// What the link will give.
    pub fn rate(&self, link: Link, now: Timestamp) -> Estimate {
        let (mean, variance, basis) = self.prior(link, now);
        let own = self.links.get(&link).map(|state| state.belief).unwrap_or_default();
        blend(own, mean, variance, basis, now)
    }

    /// What all links out of (`into` false) or into a storage give together; none if never measured.
    pub fn total(&self, storage: StorageId, into: bool, now: Timestamp) -> Option<Estimate> {
        let ends = if into { &self.targets } else { &self.sources };
        let total = ends.get(&storage)?.total;
        (total.weight_at(now) > 1e-3)
            .then(|| blend(total, total.mean(), PRIOR_VARIANCE, Basis::Measured, now))
    }

    /// What a target took lately.
    pub fn pace(&self, target: StorageId) -> Pace {
        self.targets.get(&target).map(|state| state.pace).unwrap_or_default()
    }

    /// Share of recent attempts over the link that failed, on the careful side while there were few.
    pub fn failure_share(&self, link: Link, now: Timestamp) -> f64 {
        self.links.get(&link).map_or(0.0, |state| state.trouble.share(now))
    }

    /// Goodput of a link that has work, as last measured.
    pub fn rate_now(&self, link: Link, now: Timestamp) -> f64 {
        match self.links.get(&link) {
            Some(state) if state.meter.active() > 0 && state.belief.age(now).as_secs_f64() < RECENT_S => {
                state.rate_last
            }
            _ => 0.0,
        }
    }

    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.links.keys().copied()
    }

    /// Mean and variance of the logarithm for a link never seen.
    fn prior(&self, link: Link, now: Timestamp) -> (f64, f64, Basis) {
        let out = self.sources.get(&link.source).map(|end| end.typical).unwrap_or_default();
        let into = self.targets.get(&link.target).map(|end| end.typical).unwrap_or_default();
        let (out_weight, into_weight) = (out.weight_at(now), into.weight_at(now));
        let all_weight = self.all.weight_at(now);
        let (base, basis, variance) = if all_weight > 1e-3 {
            (self.all.mean(), Basis::AllLinks, PRIOR_VARIANCE)
        } else {
            (ASSUMED_BYTES_PER_S.ln(), Basis::Assumed, ASSUMED_VARIANCE)
        };
        let ends = out_weight + into_weight;
        if ends <= 1e-3 {
            return (base, variance, basis);
        }
        let mean = (out_weight * out.mean() + into_weight * into.mean() + PRIOR_WEIGHT * base)
            / (ends + PRIOR_WEIGHT);
        (mean, PRIOR_VARIANCE, if ends >= PRIOR_WEIGHT { Basis::Endpoints } else { basis })
    }

    /// An eighth at once, so that the sweep is rare.
    fn forget_oldest(&mut self) {
        let mut idle: Vec<(Timestamp, Link)> = self
            .links
            .iter()
            .filter(|(_, state)| state.meter.active() == 0)
            .map(|(&link, state)| (state.belief.last(), link))
            .collect();
        idle.sort_unstable();
        for (_, link) in idle.into_iter().take(LINKS_MAX / 8) {
            self.links.remove(&link);
        }
    }
}

fn blend(own: Belief, mean: f64, variance: f64, basis: Basis, now: Timestamp) -> Estimate {
    let weight = own.weight_at(now);
    let total = weight + PRIOR_WEIGHT;
    let centre = (weight * own.mean() + PRIOR_WEIGHT * mean) / total;
    // Disagreement between the two is uncertainty as well.
    let between = weight * PRIOR_WEIGHT / total / total * (own.mean() - mean).powi(2);
    let between = if weight > 0.0 { between } else { 0.0 };
    let spread = ((weight * own.variance() + PRIOR_WEIGHT * variance) / total + between).max(0.0).sqrt();
    Estimate {
        bytes_per_s: centre.exp(),
        low: (centre - TENTH * spread).exp(),
        high: (centre + TENTH * spread).exp(),
        spread,
        basis: if weight >= PRIOR_WEIGHT / 2.0 { Basis::Measured } else { basis },
    }
}

impl Trouble {
    fn count(&mut self, failed: bool, now: Timestamp) {
        let kept = self.kept(now).min((FAILURE_TRIES_MAX - 1.0) / self.tries.max(1.0));
        self.tries = self.tries * kept + 1.0;
        self.failures = self.failures * kept + f64::from(u8::from(failed));
        self.last = self.last.max(now);
    }

    fn kept(&self, now: Timestamp) -> f64 {
        (-now.since(self.last).as_secs_f64() / FAILURE_HALF_LIFE_S).exp2()
    }

    fn share(&self, now: Timestamp) -> f64 {
        let kept = self.kept(now);
        (self.failures * kept / (self.tries * kept + FAILURE_PRIOR_TRIES)).clamp(0.0, 1.0)
    }
}

/// The serialised form: lists, since JSON knows only text as keys.
#[derive(Serialize, Deserialize)]
struct Stored {
    links: Vec<(Link, Belief, Trouble)>,
    sources: Vec<(StorageId, Belief, Belief, Pace)>,
    targets: Vec<(StorageId, Belief, Belief, Pace)>,
    all: Belief,
}

impl From<Knowledge> for Stored {
    fn from(knowledge: Knowledge) -> Self {
        let ends = |ends: BTreeMap<StorageId, EndState>| {
            ends.into_iter().map(|(id, end)| (id, end.typical, end.total, end.pace)).collect()
        };
        Stored {
            links: knowledge
                .links
                .into_iter()
                .map(|(link, state)| (link, state.belief, state.trouble))
                .collect(),
            sources: ends(knowledge.sources),
            targets: ends(knowledge.targets),
            all: knowledge.all,
        }
    }
}

impl From<Stored> for Knowledge {
    fn from(stored: Stored) -> Self {
        let ends = |list: Vec<(StorageId, Belief, Belief, Pace)>| {
            let sound = |value: f64| if value.is_finite() { value.clamp(0.0, 1e15) } else { 0.0 };
            list.into_iter()
                .map(|(id, typical, total, pace)| {
                    let pace =
                        Pace { bytes_per_s: sound(pace.bytes_per_s), files_per_s: sound(pace.files_per_s) };
                    (
                        id,
                        EndState {
                            typical: typical.sound(),
                            total: total.sound(),
                            pace,
                            ..EndState::default()
                        },
                    )
                })
                .collect()
        };
        let links = stored.links.into_iter().take(LINKS_MAX).map(|(link, belief, trouble)| {
            let tries = trouble.tries.clamp(0.0, FAILURE_TRIES_MAX);
            let failures = trouble.failures.clamp(0.0, tries);
            (
                link,
                LinkState {
                    belief: belief.sound(),
                    trouble: Trouble { tries, failures, ..trouble },
                    ..LinkState::default()
                },
            )
        });
        Knowledge {
            links: links.collect(),
            sources: ends(stored.sources),
            targets: ends(stored.targets),
            all: stored.all.sound(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + ms * 1_000)
    }

    fn link(source: u64, target: u64) -> Link {
        Link { source: StorageId(source), target: StorageId(target) }
    }

    /// Moves `files` of 10 MB over `link` at `rate`, one after the other.
    fn run(knowledge: &mut Knowledge, link: Link, files: i64, rate: f64, from: i64) -> i64 {
        let each = (10e6 / rate * 1e3) as i64;
        for file in 0..files {
            knowledge.began(link, at(from + file * each));
            knowledge.ended(link, 10_000_000, End::Arrived, at(from + (file + 1) * each));
        }
        from + files * each
    }

    #[test]
    fn the_unknown_has_a_stated_rank() {
        let mut knowledge = Knowledge::default();
        let unknown = knowledge.rate(link(1, 2), at(0));
        assert_eq!(unknown.basis, Basis::Assumed);
        assert!((unknown.bytes_per_s / ASSUMED_BYTES_PER_S - 1.0).abs() < 1e-9);
        run(&mut knowledge, link(1, 2), 100, 10e6, 0);
        assert_eq!(knowledge.rate(link(1, 2), at(100_000)).basis, Basis::Measured);
        let neighbour = knowledge.rate(link(1, 3), at(100_000));
        assert_eq!(neighbour.basis, Basis::Endpoints);
        assert!(neighbour.bytes_per_s < 15e6, "what leaves the same source is alike: {neighbour:?}");
        assert_eq!(knowledge.rate(link(7, 8), at(100_000)).basis, Basis::AllLinks);
        assert!(neighbour.low < neighbour.bytes_per_s && neighbour.bytes_per_s < neighbour.high);
    }

    #[test]
    fn totals_add_up_over_links() {
        let mut knowledge = Knowledge::default();
        for step in 0..50 {
            for target in [2, 3] {
                knowledge.began(link(1, target), at(step * 100));
            }
            for target in [2, 3] {
                knowledge.ended(link(1, target), 5_000_000, End::Arrived, at(step * 100 + 100));
            }
        }
        let total = knowledge.total(StorageId(1), false, at(5_000)).unwrap().bytes_per_s;
        assert!((total / 100e6 - 1.0).abs() < 0.1, "{total}");
        let one = knowledge.rate(link(1, 2), at(5_000)).bytes_per_s;
        assert!((one / 50e6 - 1.0).abs() < 0.2, "{one}");
    }

    #[test]
    fn a_link_that_only_awaits_its_turn_is_not_slow() {
        let mut knowledge = Knowledge::default();
        let end = run(&mut knowledge, link(1, 9), 30, 100e6, 0);
        // Source 2 has work for the same target for 3 s, and is served a little.
        let mut at_ms = end;
        knowledge.began(link(2, 9), at(at_ms));
        for _ in 0..10 {
            at_ms = run(&mut knowledge, link(1, 9), 3, 100e6, at_ms);
            knowledge.arrived(link(2, 9), 1_000_000, at(at_ms));
        }
        let rate = knowledge.rate(link(2, 9), at(at_ms)).bytes_per_s;
        assert!(rate > 25e6, "{rate}: taken at its word it would be 3 MB/s");
    }

    #[test]
    fn failures_are_remembered_for_a_while() {
        let mut knowledge = Knowledge::default();
        for step in 0..20 {
            knowledge.began(link(1, 2), at(step));
            knowledge.ended(link(1, 2), 0, End::Failed, at(step));
        }
        assert!(knowledge.failure_share(link(1, 2), at(20)) > 0.8);
        assert!(knowledge.failure_share(link(1, 2), at(6_000_000)) < 0.1);
        assert_eq!(knowledge.failure_share(link(2, 1), at(0)), 0.0);
    }

    #[test]
    fn survives_a_restart_and_stays_small() {
        let mut knowledge = Knowledge::default();
        run(&mut knowledge, link(1, 2), 100, 10e6, 0);
        let text = serde_json::to_string(&knowledge).unwrap();
        let again: Knowledge = serde_json::from_str(&text).unwrap();
        assert_eq!(again.rate(link(1, 2), at(100_000)), knowledge.rate(link(1, 2), at(100_000)));
        assert!(std::mem::size_of::<LinkState>() + std::mem::size_of::<Link>() < 2_048);
        assert!(text.len() < 2_048);
    }

    #[test]
    fn the_number_of_links_is_bounded() {
        let mut knowledge = Knowledge::default();
        for source in 0..LINKS_MAX as u64 + 10 {
            knowledge.began(link(source, 0), at(source as i64));
            knowledge.ended(link(source, 0), 1, End::Arrived, at(source as i64));
        }
        assert!(knowledge.links().count() <= LINKS_MAX);
    }

    proptest! {
        #[test]
        fn any_history_gives_sound_estimates(steps in proptest::collection::vec((0u64..4, 0u64..4, any::<u64>(), any::<i64>(), 0u8..4), 0..200)) {
            let mut knowledge = Knowledge::default();
            for (source, target, bytes, time, what) in steps {
                let (link, now) = (link(source, target), Timestamp(time));
                match what {
                    0 => knowledge.began(link, now),
                    1 => knowledge.arrived(link, bytes, now),
                    2 => knowledge.ended(link, bytes, End::Arrived, now),
                    _ => knowledge.ended(link, bytes, End::Failed, now),
                }
                let estimate = knowledge.rate(link, now);
                prop_assert!(estimate.bytes_per_s.is_finite() && estimate.bytes_per_s > 0.0);
                prop_assert!(estimate.low <= estimate.bytes_per_s && estimate.bytes_per_s <= estimate.high);
                let share = knowledge.failure_share(link, now);
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }
}
