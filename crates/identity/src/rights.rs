//! Authorisation of callers: whether a route is open to them, and whether its object is theirs to change.
//! Routes and pages ask here and nowhere else; what nobody granted is refused.
//!
//! Whether a route is open follows from the table of routes ([`Caller::may_open`]). Only the operation knows
//! its object, so it checks the name of the site or community before it does anything.

use longhaul_api::Problem;
use longhaul_api::routes::{Access, Method, Route};
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use longhaul_security::{Action, Area, ResourceScope, Role, authorise, authorise_for};

use crate::Caller;

impl Caller {
    /// Whether they may ask for this at all, also by what their credential is confined to.
    pub fn may_open(&self, route: &Route) -> Result<(), Problem> {
        let action = match route.access {
            Access::Public => return Ok(()),
            Access::AgentCertificate => {
                let detail = format!("{} is for agents, by their certificates", route.operation);
                return Err(Fault::new(FaultCode::NotAllowed, detail).into());
            }
            Access::LocalOrViewer | Access::Viewer | Access::Submitter => Action::Read(route.operation),
            Access::SiteManager | Access::CommunityManager => Action::Manage(route.operation),
            Access::Admin => Action::Change(route.operation),
            Access::Observer => Action::Observe(route.operation),
        };
        authorise(&self.principal, &action)?;
        let changes = route.method != Method::Get;
        Ok(self.confinement().check(area(route), changes, route.operation)?)
    }

    /// Whether they see the pages.
    pub fn may_look(&self) -> Result<(), Problem> {
        Ok(authorise(&self.principal, &Action::Read("page"))?)
    }

    /// Whether they may change what is of that; for pages, which offer nothing that would be refused.
    pub fn may_change(&self, of: ResourceScope<'_>) -> bool {
        authorise_for(&self.principal, "page", of).is_ok()
    }

    /// Which sites' decisions they see; none: all.
    pub fn sees_only_sites(&self) -> Option<Vec<SiteName>> {
        let of_all = self.principal.role == Role::Admin;
        (!of_all).then(|| self.principal.manages.sites.iter().cloned().collect())
    }

    pub fn check_deployment(&self, operation: &str) -> Result<(), Problem> {
        Ok(authorise_for(&self.principal, operation, ResourceScope::Deployment)?)
    }

    pub fn check_site(&self, operation: &str, site: &SiteName) -> Result<(), Problem> {
        Ok(authorise_for(&self.principal, operation, ResourceScope::Site(site))?)
    }

    pub fn check_community(&self, operation: &str, community: &CommunityName) -> Result<(), Problem> {
        Ok(authorise_for(&self.principal, operation, ResourceScope::Community(community))?)
    }
}

/// The area of a route, by the first words of its path. Any authenticated caller may read routes without an
/// area; a confined token changes nothing there.
pub(crate) fn area(route: &Route) -> Option<Area> {
    let mut words = route.path.strip_prefix("/api/v1/")?.split('/');
    match words.next()? {
        "jobs" => Some(Area::Jobs),
        "datasets" | "replicas" | "deletions" | "verifications" | "tasks" | "subscriptions" | "transfers" => {
            Some(Area::Data)
        }
        "sites" | "storages" | "agents" | "status" | "problems" | "check" | "events" => Some(Area::Sites),
        "history" if words.next() == Some("circuits") => Some(Area::Steering),
        "history" => Some(Area::Sites),
        "shares" | "limits" | "links" | "movers" | "circuits" => Some(Area::Steering),
        "network" => Some(Area::Network),
        "tokens" | "accounts" | "audit" => Some(Area::Access),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route of no area would be open to tokens of every scope.
    #[test]
    fn every_route_is_of_an_area_or_everybodys() {
        use longhaul_api::routes;
        let of_none: Vec<&str> =
            routes::ALL.iter().filter(|route| area(route).is_none()).map(|route| route.operation).collect();
        let known = [
            "whoami",
            "session_login",
            "session_logout",
            "login_token_create",
            "agent_join",
            "agent_report",
            "agent_work",
            "agent_renew",
            "openapi",
            "healthz",
            "readyz",
            "metrics",
        ];
        assert_eq!(of_none, known);
        assert_eq!(area(&routes::CIRCUIT_HISTORY), Some(Area::Steering));
        assert_eq!(area(&routes::JOB_SUBMIT), Some(Area::Jobs));
    }
}
