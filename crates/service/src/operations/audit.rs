//! The audit log as people read it.

use longhaul_api::Problem;
use longhaul_api::native::Page;
use longhaul_api::steering::DecisionEntry;
use longhaul_catalog::{DecisionFilter, DecisionRow};
use longhaul_identity::Caller;
use longhaul_model::SiteName;

use super::{Operations, PageQuery, bad_request, page, problem};

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
        self.identity().write_audit_log().map_err(problem)?;
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
        let rows = self.shared.kernel.catalog.decisions(&filter).map_err(problem)?;
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
