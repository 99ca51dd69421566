//! The log of decisions: who was allowed or refused what, by which credential, on what, and why.
//!
//! Refusals are all kept, and every leave to change something; leave to read is not, nor what agents report by the second
//! (leases and their ends are in the catalog already). A request only counts its decision up in memory; once in a while
//! what has gathered is written in one transaction, so that no request waits for the log. A service that is killed loses
//! what it decided within the last seconds, one that is stopped loses nothing.
//!
//! Both memory and table are bounded, and who is refused often drives out little: beyond a few dozen different refusals of
//! one name in that while, those are counted together. No secret comes near: names of credentials, paths without queries.
//!
//! Start with [`Decisions::note`].

use std::collections::HashMap;
use std::sync::Mutex;

use longhaul_api::Problem;
use longhaul_api::native::Page;
use longhaul_api::steering::DecisionEntry;
use longhaul_catalog::{Catalog, CatalogError, DecisionFilter, DecisionRow, NewDecision};
use longhaul_model::Timestamp;
use longhaul_model::units::printable;

use crate::http::Peer;
use crate::metrics::Metrics;
use crate::operations::{Operations, PageQuery, bad_request, page, problem};
use crate::shared::guard;

/// Different decisions that wait to be written.
const WAITING_MAX: usize = 4_000;
/// Different refusals of one name among them …
const REFUSED_OF_ONE_MAX: usize = 20;
/// … and different things that one name was allowed.
const ALLOWED_OF_ONE_MAX: usize = 1_000;
/// Of names, paths and reasons so much is kept.
const SHOWN_CHARS_MAX: usize = 200;
const SEVERAL: &str = "(several)";
const NOBODY: &str = "nobody";

/// Who asks, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub who: String,
    pub credential: &'static str,
    origin: String,
    /// By which right they may what they may.
    pub right: String,
}

impl Asked {
    pub fn nobody(peer: Option<&Peer>) -> Asked {
        let origin = peer.map(|peer| peer.address.ip().to_canonical().to_string()).unwrap_or_default();
        Asked { who: NOBODY.into(), credential: "none", origin, right: String::new() }
    }

    /// Somebody in whose name something begins that they asked for before.
    pub fn owner(who: &str, credential: &'static str) -> Asked {
        Asked { who: who.to_owned(), credential, origin: String::new(), right: String::new() }
    }

    /// By what their requests are counted.
    pub fn pace_name(&self) -> String {
        if self.who == NOBODY { format!("nobody at {}", self.origin) } else { self.who.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    allowed: bool,
    who: String,
    credential: &'static str,
    origin: String,
    operation: String,
    object: String,
    why: String,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    since: Timestamp,
    at: Timestamp,
    times: u64,
}

#[derive(Default)]
struct Waiting {
    counts: HashMap<Key, Count>,
    /// Different ones of each name and outcome.
    of_one: HashMap<(String, bool), usize>,
}

/// What waits to be written.
#[derive(Default)]
pub struct Decisions {
    waiting: Mutex<Waiting>,
}

impl Decisions {
    /// `operation` is one of a bounded number of words; `object` is what of.
    pub fn note(
        &self,
        asked: &Asked,
        (operation, object): (&str, &str),
        outcome: Result<(), &str>,
        now: Timestamp,
    ) {
        let key = Key {
            allowed: outcome.is_ok(),
            who: shown(&asked.who),
            credential: asked.credential,
            origin: asked.origin.clone(),
            operation: operation.to_owned(),
            object: shown(object),
            why: shown(outcome.err().unwrap_or(&asked.right)),
        };
        guard(&self.waiting).add(key, Count { since: now, at: now, times: 1 });
    }

    /// Writes what waits. What cannot be written waits on.
    pub fn write(&self, catalog: &Catalog, metrics: &Metrics) -> Result<(), CatalogError> {
        let written = self.hand_over(|list| catalog.record_decisions(list))?;
        for (allowed, word) in [(true, "allowed"), (false, "refused")] {
            let times = written.iter().filter(|one| one.allowed == allowed).map(|one| one.times).sum();
            metrics.count(
                "longhaul_decisions_total",
                "Leave to change something that was given, and all that was refused.",
                vec![("outcome", word.to_owned())],
                times,
            );
        }
        Ok(())
    }

    fn hand_over<E>(&self, put: impl FnOnce(&[NewDecision]) -> Result<(), E>) -> Result<Vec<NewDecision>, E> {
        let taken = std::mem::take(&mut *guard(&self.waiting));
        let mut list: Vec<NewDecision> = taken.counts.iter().map(|(key, count)| row(key, *count)).collect();
        list.sort_by(|a, b| (a.at, &a.who, &a.object).cmp(&(b.at, &b.who, &b.object)));
        if let Err(error) = put(&list) {
            let mut waiting = guard(&self.waiting);
            taken.counts.into_iter().for_each(|(key, count)| waiting.add(key, count));
            return Err(error);
        }
        Ok(list)
    }
}

impl Waiting {
    fn add(&mut self, mut key: Key, count: Count) {
        if !self.counts.contains_key(&key) {
            let most = if key.allowed { ALLOWED_OF_ONE_MAX } else { REFUSED_OF_ONE_MAX };
            let one = (key.who.clone(), key.allowed);
            if self.counts.len() >= WAITING_MAX {
                key = Key { who: SEVERAL.into(), credential: SEVERAL, ..key.of_several() };
            } else if self.of_one.get(&one).is_some_and(|known| *known >= most) {
                key = key.of_several();
            } else {
                *self.of_one.entry(one).or_default() += 1;
            }
        }
        let known = self.counts.entry(key).or_insert(Count { times: 0, ..count });
        known.since = known.since.min(count.since);
        known.at = known.at.max(count.at);
        known.times = known.times.saturating_add(count.times);
    }
}

impl Key {
    /// Operations are of a bounded number, so these are too.
    fn of_several(self) -> Key {
        Key { object: SEVERAL.into(), why: SEVERAL.into(), origin: SEVERAL.into(), ..self }
    }
}

fn row(key: &Key, count: Count) -> NewDecision {
    NewDecision {
        allowed: key.allowed,
        since: count.since,
        at: count.at,
        times: count.times,
        who: key.who.clone(),
        credential: key.credential.to_owned(),
        origin: key.origin.clone(),
        operation: key.operation.clone(),
        object: key.object.clone(),
        why: key.why.clone(),
    }
}

fn shown(text: &str) -> String {
    printable(&text.chars().take(SHOWN_CHARS_MAX).collect::<String>())
}

impl Operations {
    /// Also what was decided just now. `of`: `refused` or `allowed`; none: both.
    pub fn decision_list(
        &self,
        of: Option<&str>,
        who: Option<String>,
        query: &PageQuery,
    ) -> Result<Page<DecisionEntry>, Problem> {
        let allowed = match of {
            None => None,
            Some("refused") => Some(false),
            Some("allowed") => Some(true),
            Some(other) => {
                return Err(bad_request(format!("of is {other:?}: refused or allowed are there")));
            }
        };
        self.shared.decisions.write(&self.shared.catalog, &self.shared.metrics).map_err(problem)?;
        let limit = query.limit();
        let filter = DecisionFilter { allowed, who, before: query.after()?, limit: limit + 1 };
        let rows = self.shared.catalog.decisions(&filter).map_err(problem)?;
        page(rows, limit, |row| row.id.to_string(), |row| Ok(entry(row)))
    }
}

fn entry(DecisionRow { id, decision }: DecisionRow) -> DecisionEntry {
    DecisionEntry {
        id,
        allowed: decision.allowed,
        since: decision.since,
        at: decision.at,
        times: decision.times,
        who: decision.who,
        credential: decision.credential,
        origin: decision.origin,
        operation: decision.operation,
        object: decision.object,
        why: decision.why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(who: &str) -> Asked {
        Asked { who: who.into(), credential: "API token", origin: "192.0.2.7".into(), right: "admin".into() }
    }

    fn written(decisions: &Decisions) -> Vec<NewDecision> {
        decisions.hand_over(|_| Ok::<_, ()>(())).unwrap()
    }

    #[test]
    fn equal_decisions_are_one_that_says_how_often() {
        let decisions = Decisions::default();
        for second in 1..=3 {
            let at = Timestamp::from_seconds(second);
            decisions.note(&asked("anna"), ("site_add", "/api/v1/sites"), Err("it needs\nmore"), at);
        }
        decisions.note(&asked("root"), ("site_add", "/api/v1/sites"), Ok(()), Timestamp::from_seconds(9));
        let rows = written(&decisions);
        assert_eq!(rows.len(), 2);
        let [refused, allowed] = [&rows[0], &rows[1]];
        assert!(allowed.allowed && allowed.why == "admin");
        let times = (refused.times, refused.since, refused.at);
        assert_eq!(times, (3, Timestamp::from_seconds(1), Timestamp::from_seconds(3)));
        assert!(!refused.why.contains('\n'), "{}", refused.why);
        assert!(written(&decisions).is_empty(), "each is written once");
    }

    #[test]
    fn who_is_refused_often_drives_out_nobody() {
        let decisions = Decisions::default();
        decisions.note(&asked("anna"), ("job_show", "mine"), Err("no"), Timestamp::ZERO);
        for number in 0..10_000 {
            decisions.note(&asked("mallory"), ("job_show", &number.to_string()), Err("no"), Timestamp::ZERO);
        }
        let rows = written(&decisions);
        assert_eq!(rows.len(), REFUSED_OF_ONE_MAX + 2);
        let several = rows.iter().find(|row| row.object == SEVERAL).unwrap();
        assert_eq!((several.times, several.who.as_str()), (10_000 - REFUSED_OF_ONE_MAX as u64, "mallory"));
        assert_eq!(rows.iter().map(|row| row.times).sum::<u64>(), 10_001, "none is lost");
    }

    #[test]
    fn what_waits_is_bounded_whatever_comes() {
        let decisions = Decisions::default();
        for number in 0..3 * WAITING_MAX {
            decisions.note(&asked(&number.to_string()), ("job_show", "x"), Err("no"), Timestamp::ZERO);
        }
        let waiting = guard(&decisions.waiting);
        assert_eq!(waiting.counts.len(), WAITING_MAX + 1);
        assert!(waiting.of_one.len() <= WAITING_MAX);
        let times: u64 = waiting.counts.values().map(|count| count.times).sum();
        assert_eq!(times, 3 * WAITING_MAX as u64);
    }

    #[test]
    fn what_cannot_be_written_waits() {
        let decisions = Decisions::default();
        decisions.note(&asked("anna"), ("job_show", "x"), Err("no"), Timestamp::ZERO);
        assert!(decisions.hand_over(|list| Err(list.len())).is_err_and(|tried| tried == 1));
        decisions.note(&asked("anna"), ("job_show", "x"), Err("no"), Timestamp::from_seconds(5));
        let rows = written(&decisions);
        assert_eq!((rows.len(), rows[0].times, rows[0].at), (1, 2, Timestamp::from_seconds(5)));
    }
}
