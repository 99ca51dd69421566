//! Aggregation of audit events: access decisions (who was allowed or refused what) are counted for a short
//! while before they are written.
//!
//! Equal decisions become one with a count. Memory is bounded, and one noisy subject displaces little: beyond
//! a number of distinct decisions of one name, its others are counted together, and so are all of further
//! names. Every decision is counted, however few are distinguished.
//!
//! Start with [`AuditAggregator::record`]. Not here: where entries are stored (`catalog`).

use std::collections::HashMap;

use longhaul_model::units::printable;
use longhaul_model::{StorageName, Timestamp};

/// Characters kept of names, paths and reasons, which clients choose.
const TEXT_CHARS_MAX: usize = 240;
/// Stands for values that were counted together.
pub const AGGREGATED: &str = "(several)";

/// An access decision. The number of operations is bounded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    pub allowed: bool,
    pub who: String,
    /// The kind of credential, never the credential.
    pub credential: String,
    /// The client's address.
    pub origin: String,
    pub operation: String,
    /// The object of the operation.
    pub object: String,
    /// The reason of a refusal, or the right that allowed it.
    pub why: String,
    /// The storage at whose door it was decided; none: at the service.
    pub storage: Option<StorageName>,
}

impl Decision {
    /// Truncates texts and makes them printable: they come from outside.
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

    /// Without what distinguishes decisions of one subject. Operations are bounded in number, so these are
    /// too.
    fn aggregated(self) -> Decision {
        Decision { object: AGGREGATED.into(), why: AGGREGATED.into(), origin: AGGREGATED.into(), ..self }
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_graphic() || c == ' '
}

/// Equal decisions, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatedDecision {
    pub decision: Decision,
    /// When the first of them was made.
    pub since: Timestamp,
    pub at: Timestamp,
    pub times: u64,
}

/// Bounds of the distinct decisions in memory.
#[derive(Clone, Copy, Debug)]
pub struct AuditBounds {
    pub entries_max: usize,
    /// Distinct refusals of one name.
    pub refused_per_subject_max: usize,
    /// Distinct allowed decisions of one name.
    pub allowed_per_subject_max: usize,
}

#[derive(Debug)]
pub struct AuditAggregator {
    bounds: AuditBounds,
    counts: HashMap<Decision, Count>,
    /// The number of distinct decisions of each name and outcome.
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

    /// Takes at most `most` entries, oldest first; the rest stays.
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

    /// Puts back entries that could not be written.
    pub fn restore(&mut self, list: Vec<AggregatedDecision>) {
        for AggregatedDecision { decision, since, at, times } in list {
            self.add(decision, Count { since, at, times });
        }
    }

    /// The number of distinct entries.
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
    fn equal_decisions_are_counted() {
        let mut aggregator = AuditAggregator::new(BOUNDS);
        for second in 1..=3 {
            let why = "it needs\nmore".to_owned();
            aggregator.record(Decision { why, ..decision("anna", "x") }, Timestamp::from_seconds(second));
        }
        let allowed = Decision { allowed: true, ..decision("root", "x") };
        aggregator.record(allowed.clone(), Timestamp::from_seconds(9));
        let list = aggregator.drain(10);
        let [refused, second] = &list[..] else { panic!("{list:?}") };
        assert_eq!(second.decision, allowed);
        let times = (refused.times, refused.since, refused.at);
        assert_eq!(times, (3, Timestamp::from_seconds(1), Timestamp::from_seconds(3)));
        assert!(!refused.decision.why.contains('\n'), "{refused:?}");
        assert!(aggregator.drain(10).is_empty(), "each is taken once");
    }

    #[test]
    fn a_noisy_subject_displaces_nobody() {
        let mut aggregator = AuditAggregator::new(BOUNDS);
        aggregator.record(decision("anna", "mine"), Timestamp::ZERO);
        for number in 0..10_000 {
            aggregator.record(decision("mallory", &number.to_string()), Timestamp::ZERO);
        }
        let list = aggregator.drain(usize::MAX);
        assert_eq!(list.len(), BOUNDS.refused_per_subject_max + 2);
        let several = list.iter().find(|one| one.decision.object == AGGREGATED).unwrap();
        assert_eq!(several.times, 10_000 - BOUNDS.refused_per_subject_max as u64);
        assert_eq!(several.decision.who, "mallory");
        assert_eq!(list.iter().map(|one| one.times).sum::<u64>(), 10_001, "none is lost");
    }

    #[test]
    fn memory_is_bounded() {
        let mut aggregator = AuditAggregator::new(BOUNDS);
        for number in 0..3 * BOUNDS.entries_max {
            aggregator.record(decision(&number.to_string(), "x"), Timestamp::ZERO);
        }
        assert_eq!(aggregator.len(), BOUNDS.entries_max + 1);
        assert!(aggregator.distinct_per_subject.len() <= BOUNDS.entries_max);
        assert_eq!(
            aggregator.drain(usize::MAX).iter().map(|one| one.times).sum::<u64>(),
            3 * BOUNDS.entries_max as u64
        );
    }

    #[test]
    fn entries_not_drained_or_restored_stay() {
        let mut aggregator = AuditAggregator::new(BOUNDS);
        for second in 0..5 {
            aggregator.record(decision("anna", &second.to_string()), Timestamp::from_seconds(second));
        }
        let first = aggregator.drain(2);
        assert_eq!(first.iter().map(|one| one.decision.object.as_str()).collect::<Vec<_>>(), ["0", "1"]);
        assert_eq!(aggregator.len(), 3);
        aggregator.record(decision("anna", "0"), Timestamp::from_seconds(9));
        aggregator.restore(first);
        let all = aggregator.drain(usize::MAX);
        assert_eq!((all.len(), all.iter().map(|one| one.times).sum::<u64>()), (5, 6));
        assert_eq!(all.last().map(|one| (one.decision.object.as_str(), one.times)), Some(("0", 2)));
    }

    #[test]
    fn texts_from_outside_are_truncated() {
        let long = Decision { object: "ä\u{1b}".repeat(10_000), ..decision("x\ny", "") }.sanitized();
        assert!(long.object.len() < 10 * TEXT_CHARS_MAX && !long.object.contains('\u{1b}'));
        assert!(!long.who.contains('\n'));
    }
}
