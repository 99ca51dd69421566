//! The log of decisions: who was allowed or refused what, by which credential, on what, and why.
//!
//! Refusals are all kept, and every leave to change something; leave to read is not, nor what agents report
//! by the second (leases and their ends are in the catalog already). A request only counts its decision up in
//! memory; once in a while what has gathered is written in one transaction, so that no request waits for the
//! log. A service that is killed loses what it decided within the last seconds, one that is stopped loses
//! nothing.
//!
//! Both memory and table are bounded, and who is refused often drives out little ([`Tally`]). What agents'
//! doors decided comes with their reports, is applied exactly once, and is bounded by site. No secret comes
//! near: names of credentials, paths without queries.
//!
//! Start with [`Decisions::note`].

use std::sync::Mutex;

use longhaul_api::Problem;
use longhaul_api::agent::DoorDecision;
use longhaul_api::native::Page;
use longhaul_api::steering::DecisionEntry;
use longhaul_catalog::{Catalog, CatalogError, DecisionFilter, DecisionRow, NewDecision};
use longhaul_model::{SiteName, Timestamp};
use longhaul_security::{Counted, Decision, Tally, TallyBounds};

use crate::http::Peer;
use crate::metrics::Metrics;
use crate::operations::{Caller, Operations, PageQuery, bad_request, page, problem};
use crate::shared::guard;

const BOUNDS: TallyBounds = TallyBounds { most: 4_000, refused_of_one: 20, allowed_of_one: 1_000 };
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

/// What waits to be written.
pub struct Decisions {
    waiting: Mutex<Tally>,
}

impl Default for Decisions {
    fn default() -> Self {
        Decisions { waiting: Mutex::new(Tally::new(BOUNDS)) }
    }
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
        let decision = Decision {
            allowed: outcome.is_ok(),
            who: asked.who.clone(),
            credential: asked.credential.to_owned(),
            origin: asked.origin.clone(),
            operation: operation.to_owned(),
            object: object.to_owned(),
            why: outcome.err().unwrap_or(&asked.right).to_owned(),
            storage: None,
        };
        guard(&self.waiting).note(decision, now);
    }

    /// Writes what waits. What cannot be written waits on.
    pub fn write(&self, catalog: &Catalog, metrics: &Metrics) -> Result<(), CatalogError> {
        let list = guard(&self.waiting).take(usize::MAX);
        let rows: Vec<NewDecision> = list.iter().cloned().map(row).collect();
        if let Err(error) = catalog.record_decisions(&rows) {
            guard(&self.waiting).put_back(list);
            return Err(error);
        }
        count(&rows, metrics);
        Ok(())
    }
}

/// Also of what doors have decided.
pub(crate) fn count(rows: &[NewDecision], metrics: &Metrics) {
    for (allowed, word) in [(true, "allowed"), (false, "refused")] {
        let times = rows.iter().filter(|one| one.allowed == allowed).map(|one| one.times).sum();
        metrics.count(
            "longhaul_decisions_total",
            "Leave to change something that was given, and all that was refused.",
            vec![("outcome", word.to_owned())],
            times,
        );
    }
}

fn row(counted: Counted) -> NewDecision {
    let Counted { decision, since, at, times } = counted;
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

/// What an agent says that one of its doors decided. It may say what it likes, of its own site.
pub(crate) fn of_door(said: DoorDecision, site: &SiteName, now: Timestamp) -> NewDecision {
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
    let counted = Counted { decision: decision.shown(), since: said.since.min(at), at, times: said.times };
    NewDecision { at_door: Some((site.clone(), said.storage)), ..row(counted) }
}

impl Operations {
    /// Also what was decided just now. `of`: `refused` or `allowed`; none: both.
    pub fn decision_list(
        &self,
        caller: &Caller,
        of: Option<&str>,
        who: Option<String>,
        site: Option<SiteName>,
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
        // What the service decided names people and jobs of all communities; what a site's doors did is the
        // site's to know.
        let sites = match site {
            Some(site) => {
                caller.check_site("decision_list", &site)?;
                Some(vec![site])
            }
            None => caller.sees_only_sites(),
        };
        let filter = DecisionFilter { allowed, who, sites, before: query.after()?, limit: limit + 1 };
        let rows = self.shared.catalog.decisions(&filter).map_err(problem)?;
        page(rows, limit, |row| row.id.to_string(), |row| Ok(entry(row)))
    }
}

fn entry(DecisionRow { id, decision }: DecisionRow) -> DecisionEntry {
    let (site, storage) = decision.at_door.unzip();
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
        site,
        storage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let kept = of_door(said, &site, now);
        assert_eq!((kept.since, kept.at, kept.times), (now, now, 3));
        assert_eq!(kept.at_door, Some((site, "disk".parse().unwrap())));
        assert!(kept.who.len() < 5_000 && !kept.who.contains('\u{1b}') && !kept.who.contains('\n'));
    }
}
