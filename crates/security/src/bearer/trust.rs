//! Trusted token issuers and a cache of their keys (RFC 7517), and the verification of tokens (RFC 7515).

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use super::claims::{Claims, TokenIdentity};
use super::id_token::{ExpectedLogin, ID_TOKEN_BYTES_MAX, IdClaims, LoginIdentity};
use super::jwt::Token;
use super::key_fetch::KeyFetch;
use super::keys::{self, Key};
use super::refused;

/// The audience that means every service of WLCG.
pub const WLCG_ANY: &str = "https://wlcg.cern.ch/jwt/v1/any";
/// The audience that means every service, in SciTokens.
const SCITOKENS_ANY: &str = "ANY";

/// How long a key set is used before it is fetched again, unless its server gives a shorter time.
const KEYS_REFRESH_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Keys are not fetched more often than this, whatever their server says.
const KEYS_REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(3600);
/// How long keys are used while their issuer cannot be reached: issuers publish a key two days before they
/// use it.
const KEYS_STALE_MAX: Duration = Duration::from_secs(2 * 86_400);
/// Time between two fetches from one issuer, however many tokens with unknown keys come.
const FETCH_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// The same after one that was not answered in time. Not less than such a fetch takes: who comes meanwhile
/// waits for its end, and not for further ones.
const STALLED_FETCH_INTERVAL_MIN: Duration = Duration::from_secs(30);
/// Issuers in the settings.
const ISSUERS_MAX: usize = 1_000;

/// One issuer that is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerRule {
    /// `https://iam.example.org/`, as in the `iss` claim; a slash at the end does not matter.
    pub issuer: String,
    /// The community whose users it speaks for.
    pub vo: Option<String>,
    /// A scope that tokens for us must have.
    pub required_scope: Option<String>,
}

#[derive(Clone, Debug)]
pub struct TokenSettings {
    pub issuers: Vec<IssuerRule>,
    /// Our names in the audiences of tokens.
    pub audiences: Vec<String>,
    /// For clocks that are behind the issuer's.
    pub leeway: Duration,
}

/// The audience that a token must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Us: its holder makes a request.
    Ours,
    /// A storage to which we pass it on.
    Others,
}

/// Why a token is not accepted (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    Refused(Fault),
    /// The keys of this issuer are missing, too old, or lack the one that signed: fetch them and verify
    /// again.
    KeysWanted(String),
}

/// Issuers with their keys.
#[derive(Debug)]
pub struct TokenTrust {
    settings: TokenSettings,
    /// By the issuer without a slash at the end.
    issuers: Mutex<BTreeMap<String, Issuer>>,
}

#[derive(Debug)]
struct Issuer {
    rule: IssuerRule,
    keys: Vec<Key>,
    fetched: Option<Timestamp>,
    refresh: Timestamp,
    /// When it last answered, or did not.
    last_fetch: Option<Timestamp>,
    /// The fault of the last fetch, if it failed.
    failure: Option<String>,
    /// The last fetch was not answered in time.
    is_stalled: bool,
}

impl TokenTrust {
    pub fn new(settings: TokenSettings) -> Result<Self, Fault> {
        let bad = |detail: String| Err(Fault::new(FaultCode::BadRequest, detail));
        if settings.issuers.len() > ISSUERS_MAX {
            return bad(format!("{} issuers of tokens, {ISSUERS_MAX} are accepted", settings.issuers.len()));
        }
        let mut issuers = BTreeMap::new();
        for rule in &settings.issuers {
            if !rule.issuer.starts_with("https://") || rule.issuer.contains(['?', '#', '@', ' ']) {
                return bad(format!("{:?} is no issuer of tokens (https://host/path)", rule.issuer));
            }
            let issuer = Issuer {
                rule: rule.clone(),
                keys: Vec::new(),
                fetched: None,
                refresh: Timestamp(i64::MIN),
                last_fetch: None,
                failure: None,
                is_stalled: false,
            };
            if issuers.insert(normalized_issuer(&rule.issuer).to_owned(), issuer).is_some() {
                return bad(format!("the issuer {} is there twice", rule.issuer));
            }
        }
        Ok(TokenTrust { settings, issuers: Mutex::new(issuers) })
    }

    /// The rule for an issuer, if it is trusted.
    pub fn rule(&self, issuer: &str) -> Option<IssuerRule> {
        self.issuers().get(normalized_issuer(issuer)).map(|issuer| issuer.rule.clone())
    }

    /// Verifies a token without I/O: [`TokenRefusal::KeysWanted`] asks the caller to fetch the issuer's keys
    /// first.
    pub fn verify(
        &self,
        token: &str,
        audience: Audience,
        now: Timestamp,
    ) -> Result<TokenIdentity, TokenRefusal> {
        let refuse = TokenRefusal::Refused;
        let token = Token::parse(token).map_err(refuse)?;
        let claims = Claims::parse(&token.claims).map_err(refuse)?;
        let needs_audience = claims.needs_audience();
        let issuer = {
            let issuers = self.issuers();
            let Some(issuer) = issuers.get(normalized_issuer(&claims.iss)) else {
                let shown: String = claims.iss.chars().take(200).collect();
                return Err(refuse(refused(format!(
                    "the token's issuer is not trusted here: issuer={shown}"
                ))));
            };
            issuer.check_signature(&token, now)?;
            issuer.rule.clone()
        };
        let identity = claims.identity(&issuer.issuer, now, self.settings.leeway).map_err(refuse)?;
        if audience == Audience::Ours {
            self.check_audience(&identity, &issuer, needs_audience).map_err(refuse)?;
        }
        Ok(identity)
    }

    /// Verifies an ID token, without I/O like [`TokenTrust::verify`].
    pub fn verify_login(
        &self,
        id_token: &str,
        expected: &ExpectedLogin<'_>,
        now: Timestamp,
    ) -> Result<LoginIdentity, TokenRefusal> {
        let refuse = TokenRefusal::Refused;
        let token = Token::parse_within(id_token, ID_TOKEN_BYTES_MAX).map_err(refuse)?;
        let claims = IdClaims::parse(&token.claims).map_err(refuse)?;
        let issuers = self.issuers();
        let known = issuers
            .get(normalized_issuer(expected.issuer))
            .filter(|_| normalized_issuer(claims.issuer()) == normalized_issuer(expected.issuer));
        let Some(issuer) = known else { return Err(refuse(refused("the ID token is of another issuer"))) };
        issuer.check_signature(&token, now)?;
        claims.identity(expected, now, self.settings.leeway).map_err(refuse)
    }

    /// The question to an issuer, if it is time for one: nobody is asked more often than once a minute, or
    /// twice where no answer came in time, whatever tokens say. The caller asks one question of an issuer at
    /// a time, and tells the answer to [`TokenTrust::install`].
    pub fn fetch(&self, issuer: &str, now: Timestamp) -> Option<KeyFetch> {
        let issuers = self.issuers();
        let issuer = issuers.get(normalized_issuer(issuer))?;
        issuer.may_fetch(now).then(|| KeyFetch::new(&issuer.rule.issuer))
    }

    /// Issuers whose keys should be asked for again.
    pub fn issuers_due(&self, now: Timestamp) -> Vec<String> {
        let issuers = self.issuers();
        let due = issuers.values().filter(|issuer| issuer.refresh <= now && issuer.may_fetch(now));
        due.map(|issuer| issuer.rule.issuer.clone()).collect()
    }

    /// Takes over what an issuer answered. Keys that it no longer publishes are gone at once; those of before
    /// stay if it did not answer, or with nonsense.
    pub fn install(
        &self,
        issuer: &str,
        answer: Result<super::key_fetch::FetchResponse, Fault>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let parsed = answer.and_then(|answer| Ok((keys::parse(&answer.body)?, answer.max_age)));
        let mut issuers = self.issuers();
        let Some(issuer) = issuers.get_mut(normalized_issuer(issuer)) else {
            return Err(Fault::new(
                FaultCode::NotFound,
                format!("{issuer} is no issuer that is trusted here"),
            ));
        };
        issuer.last_fetch = Some(now);
        issuer.is_stalled = parsed.as_ref().is_err_and(|fault| fault.code == FaultCode::Stalled);
        match parsed {
            Ok((keys, max_age)) => {
                issuer.keys = keys;
                issuer.fetched = Some(now);
                issuer.refresh = now
                    + max_age
                        .unwrap_or(KEYS_REFRESH_INTERVAL)
                        .clamp(KEYS_REFRESH_INTERVAL_MIN, KEYS_REFRESH_INTERVAL);
                issuer.failure = None;
                Ok(())
            }
            Err(fault) => {
                issuer.failure = Some(fault.detail.clone());
                Err(fault)
            }
        }
    }

    fn check_audience(
        &self,
        identity: &TokenIdentity,
        issuer: &IssuerRule,
        needed: bool,
    ) -> Result<(), Fault> {
        let any = |audience: &str| match identity.profile {
            super::Profile::Wlcg => audience == WLCG_ANY,
            super::Profile::SciToken => audience == SCITOKENS_ANY,
            super::Profile::Plain => false,
        };
        let ours = |audience: &String| any(audience) || self.settings.audiences.contains(audience);
        if identity.audience.is_empty() && needed {
            return Err(refused("the token does not say for whom it is (aud)"));
        }
        if !identity.audience.is_empty() && !identity.audience.iter().any(ours) {
            let detail = format!(
                "the token is for {}, we are {}",
                identity.audience.join(", "),
                self.settings.audiences.join(", ")
            );
            return Err(refused(detail));
        }
        match &issuer.required_scope {
            Some(scope) if !identity.scopes.has_scope(scope) => {
                Err(Fault::new(FaultCode::NotAllowed, format!("the token lacks the scope {scope}")))
            }
            _ => Ok(()),
        }
    }

    fn issuers(&self) -> MutexGuard<'_, BTreeMap<String, Issuer>> {
        self.issuers.lock()
    }
}

impl Issuer {
    fn check_signature(&self, token: &Token<'_>, now: Timestamp) -> Result<(), TokenRefusal> {
        let wanted = |why: String| {
            if self.may_fetch(now) {
                return TokenRefusal::KeysWanted(self.rule.issuer.clone());
            }
            TokenRefusal::Refused(refused(why))
        };
        let failure = self.failure.as_deref().unwrap_or("it has not answered yet");
        match self.fetched {
            None => return Err(wanted(format!("the keys of {} are not known: {failure}", self.rule.issuer))),
            Some(fetched) if now.since(fetched) > KEYS_STALE_MAX => {
                return Err(wanted(format!("the keys of {} are too old: {failure}", self.rule.issuer)));
            }
            Some(_) => {}
        }
        let candidates: Vec<&Key> = match &token.kid {
            Some(kid) => self.keys.iter().filter(|key| key.kid.as_ref() == Some(kid)).collect(),
            // Only where nothing is left to choose.
            None => self.keys.iter().filter(|_| self.keys.len() == 1).collect(),
        };
        if candidates.is_empty() {
            let detail = match &token.kid {
                Some(kid) => {
                    let shown: String = kid.chars().take(80).collect();
                    format!("{} publishes no key {shown:?}", self.rule.issuer)
                }
                None => {
                    return Err(TokenRefusal::Refused(refused(
                        "the token does not say which key signed it (kid)",
                    )));
                }
            };
            return Err(wanted(detail));
        }
        let message = token.message.as_bytes();
        if candidates.iter().any(|key| key.verifies(token.algorithm, message, &token.signature)) {
            return Ok(());
        }
        Err(TokenRefusal::Refused(refused(format!("the token's signature is not by {}", self.rule.issuer))))
    }

    fn may_fetch(&self, now: Timestamp) -> bool {
        let apart = if self.is_stalled { STALLED_FETCH_INTERVAL_MIN } else { FETCH_INTERVAL_MIN };
        // Tokens are judged by the wall clock: after it was set back, a time ahead of it says nothing.
        self.last_fetch.is_none_or(|asked| asked > now || now.since(asked) >= apart)
    }
}

/// The issuer without a trailing slash, which is ignored: FTS compares issuers with it, the profile without.
pub(super) fn normalized_issuer(issuer: &str) -> &str {
    issuer.strip_suffix('/').unwrap_or(issuer)
}
