//! Sessions over a restart of the service: stored with the hash of their cookie when they open, removed when
//! they end, taken up again at the start.
//!
//! The holder of a session is read anew from what opened it: its API token, its account, or the settings that
//! say who may come with a certificate or from an issuer. Where that is gone or was changed, the session is
//! gone too. The stored sessions are never more than those in memory: what could not be removed in its
//! moment is removed by the housekeeping.

use longhaul_catalog::{CatalogError, LoginSessionRow};
use longhaul_model::{Fault, Timestamp, hex};
use longhaul_security::{ExternalIdentity, ParentCredential, Principal, Session, SessionHolder, hash_secret};
use serde::{Deserialize, Serialize};

use crate::logins::account_holder;
use crate::{Identity, charge};

/// The holder of a session who came with a certificate or from an issuer.
#[derive(Serialize, Deserialize)]
struct StoredHolder {
    name: String,
    role: String,
    sites: Vec<String>,
    /// The community that they manage.
    managed: Option<String>,
    /// The community for which they work.
    community: Option<String>,
    dn: String,
    known_as: String,
    credential: String,
    /// When what they showed ends.
    ends: Option<Timestamp>,
    /// The digest of the settings that said who they are.
    settings: String,
}

impl Identity {
    /// Takes up the sessions that were open before a restart.
    pub(crate) fn restore_sessions(&self) -> Result<(), Fault> {
        let now = self.now();
        for row in self.catalog.login_sessions(now)? {
            match self.stored_holder(&row) {
                Ok(Some(holder)) => drop(self.sessions.restore(row.hash, holder, row.expires)),
                Ok(None) => {}
                Err(fault) => tracing::warn!(fault = %fault.chain(), "a session is not taken up again"),
            }
        }
        self.forget_ended_sessions();
        Ok(())
    }

    /// The holder of a stored session as they are now; none if what opened it is gone.
    fn stored_holder(&self, row: &LoginSessionRow) -> Result<Option<SessionHolder>, Fault> {
        if let Some(hash) = row.token {
            let Some(token) = self.catalog.api_token(hash)? else { return Ok(None) };
            let caller = Identity::caller_of_token_row(token);
            return Ok(caller.ok().map(|caller| caller.holder));
        }
        if let Some(name) = &row.account {
            let account = self.catalog.account(name)?;
            let same = account.filter(|account| !account.disabled && account.password_since <= row.created);
            return same.as_ref().map(account_holder).transpose();
        }
        let Some(holder) = &row.holder else { return Ok(None) };
        self.stored_external_holder(holder)
    }

    fn stored_external_holder(&self, text: &str) -> Result<Option<SessionHolder>, Fault> {
        // One that cannot be read, as of a later release, is none.
        let Ok(stored) = serde_json::from_str::<StoredHolder>(text) else { return Ok(None) };
        let banned = self.access_rules.is_banned(&stored.name).unwrap_or(true)
            || self.access_rules.is_banned(&stored.dn).unwrap_or(true);
        if banned || stored.settings != self.settings_digest() {
            return Ok(None);
        }
        let role = stored.role.parse()?;
        let managed = stored.managed.map(|name| name.parse()).transpose();
        let managed = managed.map_err(Fault::from)?;
        let manages = charge(role, Some(&stored.sites.join(" ")), managed.as_ref())?;
        Ok(Some(SessionHolder {
            principal: Principal { name: stored.name, role, manages },
            account: None,
            community: stored.community,
            external: Some(ExternalIdentity {
                dn: stored.dn,
                name: stored.known_as,
                credential: stored.credential,
            }),
            parent: ParentCredential { token: None, expires: stored.ends },
        }))
    }

    /// Stores a session that was just opened. It is open also if that fails, and ends with a restart then.
    pub(crate) fn store_session(&self, cookie: &str, session: &Session, now: Timestamp) {
        let holder = &session.holder;
        let row = LoginSessionRow {
            hash: hash_secret(cookie),
            token: holder.parent.token.as_ref().map(|token| token.hash),
            account: holder.account.clone(),
            holder: holder.external.as_ref().and_then(|external| self.external_text(holder, external)),
            created: now,
            expires: session.expires,
        };
        if let Err(error) = self.catalog.add_login_session(&row) {
            tracing::warn!(%error, "a session could not be stored: a restart will end it");
        }
        // It may have ended in this moment, before there was anything to remove.
        if !self.sessions.contains(&row.hash) {
            self.forget_session(cookie);
        }
    }

    fn external_text(&self, holder: &SessionHolder, external: &ExternalIdentity) -> Option<String> {
        let principal = &holder.principal;
        let stored = StoredHolder {
            name: principal.name.clone(),
            role: principal.role.to_string(),
            sites: principal.manages.sites.iter().map(|site| site.as_str().to_owned()).collect(),
            managed: principal.manages.community.as_ref().map(|name| name.as_str().to_owned()),
            community: holder.community.clone(),
            dn: external.dn.clone(),
            known_as: external.name.clone(),
            credential: external.credential.clone(),
            ends: holder.parent.expires,
            settings: self.settings_digest(),
        };
        serde_json::to_string(&stored).ok()
    }

    /// Changes whenever the settings do that say who may log in, as whom.
    fn settings_digest(&self) -> String {
        let settings = (&self.settings.login, &self.settings.fts);
        hex::encode(&hash_secret(&serde_json::to_string(&settings).unwrap_or_default()))
    }

    /// Removes a session from what a restart would bring back.
    pub(crate) fn forget_session(&self, cookie: &str) {
        self.removed(self.catalog.remove_login_sessions(&[hash_secret(cookie)], self.now()));
    }

    /// Removes all sessions that have ended from what a restart would bring back.
    pub fn forget_ended_sessions(&self) {
        let now = self.now();
        let removed = self.catalog.login_sessions(now).and_then(|stored| {
            let hashes = stored.iter().map(|row| row.hash);
            let ended: Vec<_> = hashes.filter(|hash| !self.sessions.contains(hash)).collect();
            self.catalog.remove_login_sessions(&ended, now)
        });
        self.removed(removed);
    }

    fn removed(&self, removed: Result<(), CatalogError>) {
        if let Err(error) = removed {
            tracing::warn!(%error, "a session that has ended could not be removed: it is tried again");
        }
    }
}
