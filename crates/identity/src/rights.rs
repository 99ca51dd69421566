//! Authorisation of callers: whether a route is open to them, and whether its object is theirs to change.
//! Routes and pages ask here and nowhere else; what nobody granted is refused.
//!
//! Whether a route is open follows from the table of routes ([`Caller::may_open`]). By what a change is bound
//! follows from the [table of rights](longhaul_api::rights). Only the operation knows its object, so it says
//! whose that is ([`Caller::check`]) before it does anything.

use longhaul_api::Problem;
use longhaul_api::rights::{Bound, Right};
use longhaul_api::routes::{Access, Method, Route};
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use longhaul_security::{
    Action, Area, Principal, ResourceScope, Role, authorise, authorise_for, authorise_for_any,
};

use crate::Caller;

/// To whom the object of a change belongs, in one of the ways by which rights are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belonging<'a> {
    /// The data is this community's.
    Data(&'a CommunityName),
    /// It is charged to this community.
    Charge(&'a CommunityName),
    /// It is at this site.
    Site(&'a SiteName),
}

impl<'a> Belonging<'a> {
    fn bound(self) -> Bound {
        match self {
            Belonging::Data(_) => Bound::Data,
            Belonging::Charge(_) => Bound::Charge,
            Belonging::Site(_) => Bound::Site,
        }
    }

    fn scope(self) -> ResourceScope<'a> {
        match self {
            Belonging::Data(community) | Belonging::Charge(community) => ResourceScope::Community(community),
            Belonging::Site(site) => ResourceScope::Site(site),
        }
    }
}

/// Judges a change by its row in the table of rights. What an object belongs to counts only where the row has
/// a bound of that kind; without any, only administrators may.
pub fn judge(principal: &Principal, right: &Right, of: &[Belonging<'_>]) -> Result<(), Fault> {
    let counts = of.iter().filter(|belonging| right.bounds.contains(&belonging.bound()));
    let scopes: Vec<ResourceScope<'_>> = counts.map(|belonging| belonging.scope()).collect();
    authorise_for_any(principal, right.operation, &scopes)
}

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
            Access::Manager => Action::Manage(route.operation),
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

    /// Which sites' decisions they see; none: all.
    pub fn sees_only_sites(&self) -> Option<Vec<SiteName>> {
        let of_all = self.principal.role == Role::Admin;
        (!of_all).then(|| self.principal.manages.sites.iter().cloned().collect())
    }

    /// Refuses a change of an object to which they have no right.
    pub fn check(&self, right: &Right, of: &[Belonging<'_>]) -> Result<(), Problem> {
        Ok(judge(&self.principal, right, of)?)
    }

    /// Refuses to show what only managers of a site see.
    pub fn check_site(&self, operation: &str, site: &SiteName) -> Result<(), Problem> {
        Ok(authorise_for(&self.principal, operation, ResourceScope::Site(site))?)
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
    use longhaul_api::rights;
    use longhaul_security::ManagerScope;

    use super::*;

    /// Each row for each role and confinement, with an object of each kind that is theirs or another's.
    #[test]
    fn the_table_of_rights_is_what_is_judged() {
        let manager = |sites: &str, community: Option<&str>| {
            let community = community.map(|name| name.parse().unwrap());
            let sites = ManagerScope::parse_sites(sites).unwrap();
            let manages = ManagerScope::new(Role::Manager, sites, community.as_ref()).unwrap();
            Principal { manages, ..Principal::new("gina", Role::Manager) }
        };
        let (gamma, alpha): (SiteName, SiteName) = ("gamma".parse().unwrap(), "alpha".parse().unwrap());
        let (higgs, atlas) = ("higgs".parse().unwrap(), "atlas".parse().unwrap());
        let (site, community, both) =
            (manager("gamma", None), manager("", Some("higgs")), manager("gamma", Some("higgs")));
        for right in rights::ALL {
            let of_kind = |bound: Bound| right.bounds.contains(&bound);
            for (of, by_site, by_community) in [
                (Belonging::Site(&gamma), of_kind(Bound::Site), false),
                (Belonging::Data(&higgs), false, of_kind(Bound::Data)),
                (Belonging::Charge(&higgs), false, of_kind(Bound::Charge)),
                (Belonging::Site(&alpha), false, false),
                (Belonging::Data(&atlas), false, false),
                (Belonging::Charge(&atlas), false, false),
            ] {
                let may = |who: &Principal| judge(who, right, &[of]).is_ok();
                let what = format!("{} of {of:?}", right.operation);
                assert_eq!(may(&site), by_site, "{what}");
                assert_eq!(may(&community), by_community, "{what}");
                assert_eq!(may(&both), by_site || by_community, "{what}");
                assert!(may(&Principal::new("root", Role::Admin)), "{what}");
                for role in [Role::Viewer, Role::Observer] {
                    assert!(!may(&Principal::new("shift", role)), "{what} as {role}");
                }
            }
        }
        // Values by hand: what each kind of manager came for.
        let may = |who: &Principal, right: &Right, of: &[Belonging<'_>]| judge(who, right, of).is_ok();
        let foreign_here = [Belonging::Data(&atlas), Belonging::Site(&gamma)];
        let own_there = [Belonging::Data(&higgs), Belonging::Site(&alpha)];
        for right in [&rights::SUBSCRIPTION_CREATE, &rights::DELETION_CREATE] {
            assert!(may(&site, right, &foreign_here) && !may(&site, right, &own_there));
            assert!(may(&community, right, &own_there) && !may(&community, right, &foreign_here));
        }
        assert!(!may(&site, &rights::DELETION_FORCE, &foreign_here), "a last copy is the community's");
        assert!(!may(&community, &rights::REPLICA_REGISTER, &own_there), "another site's storage");
    }

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
