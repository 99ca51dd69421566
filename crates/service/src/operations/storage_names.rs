//! Storage names that an administrator allows to a site, and those that wait for it.

use longhaul_api::Problem;
use longhaul_api::native::{ChangeKind, ProblemView, StorageAllow, StorageAllowed};
use longhaul_catalog::{CatalogError, NameBasis, NameOwner, SITE_STORAGES_MAX};
use longhaul_identity::Caller;
use longhaul_model::{AgentId, Blame, Fault, FaultCode, SiteName, StorageName, Timestamp, units};

use super::overview::standing;
use super::{Operations, problem};

/// Problems of one agent with names that are not confirmed.
const UNCONFIRMED_SHOWN_MAX: usize = 20;

impl Operations {
    /// Allows a site to have a storage of that name. An agent of the site that offers it serves it soon.
    pub fn storage_allow(
        &self,
        caller: &Caller,
        name: &StorageName,
        request: &StorageAllow,
    ) -> Result<StorageAllowed, Problem> {
        let (site, by, now) = (&request.site, &caller.principal.name, self.now());
        self.site_row(site)?;
        let allowed = self.shared.kernel.catalog.allow_storage_name(name, site, by, now);
        if allowed.map_err(|error| self.name_problem(error, site, std::slice::from_ref(name)))? {
            tracing::info!(storage = %name, %site, %by, "storage name allowed");
            self.announce_names(site, now)?;
        }
        Ok(StorageAllowed { storage: name.clone(), site: site.clone() })
    }

    /// Takes an allowed name back. Refused while there is a storage of that name.
    pub fn storage_disallow(&self, caller: &Caller, name: &StorageName) -> Result<(), Problem> {
        let (by, now) = (&caller.principal.name, self.now());
        let taken_back = self.shared.kernel.catalog.disallow_storage_name(name, by, now);
        let site = taken_back.map_err(|error| match problem(error) {
            problem if problem.code == FaultCode::Conflict => problem.with_remedy(remove_storage(name)),
            problem if problem.code == FaultCode::NotFound => {
                problem.with_remedy("see what is allowed: longhaul site show SITE")
            }
            problem => problem,
        })?;
        tracing::info!(storage = %name, %site, %by, "storage name no longer allowed");
        self.announce_names(&site, now)
    }

    /// Reads the owners of names again: the agents concerned learn of them with their next report.
    pub(super) fn announce_names(&self, site: &SiteName, now: Timestamp) -> Result<(), Problem> {
        let kernel = &self.shared.kernel;
        kernel.refresh_directory().map_err(problem)?;
        kernel.changes.touch(ChangeKind::Site, site, now);
        kernel.changes.touch(ChangeKind::Problem, "", now);
        Ok(())
    }

    /// Why a site is not allowed one of the names, with the command that changes it.
    pub(super) fn name_problem(
        &self,
        error: CatalogError,
        site: &SiteName,
        names: &[StorageName],
    ) -> Problem {
        let problem = problem(error);
        if problem.code != FaultCode::Conflict {
            return problem;
        }
        let directory = self.shared.kernel.directory();
        // They are tried in order: the first that is another site's is the one.
        let remedy = names.iter().find_map(|name| {
            let owner = directory.name_owners.find_owner(name).filter(|owner| owner.site_name != *site)?;
            free_name(name, owner.basis)
        });
        match remedy {
            Some(remedy) => problem.with_remedy(remedy),
            None => problem,
        }
    }

    /// Storages that an agent of the site offers under names that are not the site's.
    pub(super) fn unconfirmed_names(
        &self,
        site: &SiteName,
        agent: AgentId,
        host: &str,
        now: Timestamp,
    ) -> Vec<ProblemView> {
        let unconfirmed = self.shared.control.unconfirmed_storages(agent);
        let more = unconfirmed.len().saturating_sub(UNCONFIRMED_SHOWN_MAX);
        let shown = unconfirmed.into_iter().take(UNCONFIRMED_SHOWN_MAX);
        let mut views: Vec<ProblemView> =
            shown.map(|(name, owner)| unconfirmed_name(site, host, name, owner.as_ref(), now)).collect();
        if let Some(last) = views.last_mut().filter(|_| more > 0) {
            let more = units::plural(more as u64, "more storage", "more storages");
            last.examples = vec![format!("and {more} of this agent")];
        }
        views
    }
}

/// A storage that nobody serves, since its name is not the site's.
fn unconfirmed_name(
    site: &SiteName,
    host: &str,
    name: StorageName,
    owner: Option<&NameOwner>,
    now: Timestamp,
) -> ProblemView {
    let (why, remedy) = match owner {
        None => (
            "an administrator has to confirm the name".to_owned(),
            format!("if it is meant so: longhaul storage allow {name} --site {site}"),
        ),
        Some(NameOwner { site_name, basis: NameBasis::Storage, .. }) if site_name == site => (
            "another agent of the site serves a storage of that name".to_owned(),
            format!(
                "give it another name in the configuration of the agent on {host}, or stop the other agent"
            ),
        ),
        Some(owner) if owner.site_name == *site => (
            format!("the site has {SITE_STORAGES_MAX} storages, and gets no more"),
            "remove one that is not used any more: longhaul storage remove NAME".to_owned(),
        ),
        Some(NameOwner { site_name, basis: NameBasis::SiteName, .. }) => (
            format!("the name begins with that of site {site_name}"),
            format!(
                "give it another name; or, if it is meant so: longhaul storage allow {name} --site {site}"
            ),
        ),
        Some(NameOwner { site_name, basis: NameBasis::Allowance, .. }) => (
            format!("the name is allowed to site {site_name}"),
            format!(
                "give it another name; or: longhaul storage disallow {name}, then: longhaul storage allow \
                    {name} --site {site}"
            ),
        ),
        Some(NameOwner { site_name, basis: NameBasis::Storage, .. }) => (
            format!("site {site_name} has a storage of that name"),
            format!("give it another name in the configuration of the agent on {host}"),
        ),
    };
    let detail = format!("storage {name}, which the agent of {site} on {host} offers, is not served: {why}");
    let fault = Fault::new(FaultCode::Conflict, detail).blaming(Blame::Target);
    ProblemView { remedy, ..standing(fault, Some(name), now) }
}

/// The next step where a name is another site's; none where it may be allowed nevertheless.
fn free_name(name: &StorageName, basis: NameBasis) -> Option<String> {
    match basis {
        NameBasis::Storage => Some(remove_storage(name)),
        NameBasis::Allowance => Some(format!("take it back first: longhaul storage disallow {name}")),
        NameBasis::SiteName => None,
    }
}

fn remove_storage(name: &StorageName) -> String {
    format!("choose another name, or remove that storage first: longhaul storage remove {name}")
}

#[cfg(test)]
mod tests {
    use longhaul_model::SiteId;

    use super::*;

    #[test]
    fn a_name_that_is_not_the_sites_is_a_problem_with_a_next_step() {
        let (site, other): (SiteName, SiteName) = ("beta".parse().unwrap(), "alpha".parse().unwrap());
        let view = |basis: Option<NameBasis>| {
            let owner = basis.map(|basis| NameOwner { site: SiteId(1), site_name: other.clone(), basis });
            unconfirmed_name(&site, "worker1", "vault".parse().unwrap(), owner.as_ref(), Timestamp::ZERO)
        };
        let allow = "longhaul storage allow vault --site beta";
        for (basis, why, remedy) in [
            (None, "has to confirm", allow),
            (Some(NameBasis::SiteName), "begins with that of site alpha", allow),
            (Some(NameBasis::Allowance), "is allowed to site alpha", "longhaul storage disallow vault, then"),
            (Some(NameBasis::Storage), "site alpha has a storage", "give it another name in the config"),
        ] {
            let view = view(basis);
            assert!(view.fault.detail.contains(why) && view.remedy.contains(remedy), "{view:?}");
            assert!(view.fault.detail.contains("the agent of beta on worker1"), "{}", view.fault.detail);
            assert_eq!(view.storage, Some("vault".parse().unwrap()));
        }
    }

    #[test]
    fn a_name_that_another_agent_of_the_site_uses_is_a_problem_of_their_configurations() {
        let site: SiteName = "beta".parse().unwrap();
        let owner = NameOwner { site: SiteId(1), site_name: site.clone(), basis: NameBasis::Storage };
        let name = "vault".parse().unwrap();
        let view = unconfirmed_name(&site, "worker1", name, Some(&owner), Timestamp::ZERO);
        assert!(view.fault.detail.contains("another agent of the site serves"), "{view:?}");
        assert!(
            view.remedy.contains("of the agent on worker1") && !view.remedy.contains("longhaul"),
            "{view:?}"
        );
    }

    /// To allow the name again would change nothing.
    #[test]
    fn a_name_of_a_site_with_too_many_storages_is_a_problem_with_another_next_step() {
        let site: SiteName = "beta".parse().unwrap();
        for basis in [NameBasis::SiteName, NameBasis::Allowance] {
            let owner = NameOwner { site: SiteId(1), site_name: site.clone(), basis };
            let name = "beta-new".parse().unwrap();
            let view = unconfirmed_name(&site, "worker1", name, Some(&owner), Timestamp::ZERO);
            assert!(view.fault.detail.ends_with("the site has 1000 storages, and gets no more"), "{view:?}");
            assert!(view.remedy.ends_with("longhaul storage remove NAME"), "{}", view.remedy);
        }
    }
}
