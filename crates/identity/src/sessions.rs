//! API tokens and login sessions: from what a request shows to its [`Caller`].

use longhaul_api::Problem;
use longhaul_api::native::LoginToken;
use longhaul_catalog::ApiTokenRow;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{
    ParentCredential, ParentToken, Principal, Role, SessionHolder, TokenRestrictions, hash_secret,
};
use tokio::sync::watch;

use crate::{Caller, Identity, Login, Visitor, catalog_problem, charge, not_authenticated};

/// The longest API token that is looked up.
const TOKEN_BYTES_MAX: usize = 200;

impl Identity {
    /// The caller that an API token authenticates.
    pub fn caller_of_token(&self, token: &str) -> Result<Caller, Problem> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(not_authenticated("the token is too long to be one"));
        }
        let row = self.catalog.api_token(hash_secret(token)).map_err(catalog_problem)?;
        let row = row.ok_or_else(|| not_authenticated("the token is unknown or was revoked"))?;
        if let Some(expires) = row.expires
            && expires <= self.now()
        {
            return Err(not_authenticated(&format!("the token expired at {expires}")));
        }
        Identity::caller_of_token_row(row)
    }

    /// The caller that a valid token stands for.
    pub fn caller_of_token_row(row: ApiTokenRow) -> Result<Caller, Problem> {
        let role: Role = row.role.parse()?;
        // A confinement that cannot be read, as of a later release, must not count as none.
        let scopes = row.scopes.as_deref().map(str::parse).transpose()?;
        let charge = charge(role, row.sites.as_deref(), row.community.as_ref())?;
        let token = ParentToken { name: row.name.clone(), hash: row.hash };
        let parent = ParentCredential { token: Some(token), expires: row.expires };
        let principal = Principal { name: row.name, role, manages: charge };
        let community = row.community.as_ref().map(|name| name.as_str().to_owned());
        let holder = SessionHolder { community, parent, ..SessionHolder::from(principal.clone()) };
        // Managers are confined by what they manage, which is more than jobs.
        let community = row.community.filter(|_| role != Role::Manager);
        let confinement = TokenRestrictions { scopes, community };
        Ok(Caller { principal, expires: row.expires, csrf_token: None, holder, confinement })
    }

    /// The caller that a session cookie authenticates.
    pub fn caller_of_cookie(&self, cookie: &str) -> Result<Caller, Problem> {
        let session = self.sessions.get(cookie, self.now());
        let session = session.ok_or_else(|| not_authenticated("the login session has ended"))?;
        Ok(Caller {
            principal: session.holder.principal.clone(),
            expires: Some(session.expires),
            csrf_token: Some(session.csrf_token),
            holder: session.holder,
            confinement: TokenRestrictions::default(),
        })
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
            Ok(caller) if caller.confinement.is_restricted() => {
                let detail =
                    "a token with scopes or of one community opens no session: pages show everything";
                return Err(Fault::new(FaultCode::NotAllowed, detail).into());
            }
            Ok(caller) => {
                let cookie = self.sessions.create(caller.holder, now);
                // A revocation in this moment either found the session, or the token is gone by now.
                if let Err(problem) = self.caller_of_token(token) {
                    self.sessions.end(&cookie);
                    return Err(problem);
                }
                cookie
            }
            Err(_) => self.sessions.redeem(token, now)?,
        };
        self.login_reply(cookie, now)
    }

    pub fn session_logout(&self, cookie: &str) {
        self.sessions.end(cookie);
        self.announce_end();
        self.forget_session(cookie);
    }

    /// Ends what is derived from an API token that was revoked: sessions, login tokens and streams.
    pub fn end_sessions_of_token(&self, name: &str) -> usize {
        let ended = self.sessions.end_token_sessions(name);
        self.forget_ended_sessions();
        self.announce_end();
        ended
    }

    /// Wakes whatever goes on for callers: it has to see whether their credentials still hold.
    pub(crate) fn announce_end(&self) {
        self.ended_credentials.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes whenever credentials end before their time.
    pub fn ended_credentials(&self) -> watch::Receiver<u64> {
        self.ended_credentials.subscribe()
    }

    /// Whether what a caller came with still holds: the session of that cookie, or else their API token.
    pub fn still_holds(&self, caller: &Caller, cookie: Option<&str>) -> bool {
        let now = self.now();
        if let Some(cookie) = cookie {
            return self.sessions.get(cookie, now).is_some();
        }
        if caller.expires.is_some_and(|expires| expires <= now) {
            return false;
        }
        match &caller.holder.parent.token {
            Some(token) => self.catalog.api_token(token.hash).is_ok_and(|row| row.is_some()),
            None => true,
        }
    }

    /// A one-time token that opens one session as the caller within minutes.
    pub fn login_token_create(&self, caller: &Caller) -> LoginToken {
        let end = caller.expires.unwrap_or(Timestamp::MAX);
        let (token, expires) = self.sessions.create_login_token(caller.holder.clone(), end, self.now());
        LoginToken { token, expires }
    }

    /// The reply for a session that was just opened, which a restart does not end from now on.
    pub(crate) fn login_reply(&self, cookie: String, now: Timestamp) -> Result<Login, Problem> {
        let session = self.sessions.get(&cookie, now);
        let session = session.ok_or_else(|| not_authenticated("the login session has ended"))?;
        self.store_session(&cookie, &session, now);
        Ok(Login::new(session, cookie))
    }
}
