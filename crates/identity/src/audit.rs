//! The audit log: who was allowed or refused what, with which credential, on which object, and why.
//!
//! All refusals are kept, and every permission to change something. Permissions to read are not, nor what
//! agents report every second (leases and their outcomes are in the catalog already). A request only counts
//! its decision in memory; every few seconds the batch is written in one transaction, so no request waits
//! for the log. A service that is killed loses the decisions of the last seconds, one that is stopped loses
//! none.
//!
//! Both memory and table are bounded, and somebody who is refused often displaces little ([`Tally`]).
//! Decisions of agents' doors come with their reports, are applied exactly once, and are bounded by site. No
//! secret is recorded: names of credentials, paths without queries.
//!
//! Start with [`AuditLog::record`].

use longhaul_api::agent::DoorDecision;
use longhaul_catalog::{Catalog, CatalogError, NewDecision};
use longhaul_model::limits::REPORTED_TIMES_MAX;
use longhaul_model::{SiteName, Timestamp};
use longhaul_security::{AggregatedDecision, AuditAggregator, AuditBounds, Decision};
use parking_lot::{Mutex, MutexGuard};

use crate::Origin;

const BOUNDS: AuditBounds =
    AuditBounds { entries_max: 4_000, refused_per_subject_max: 20, allowed_per_subject_max: 1_000 };
const NOBODY: &str = "nobody";

/// The origin of a request, as far as authentication has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    pub who: String,
    pub credential: &'static str,
    /// The address they come from; empty for work that the service does in their name.
    origin: String,
    /// The right that allows what they do.
    pub right: String,
}

impl Requester {
    /// Somebody who has not authenticated yet.
    pub fn anonymous(origin: Option<&Origin>) -> Requester {
        let origin = origin.map(|origin| origin.address.ip().to_canonical().to_string()).unwrap_or_default();
        Requester { who: NOBODY.into(), credential: "none", origin, right: String::new() }
    }

    /// The owner of earlier submitted work that begins now.
    pub fn owner(who: &str, credential: &'static str) -> Requester {
        Requester { who: who.to_owned(), credential, origin: String::new(), right: String::new() }
    }

    /// The key under which their requests are rate-limited.
    pub fn rate_limit_key(&self) -> String {
        if self.who == NOBODY { format!("nobody at {}", self.origin) } else { self.who.clone() }
    }
}

/// A counter of the metrics page, as this crate needs it.
pub trait Counters: Send + Sync {
    fn count(&self, name: &'static str, help: &'static str, labels: Vec<(&'static str, String)>, by: u64);
}

/// Decisions in memory, aggregated until they are written.
pub struct AuditLog {
    pending: Mutex<AuditAggregator>,
}

impl Default for AuditLog {
    fn default() -> Self {
        AuditLog { pending: Mutex::new(AuditAggregator::new(BOUNDS)) }
    }
}

impl AuditLog {
    /// `operation` is one of a bounded number of words; `object` is what it acts on.
    pub fn record(
        &self,
        requester: &Requester,
        (operation, object): (&str, &str),
        outcome: Result<(), &str>,
        now: Timestamp,
    ) {
        let decision = Decision {
            allowed: outcome.is_ok(),
            who: requester.who.clone(),
            credential: requester.credential.to_owned(),
            origin: requester.origin.clone(),
            operation: operation.to_owned(),
            object: object.to_owned(),
            why: outcome.err().unwrap_or(&requester.right).to_owned(),
            storage: None,
        };
        self.pending().record(decision, now);
    }

    /// Writes all pending decisions; after a failure they stay pending.
    pub fn write(&self, catalog: &Catalog, counters: &dyn Counters) -> Result<(), CatalogError> {
        let list = self.pending().drain(usize::MAX);
        let rows: Vec<NewDecision> = list.iter().cloned().map(row).collect();
        if let Err(error) = catalog.record_decisions(&rows) {
            self.pending().restore(list);
            return Err(error);
        }
        count(&rows, counters);
        Ok(())
    }

    fn pending(&self) -> MutexGuard<'_, AuditAggregator> {
        self.pending.lock()
    }
}

/// Counts decisions, also those of agents' doors, on the metrics page.
pub fn count(rows: &[NewDecision], counters: &dyn Counters) {
    for (allowed, word) in [(true, "allowed"), (false, "refused")] {
        let counted = rows.iter().filter(|one| one.allowed == allowed).map(|one| one.times);
        let times = counted.fold(0, u64::saturating_add);
        counters.count(
            "longhaul_decisions_total",
            "Leave to change something that was given, and all that was refused.",
            vec![("outcome", word.to_owned())],
            times,
        );
    }
}

fn row(counted: AggregatedDecision) -> NewDecision {
    let AggregatedDecision { decision, since, at, times } = counted;
    NewDecision {
        allowed: decision.allowed,
        since,
        at,
        times,
        who: decision.who,
        credential: decision.credential,
        origin: decision.origin,
        operation: decision.operation,
        object: decision.object,
        why: decision.why,
        at_door: None,
    }
}

/// A decision of an agent's door as a row. An agent may claim anything, but only about its own site.
pub fn from_door(said: DoorDecision, site: &SiteName, now: Timestamp) -> NewDecision {
    let decision = Decision {
        allowed: said.allowed,
        who: said.who,
        credential: said.credential,
        origin: said.origin,
        operation: said.operation,
        object: said.object,
        why: said.why,
        storage: None,
    };
    let at = said.at.min(now);
    let counted = AggregatedDecision {
        decision: decision.sanitized(),
        since: said.since.min(at),
        at,
        times: said.times.clamp(1, REPORTED_TIMES_MAX),
    };
    NewDecision { at_door: Some((site.clone(), said.storage)), ..row(counted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts from outside add up to no more than a number can hold.
    #[test]
    fn any_count_of_decisions_can_be_added_up() {
        #[derive(Default)]
        struct Total(Mutex<u64>);
        impl Counters for Total {
            fn count(&self, _: &'static str, _: &'static str, _: Vec<(&'static str, String)>, by: u64) {
                let mut total = self.0.lock();
                *total = total.saturating_add(by);
            }
        }
        let said = DoorDecision {
            storage: "disk".parse().unwrap(),
            allowed: true,
            since: Timestamp::ZERO,
            at: Timestamp::ZERO,
            times: u64::MAX,
            who: "x".into(),
            credential: "token".into(),
            origin: String::new(),
            operation: "door GET".into(),
            object: "/x".into(),
            why: String::new(),
        };
        let site: SiteName = "gamma".parse().unwrap();
        let bounded = from_door(said, &site, Timestamp::ZERO);
        assert_eq!(bounded.times, REPORTED_TIMES_MAX);
        let wild = NewDecision { times: u64::MAX, ..bounded };
        let total = Total::default();
        count(&[wild.clone(), wild], &total);
        assert_eq!(*total.0.lock(), u64::MAX);
    }

    /// An agent may be anybody's: what it says is cut, of its own site, and of no time to come.
    #[test]
    fn what_doors_say_is_not_believed_further_than_their_site() {
        let now = Timestamp::from_seconds(100);
        let said = DoorDecision {
            storage: "disk".parse().unwrap(),
            allowed: false,
            since: Timestamp::from_seconds(900),
            at: Timestamp::from_seconds(500),
            times: 3,
            who: "x\u{1b}\n".repeat(10_000),
            credential: "certificate".into(),
            origin: "192.0.2.7".into(),
            operation: "door PUT".into(),
            object: "/x".into(),
            why: "no".into(),
        };
        let site: SiteName = "gamma".parse().unwrap();
        let kept = from_door(said, &site, now);
        assert_eq!((kept.since, kept.at, kept.times), (now, now, 3));
        assert_eq!(kept.at_door, Some((site, "disk".parse().unwrap())));
        assert!(kept.who.len() < 5_000 && !kept.who.contains('\u{1b}') && !kept.who.contains('\n'));
    }
}
