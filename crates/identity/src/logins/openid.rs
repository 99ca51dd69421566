//! Logins at an issuer: the browser is sent there and comes back with a code, for which the issuer says who
//! it is.

use longhaul_api::Problem;
use longhaul_gateways::openid::{LoginAnswer, LoginClient, LoginIssuer};
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::bearer::LoginIdentity;
use longhaul_security::{
    ExternalIdentity, LoginAttempt, ParentCredential, Principal, SessionHolder, read_secret,
};

use super::{LoginConfig, OpenIdConfig, UNKNOWN, Visitor, banned, community_text, not_listed};
use crate::{Identity, Login};

const METHOD: &str = "openid";
const PAGE: &str = "/ui/login/openid";
/// Characters kept of the claim that names a person.
const PERSON_CHARS_MAX: usize = 128;
/// Characters kept of the reason that an issuer gives for a refusal.
const REASON_CHARS_MAX: usize = 100;

/// A login that began.
pub struct LoginBegun {
    /// Where the browser is to go.
    pub address: String,
    /// What it has to come back with, as a cookie.
    pub browser: String,
}

/// What came back with a browser.
#[derive(Debug, Default)]
pub struct LoginReturn {
    pub state: String,
    pub code: String,
    /// Why there is no code.
    pub error: Option<String>,
    /// The issuer that claims to answer (RFC 9207).
    pub issuer: Option<String>,
    /// The value of the cookie.
    pub browser: Option<String>,
}

/// What an issuer said of a browser that came back.
pub struct OpenIdReturn {
    /// The index of the issuer in the settings.
    place: usize,
    found: Result<LoginIdentity, Fault>,
    now: Timestamp,
    attempt: LoginAttempt,
}

pub(super) fn open(
    config: &LoginConfig,
    issuer: &OpenIdConfig,
    public_url: &str,
) -> Result<LoginIssuer, Fault> {
    let about = |fault: Fault| {
        let detail = format!("service.login.openid, {:?}: {}", issuer.name, fault.detail);
        Fault::new(FaultCode::BadRequest, detail)
    };
    let secret = issuer.client_secret_file.as_deref().map(read_secret).transpose();
    let client = LoginClient {
        issuer: issuer.issuer.clone(),
        client_id: issuer.client_id.clone(),
        secret: secret.map_err(|error| about(error.into()))?,
        scopes: issuer.scopes.clone(),
        redirect: format!("{}/callback", begins_at(config.base(public_url), &issuer.name)),
    };
    LoginIssuer::open(client, config.authorities.as_deref(), config.networks()?).map_err(about)
}

/// With the one address of the pages, whatever name of it the browser used: the cookie has to come back to
/// the same.
pub(super) fn begins_at(base: &str, name: &str) -> String {
    format!("{base}{PAGE}/{name}")
}

impl Identity {
    /// Begins a login at the issuer of that name.
    pub async fn openid_begin(&self, name: &str, visitor: &Visitor) -> Result<LoginBegun, Problem> {
        let (issuer, _) = self.login_issuer(name)?;
        let now = self.now();
        let begun = self.logins.pending.begin(name, visitor.address, now);
        let address = issuer.address(&begun, now).await.map_err(|fault| {
            tracing::warn!(issuer = name, fault = %fault.chain(), "nobody can log in at an issuer");
            of_issuer(fault)
        })?;
        Ok(LoginBegun { address, browser: begun.browser })
    }

    /// Asks the issuer who the browser belongs to that came back. Then follows [`Identity::openid_admit`].
    pub async fn openid_return(
        &self,
        name: &str,
        back: &LoginReturn,
        visitor: &Visitor,
    ) -> Result<OpenIdReturn, Problem> {
        let (issuer, place) = self.login_issuer(name)?;
        let now = self.now();
        let attempt = self.attempt(METHOD, None, visitor, now)?;
        let found = self.redeem(name, issuer, back, now).await;
        Ok(OpenIdReturn { place, found, now, attempt })
    }

    /// Opens a session for whom the issuer named, or records the refusal. Blocks on the catalog.
    pub fn openid_admit(&self, returned: OpenIdReturn, visitor: &Visitor) -> Result<Login, Problem> {
        let OpenIdReturn { place, found, now, attempt } = returned;
        match found {
            Ok(identity) => self.admit_identity(place, identity, visitor, now, attempt),
            Err(fault) => Err(self.refused(METHOD, UNKNOWN, visitor, now, of_issuer(fault))),
        }
    }

    fn login_issuer(&self, name: &str) -> Result<(&LoginIssuer, usize), Problem> {
        let place = self.settings.login.openid.iter().position(|issuer| issuer.name == name);
        let place = place.ok_or_else(|| no_issuer(name))?;
        let issuer = self.logins.issuers.get(place);
        Ok((issuer.ok_or_else(not_open)?, place))
    }

    async fn redeem(
        &self,
        name: &str,
        issuer: &LoginIssuer,
        back: &LoginReturn,
        now: Timestamp,
    ) -> Result<LoginIdentity, Fault> {
        let logins = &self.logins;
        // First of all, and in any case: whatever comes back with a state uses it up.
        let login = logins.pending.take(name, &back.state, back.browser.as_deref(), now)?;
        if let Some(error) = &back.error {
            let error: String = error.chars().take(REASON_CHARS_MAX).collect();
            return Err(Fault::new(FaultCode::NotAuthenticated, format!("the issuer says: {error}")));
        }
        let asking = tokio::time::timeout(self.settings.wait, logins.asking.acquire()).await;
        let Ok(Ok(_asking)) = asking else {
            return Err(Fault::new(FaultCode::Busy, "many people log in at this moment: log in again"));
        };
        let answer = LoginAnswer { code: &back.code, issuer: back.issuer.as_deref(), login: &login };
        issuer.redeem(answer, self.wall_time()).await
    }

    fn admit_identity(
        &self,
        place: usize,
        identity: LoginIdentity,
        visitor: &Visitor,
        now: Timestamp,
        attempt: LoginAttempt,
    ) -> Result<Login, Problem> {
        let Some(issuer) = self.settings.login.openid.get(place) else {
            return Err(not_open());
        };
        let refuse = |who: &str, fault: Fault| self.refused(METHOD, who, visitor, now, fault.into());
        let name = match person(issuer, &identity) {
            Ok(name) => name,
            Err(fault) => return Err(refuse(UNKNOWN, fault)),
        };
        let fitting = issuer.rules.iter().find(|rule| rule.fits(&identity.texts(&rule.claim)));
        let Some(rule) = fitting else { return Err(refuse(&name, not_listed(&name))) };
        // As those know them who name the holders of tokens.
        let known_as = ExternalIdentity {
            dn: identity.subject.clone(),
            name: format!("SUB={}, ISS={}", identity.subject, identity.issuer),
            credential: identity.delegation_id(),
        };
        if self.is_banned(&known_as.name)? || self.is_banned(&known_as.dn)? {
            return Err(refuse(&name, banned()));
        }
        let holder = SessionHolder {
            principal: Principal { name, role: rule.role.into(), manages: rule.charge()? },
            account: None,
            community: community_text(rule.community.as_ref()),
            external: Some(known_as),
            // An ID token attests one login and ends within minutes: it is no length of a session.
            parent: ParentCredential::default(),
        };
        let with = format!("OpenID ({})", issuer.name);
        self.admit(METHOD, &with, visitor, now, holder, attempt)
    }
}

fn no_issuer(name: &str) -> Problem {
    let fault = Fault::new(FaultCode::NotFound, format!("there is no issuer {}", printable(name)));
    Problem::from(fault).with_remedy("see what there is: the page /ui/login")
}

fn not_open() -> Problem {
    Fault::new(FaultCode::BadRequest, "this issuer is not open").into()
}

/// What is wrong there, or on the way there, is not the fault of whoever logs in.
fn of_issuer(fault: Fault) -> Problem {
    let theirs = fault.code == FaultCode::ProtocolError || (5_000..6_000).contains(&fault.code.number());
    let problem = Problem::from(fault);
    if !theirs {
        return problem;
    }
    let mut problem = problem.with_remedy("try again in a minute, and tell an administrator if it stays so");
    problem.status = 502;
    problem.title = "the issuer cannot be used now".to_owned();
    problem
}

/// What they are called: with our name of their issuer, so that nobody there can take the name of somebody
/// here.
fn person(issuer: &OpenIdConfig, identity: &LoginIdentity) -> Result<String, Fault> {
    let claim =
        if issuer.person == "sub" { Some(identity.subject.as_str()) } else { identity.text(&issuer.person) };
    let fits = |name: &&str| {
        let chars = name.chars().count();
        (1..=PERSON_CHARS_MAX).contains(&chars) && printable(name) == **name && name.trim() == *name
    };
    let called = claim.filter(fits).ok_or_else(|| {
        let detail = format!(
            "the ID token has no name of at most {PERSON_CHARS_MAX} characters in the claim {:?}: \
             service.login.openid says which one names people",
            issuer.person
        );
        Fault::new(FaultCode::NotAuthenticated, detail)
    })?;
    Ok(format!("{called} ({})", issuer.name))
}
