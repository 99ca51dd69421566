//! Logins of people to the pages: with a local password, at an issuer (OpenID Connect), or with a
//! certificate. For one-time tokens and API tokens see `sessions`.
//!
//! Every method ends in a session with a role and an audit entry that says who came in, or who was refused
//! and why. Guessing is throttled ([`Attempts`]). What is expensive runs for few visitors at a time, so that
//! logins keep nobody from working.
//!
//! Start with [`Identity::password_login`] and [`Identity::openid_begin`].

mod config;
mod openid;
mod password;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use longhaul_api::Problem;
use longhaul_catalog::Catalog;
use longhaul_gateways::openid::LoginIssuer;
use longhaul_model::units::printable;
use longhaul_model::{CommunityName, Fault, FaultCode, Timestamp, units};
use longhaul_security::{
    ExternalIdentity, LoginAttempt, LoginThrottle, ParentCredential, PendingLogins, Principal, Role,
    SessionHolder,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

use crate::{Identity, Login, Visitor, catalog_problem, charge};

pub use config::{CertificateRule, ClaimRule, LoginConfig, LoginRole, OpenIdConfig};
pub use openid::{LoginBegun, LoginReturn, OpenIdReturn};

/// Passwords hashed at a time; each takes a core and 19 MiB for some 30 ms.
const HASHING_MAX: usize = 2;
/// That wait for it; more are told to come again.
const HASHING_WAITING_MAX: usize = 32;
/// Questions to issuers for browsers that came back.
const ASKING_MAX: usize = 8;
/// Characters of a name that records show.
const SHOWN_CHARS_MAX: usize = 200;

/// The state of logins: throttling, and what limits expensive work.
pub struct Logins {
    attempts: LoginThrottle,
    /// Whether there is any account.
    accounts: AtomicBool,
    hashing: Semaphore,
    hashing_waiting: Semaphore,
    issuers: Vec<LoginIssuer>,
    pending: PendingLogins,
    asking: Semaphore,
    /// Held from the last look at an account to the opening of its session, and from a change to the end of
    /// its sessions.
    changing: Mutex<()>,
    /// Refusals since the last that was recorded.
    unrecorded: AtomicU64,
}

/// The login methods that are open to a visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginMethods {
    pub password: bool,
    pub certificate: CertificateStatus,
    pub openid: Vec<OpenIdMethod>,
}

/// An issuer at which people log in: what its button says, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenIdMethod {
    pub title: String,
    pub address: String,
}

/// Whether a visitor may log in with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateStatus {
    /// No rule of this service admits certificates.
    Closed,
    /// The browser showed no certificate.
    NoneShown,
    /// The browser showed a certificate that is not valid, for this reason.
    Unusable(String),
    /// The browser showed a valid certificate of this subject.
    Shown(String),
}

impl Logins {
    pub fn open(config: &LoginConfig, public_url: &str, catalog: &Catalog) -> Result<Logins, Fault> {
        let issuers = config.openid.iter().map(|issuer| openid::open(config, issuer, public_url));
        Ok(Logins {
            attempts: LoginThrottle::new(),
            accounts: AtomicBool::new(!catalog.accounts(None, 1)?.is_empty()),
            hashing: Semaphore::new(HASHING_MAX),
            hashing_waiting: Semaphore::new(HASHING_WAITING_MAX),
            issuers: issuers.collect::<Result<_, _>>()?,
            pending: PendingLogins::new(),
            asking: Semaphore::new(ASKING_MAX),
            changing: Mutex::new(()),
            unrecorded: AtomicU64::new(0),
        })
    }

    /// To be called after each change of accounts.
    pub fn set_has_accounts(&self, any: bool) {
        self.accounts.store(any, Ordering::Relaxed);
    }

    /// Excludes logins with a password while accounts change.
    pub fn lock_accounts(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }
}

impl Identity {
    /// What the login page offers.
    pub fn login_methods(&self, visitor: &Visitor) -> LoginMethods {
        let config = &self.settings.login;
        let certificate = match visitor.certificate() {
            _ if config.certificates.is_empty() => CertificateStatus::Closed,
            Ok(None) => CertificateStatus::NoneShown,
            Ok(Some(certificate)) => CertificateStatus::Shown(certificate.subject.clone()),
            Err(fault) => CertificateStatus::Unusable(fault.detail.clone()),
        };
        let openid = config.openid.iter().map(|issuer| OpenIdMethod {
            title: issuer.title().to_owned(),
            address: openid::begins_at(config.base(&self.settings.public_url), &issuer.name),
        });
        LoginMethods {
            password: self.logins.accounts.load(Ordering::Relaxed),
            certificate,
            openid: openid.collect(),
        }
    }

    /// Opens a session for the certificate that the browser showed, until it expires.
    pub fn certificate_login(&self, visitor: &Visitor) -> Result<Login, Problem> {
        const METHOD: &str = "certificate";
        let now = self.now();
        let attempt = self.attempt(METHOD, None, visitor, now)?;
        let refuse = |who: &str, fault: Fault| self.refused(METHOD, who, visitor, now, fault.into());
        let nobody = |why: String| Fault::new(FaultCode::NotAuthenticated, why);
        let certificate = match visitor.certificate() {
            Ok(Some(certificate)) => certificate,
            Ok(None) => {
                let why =
                    "the browser showed no certificate of a person: import yours, and open a new window";
                return Err(refuse(UNKNOWN, nobody(why.into())));
            }
            Err(fault) => return Err(refuse(UNKNOWN, fault.clone())),
        };
        let subject = &certificate.subject;
        if certificate.not_after <= now {
            // A connection may outlive what it was opened with.
            let why = format!("the certificate expired at {}", certificate.not_after);
            return Err(refuse(subject, nobody(why)));
        }
        let rules = &self.settings.login.certificates;
        let Some(rule) = rules.iter().find(|rule| rule.fits(subject)) else {
            return Err(refuse(subject, not_listed(subject)));
        };
        if self.is_banned(subject)? {
            return Err(refuse(subject, banned()));
        }
        let credential = certificate.delegation_id();
        let known_as = ExternalIdentity { dn: subject.clone(), name: subject.clone(), credential };
        let named = self.settings.fts.person(subject).map(|person| person.community.as_str().to_owned());
        let shown_by_them = || certificate.vos().into_iter().next();
        let said = rule.community.as_ref().map(|name| name.as_str().to_owned()).or(named);
        let theirs = match said.or_else(shown_by_them) {
            Some(community) => Some(community),
            None => self.users.community(subject, now).map_err(|fault| refuse(subject, fault))?,
        };
        let holder = SessionHolder {
            principal: Principal { name: subject.clone(), role: rule.role.into(), manages: rule.charge()? },
            account: None,
            community: theirs,
            external: Some(known_as),
            parent: ParentCredential { token: None, expires: Some(certificate.not_after) },
        };
        self.admit(METHOD, "a certificate", visitor, now, holder, attempt)
    }

    /// Opens a session and records it.
    fn admit(
        &self,
        way: &'static str,
        with: &str,
        visitor: &Visitor,
        now: Timestamp,
        holder: SessionHolder,
        attempt: LoginAttempt,
    ) -> Result<Login, Problem> {
        let who = holder.principal.name.clone();
        self.catalog.record_login(&shown(&who), &came_in(with, visitor), now).map_err(catalog_problem)?;
        self.logins.attempts.record_success(attempt, now);
        self.counted(way, "admitted");
        tracing::info!(who = %shown(&who), way, from = %visitor.address, "logged in");
        let cookie = self.sessions.create(holder, now);
        self.login_reply(cookie, now)
    }

    /// Whether a try may be made now.
    fn attempt(
        &self,
        way: &'static str,
        account: Option<&str>,
        visitor: &Visitor,
        now: Timestamp,
    ) -> Result<LoginAttempt, Problem> {
        self.logins.attempts.begin(account, visitor.address, now).map_err(|wait| {
            // Not recorded one by one: there may be thousands a second.
            self.logins.unrecorded.fetch_add(1, Ordering::Relaxed);
            self.counted(way, "delayed");
            tracing::info!(way, from = %visitor.address, "a login has to wait");
            too_soon(wait)
        })
    }

    /// Records a refusal, and returns it. A catalog that cannot be written refuses as well.
    fn refused(
        &self,
        way: &'static str,
        who: &str,
        visitor: &Visitor,
        now: Timestamp,
        refusal: Problem,
    ) -> Problem {
        self.refused_with(way, who, visitor, now, &refusal.detail.clone(), refusal)
    }

    /// The same where what is recorded is more than what whoever asks is told.
    fn refused_with(
        &self,
        way: &'static str,
        who: &str,
        visitor: &Visitor,
        now: Timestamp,
        why: &str,
        refusal: Problem,
    ) -> Problem {
        self.counted(way, "refused");
        let (who, why) = (shown(who), printable(why));
        tracing::info!(who = %who, way, from = %visitor.address, why = %why, "login refused");
        let before = match self.logins.unrecorded.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            number => format!(" ({number} tries before it had to wait, from here or elsewhere)"),
        };
        let what = format!("login refused ({way}) from {}: {why}{before}", visitor.address);
        match self.catalog.record_login(&who, &what, now) {
            Ok(()) => refusal,
            Err(error) => catalog_problem(error),
        }
    }

    /// Token logins are not limited, as nobody guesses a token; but records of their refusals are.
    pub(crate) fn token_login_ended(
        &self,
        visitor: Option<&Visitor>,
        ended: Result<Login, Problem>,
    ) -> Result<Login, Problem> {
        const METHOD: &str = "token";
        let now = self.now();
        let Some(visitor) = visitor else { return ended };
        match ended {
            Ok(login) => {
                let who = shown(&login.reply.name);
                self.catalog
                    .record_login(&who, &came_in("a token", visitor), now)
                    .map_err(catalog_problem)?;
                self.counted(METHOD, "admitted");
                tracing::info!(who = %who, way = METHOD, from = %visitor.address, "logged in");
                Ok(login)
            }
            Err(refusal) => Err(match self.attempt(METHOD, None, visitor, now) {
                Ok(_) => self.refused(METHOD, UNKNOWN, visitor, now, refusal),
                Err(_) => refusal,
            }),
        }
    }

    pub(crate) fn is_banned(&self, name: &str) -> Result<bool, Problem> {
        let banned = self.access_rules.is_banned(name);
        Ok(banned.map_err(|refusal| Fault::new(FaultCode::Internal, refusal.message))?)
    }

    fn counted(&self, way: &'static str, outcome: &'static str) {
        let labels = vec![("way", way.to_owned()), ("outcome", outcome.to_owned())];
        self.counters.count("longhaul_logins_total", "Logins of people, by how they came.", labels, 1);
    }
}

/// The name recorded for a visitor who cannot be named.
const UNKNOWN: &str = "somebody";

fn came_in(with: &str, visitor: &Visitor) -> String {
    format!("logged in with {with} from {}", visitor.address)
}

fn shown(who: &str) -> String {
    printable(&who.chars().take(SHOWN_CHARS_MAX).collect::<String>())
}

fn not_listed(who: &str) -> Fault {
    let detail = format!("{} is known, but no rule of this service lets them in", shown(who));
    Fault::new(FaultCode::NotAllowed, detail)
}

fn banned() -> Fault {
    Fault::new(FaultCode::NotAllowed, "this person has been banned by an administrator")
}

fn too_soon(wait: Duration) -> Problem {
    // Whole seconds, rounded up: nobody who waits that long comes too soon.
    let wait = Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    let detail = format!("too many tries failed: the next one may be made in {}", units::duration(wait));
    let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
    let mut problem = Problem::from(Fault::new(FaultCode::Busy, detail)).too_many(seconds);
    problem.title = "wait before you try again".to_owned();
    problem.with_remedy("wait that long; an administrator can give you a new password")
}

/// As settings and accounts have it.
fn community_text(community: Option<&CommunityName>) -> Option<String> {
    community.map(|name| name.as_str().to_owned())
}

/// The holder that an account stands for.
pub(crate) fn account_holder(account: &longhaul_catalog::AccountRow) -> Result<SessionHolder, Fault> {
    let role: Role = account.role.parse()?;
    let charge = charge(role, account.sites.as_deref(), account.community.as_ref())?;
    Ok(SessionHolder {
        principal: Principal { name: account.name.clone(), role, manages: charge },
        account: Some(account.name.clone()),
        community: community_text(account.community.as_ref()),
        external: None,
        parent: ParentCredential::default(),
    })
}
