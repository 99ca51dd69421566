//! Whether the owner of a job may still have files copied, asked anew before each attempt: a right can be
//! taken away while files wait.
//!
//! With a job it is kept by what its owner was known. What a credential said of its holder (groups of a
//! token, attributes of a proxy) was true for whoever let the job in and cannot be asked again; what is
//! written here about people is: bans, rights, communities, API tokens, accounts, issuers, the map and its
//! command. That a credential ends takes nothing from what was asked for while it counted: jobs wait for
//! longer than tokens live, and storages are shown tokens of their own.
//!
//! Start with [`still_may`].

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use longhaul_api::fts::{Refusal, submission::Parameters};
use longhaul_catalog::{AccountRow, ApiTokenRow, Catalog, CatalogError, JobRow};
use longhaul_model::{Fault, FaultCode, JobId, Retry};
use serde::{Deserialize, Serialize};

use super::bearer;
use super::kept::refusal;
use super::person::{Person, checked, communities, known, of_users};
use super::settings::FtsPerson;
use crate::decisions::Asked;
use crate::logins::holder_of;
use crate::operations::{Caller, Operations, problem};
use crate::shared::Shared;

/// The word of the log of decisions for an attempt that may not begin.
const OPERATION: &str = "attempt_begin";
const ACCOUNTS_AT_ONCE: usize = 1_000;

/// By what somebody is known here, with what their credential alone could say.
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
    /// Of another issuer's token: the issuer, and the communities of its groups.
    Issuer {
        url: String,
        communities: Vec<String>,
    },
}

/// Whose a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// What administrators call them.
    name: String,
    known_by: KnownBy,
}

/// What is kept with a job: its parameters, and whose it is.
#[derive(Serialize)]
struct Kept<'a> {
    #[serde(flatten)]
    parameters: &'a Parameters,
    owner: Owner,
}

#[derive(Deserialize)]
struct KeptOwner {
    /// None: the job came before owners were kept, or by no person.
    #[serde(default)]
    owner: Option<Owner>,
}

/// What the catalog knows of those who are known by it, in memory: an attempt asks no database. Read at the
/// first question after a change; only this service changes it.
#[derive(Default)]
pub struct Owners(RwLock<Option<Arc<Known>>>);

struct Known {
    /// Names are not unique.
    tokens: HashMap<String, Vec<ApiTokenRow>>,
    accounts: HashMap<String, AccountRow>,
}

impl KnownBy {
    pub(super) fn of_caller(caller: &Caller) -> KnownBy {
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

/// Details of a job, as they are kept.
pub(crate) fn details(parameters: &Parameters, person: &Person) -> String {
    let owner = Owner { name: person.name.clone(), known_by: person.known_by.clone() };
    serde_json::to_string(&Kept { parameters, owner }).unwrap_or_default()
}

impl Owners {
    /// Tokens or accounts are other ones now.
    pub fn changed(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn get(&self, catalog: &Catalog) -> Result<Arc<Known>, CatalogError> {
        let present = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = present {
            return Ok(known);
        }
        // Held while it is read: else what was read before a change could be put down after it.
        let mut place = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*place {
            return Ok(known.clone());
        }
        let known = Arc::new(Known::read(catalog)?);
        *place = Some(known.clone());
        Ok(known)
    }
}

impl Known {
    fn read(catalog: &Catalog) -> Result<Known, CatalogError> {
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
                return Ok(Known { tokens, accounts });
            }
        }
    }
}

/// Before an attempt of a file: a fault says why it must not begin, and the log of decisions has it. All of
/// it is in memory, but for the command that maps people, whose answers are kept: call it where that may
/// block.
pub(crate) fn still_may(shared: &Shared, job: &JobRow, file: u64) -> Result<(), Fault> {
    let kept = serde_json::from_str::<KeptOwner>(&job.details).ok().and_then(|kept| kept.owner);
    let Err(why) = check(shared, job, kept.as_ref()) else { return Ok(()) };
    if why.status >= 500 {
        let detail = format!("whether the owner may still transfer cannot be said now: {}", why.message);
        return Err(Fault::new(FaultCode::Busy, detail).retrying(Retry::Later));
    }
    let (who, credential) = match &kept {
        Some(owner) => (owner.name.as_str(), owner.known_by.credential()),
        None => (job.user.as_str(), "none"),
    };
    let what = (OPERATION, object(job.id, file));
    let asked = Asked::owner(who, credential);
    shared.decisions.note(&asked, (what.0, &what.1), Err(&why.message), shared.now());
    tracing::info!(job = %job.id, file, why = why.message, "an attempt does not begin: its owner may no \
        longer transfer");
    let detail = format!(
        "the owner of the job may no longer transfer: {}; with the right back, submit it anew",
        why.message
    );
    Err(Fault::new(FaultCode::NotAllowed, detail).retrying(Retry::Never))
}

fn object(job: JobId, file: u64) -> String {
    format!("/jobs/{job}/files/{file}")
}

fn check(shared: &Shared, job: &JobRow, owner: Option<&Owner>) -> Result<(), Refusal> {
    let Some(owner) = owner else {
        let kept = shared.fts.get(&shared.catalog)?;
        return if kept.is_banned(&job.user) { Err(refused("the user has been banned")) } else { Ok(()) };
    };
    let config = &shared.config.fts;
    let named = config.person(&owner.name);
    let by_credential = |vos: Vec<String>, is_root: bool| Person {
        dn: job.user.clone(),
        name: owner.name.clone(),
        delegation_id: job.credential.clone(),
        vos,
        is_root,
        levels: named.map_or_else(of_users, FtsPerson::levels),
        ..Person::nobody()
    };
    let person = match &owner.known_by {
        KnownBy::Nothing => return Err(refused("nobody is known by that name")),
        KnownBy::ApiToken => return by_token(shared, job, &owner.name),
        KnownBy::Account(account) => by_account(shared, account)?,
        KnownBy::Login { is_root, community } => {
            let community = named.map(|named| named.community.as_str().to_owned()).or(community.clone());
            // An administrator's jobs may be the deployment's.
            by_credential(community.into_iter().collect(), *is_root)
        }
        KnownBy::Certificate(shown) => {
            by_credential(communities(shared, &job.user, shown.clone(), named, &job.credential)?, false)
        }
        KnownBy::Issuer { url, communities } => {
            by_credential(bearer::communities(config, url, communities, named)?, false)
        }
    };
    may(shared, job, person)
}

/// A token of that name that lets it.
fn by_token(shared: &Shared, job: &JobRow, name: &str) -> Result<(), Refusal> {
    let known = shared.owners.get(&shared.catalog).map_err(|error| refusal(problem(error)))?;
    let mut why = refused(format!("the API token {name} was revoked"));
    for row in known.tokens.get(name).into_iter().flatten() {
        let caller = Operations::holder_of_token(row.clone()).map_err(refusal)?;
        match may(shared, job, super::person::known(shared, &caller)) {
            Ok(()) => return Ok(()),
            Err(refusal) => why = refusal,
        }
    }
    Err(why)
}

fn by_account(shared: &Shared, name: &str) -> Result<Person, Refusal> {
    let owners = shared.owners.get(&shared.catalog).map_err(|error| refusal(problem(error)))?;
    match owners.accounts.get(name) {
        None => Err(refused(format!("the account {name} was removed"))),
        Some(row) if row.disabled => Err(refused(format!("the account {name} is disabled"))),
        Some(row) => {
            let holder = holder_of(row).map_err(|fault| refusal(fault.into()))?;
            Ok(known(shared, &Caller::of_holder(holder)))
        }
    }
}

/// By the same rules as a submission.
fn may(shared: &Shared, job: &JobRow, person: Person) -> Result<(), Refusal> {
    let (name, vo) = (person.name.clone(), &job.vo);
    let theirs = if person.vo() == vo { Some(person) } else { person.working_for(vo) };
    let Some(person) = theirs else {
        return Err(refused(format!("{name} is no longer of the community {vo}")));
    };
    let is_root = person.is_root;
    let person = checked(shared, person)?;
    if !is_root && !shared.config.fts.serves(vo) {
        return Err(refused(format!("the community {vo} is no longer served")));
    }
    person.may_ask(&["jobs".to_owned()], true)?;
    match person.level("transfer") {
        Some(_) => Ok(()),
        None => Err(refused(format!("{name} has no right to transfer any more"))),
    }
}

fn refused(why: impl Into<String>) -> Refusal {
    Refusal::forbidden(why.into())
}
