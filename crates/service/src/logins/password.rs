//! Logins with a password.
//!
//! Whoever guesses learns nothing from an answer: a wrong password, a name that nobody has and a disabled
//! account are answered alike, after the same work.

use std::sync::Arc;

use longhaul_api::Problem;
use longhaul_catalog::AccountRow;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::{Attempt, Verdict, hash_password, verify_password};
use zeroize::Zeroizing;

use super::{UNKNOWN, Visitor, came_in, holder_of, locked, shown};
use crate::operations::{ACCOUNT_NAME_BYTES_MAX, Login, Operations, busy, problem};

const WAY: &str = "password";

impl Operations {
    /// Opens a session with an account's name and password.
    pub async fn password_login(
        self: &Arc<Self>,
        visitor: &Visitor,
        name: &str,
        password: Zeroizing<String>,
    ) -> Result<Login, Problem> {
        // Names of accounts are in small letters. One that is too long is nobody's, and takes the same way.
        let name: String = name.trim().to_lowercase().chars().take(ACCOUNT_NAME_BYTES_MAX + 1).collect();
        let attempt = self.attempt(WAY, Some(&name), visitor, self.now())?;
        let logins = &self.shared.logins;
        let Ok(_waiting) = logins.hashing_waiting.try_acquire() else {
            logins.attempts.withdrawn(attempt);
            return Err(busy("many people log in at this moment"));
        };
        let waited = tokio::time::timeout(self.config().limits.wait(), logins.hashing.acquire()).await;
        let Ok(Ok(_hashing)) = waited else {
            logins.attempts.withdrawn(attempt);
            return Err(busy("many people log in at this moment"));
        };
        // Not among the other operations: those must not wait for passwords.
        let (operations, visitor) = (self.clone(), visitor.clone());
        let looked =
            tokio::task::spawn_blocking(move || operations.look(&visitor, &name, &password, attempt)).await;
        looked.unwrap_or_else(|error| {
            tracing::error!(%error, "a login panicked");
            Err(Fault::new(FaultCode::Internal, "the login ended abnormally").into())
        })
    }

    fn look(
        &self,
        visitor: &Visitor,
        name: &str,
        password: &str,
        attempt: Attempt,
    ) -> Result<Login, Problem> {
        let account = self.shared.catalog.account(name).map_err(problem)?;
        let verdict = verify_password(account.as_ref().map(|account| account.password.as_str()), password)?;
        let why = match (&account, verdict) {
            (None, _) => "no such account",
            (Some(account), _) if account.disabled => "the account is disabled",
            (Some(_), Verdict::Wrong) => "wrong password",
            (Some(account), Verdict::Right) => return self.enter(visitor, account, None, attempt),
            (Some(account), Verdict::Outdated) => {
                let anew = hash_password(password)?;
                return self.enter(visitor, account, Some(&anew), attempt);
            }
        };
        // What was typed as a name that nobody has may be a password.
        let who = account.as_ref().map_or(UNKNOWN, |account| account.name.as_str());
        Err(self.refused_with(WAY, who, visitor, self.now(), why, wrong()))
    }

    fn enter(
        &self,
        visitor: &Visitor,
        account: &AccountRow,
        rehashed: Option<&str>,
        attempt: Attempt,
    ) -> Result<Login, Problem> {
        let (now, shared) = (self.now(), &self.shared);
        // An account that is changed in this moment either opens no session, or its change ends it.
        let changing = locked(&shared.logins);
        let what = came_in("a password", visitor);
        let entered = shared.catalog.account_login(account, rehashed, &what, now).map_err(problem)?;
        let Some(account) = entered else {
            drop(changing);
            let why = "the account was changed at that moment";
            return Err(self.refused_with(WAY, &account.name, visitor, now, why, wrong()));
        };
        let cookie = shared.sessions.create(holder_of(&account)?, now);
        drop(changing);
        shared.logins.attempts.succeeded(attempt, now);
        self.counted(WAY, "admitted");
        tracing::info!(who = %shown(&account.name), way = WAY, from = %visitor.address, "logged in");
        self.login_of(cookie, now)
    }
}

/// The same for everybody.
fn wrong() -> Problem {
    let fault = Fault::new(FaultCode::NotAuthenticated, "the name or the password is wrong");
    Problem::from(fault).with_remedy("try again, or ask an administrator for a new password")
}
