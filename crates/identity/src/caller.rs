//! The caller of a request: a principal with what their credential takes away from their role.

use longhaul_api::Problem;
use longhaul_api::native::LoginReply;
use longhaul_model::{CommunityName, Fault, FaultCode, Timestamp};
use longhaul_security::{
    ExternalIdentity, ManagerScope, Principal, Role, Session, SessionHolder, TokenRestrictions,
    constant_time_eq, hash_secret,
};

/// An authenticated caller of the native API or the pages.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Principal,
    pub expires: Option<Timestamp>,
    /// Present if a login session's cookie was shown: what forms of that session have to carry.
    pub(crate) csrf_token: Option<String>,
    /// What else their login says of them.
    pub(crate) holder: SessionHolder,
    /// What their credential takes away from their role.
    pub(crate) confinement: TokenRestrictions,
}

impl Caller {
    /// Somebody who has logged in.
    pub fn from_holder(holder: SessionHolder) -> Caller {
        let confinement = TokenRestrictions::default();
        Caller { principal: holder.principal.clone(), expires: None, csrf_token: None, holder, confinement }
    }

    /// The local account with which they logged in.
    pub fn account(&self) -> Option<&str> {
        self.holder.account.as_deref()
    }

    /// The community they work for, if their login says so.
    pub fn community(&self) -> Option<&str> {
        self.holder.community.as_deref()
    }

    /// Their identity at another issuer, if they logged in with a credential of it.
    pub fn known_as(&self) -> Option<&ExternalIdentity> {
        self.holder.external.as_ref()
    }

    /// The only community they may act for, if they are confined to one.
    pub fn works_only_for(&self) -> Option<&CommunityName> {
        self.confinement.community.as_ref().or(self.principal.manages.community.as_ref())
    }

    /// The owner of what is kept for its sender alone: kind of credential, name and community. No two owners
    /// have the same text.
    pub fn owner_key(&self) -> String {
        let (kind, name) = match (self.account(), self.known_as()) {
            (Some(account), _) => ("account", account),
            (None, Some(known)) => ("login", known.credential.as_str()),
            (None, None) => ("token", self.principal.name.as_str()),
        };
        let community = self.works_only_for().map(CommunityName::as_str).or(self.community());
        serde_json::json!([kind, name, community]).to_string()
    }

    pub fn confinement(&self) -> &TokenRestrictions {
        &self.confinement
    }

    /// Refuses operations that would let a confined token give away more than it may.
    pub fn check_unconfined(&self, operation: &str) -> Result<(), Problem> {
        if !self.confinement.is_restricted() {
            return Ok(());
        }
        let detail = format!("{operation} would give away more than the token may that asks for it");
        Err(Fault::new(FaultCode::NotAllowed, detail).into())
    }

    /// When the credential ends that they logged in with, which a session may end before.
    pub fn parent_expires(&self) -> Option<Timestamp> {
        self.holder.parent.expires
    }

    /// The kind of credential they authenticated with.
    pub fn credential(&self) -> &'static str {
        if self.csrf_token.is_some() { "session" } else { "API token" }
    }

    /// The token that pages put into each form, as a field or a header.
    pub fn csrf_token(&self) -> Option<&str> {
        self.csrf_token.as_deref()
    }

    /// Whether a request that changes something really comes from a page of this session. Callers with a
    /// token need none.
    pub fn check_csrf(&self, shown: Option<&str>) -> Result<(), Problem> {
        let Some(expected) = &self.csrf_token else { return Ok(()) };
        let equal = shown.is_some_and(|shown| constant_time_eq(&hash_secret(shown), &hash_secret(expected)));
        if equal {
            return Ok(());
        }
        let detail =
            "the request does not carry its session's CSRF token (header X-CSRF-Token): reload the page";
        Err(Fault::new(FaultCode::NotAllowed, detail).into())
    }
}

/// An opened session: the reply, and the cookie's value.
pub struct Login {
    pub reply: LoginReply,
    pub cookie: String,
}

impl Login {
    pub(crate) fn new(session: Session, cookie: String) -> Login {
        let reply = LoginReply {
            name: session.holder.principal.name,
            role: session.holder.principal.role.to_string(),
            csrf_token: session.csrf_token,
            expires: session.expires,
        };
        Login { reply, cookie }
    }
}

/// A stored charge. One that cannot be parsed, as of a later release, must not count as none.
pub fn charge(
    role: Role,
    sites: Option<&str>,
    community: Option<&CommunityName>,
) -> Result<ManagerScope, Fault> {
    ManagerScope::new(role, ManagerScope::parse_sites(sites.unwrap_or_default())?, community)
}

pub fn not_authenticated(detail: &str) -> Problem {
    Fault::new(FaultCode::NotAuthenticated, detail).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, account: Option<&str>, community: Option<&str>) -> Caller {
        let principal =
            Principal { name: name.to_owned(), role: Role::Viewer, manages: ManagerScope::default() };
        let holder = SessionHolder {
            principal,
            account: account.map(str::to_owned),
            community: community.map(str::to_owned),
            external: None,
            parent: Default::default(),
        };
        Caller::from_holder(holder)
    }

    #[test]
    fn owners_of_one_name_are_told_apart() {
        let mut confined = caller("anna", None, None);
        confined.confinement.community = Some("higgs".parse().unwrap());
        let mut external = caller("anna", None, None);
        external.holder.external = Some(ExternalIdentity {
            dn: "/CN=anna".into(),
            name: "anna".into(),
            credential: "8facbc69f57a9d60".into(),
        });
        let callers = [
            caller("anna", None, None),
            caller("anna", Some("anna"), None),
            caller("anna", Some("anna"), Some("top")),
            external,
            confined,
            // Names that look like another owner's text.
            caller("anna\",\"higgs", None, None),
            caller("[\"token\",\"anna\",null]", None, None),
            caller("anna/site_add/x", None, None),
        ];
        let keys: std::collections::BTreeSet<String> = callers.iter().map(Caller::owner_key).collect();
        assert_eq!(keys.len(), callers.len(), "{keys:?}");
        assert_eq!(caller("anna", None, None).owner_key(), caller("anna", None, None).owner_key());
    }
}
