//! Who asks: tokens, sessions, roles. Other ways to log in than by a token are `logins`'.

use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::native::{LoginReply, LoginToken, Page, TokenCreate, TokenCreated, TokenView, WhoAmI};
use longhaul_catalog::{ApiTokenRow, NewApiToken};
use longhaul_model::{CommunityName, Fault, FaultCode, Timestamp};
use longhaul_security::{
    Charge, Confinement, Holder, KnownAs, Principal, Role, Scopes, Session, new_secret, same_hash,
    secret_hash,
};

use super::{Operations, PageQuery, bad_request, not_found, page, problem};
use crate::logins::Visitor;

const NAME_BYTES_MAX: usize = 64;
const SECRET_BYTES_MAX: usize = 200;

/// Somebody who has shown who they are, and how.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Principal,
    pub expires: Option<Timestamp>,
    /// Present if a login session's cookie was shown: what forms of that session have to carry.
    csrf_token: Option<String>,
    /// What their login said of them beside that.
    holder: Holder,
    /// What their credential takes away from their role.
    confinement: Confinement,
}

impl Caller {
    /// Whoever is logged in as that.
    pub(crate) fn of_holder(holder: Holder) -> Caller {
        let confinement = Confinement::default();
        Caller { principal: holder.principal.clone(), expires: None, csrf_token: None, holder, confinement }
    }

    /// The local account with which they logged in.
    pub(crate) fn account(&self) -> Option<&str> {
        self.holder.account.as_deref()
    }

    /// For whom they work, if their login said so.
    pub(crate) fn community(&self) -> Option<&str> {
        self.holder.community.as_deref()
    }

    /// By which credential of others they are known, if they logged in with one.
    pub(crate) fn known_as(&self) -> Option<&KnownAs> {
        self.holder.known_as.as_ref()
    }

    /// For whose work alone they may act, if for anybody's.
    pub(crate) fn works_only_for(&self) -> Option<&CommunityName> {
        self.confinement.community.as_ref().or(self.principal.charge.community.as_ref())
    }

    pub(crate) fn confinement(&self) -> &Confinement {
        &self.confinement
    }

    /// For what would let them out of their confinement.
    pub(crate) fn check_unconfined(&self, operation: &str) -> Result<(), Problem> {
        if !self.confinement.any() {
            return Ok(());
        }
        let detail = format!("{operation} would give away more than the token may that asks for it");
        Err(Fault::new(FaultCode::NotAllowed, detail).into())
    }

    /// What kind of credential they showed.
    pub(crate) fn credential(&self) -> &'static str {
        if self.csrf_token.is_some() { "session" } else { "API token" }
    }

    /// For pages: to be put into each form, as a field or a header.
    pub fn csrf_token(&self) -> Option<&str> {
        self.csrf_token.as_deref()
    }

    /// Whether a request that changes something really comes from a page of this session. Callers with a
    /// token need none.
    pub fn check_csrf(&self, shown: Option<&str>) -> Result<(), Problem> {
        let Some(expected) = &self.csrf_token else { return Ok(()) };
        let equal = shown.is_some_and(|shown| same_hash(&secret_hash(shown), &secret_hash(expected)));
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
    pub(crate) fn of(session: Session, cookie: String) -> Login {
        let reply = LoginReply {
            name: session.holder.principal.name,
            role: session.holder.principal.role.to_string(),
            csrf_token: session.csrf_token,
            expires: session.expires,
        };
        Login { reply, cookie }
    }
}

impl Operations {
    /// Who holds an API token.
    pub fn caller_of_token(&self, token: &str) -> Result<Caller, Problem> {
        if token.len() > SECRET_BYTES_MAX {
            return Err(not_authenticated("the token is too long to be one"));
        }
        let row = self.shared.catalog.api_token(secret_hash(token)).map_err(problem)?;
        let row = row.ok_or_else(|| not_authenticated("the token is unknown or was revoked"))?;
        if let Some(expires) = row.expires
            && expires <= self.now()
        {
            return Err(not_authenticated(&format!("the token expired at {expires}")));
        }
        Operations::holder_of_token(row)
    }

    /// What a token that counts makes of whoever shows it.
    pub(crate) fn holder_of_token(row: ApiTokenRow) -> Result<Caller, Problem> {
        let role: Role = row.role.parse()?;
        // A confinement that cannot be read, as of a later release, must not count as none.
        let scopes = row.scopes.as_deref().map(str::parse).transpose()?;
        let charge = charge(role, row.sites.as_deref(), row.community.as_ref())?;
        let principal = Principal { name: row.name, role, charge };
        let community = row.community.as_ref().map(|name| name.as_str().to_owned());
        let holder = Holder { community, ..Holder::from(principal.clone()) };
        // Managers are confined by what they manage, which is more than jobs.
        let community = row.community.filter(|_| role != Role::Manager);
        let confinement = Confinement { scopes, community };
        Ok(Caller { principal, expires: row.expires, csrf_token: None, holder, confinement })
    }

    /// Who holds a session's cookie.
    pub fn caller_of_cookie(&self, cookie: &str) -> Result<Caller, Problem> {
        let session = self.shared.sessions.get(cookie, self.now());
        let session = session.ok_or_else(|| not_authenticated("the login session has ended"))?;
        Ok(Caller {
            principal: session.holder.principal.clone(),
            expires: Some(session.expires),
            csrf_token: Some(session.csrf_token),
            holder: session.holder,
            confinement: Confinement::default(),
        })
    }

    pub fn whoami(&self, caller: &Caller) -> WhoAmI {
        WhoAmI {
            name: caller.principal.name.clone(),
            role: caller.principal.role.to_string(),
            expires: caller.expires,
            scopes: caller.confinement.scopes.as_ref().map(words).unwrap_or_default(),
            community: caller.works_only_for().cloned(),
            sites: caller.principal.charge.sites.iter().cloned().collect(),
        }
    }

    pub fn token_list(&self, query: &PageQuery) -> Result<Page<TokenView>, Problem> {
        let after: Option<String> = query.after()?;
        let limit = query.limit();
        let mut rows = self.shared.catalog.api_tokens().map_err(problem)?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows.retain(|row| after.as_ref().is_none_or(|after| row.name > *after));
        rows.truncate(limit + 1);
        page(
            rows,
            limit,
            |row| row.name.clone(),
            |row| {
                let scopes = row.scopes.unwrap_or_default();
                let sites = Charge::parse_sites(&row.sites.unwrap_or_default())?;
                Ok(TokenView {
                    name: row.name,
                    role: row.role,
                    created: row.created,
                    expires: row.expires,
                    scopes: scopes.split_ascii_whitespace().map(str::to_owned).collect(),
                    community: row.community,
                    sites: sites.into_iter().collect(),
                })
            },
        )
    }

    pub fn token_create(&self, caller: &Caller, request: &TokenCreate) -> Result<TokenCreated, Problem> {
        let name = &request.name;
        let plain = name.chars().all(|c| c.is_alphanumeric() || "-_.@+ ".contains(c));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            let detail = format!("a token's name has 1 to {NAME_BYTES_MAX} letters, digits or -_.@+");
            return Err(Fault::new(FaultCode::BadName, detail).into());
        }
        let role: Role = request.role.parse()?;
        if request.seconds == Some(0) {
            return Err(bad_request("a token must live for at least a second"));
        }
        if role == Role::Observer && request.community.is_some() {
            return Err(bad_request("the role observer has no jobs: it cannot be for those of a community"));
        }
        let scopes: Option<Scopes> = match request.scopes.as_slice() {
            [] => None,
            words => Some(words.join(" ").parse()?),
        };
        if let Some(own) = &caller.confinement.scopes
            && !scopes.as_ref().is_some_and(|wanted| wanted.within(own))
        {
            caller.check_unconfined("token_create")?;
        }
        let charge = Charge::of(role, request.sites.iter().cloned(), request.community.as_ref())?;
        self.check_sites(&charge)?;
        let now = self.now();
        let expires = request.seconds.map(|seconds| now + Duration::from_secs(seconds));
        let token = new_secret("lht_");
        let new = NewApiToken {
            hash: secret_hash(&token),
            name: name.clone(),
            role: role.word().to_owned(),
            expires,
            scopes: scopes.map(|scopes| scopes.to_string()),
            community: request.community.clone(),
            sites: charge.sites_text(),
        };
        self.shared.catalog.add_api_token(&new, now).map_err(problem)?;
        self.shared.owners.changed();
        tracing::info!(token = %name, %role, "token made");
        Ok(TokenCreated { token, expires })
    }

    /// A site that nobody has added would be managed by whoever adds one of that name, or be a slip of the
    /// pen.
    pub(super) fn check_sites(&self, charge: &Charge) -> Result<(), Problem> {
        charge.sites.iter().try_for_each(|site| self.site_row(site).map(drop))
    }

    pub fn token_revoke(&self, name: &str) -> Result<(), Problem> {
        if !self.shared.catalog.remove_api_token(name).map_err(problem)? {
            return Err(not_found("token", name, "longhaul token list"));
        }
        self.shared.owners.changed();
        tracing::info!(token = %longhaul_model::units::printable(name), "token revoked");
        Ok(())
    }

    /// Opens a session with an API token or a one-time login token, and records who came from where.
    pub fn session_login(&self, token: &str, visitor: Option<&Visitor>) -> Result<Login, Problem> {
        self.token_login_ended(visitor, self.token_login(token))
    }

    fn token_login(&self, token: &str) -> Result<Login, Problem> {
        let now = self.now();
        let cookie = match self.caller_of_token(token) {
            Ok(caller) if caller.principal.role == Role::Observer => {
                let detail = "a token of the role observer sends measurements and opens no session";
                return Err(Fault::new(FaultCode::NotAllowed, detail).into());
            }
            Ok(caller) if caller.confinement.any() => {
                let detail =
                    "a token with scopes or of one community opens no session: pages show everything";
                return Err(Fault::new(FaultCode::NotAllowed, detail).into());
            }
            Ok(caller) => self.shared.sessions.create(caller.holder, now),
            Err(_) => self.shared.sessions.redeem(token, now)?,
        };
        self.login_of(cookie, now)
    }

    pub fn session_logout(&self, cookie: &str) {
        self.shared.sessions.end(cookie);
    }

    /// A token that opens one session as the caller, once, within minutes.
    pub fn login_token_create(&self, caller: &Caller) -> LoginToken {
        let (token, expires) = self.shared.sessions.create_login_token(caller.holder.clone(), self.now());
        LoginToken { token, expires }
    }
}

/// What is kept of somebody's charge. One that cannot be read, as of a later release, must not count as none.
pub(crate) fn charge(
    role: Role,
    sites: Option<&str>,
    community: Option<&CommunityName>,
) -> Result<Charge, Fault> {
    Charge::of(role, Charge::parse_sites(sites.unwrap_or_default())?, community)
}

fn words(scopes: &Scopes) -> Vec<String> {
    scopes.to_string().split(' ').map(str::to_owned).collect()
}

pub(crate) fn not_authenticated(detail: &str) -> Problem {
    Fault::new(FaultCode::NotAuthenticated, detail).into()
}
