//! The state of this crate: who is known, by what, and what was decided about them.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::fts::Refusal;
use longhaul_catalog::{Catalog, CatalogError};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{Fault, Timestamp};
use longhaul_security::{Sessions, Vault};

use crate::audit::{AuditLog, Counters};
use crate::delegated_credentials::DelegatedCredentials;
use crate::job_owner::OwnerCache;
use crate::logins::{LoginConfig, Logins};
use crate::{FtsConfig, GridUsers, bearer};

/// The source of time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The two clocks of a service.
#[derive(Clone)]
pub struct Clocks {
    /// Never steps: for whatever is compared with a time of this service (`longhaul_model::SteadyClock`).
    pub steady: Clock,
    /// The host's: for credentials, whose times others judge by their own clocks.
    pub wall: Clock,
}

impl From<Clock> for Clocks {
    /// One clock for both.
    fn from(clock: Clock) -> Clocks {
        Clocks { steady: clock.clone(), wall: clock }
    }
}

/// Bans and grants that administrators set at run time; their store belongs to the FTS configuration.
pub trait AccessRules: Send + Sync {
    /// Whether a person is banned, by subject or name.
    fn is_banned(&self, name: &str) -> Result<bool, Refusal>;

    /// The operations that were granted to that name.
    fn granted(&self, name: &str) -> Result<Vec<String>, Refusal>;
}

/// The settings that concern people.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    pub deployment: String,
    pub fts: FtsConfig,
    pub login: LoginConfig,
    /// Names of this service, beside its public URL.
    pub names: Vec<String>,
    pub public_url: String,
    /// The longest wait for a place among logins under way.
    pub wait: Duration,
}

/// People, their credentials and sessions, and the audit log.
pub struct Identity {
    pub(crate) settings: IdentitySettings,
    clocks: Clocks,
    pub(crate) catalog: Catalog,
    pub(crate) access_rules: Arc<dyn AccessRules>,
    pub(crate) counters: Arc<dyn Counters>,
    pub(crate) users: Arc<GridUsers>,
    pub(crate) owner_cache: OwnerCache,
    /// Issuers whose tokens open the FTS3 API; none if none is configured.
    pub(crate) issuers: Option<Issuers>,
    pub(crate) sessions: Sessions,
    /// Counts credentials that ended before their time.
    pub(crate) ended_credentials: tokio::sync::watch::Sender<u64>,
    pub(crate) logins: Logins,
    pub(crate) audit: AuditLog,
    pub(crate) credentials: DelegatedCredentials,
}

impl Identity {
    pub fn open(
        settings: IdentitySettings,
        clocks: Clocks,
        catalog: Catalog,
        vault: Arc<Vault>,
        access_rules: Arc<dyn AccessRules>,
        counters: Arc<dyn Counters>,
    ) -> Result<Identity, Fault> {
        let identity = Identity {
            issuers: bearer::open(&settings.fts, &settings.public_url, &settings.names)?,
            logins: Logins::open(&settings.login, &settings.public_url, &catalog)?,
            users: Arc::new(GridUsers::load(&settings.fts, &settings.names, (clocks.wall)())?),
            owner_cache: OwnerCache::default(),
            sessions: Sessions::new(),
            ended_credentials: tokio::sync::watch::Sender::new(0),
            audit: AuditLog::default(),
            credentials: DelegatedCredentials::new(catalog.clone(), vault),
            settings,
            clocks,
            catalog,
            access_rules,
            counters,
        };
        identity.restore_sessions()?;
        Ok(identity)
    }

    pub fn now(&self) -> Timestamp {
        (self.clocks.steady)()
    }

    /// The time by which credentials of others are valid or not.
    pub fn wall_time(&self) -> Timestamp {
        (self.clocks.wall)()
    }

    pub fn users(&self) -> &Arc<GridUsers> {
        &self.users
    }

    pub fn owner_cache(&self) -> &OwnerCache {
        &self.owner_cache
    }

    pub fn logins(&self) -> &Logins {
        &self.logins
    }

    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    pub fn credentials(&self) -> &DelegatedCredentials {
        &self.credentials
    }

    /// Makes the pending decisions durable.
    pub fn write_audit_log(&self) -> Result<(), CatalogError> {
        self.audit.write(&self.catalog, &*self.counters)
    }

    /// Ends the sessions of an account that changes; says how many there were.
    pub fn end_sessions_of_account(&self, name: &str) -> usize {
        let ended = self.sessions.end_account_sessions(name);
        self.forget_ended_sessions();
        self.announce_end();
        ended
    }

    /// Fetches keys of issuers that are getting old. If an issuer does not answer, its former keys remain.
    pub async fn refresh_issuers(&self) {
        let Some(issuers) = &self.issuers else { return };
        for (issuer, fault) in issuers.refresh(self.wall_time()).await {
            tracing::warn!(issuer, fault = %fault.chain(), "an issuer of tokens did not tell its keys");
        }
    }

    /// The names under which tokens may be made out to this service.
    pub(crate) fn audiences(&self) -> Vec<String> {
        bearer::audiences(&self.settings.fts, &self.settings.public_url, &self.settings.names)
    }
}
