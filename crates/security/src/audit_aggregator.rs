//! Decisions of a short while, counted up until they are written down: who was allowed or refused what.
//!
//! Equal ones are one that says how often. What waits is bounded whatever comes, and who is refused often
//! drives out little: beyond some different decisions of one name, those are counted together; and so are all
//! of names beyond the bound. None is lost, however few are told apart.
//!
//! Start with [`Tally::note`]. Not here: where they are kept.

use std::collections::HashMap;

use longhaul_model::units::printable;
use longhaul_model::{StorageName, Timestamp};

/// Of names, paths and reasons so much is kept.
const TEXT_CHARS_MAX: usize = 240;
/// In place of what is not told apart.
pub const AGGREGATED: &str = "(several)";

/// What was decided. Operations are of a bounded number of words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    pub allowed: bool,
    pub who: String,
    /// What kind of credential they showed; never the credential.
    pub credential: String,
    /// The address that they came from.
    pub origin: String,
    pub operation: String,
    /// Of what.
    pub object: String,
    /// Of refusals the reason, else by which right.
    pub why: String,
    /// At whose door; none: at the service.
    pub storage: Option<StorageName>,
}

impl Decision {
    /// Cut and made printable, as what comes from outside has to be.
    #[must_use]
    pub fn sanitized(mut self) -> Decision {
        let texts = [
            &mut self.who,
            &mut self.credential,
            &mut self.origin,
            &mut self.operation,
            &mut self.object,
            &mut self.why,
        ];
        for text in texts {
            if !text.chars().take(TEXT_CHARS_MAX + 1).all(is_plain) || text.len() > TEXT_CHARS_MAX {
                *text = printable(&text.chars().take(TEXT_CHARS_MAX).collect::<String>());
            }
        }
        self
    }

    /// Operations are of a bounded number, so these are too.
    fn aggregated(self) -> Decision {
        Decision { object: AGGREGATED.into(), why: AGGREGATED.into(), origin: AGGREGATED.into(), ..self }
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_graphic() || c == ' '
}

/// Equal decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedDecision {
    pub decision: Decision,
    /// The first and the last of them.
    pub since: Timestamp,
    pub at: Timestamp,
    pub times: u64,
}

/// How many different ones wait.
#[derive(Clone, Copy, Debug)]
pub struct AuditBounds {
    pub entries_max: usize,
    /// Different refusals of one name among them …
    pub refused_per_subject_max: usize,
    /// … and different things that one name was allowed.
    pub allowed_per_subject_max: usize,
}

#[derive(Debug)]
pub struct AuditAggregator {
    bounds: AuditBounds,
    counts: HashMap<Decision, Count>,
    /// Different ones of each name and outcome.
    distinct_per_subject: HashMap<(String, bool), usize>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    since: Timestamp,
    at: Timestamp,
    times: u64,
}

impl AuditAggregator {
    pub fn new(bounds: AuditBounds) -> AuditAggregator {
        AuditAggregator { bounds, counts: HashMap::new(), distinct_per_subject: HashMap::new() }
    }

    pub fn record(&mut self, decision: Decision, now: Timestamp) {
        self.add(decision.sanitized(), Count { since: now, at: now, times: 1 });
    }

    /// All that wait, oldest first, and `most` of them at most. The rest wait on.
    pub fn drain(&mut self, most: usize) -> Vec<AggregatedDecision> {
        self.distinct_per_subject.clear();
        let taken = std::mem::take(&mut self.counts);
        let counted = |(decision, count): (Decision, Count)| AggregatedDecision {
            decision,
            since: count.since,
            at: count.at,
            times: count.times,
        };
        let mut list: Vec<AggregatedDecision> = taken.into_iter().map(counted).collect();
        list.sort_by(|a, b| {
            (a.at, &a.decision.who, &a.decision.object).cmp(&(b.at, &b.decision.who, &b.decision.object))
        });
        let rest = list.split_off(most.min(list.len()));
        self.restore(rest);
        list
    }

    /// What was taken and could not be written.
    pub fn restore(&mut self, list: Vec<AggregatedDecision>) {
        for AggregatedDecision { decision, since, at, times } in list {
            self.add(decision, Count { since, at, times });
        }
    }

    /// Different ones.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    fn add(&mut self, mut decision: Decision, count: Count) {
        if !self.counts.contains_key(&decision) {
            let one = (decision.who.clone(), decision.allowed);
            let of_one = if decision.allowed {
                self.bounds.allowed_per_subject_max
            } else {
                self.bounds.refused_per_subject_max
            };
            if self.counts.len() >= self.bounds.entries_max {
                decision = Decision {
                    who: AGGREGATED.into(),
                    credential: AGGREGATED.into(),
                    ..decision.aggregated()
                };
            } else if self.distinct_per_subject.get(&one).is_some_and(|known| *known >= of_one) {
                decision = decision.aggregated();
            } else {
                *self.distinct_per_subject.entry(one).or_default() += 1;
            }
        }
        let known = self.counts.entry(decision).or_insert(Count { times: 0, ..count });
        known.since = known.since.min(count.since);
        known.at = known.at.max(count.at);
        known.times = known.times.saturating_add(count.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: AuditBounds =
        AuditBounds { entries_max: 400, refused_per_subject_max: 20, allowed_per_subject_max: 100 };

    fn decision(who: &str, object: &str) -> Decision {
        Decision {
            allowed: false,
            who: who.into(),
            credential: "API token".into(),
            origin: "192.0.2.7".into(),
            operation: "job_show".into(),
            object: object.into(),
            why: "no".into(),
            storage: None,
        }
    }

    #[test]
    fn equal_decisions_are_one_that_says_how_often() {
        let mut tally = AuditAggregator::new(BOUNDS);
        for second in 1..=3 {
            let why = "it needs\nmore".to_owned();
            tally.record(Decision { why, ..decision("anna", "x") }, Timestamp::from_seconds(second));
        }
        let allowed = Decision { allowed: true, ..decision("root", "x") };
        tally.record(allowed.clone(), Timestamp::from_seconds(9));
        let list = tally.drain(10);
        let [refused, second] = &list[..] else { panic!("{list:?}") };
        assert_eq!(second.decision, allowed);
        let times = (refused.times, refused.since, refused.at);
        assert_eq!(times, (3, Timestamp::from_seconds(1), Timestamp::from_seconds(3)));
        assert!(!refused.decision.why.contains('\n'), "{refused:?}");
        assert!(tally.drain(10).is_empty(), "each is taken once");
    }

    #[test]
    fn who_is_refused_often_drives_out_nobody() {
        let mut tally = AuditAggregator::new(BOUNDS);
        tally.record(decision("anna", "mine"), Timestamp::ZERO);
        for number in 0..10_000 {
            tally.record(decision("mallory", &number.to_string()), Timestamp::ZERO);
        }
        let list = tally.drain(usize::MAX);
        assert_eq!(list.len(), BOUNDS.refused_per_subject_max + 2);
        let several = list.iter().find(|one| one.decision.object == AGGREGATED).unwrap();
        assert_eq!(several.times, 10_000 - BOUNDS.refused_per_subject_max as u64);
        assert_eq!(several.decision.who, "mallory");
        assert_eq!(list.iter().map(|one| one.times).sum::<u64>(), 10_001, "none is lost");
    }

    #[test]
    fn what_waits_is_bounded_whatever_comes() {
        let mut tally = AuditAggregator::new(BOUNDS);
        for number in 0..3 * BOUNDS.entries_max {
            tally.record(decision(&number.to_string(), "x"), Timestamp::ZERO);
        }
        assert_eq!(tally.len(), BOUNDS.entries_max + 1);
        assert!(tally.distinct_per_subject.len() <= BOUNDS.entries_max);
        assert_eq!(
            tally.drain(usize::MAX).iter().map(|one| one.times).sum::<u64>(),
            3 * BOUNDS.entries_max as u64
        );
    }

    #[test]
    fn what_is_not_taken_or_put_back_waits() {
        let mut tally = AuditAggregator::new(BOUNDS);
        for second in 0..5 {
            tally.record(decision("anna", &second.to_string()), Timestamp::from_seconds(second));
        }
        let first = tally.drain(2);
        assert_eq!(first.iter().map(|one| one.decision.object.as_str()).collect::<Vec<_>>(), ["0", "1"]);
        assert_eq!(tally.len(), 3);
        tally.record(decision("anna", "0"), Timestamp::from_seconds(9));
        tally.restore(first);
        let all = tally.drain(usize::MAX);
        assert_eq!((all.len(), all.iter().map(|one| one.times).sum::<u64>()), (5, 6));
        assert_eq!(all.last().map(|one| (one.decision.object.as_str(), one.times)), Some(("0", 2)));
    }

    #[test]
    fn what_comes_from_outside_is_cut() {
        let long = Decision { object: "ä\u{1b}".repeat(10_000), ..decision("x\ny", "") }.sanitized();
        assert!(long.object.len() < 10 * TEXT_CHARS_MAX && !long.object.contains('\u{1b}'));
        assert!(!long.who.contains('\n'));
    }
}
