//! Logins with a password.
//!
//! Whoever guesses learns nothing from an answer: a wrong password, a name that nobody has and a disabled
//! account are answered alike, after the same work.

use std::sync::Arc;

use longhaul_api::Problem;
use longhaul_api::formats::ACCOUNT_NAME_SYNTAX;
use longhaul_catalog::AccountRow;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::{LoginAttempt, PasswordVerdict, hash_password, verify_password};
use zeroize::Zeroizing;

use super::{UNKNOWN, Visitor, account_holder, came_in, shown};
use crate::{Identity, Login, catalog_problem};

const METHOD: &str = "password";

impl Identity {
    /// Opens a session with an account's name and password.
    pub async fn password_login(
        self: &Arc<Self>,
        visitor: &Visitor,
        name: &str,
        password: Zeroizing<String>,
    ) -> Result<Login, Problem> {
        // Names of accounts are in small letters. One that is too long is nobody's, and takes the same way.
        let name: String =
            name.trim().to_lowercase().chars().take(ACCOUNT_NAME_SYNTAX.chars_max + 1).collect();
        let attempt = self.attempt(METHOD, Some(&name), visitor, self.now())?;
        let logins = &self.logins;
        let Ok(_waiting) = logins.hashing_waiting.try_acquire() else {
            logins.attempts.withdraw(attempt);
            return Err(busy());
        };
        let waited = tokio::time::timeout(self.settings.wait, logins.hashing.acquire()).await;
        let Ok(Ok(_hashing)) = waited else {
            logins.attempts.withdraw(attempt);
            return Err(busy());
        };
        // Not among the other operations: those must not wait for passwords.
        let (identity, visitor) = (self.clone(), visitor.clone());
        let checked =
            tokio::task::spawn_blocking(move || identity.check_password(&visitor, &name, &password, attempt))
                .await;
        checked.unwrap_or_else(|error| {
            tracing::error!(%error, "a login panicked");
            Err(Fault::new(FaultCode::Internal, "the login ended abnormally").into())
        })
    }

    fn check_password(
        &self,
        visitor: &Visitor,
        name: &str,
        password: &str,
        attempt: LoginAttempt,
    ) -> Result<Login, Problem> {
        let account = self.catalog.account(name).map_err(catalog_problem)?;
        let verdict = verify_password(account.as_ref().map(|account| account.password.as_str()), password)?;
        let why = match (&account, verdict) {
            (None, _) => "no such account",
            (Some(account), _) if account.disabled => "the account is disabled",
            (Some(_), PasswordVerdict::Wrong) => "wrong password",
            (Some(account), PasswordVerdict::Right) => {
                return self.open_session(visitor, account, None, attempt);
            }
            (Some(account), PasswordVerdict::Outdated) => {
                let anew = hash_password(password)?;
                return self.open_session(visitor, account, Some(&anew), attempt);
            }
        };
        // What was typed as a name that nobody has may be a password.
        let who = account.as_ref().map_or(UNKNOWN, |account| account.name.as_str());
        Err(self.refused_with(METHOD, who, visitor, self.now(), why, wrong()))
    }

    fn open_session(
        &self,
        visitor: &Visitor,
        account: &AccountRow,
        rehashed: Option<&str>,
        attempt: LoginAttempt,
    ) -> Result<Login, Problem> {
        let now = self.now();
        // An account that is changed in this moment either opens no session, or its change ends it.
        let changing = self.logins.lock_accounts();
        let what = came_in("a password", visitor);
        let entered = self.catalog.account_login(account, rehashed, &what, now).map_err(catalog_problem)?;
        let Some(account) = entered else {
            drop(changing);
            let why = "the account was changed at that moment";
            return Err(self.refused_with(METHOD, &account.name, visitor, now, why, wrong()));
        };
        let cookie = self.sessions.create(account_holder(&account)?, now);
        drop(changing);
        self.logins.attempts.record_success(attempt, now);
        self.counted(METHOD, "admitted");
        tracing::info!(who = %shown(&account.name), way = METHOD, from = %visitor.address, "logged in");
        self.login_reply(cookie, now)
    }
}

fn busy() -> Problem {
    Fault::new(FaultCode::Busy, "many people log in at this moment").into()
}

/// The same for everybody.
fn wrong() -> Problem {
    let fault = Fault::new(FaultCode::NotAuthenticated, "the name or the password is wrong");
    Problem::from(fault).with_remedy("try again, or ask an administrator for a new password")
}
