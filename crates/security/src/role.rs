//! Role-based access control: roles, what each may do, and the scope of a manager.
//!
//! Start with [`authorise`] (may this role do such a thing at all) and [`authorise_for`] (may it do so to
//! this resource).

use std::collections::BTreeSet;

use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};

/// Sites of one manager.
pub const MANAGED_SITES_MAX: usize = 100;
/// Sites named in a refusal; further ones are counted.
const SITES_SHOWN_MAX: usize = 4;

/// The role of a person or program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends measurements, sees and changes nothing: for tokens in the configuration of measurement hosts.
    Observer,
    /// Sees everything, changes nothing.
    Viewer,
    /// Sees what a viewer sees, and changes what is of the sites or the community in their [`ManagerScope`].
    Manager,
    /// Everything.
    Admin,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Role::Observer => "observer",
            Role::Viewer => "viewer",
            Role::Manager => "manager",
            Role::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for Role {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "observer" => Ok(Role::Observer),
            "viewer" => Ok(Role::Viewer),
            "manager" => Ok(Role::Manager),
            "admin" => Ok(Role::Admin),
            _ => Err(bad("a role is one of: observer, viewer, manager, admin")),
        }
    }
}

/// The sites and the community of a manager. Empty for every other role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerScope {
    pub sites: BTreeSet<SiteName>,
    pub community: Option<CommunityName>,
}

impl ManagerScope {
    /// The scope for a role. Refuses a manager of nothing, who could do nothing, and sites for another role,
    /// which would have no effect.
    pub fn new(
        role: Role,
        sites: impl IntoIterator<Item = SiteName>,
        community: Option<&CommunityName>,
    ) -> Result<ManagerScope, Fault> {
        let sites: BTreeSet<SiteName> = sites.into_iter().collect();
        if sites.len() > MANAGED_SITES_MAX {
            return Err(bad(format!("{} sites, the limit is {MANAGED_SITES_MAX}", sites.len())));
        }
        if role == Role::Manager {
            let charge = ManagerScope { sites, community: community.cloned() };
            return match charge == ManagerScope::default() {
                true => Err(bad("a manager is one of sites or of a community: name them")),
                false => Ok(charge),
            };
        }
        match sites.is_empty() {
            true => Ok(ManagerScope::default()),
            false => Err(bad(format!("sites are for the role manager; the role {role} has no use for them"))),
        }
    }

    /// Parses sites, separated by blanks.
    pub fn parse_sites(text: &str) -> Result<BTreeSet<SiteName>, Fault> {
        let parse =
            |word: &str| word.parse().map_err(|error| bad(format!("site: {error}")).with_source(error));
        text.split_ascii_whitespace().map(parse).collect()
    }

    /// The text that [`ManagerScope::parse_sites`] reads; none without sites.
    pub fn sites_text(&self) -> Option<String> {
        let words: Vec<String> = self.sites.iter().map(SiteName::to_string).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    fn covers(&self, of: ResourceScope<'_>) -> bool {
        match of {
            ResourceScope::Deployment => false,
            ResourceScope::Site(site) => self.sites.contains(site),
            ResourceScope::Community(community) => self.community.as_ref() == Some(community),
        }
    }
}

impl std::fmt::Display for ManagerScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first: Vec<String> = self.sites.iter().take(SITES_SHOWN_MAX).map(SiteName::to_string).collect();
        match self.sites.len() {
            0 => {}
            1 => write!(f, "the site {}", first.join(", "))?,
            2..=SITES_SHOWN_MAX => write!(f, "the sites {}", first.join(", "))?,
            many => write!(f, "the sites {} and {} more", first.join(", "), many - SITES_SHOWN_MAX)?,
        }
        match &self.community {
            None => Ok(()),
            Some(name) => {
                let and = if self.sites.is_empty() { "" } else { " and " };
                write!(f, "{and}the community {name}")
            }
        }
    }
}

/// An authenticated person or program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Name of the token or session, for people and logs.
    pub name: String,
    pub role: Role,
    /// What a manager manages.
    pub manages: ManagerScope,
}

impl Principal {
    /// A principal of a role without a scope.
    pub fn new(name: impl Into<String>, role: Role) -> Principal {
        Principal { name: name.into(), role, manages: ManagerScope::default() }
    }

    /// The right by which they act, for logs and messages.
    pub fn right(&self) -> String {
        match self.role {
            Role::Manager => format!("manager of {}", self.manages),
            role => format!("role {role}"),
        }
    }
}

/// The kind of an operation, with its name for the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read(&'static str),
    /// An operation of managers too, on their own resources: call [`authorise_for`] as well.
    Manage(&'static str),
    Change(&'static str),
    /// Submits measurements.
    Observe(&'static str),
}

/// To what a resource belongs that is about to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceScope<'a> {
    /// The whole deployment: only administrators change it.
    Deployment,
    Site(&'a SiteName),
    Community(&'a CommunityName),
}

impl std::fmt::Display for ResourceScope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ResourceScope::Deployment => f.write_str("the deployment"),
            ResourceScope::Site(site) => write!(f, "the site {site}"),
            ResourceScope::Community(community) => write!(f, "the community {community}"),
        }
    }
}

/// Ends every refusal: who can help.
const ADMIN_HINT: &str = "an administrator can give it";

/// Checks whether the principal's role allows this kind of operation.
pub fn authorise(principal: &Principal, action: &Action) -> Result<(), Fault> {
    let (may, operation): (&[Role], _) = match *action {
        Action::Read(operation) => (&[Role::Viewer, Role::Manager], operation),
        Action::Manage(operation) => (&[Role::Manager], operation),
        Action::Change(operation) => (&[], operation),
        Action::Observe(operation) => (&[Role::Observer], operation),
    };
    if principal.role == Role::Admin || may.contains(&principal.role) {
        return Ok(());
    }
    let needed = may.first().copied().unwrap_or(Role::Admin);
    refused(principal, &format!("{operation} needs the role {needed}"))
}

/// Checks whether the principal may change this resource.
pub fn authorise_for(principal: &Principal, operation: &str, of: ResourceScope<'_>) -> Result<(), Fault> {
    authorise_for_any(principal, operation, &[of])
}

/// Checks whether the principal may change what belongs to each of these: one that is theirs is enough. What
/// belongs to none is the deployment's.
pub fn authorise_for_any(
    principal: &Principal,
    operation: &str,
    of: &[ResourceScope<'_>],
) -> Result<(), Fault> {
    let covered = || of.iter().any(|of| principal.manages.covers(*of));
    match principal.role {
        Role::Admin => return Ok(()),
        Role::Manager if covered() => return Ok(()),
        _ => {}
    }
    let managed = of.iter().filter(|of| **of != ResourceScope::Deployment);
    let names: Vec<String> = managed.map(ToString::to_string).collect();
    match names.is_empty() {
        true => refused(principal, &format!("{operation} of this needs the role admin")),
        false => {
            let names = names.join(" or ");
            refused(principal, &format!("{operation} needs the role admin, or a manager of {names}"))
        }
    }
}

fn refused(principal: &Principal, needed: &str) -> Result<(), Fault> {
    let name = longhaul_model::units::printable(&principal.name);
    let has = match principal.role {
        Role::Manager => format!("is {}", principal.right()),
        role => format!("has the role {role}"),
    };
    Err(Fault::new(FaultCode::NotAllowed, format!("{needed}; {name} {has}: {ADMIN_HINT}")))
}

fn bad(detail: impl Into<String>) -> Fault {
    Fault::new(FaultCode::BadRequest, detail.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(sites: &str, community: Option<&str>) -> Principal {
        let community = community.map(|name| name.parse().unwrap());
        let charge =
            ManagerScope::new(Role::Manager, ManagerScope::parse_sites(sites).unwrap(), community.as_ref());
        Principal { manages: charge.unwrap(), ..Principal::new("gina", Role::Manager) }
    }

    #[test]
    fn a_viewer_reads_and_an_admin_does_all() {
        let viewer = Principal::new("shift\n", Role::Viewer);
        let admin = Principal::new("root", Role::Admin);
        assert!(authorise(&viewer, &Action::Read("status")).is_ok());
        assert!(authorise(&admin, &Action::Read("status")).is_ok());
        assert!(authorise(&admin, &Action::Change("site-add")).is_ok());
        let refused = authorise(&viewer, &Action::Change("site-add")).unwrap_err();
        assert_eq!(refused.code, FaultCode::NotAllowed);
        assert!(refused.detail.contains("admin") && !refused.detail.contains('\n'));
        assert!(authorise(&viewer, &Action::Manage("site-change")).is_err());
    }

    #[test]
    fn an_observer_only_observes() {
        let of = |role| Principal::new("mesh", role);
        assert!(authorise(&of(Role::Observer), &Action::Observe("measurement_send")).is_ok());
        assert!(authorise(&of(Role::Admin), &Action::Observe("measurement_send")).is_ok());
        assert!(authorise(&of(Role::Viewer), &Action::Observe("measurement_send")).is_err());
        for action in [Action::Read("status"), Action::Manage("site-change"), Action::Change("site-add")] {
            assert!(authorise(&of(Role::Observer), &action).is_err());
        }
    }

    #[test]
    fn a_manager_changes_what_is_theirs_and_nothing_else() {
        let gina = manager("gamma beta", None);
        let site = |name: &str| name.parse::<SiteName>().unwrap();
        let community: CommunityName = "higgs".parse().unwrap();
        assert!(authorise(&gina, &Action::Read("status")).is_ok());
        assert!(authorise(&gina, &Action::Manage("site_change")).is_ok());
        assert!(authorise(&gina, &Action::Change("site_add")).is_err());
        assert!(authorise(&gina, &Action::Observe("measurement_send")).is_err());
        for name in ["beta", "gamma"] {
            assert!(authorise_for(&gina, "site_change", ResourceScope::Site(&site(name))).is_ok());
        }
        let refused = authorise_for(&gina, "site_change", ResourceScope::Site(&site("alpha"))).unwrap_err();
        let wanted = "site_change needs the role admin, or a manager of the site alpha; gina is manager of \
            the sites beta, \
                      gamma: an administrator can give it";
        assert_eq!((refused.code, refused.detail.as_str()), (FaultCode::NotAllowed, wanted));
        assert!(authorise_for(&gina, "share_set", ResourceScope::Community(&community)).is_err());
        assert!(authorise_for(&gina, "limit_set", ResourceScope::Deployment).is_err());
        let hugo = manager("", Some("higgs"));
        assert!(authorise_for(&hugo, "share_set", ResourceScope::Community(&community)).is_ok());
        assert!(
            authorise_for(&hugo, "share_set", ResourceScope::Community(&"atlas".parse().unwrap())).is_err()
        );
        assert!(authorise_for(&hugo, "site_change", ResourceScope::Site(&site("gamma"))).is_err());
    }

    #[test]
    fn one_owner_of_several_is_enough() {
        let (gamma, alpha) = ("gamma".parse::<SiteName>().unwrap(), "alpha".parse::<SiteName>().unwrap());
        let (higgs, atlas) = ("higgs".parse().unwrap(), "atlas".parse().unwrap());
        let may = |who: &Principal, of: &[ResourceScope<'_>]| authorise_for_any(who, "delete", of).is_ok();
        let (gina, hugo) = (manager("gamma", None), manager("", Some("higgs")));
        let theirs = [ResourceScope::Community(&higgs), ResourceScope::Site(&alpha)];
        let here = [ResourceScope::Community(&atlas), ResourceScope::Site(&gamma)];
        assert!(may(&hugo, &theirs) && !may(&hugo, &here));
        assert!(may(&gina, &here) && !may(&gina, &theirs));
        for of in [&[][..], &[ResourceScope::Deployment]] {
            assert!(!may(&gina, of) && !may(&hugo, of) && may(&Principal::new("root", Role::Admin), of));
        }
        let refused = authorise_for_any(&gina, "delete", &theirs).unwrap_err().detail;
        assert!(refused.contains("a manager of the community higgs or the site alpha"), "{refused}");
    }

    #[test]
    fn only_managers_are_in_charge() {
        let stray = ManagerScope { sites: [SiteName::parse("gamma").unwrap()].into(), community: None };
        for role in [Role::Viewer, Role::Observer] {
            let odd = Principal { manages: stray.clone(), ..Principal::new("odd", role) };
            assert!(
                authorise_for(&odd, "site_change", ResourceScope::Site(&"gamma".parse().unwrap())).is_err()
            );
            assert!(ManagerScope::new(role, stray.sites.clone(), None).is_err());
            let community: CommunityName = "higgs".parse().unwrap();
            assert_eq!(ManagerScope::new(role, [], Some(&community)).unwrap(), ManagerScope::default());
        }
        assert!(ManagerScope::new(Role::Manager, [], None).unwrap_err().detail.contains("name them"));
        let many = (0..=MANAGED_SITES_MAX).map(|number| format!("s{number}").parse().unwrap());
        assert!(ManagerScope::new(Role::Manager, many, None).is_err());
        let charge = manager("b a c d e f", Some("higgs")).manages;
        assert_eq!(charge.to_string(), "the sites a, b, c, d and 2 more and the community higgs");
        assert_eq!(ManagerScope::parse_sites(&charge.sites_text().unwrap()).unwrap(), charge.sites);
        assert!(ManagerScope::parse_sites("a b/c").is_err());
    }

    #[test]
    fn words_go_both_ways() {
        for role in [Role::Observer, Role::Viewer, Role::Manager, Role::Admin] {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
        assert!("Admin".parse::<Role>().is_err());
    }
}
