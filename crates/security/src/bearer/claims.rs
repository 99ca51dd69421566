//! Claims of access tokens (RFC 7519, WLCG Common JWT Profiles, SciTokens) after their signature was
//! verified.

use std::time::Duration;

use longhaul_model::{Fault, Timestamp};
use serde::Deserialize;

use super::refused;
use super::scope::Scopes;
use crate::grid::delegation_id_of;

/// Bytes of a subject, by the WLCG profile.
pub(super) const SUBJECT_BYTES_MAX: usize = 255;
/// The last second of the year 9999.
const TIME_MAX: f64 = 253_402_300_799.0;

/// The profile of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Wlcg,
    SciToken,
    /// No version claim: plain OpenID Connect.
    Plain,
}

/// A verified token's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIdentity {
    /// The issuer as spelt in our settings. A subject is unique only together with it.
    pub issuer: String,
    pub subject: String,
    pub profile: Profile,
    /// As it stands in the token.
    pub scope: Option<String>,
    pub scopes: Scopes,
    /// `/atlas/prod`, in the token's order.
    pub groups: Vec<String>,
    pub audience: Vec<String>,
    pub not_before: Option<Timestamp>,
    pub expires: Timestamp,
    /// The token's own id, for audits.
    pub id: Option<String>,
}

impl TokenIdentity {
    /// The groups that count: none if the token has capabilities.
    pub fn effective_groups(&self) -> &[String] {
        if self.scopes.capabilities.is_empty() { &self.groups } else { &[] }
    }

    /// The id of this user's credential, the one that FTS gives it.
    pub fn delegation_id(&self) -> String {
        delegation_id_of(&[&self.issuer, &self.subject])
    }

    /// The name of the issuer's host.
    pub fn issuer_host(&self) -> &str {
        let rest = self.issuer.split_once("://").map_or(self.issuer.as_str(), |(_, rest)| rest);
        rest.split(['/', ':']).next().unwrap_or(rest)
    }
}

/// Known claims. A duplicate makes the token unreadable; unknown ones are ignored.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    sub: Option<String>,
    aud: Option<OneOrMore>,
    exp: Option<f64>,
    nbf: Option<f64>,
    iat: Option<f64>,
    jti: Option<String>,
    scope: Option<OneOrMore>,
    #[serde(rename = "wlcg.ver")]
    wlcg_version: Option<String>,
    ver: Option<String>,
    #[serde(rename = "wlcg.groups")]
    groups: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Claims {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(bytes).map_err(|error| {
            refused(format!("the token's claims cannot be read: {error}")).with_source(error)
        })
    }

    /// Checks all claims but issuer and audience. `leeway` is for clocks behind the issuer's; expiry gets
    /// none.
    pub(super) fn identity(
        self,
        issuer: &str,
        now: Timestamp,
        leeway: Duration,
    ) -> Result<TokenIdentity, Fault> {
        let profile = self.profile()?;
        let expires = seconds("exp", self.exp)?
            .ok_or_else(|| refused("the token does not say when it expires (exp)"))?;
        if now >= expires {
            return Err(refused(format!("the token expired at {expires}: get a new one")));
        }
        let not_before = seconds("nbf", self.nbf)?;
        let issued = seconds("iat", self.iat)?;
        for (what, time) in [("is valid (nbf)", not_before), ("was issued (iat)", issued)] {
            if let Some(time) = time.filter(|time| now + leeway < *time) {
                return Err(refused(format!(
                    "the token says that it {what} from {time} only: are the clocks right?"
                )));
            }
        }
        let subject = self.sub.filter(|subject| !subject.is_empty());
        let subject = subject.ok_or_else(|| refused("the token does not say whose it is (sub)"))?;
        if subject.len() > SUBJECT_BYTES_MAX || !subject.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(refused(format!(
                "the token's subject is not {SUBJECT_BYTES_MAX} or fewer characters of ASCII"
            )));
        }
        if profile == Profile::Wlcg && (issued.is_none() || self.jti.is_none()) {
            return Err(refused("a token of the WLCG profile has the claims iat and jti"));
        }
        let scope = self.scope.map(|scope| scope.joined());
        let scopes = match (&scope, profile) {
            (None, _) => Scopes::default(),
            (Some(scope), Profile::SciToken) => Scopes::scitoken(scope)?,
            (Some(scope), Profile::Wlcg | Profile::Plain) => Scopes::wlcg(scope)?,
        };
        let groups = self.groups.unwrap_or_default();
        if let Some(bad) = groups.iter().find(|group| !is_group(group)) {
            let shown: String = bad.chars().take(60).collect();
            return Err(refused(format!("the token's group {shown:?} is none (/vo/group)")));
        }
        Ok(TokenIdentity {
            issuer: issuer.to_owned(),
            subject,
            profile,
            scope,
            scopes,
            groups,
            audience: self.aud.map(OneOrMore::list).unwrap_or_default(),
            not_before,
            expires,
            id: self.jti,
        })
    }

    /// Whether an audience may be missing: in SciTokens 1.0 only.
    pub(super) fn needs_audience(&self) -> bool {
        self.wlcg_version.is_some() || self.ver.as_deref().is_none_or(|version| version != "scitoken:1.0")
    }

    fn profile(&self) -> Result<Profile, Fault> {
        match (&self.wlcg_version, &self.ver) {
            (None, None) => Ok(Profile::Plain),
            (Some(_), Some(_)) => Err(refused("the token is of two profiles at once (wlcg.ver and ver)")),
            // Higher minor versions add, they do not change.
            (Some(version), None) => match version.split_once('.') {
                Some(("1", minor))
                    if !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit()) =>
                {
                    Ok(Profile::Wlcg)
                }
                _ => Err(refused(format!(
                    "the token is of a version of the WLCG profile that is not known: {version:?}"
                ))),
            },
            (None, Some(version)) => match version.as_str() {
                "scitoken:1.0" | "scitoken:2.0" | "scitokens:2.0" => Ok(Profile::SciToken),
                _ => Err(refused(format!(
                    "the token is of a version of SciTokens that is not known: {version:?}"
                ))),
            },
        }
    }
}

impl OneOrMore {
    fn list(self) -> Vec<String> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }

    fn joined(self) -> String {
        self.list().join(" ")
    }
}

pub(super) fn seconds(name: &str, value: Option<f64>) -> Result<Option<Timestamp>, Fault> {
    match value {
        None => Ok(None),
        Some(value) if (0.0..=TIME_MAX).contains(&value) => Ok(Some(Timestamp::from_seconds(value as i64))),
        Some(_) => Err(refused(format!("the token's {name} is no time"))),
    }
}

/// `/[A-Za-z0-9][A-Za-z0-9_.-]*`, once or more.
fn is_group(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
    };
    text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(part))
}
