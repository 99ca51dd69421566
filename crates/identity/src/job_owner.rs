//! Re-authorisation of job owners: whether the owner of a job may still transfer, checked before each
//! attempt, because a right can be revoked while files wait.
//!
//! A job is stored with how its owner was authenticated. What a credential said of its holder (groups of a
//! token, attributes of a proxy) was checked at submission and cannot be asked again. What this service says
//! of people is checked again: bans, grants, communities, API tokens, accounts, issuers, the map and its
//! command. A credential that has expired since takes nothing from its job: jobs wait for longer than tokens
//! live, and storages are shown tokens of their own.
//!
//! Start with [`Identity::may_still_transfer`].

use std::collections::HashMap;
use std::sync::Arc;

use longhaul_api::fts::{Refusal, submission::Parameters};
use longhaul_catalog::{AccountRow, ApiTokenRow, Catalog, CatalogError, JobRow};
use longhaul_model::{Fault, FaultCode, JobId, Retry};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::logins::account_holder;
use crate::person::user_levels;
use crate::{Caller, FtsPerson, Identity, Person, Requester, bearer, catalog_problem, refusal};

/// The word of the log of decisions for an attempt that may not begin.
const OPERATION: &str = "attempt_begin";
const ACCOUNTS_AT_ONCE: usize = 1_000;

/// How somebody was authenticated, with what only their credential could say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    Nothing,
    /// By its name.
    ApiToken,
    /// A local account.
    Account(String),
    /// A login with a credential of others: whether as an administrator, and for whom they work.
    Login {
        is_root: bool,
        community: Option<String>,
    },
    /// The communities in its attributes.
    Certificate(Vec<String>),
    /// A token of another issuer: the issuer, and the communities of its groups.
    Issuer {
        url: String,
        communities: Vec<String>,
    },
}

/// The owner of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// What administrators call them.
    name: String,
    known_by: KnownBy,
}

/// The stored details of a job: its parameters and its owner.
#[derive(Serialize)]
struct StoredDetails<'a> {
    #[serde(flatten)]
    parameters: &'a Parameters,
    owner: Owner,
}

#[derive(Deserialize)]
struct StoredOwner {
    /// None: the job came before owners were kept, or by no person.
    #[serde(default)]
    owner: Option<Owner>,
}

/// A read-through cache of API tokens and accounts, so that an attempt asks no database. Filled at the first
/// question after an invalidation; only this service changes the tables.
#[derive(Default)]
pub struct OwnerCache(RwLock<Option<Arc<CredentialTables>>>);

struct CredentialTables {
    /// Names are not unique.
    tokens: HashMap<String, Vec<ApiTokenRow>>,
    accounts: HashMap<String, AccountRow>,
}

impl KnownBy {
    pub(crate) fn from_caller(caller: &Caller) -> KnownBy {
        match (caller.account(), caller.known_as()) {
            (Some(account), _) => KnownBy::Account(account.to_owned()),
            (None, Some(_)) => KnownBy::Login {
                is_root: caller.principal.role == longhaul_security::Role::Admin,
                community: caller.community().map(str::to_owned),
            },
            // A session that was opened with a token is of the token's name.
            (None, None) => KnownBy::ApiToken,
        }
    }

    /// As the log of decisions calls it.
    fn credential(&self) -> &'static str {
        match self {
            KnownBy::Nothing => "none",
            KnownBy::ApiToken => "API token",
            KnownBy::Account(_) | KnownBy::Login { .. } => "session",
            KnownBy::Certificate(_) => "certificate",
            KnownBy::Issuer { .. } => "issuer's token",
        }
    }
}

/// The details of a job as they are stored.
pub fn job_details(parameters: &Parameters, person: &Person) -> String {
    let owner = Owner { name: person.name.clone(), known_by: person.known_by.clone() };
    serde_json::to_string(&StoredDetails { parameters, owner }).unwrap_or_default()
}

impl OwnerCache {
    /// To be called after every change of tokens or accounts.
    pub fn invalidate(&self) {
        *self.0.write() = None;
    }

    fn get(&self, catalog: &Catalog) -> Result<Arc<CredentialTables>, CatalogError> {
        let present = self.0.read().clone();
        if let Some(known) = present {
            return Ok(known);
        }
        // Held while it is read: else what was read before a change could be put down after it.
        let mut place = self.0.write();
        if let Some(known) = &*place {
            return Ok(known.clone());
        }
        let known = Arc::new(CredentialTables::read(catalog)?);
        *place = Some(known.clone());
        Ok(known)
    }
}

impl CredentialTables {
    fn read(catalog: &Catalog) -> Result<CredentialTables, CatalogError> {
        let mut tokens: HashMap<String, Vec<ApiTokenRow>> = HashMap::new();
        for row in catalog.api_tokens()? {
            tokens.entry(row.name.clone()).or_default().push(row);
        }
        let (mut accounts, mut after) = (HashMap::new(), None::<String>);
        loop {
            let rows = catalog.accounts(after.as_deref(), ACCOUNTS_AT_ONCE)?;
            after = rows.last().map(|row| row.name.clone());
            let more = rows.len() == ACCOUNTS_AT_ONCE;
            accounts.extend(rows.into_iter().map(|row| (row.name.clone(), row)));
            if !more {
                return Ok(CredentialTables { tokens, accounts });
            }
        }
    }
}

impl Identity {
    /// Before an attempt of a file: a fault says why it must not begin, and the log of decisions has it. All
    /// of it is in memory, but for the command that maps people, whose answers are kept: call it where that
    /// may block.
    pub fn may_still_transfer(&self, job: &JobRow, file: u64) -> Result<(), Fault> {
        let kept = serde_json::from_str::<StoredOwner>(&job.details).ok().and_then(|kept| kept.owner);
        let Err(why) = self.check_owner(job, kept.as_ref()) else { return Ok(()) };
        if why.status >= 500 {
            let detail = format!("whether the owner may still transfer cannot be said now: {}", why.message);
            return Err(Fault::new(FaultCode::Busy, detail).retrying(Retry::Later));
        }
        let (who, credential) = match &kept {
            Some(owner) => (owner.name.as_str(), owner.known_by.credential()),
            None => (job.user.as_str(), "none"),
        };
        let what = (OPERATION, object(job.id, file));
        let requester = Requester::owner(who, credential);
        self.audit.record(&requester, (what.0, &what.1), Err(&why.message), self.now());
        tracing::info!(job = %job.id, file, why = why.message, "an attempt does not begin: its owner may no \
            longer transfer");
        let detail = format!(
            "the owner of the job may no longer transfer: {}; with the right back, submit it anew",
            why.message
        );
        Err(Fault::new(FaultCode::NotAllowed, detail).retrying(Retry::Never))
    }

    fn check_owner(&self, job: &JobRow, owner: Option<&Owner>) -> Result<(), Refusal> {
        let Some(owner) = owner else {
            return if self.access_rules.is_banned(&job.user)? {
                Err(refused("the user has been banned"))
            } else {
                Ok(())
            };
        };
        let config = &self.settings.fts;
        let named = config.person(&owner.name);
        let by_credential = |vos: Vec<String>, is_root: bool| Person {
            dn: job.user.clone(),
            name: owner.name.clone(),
            delegation_id: job.credential.clone(),
            vos,
            is_root,
            levels: named.map_or_else(user_levels, FtsPerson::levels),
            ..Person::nobody()
        };
        let person = match &owner.known_by {
            KnownBy::Nothing => return Err(refused("nobody is known by that name")),
            KnownBy::ApiToken => return self.check_token_owner(job, &owner.name),
            KnownBy::Account(account) => self.person_of_account(account)?,
            KnownBy::Login { is_root, community } => {
                let community = named.map(|named| named.community.as_str().to_owned()).or(community.clone());
                // An administrator's jobs may be the deployment's.
                by_credential(community.into_iter().collect(), *is_root)
            }
            KnownBy::Certificate(shown) => {
                by_credential(self.communities(&job.user, shown.clone(), named, &job.credential)?, false)
            }
            KnownBy::Issuer { url, communities } => {
                by_credential(bearer::communities(config, url, communities, named)?, false)
            }
        };
        self.check_transfer(job, person)
    }

    /// A token of that name that lets it.
    fn check_token_owner(&self, job: &JobRow, name: &str) -> Result<(), Refusal> {
        let known = self.owner_cache.get(&self.catalog).map_err(|error| refusal(catalog_problem(error)))?;
        let mut why = refused(format!("the API token {name} was revoked"));
        for row in known.tokens.get(name).into_iter().flatten() {
            let caller = Identity::caller_of_token_row(row.clone()).map_err(refusal)?;
            match self.check_transfer(job, self.known_person(&caller)) {
                Ok(()) => return Ok(()),
                Err(refusal) => why = refusal,
            }
        }
        Err(why)
    }

    fn person_of_account(&self, name: &str) -> Result<Person, Refusal> {
        let owners = self.owner_cache.get(&self.catalog).map_err(|error| refusal(catalog_problem(error)))?;
        match owners.accounts.get(name) {
            None => Err(refused(format!("the account {name} was removed"))),
            Some(row) if row.disabled => Err(refused(format!("the account {name} is disabled"))),
            Some(row) => {
                let holder = account_holder(row).map_err(|fault| refusal(fault.into()))?;
                Ok(self.known_person(&Caller::from_holder(holder)))
            }
        }
    }

    /// By the same rules as a submission.
    fn check_transfer(&self, job: &JobRow, person: Person) -> Result<(), Refusal> {
        let (name, vo) = (person.name.clone(), &job.vo);
        let theirs = if person.vo() == vo { Some(person) } else { person.working_for(vo) };
        let Some(person) = theirs else {
            return Err(refused(format!("{name} is no longer of the community {vo}")));
        };
        let is_root = person.is_root;
        let person = self.authorised(person)?;
        if !is_root && !self.settings.fts.serves(vo) {
            return Err(refused(format!("the community {vo} is no longer served")));
        }
        person.may_ask(&["jobs".to_owned()], true)?;
        match person.level("transfer") {
            Some(_) => Ok(()),
            None => Err(refused(format!("{name} has no right to transfer any more"))),
        }
    }
}

fn object(job: JobId, file: u64) -> String {
    format!("/jobs/{job}/files/{file}")
}

fn refused(why: impl Into<String>) -> Refusal {
    Refusal::forbidden(why.into())
}
