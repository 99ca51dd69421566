//! Scopes of API tokens (as in OAuth 2.0, RFC 6749 section 3.3): restrictions of a credential beyond its
//! role, to areas of work and to one community. They only take rights away: the role must allow an operation
//! too.
//!
//! Start with [`TokenRestrictions`]. Not here: which route belongs to which area (`service`).

use std::fmt;
use std::str::FromStr;

use longhaul_model::{CommunityName, Fault, FaultCode};

/// Scopes of one list.
const SCOPES_MAX: usize = 16;
/// Bytes of a list of scopes.
const LIST_BYTES_MAX: usize = 512;

/// An area of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// Copies between URLs: jobs, their files, delegated credentials; FTS's clients.
    Jobs,
    /// Datasets, subscriptions, replicas, transfers, deletions, tasks.
    Data,
    /// Sites, their agents and storages, and what goes on there.
    Sites,
    /// Shares, limits, links, circuits, bans, configuration.
    Steering,
    /// Observations and forecasts of the network.
    Network,
    /// Tokens, accounts, and logs of who did what.
    Access,
}

impl Area {
    pub const ALL: [Area; 6] =
        [Area::Jobs, Area::Data, Area::Sites, Area::Steering, Area::Network, Area::Access];

    pub fn word(self) -> &'static str {
        match self {
            Area::Jobs => "jobs",
            Area::Data => "data",
            Area::Sites => "sites",
            Area::Steering => "steering",
            Area::Network => "network",
            Area::Access => "access",
        }
    }
}

/// One scope: `AREA`, or `AREA:read` without changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub area: Area,
    pub changes: bool,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.area.word())?;
        if self.changes { Ok(()) } else { f.write_str(":read") }
    }
}

impl FromStr for Scope {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        let (word, changes) = match text.strip_suffix(":read") {
            Some(word) => (word, false),
            None => (text, true),
        };
        let area = Area::ALL.into_iter().find(|area| area.word() == word).ok_or_else(|| {
            let words = Area::ALL.map(Area::word).join(", ");
            let shown = longhaul_model::units::printable(&text.chars().take(40).collect::<String>());
            let detail = format!("{shown:?} is no scope: there are {words}, and each with :read behind it");
            Fault::new(FaultCode::BadRequest, detail)
        })?;
        Ok(Scope { area, changes })
    }
}

/// A list of scopes, separated by blanks in its text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scopes(Vec<Scope>);

impl Scopes {
    /// Whether these scopes allow an operation of that area.
    pub fn allows(&self, area: Area, changes: bool) -> bool {
        self.0.iter().any(|scope| scope.area == area && (scope.changes || !changes))
    }
}

impl Scopes {
    /// Whether `others` allow each of these.
    pub fn is_subset_of(&self, others: &Scopes) -> bool {
        self.0.iter().all(|scope| others.allows(scope.area, scope.changes))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(Scope::to_string).collect();
        f.write_str(&words.join(" "))
    }
}

impl FromStr for Scopes {
    type Err = Fault;
    /// Refuses an empty list: it would allow nothing, which is hardly meant.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let refuse = |why: String| Err(Fault::new(FaultCode::BadRequest, why));
        if text.len() > LIST_BYTES_MAX {
            return refuse(format!("a list of scopes has at most {LIST_BYTES_MAX} bytes"));
        }
        let mut list: Vec<Scope> = Vec::new();
        for word in text.split_ascii_whitespace() {
            let scope = word.parse()?;
            if !list.contains(&scope) {
                list.push(scope);
            }
        }
        match list.len() {
            0 => refuse("a list of scopes names at least one".into()),
            1..=SCOPES_MAX => Ok(Scopes(list)),
            _ => refuse(format!("a list of scopes names at most {SCOPES_MAX}")),
        }
    }
}

/// Restrictions of a credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRestrictions {
    /// None: every area.
    pub scopes: Option<Scopes>,
    /// The only community for which it may act; None: every one of its holder's.
    pub community: Option<CommunityName>,
}

impl TokenRestrictions {
    /// Whether there is any restriction.
    pub fn is_restricted(&self) -> bool {
        self.scopes.is_some() || self.community.is_some()
    }

    /// Checks an operation. `area` is none for operations outside every area (who am I): everybody may read
    /// there, and no restricted token may change anything.
    pub fn check(&self, area: Option<Area>, changes: bool, operation: &str) -> Result<(), Fault> {
        let refuse = |detail: String| Err(Fault::new(FaultCode::NotAllowed, detail));
        let Some(area) = area else {
            if changes && self.is_restricted() {
                return refuse(format!("{operation} is nothing that a confined token may do"));
            }
            return Ok(());
        };
        if let Some(scopes) = &self.scopes
            && !scopes.allows(area, changes)
        {
            let needed = Scope { area, changes };
            return refuse(format!("{operation} needs the scope {needed}; the token has {scopes}"));
        }
        // Only jobs are separated by community.
        if let Some(community) = &self.community
            && area != Area::Jobs
        {
            return refuse(format!(
                "{operation} is about all communities; the token is for the jobs of {community} only"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scoped(text: &str) -> TokenRestrictions {
        TokenRestrictions { scopes: Some(text.parse().unwrap()), community: None }
    }

    #[test]
    fn a_scope_allows_its_area_and_reading_only_reading() {
        let limits = scoped("jobs data:read");
        assert!(limits.check(Some(Area::Jobs), true, "job_submit").is_ok());
        assert!(limits.check(Some(Area::Jobs), false, "job_list").is_ok());
        assert!(limits.check(Some(Area::Data), false, "dataset_list").is_ok());
        assert!(limits.check(None, false, "whoami").is_ok());
        let refused = limits.check(Some(Area::Data), true, "dataset_create").unwrap_err();
        assert_eq!(refused.code, FaultCode::NotAllowed);
        let wanted = "dataset_create needs the scope data; the token has jobs data:read";
        assert_eq!(refused.detail, wanted);
        for area in [Area::Sites, Area::Steering, Area::Network, Area::Access] {
            assert!(limits.check(Some(area), false, "x").is_err(), "{area:?}");
        }
        assert!(limits.check(None, true, "login_token_create").is_err());
    }

    #[test]
    fn a_community_restricts_to_its_jobs() {
        let limits = TokenRestrictions { scopes: None, community: Some("higgs".parse().unwrap()) };
        assert!(limits.is_restricted() && limits.check(Some(Area::Jobs), true, "job_submit").is_ok());
        let refused = limits.check(Some(Area::Data), false, "dataset_list").unwrap_err();
        assert!(refused.detail.contains("the jobs of higgs only"), "{refused}");
        assert!(
            TokenRestrictions::default().check(None, true, "x").is_ok()
                && !TokenRestrictions::default().is_restricted()
        );
    }

    #[test]
    fn lists_are_read_and_bad_ones_refused() {
        let list: Scopes = " jobs  data:read jobs ".parse().unwrap();
        assert_eq!(list.to_string(), "jobs data:read");
        let within = |one: &str| one.parse::<Scopes>().unwrap().is_subset_of(&list);
        assert!(within("jobs:read data:read") && !within("data") && !within("jobs sites:read"));
        let long = "jobs ".repeat(200);
        for bad in ["", " ", "job", "jobs:write", "jobs:read:read", ":read", "Jobs", "jobs,data", &long] {
            assert!(bad.parse::<Scopes>().is_err(), "{bad}");
        }
        let shown = "\u{1b}[2Jx".parse::<Scopes>().unwrap_err();
        assert!(!shown.detail.contains('\u{1b}') && shown.detail.contains("steering"), "{shown}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a-z]{2,8}(:read)? ?){0,20}|.{0,80}") {
            if let Ok(list) = text.parse::<Scopes>() {
                prop_assert_eq!(list.to_string().parse::<Scopes>().unwrap(), list);
            }
        }
    }
}
