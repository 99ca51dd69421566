//! ID tokens (OpenID Connect Core 1.0, section 2): claims of an issuer about a person who logs in.
//!
//! An ID token is for one client and one login and gives no access to an API; see [`super::TokenIdentity`]
//! for that.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use longhaul_model::{Fault, Timestamp};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::claims::{SUBJECT_BYTES_MAX, seconds};
use super::refused;
use super::trust::normalized_issuer;
use crate::{constant_time_eq, hash_secret};

/// Bytes of an ID token, room for the groups of people in very many; longer ones are refused unread.
pub const ID_TOKEN_BYTES_MAX: usize = 64 << 10;

/// What an ID token must match.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedLogin<'a> {
    /// As our settings spell it.
    pub issuer: &'a str,
    /// What we are there.
    pub client_id: &'a str,
    /// The nonce of the login that this token answers.
    pub nonce: &'a str,
}

/// A person who logged in at an issuer.
#[derive(Clone, Debug, PartialEq)]
pub struct LoginIdentity {
    /// As our settings spell it. A subject is unique together with it only.
    pub issuer: String,
    pub subject: String,
    claims: BTreeMap<String, Value>,
}

impl LoginIdentity {
    /// A claim that is one text.
    pub fn text(&self, claim: &str) -> Option<&str> {
        self.claim(claim)?.as_str()
    }

    /// A claim that is a text or a list of them.
    pub fn texts(&self, claim: &str) -> Vec<&str> {
        match self.claim(claim) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The id of this user's credential, the one that their bearer tokens have too.
    pub fn delegation_id(&self) -> String {
        crate::grid::delegation_id_of(&[&self.issuer, &self.subject])
    }

    /// By its name, else inside of others: `realm_access.roles`. URLs as names have dots, too.
    fn claim(&self, claim: &str) -> Option<&Value> {
        if let Some(value) = self.claims.get(claim) {
            return Some(value);
        }
        let (first, rest) = claim.split_once('.')?;
        rest.split('.').try_fold(self.claims.get(first)?, |value, part| value.get(part))
    }
}

/// The claims of a token whose signature is not known to be good yet.
pub(super) struct IdClaims(BTreeMap<String, Value>);

impl IdClaims {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(bytes).map_err(|error| {
            refused(format!("the claims of the ID token cannot be read: {error}")).with_source(error)
        })
    }

    pub(super) fn issuer(&self) -> &str {
        self.text("iss").unwrap_or_default()
    }

    /// Checks everything that section 3.1.3.7 asks for except the signature. `leeway` is for clocks behind
    /// the issuer's; expiry gets none.
    pub(super) fn identity(
        self,
        expected: &ExpectedLogin<'_>,
        now: Timestamp,
        leeway: Duration,
    ) -> Result<LoginIdentity, Fault> {
        if normalized_issuer(self.issuer()) != normalized_issuer(expected.issuer) {
            return Err(refused("the ID token is of another issuer"));
        }
        self.check_audience(expected.client_id)?;
        self.check_times(now, leeway)?;
        let nonce = self.text("nonce").ok_or_else(|| refused("the ID token has no nonce"))?;
        if !constant_time_eq(&hash_secret(nonce), &hash_secret(expected.nonce)) {
            return Err(refused("the ID token belongs to another login (nonce)"));
        }
        let subject = self.text("sub").filter(|subject| !subject.is_empty());
        let subject =
            subject.ok_or_else(|| refused("the ID token does not say whose it is (sub)"))?.to_owned();
        if subject.len() > SUBJECT_BYTES_MAX || !subject.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            let why = format!("the subject is not {SUBJECT_BYTES_MAX} or fewer characters of ASCII");
            return Err(refused(why));
        }
        Ok(LoginIdentity { issuer: expected.issuer.to_owned(), subject, claims: self.0 })
    }

    /// The token must be for us; with further audiences, or an authorized party (azp), the party must be us.
    fn check_audience(&self, client_id: &str) -> Result<(), Fault> {
        let audience = match self.0.get("aud") {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(list)) => list.iter().map(|one| one.as_str().unwrap_or_default()).collect(),
            _ => Vec::new(),
        };
        if !audience.contains(&client_id) {
            return Err(refused("the ID token is not for this client (aud)"));
        }
        let party = self.0.get("azp").map(|party| party.as_str().unwrap_or_default());
        if party.map_or(audience.len() > 1, |party| party != client_id) {
            return Err(refused("the ID token was given to another client (azp)"));
        }
        Ok(())
    }

    fn check_times(&self, now: Timestamp, leeway: Duration) -> Result<(), Fault> {
        let time = |name: &str| match self.0.get(name) {
            None => Ok(None),
            Some(value) => seconds(name, Some(value.as_f64().unwrap_or(f64::NAN))),
        };
        let expires = time("exp")?;
        let expires = expires.ok_or_else(|| refused("the ID token does not say when it expires (exp)"))?;
        if now >= expires {
            return Err(refused(format!("the ID token expired at {expires}: log in again")));
        }
        let issued =
            time("iat")?.ok_or_else(|| refused("the ID token does not say when it was made (iat)"))?;
        for begin in [Some(issued), time("nbf")?].into_iter().flatten() {
            if now + leeway < begin {
                let why = format!("the ID token is good from {begin} only: are the clocks right?");
                return Err(refused(why));
            }
        }
        Ok(())
    }

    fn text(&self, claim: &str) -> Option<&str> {
        self.0.get(claim)?.as_str()
    }
}

/// A duplicate claim makes the token unreadable: two parsers could understand it differently.
impl<'de> Deserialize<'de> for IdClaims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = IdClaims;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of claims")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IdClaims, A::Error> {
                let mut claims = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(A::Error::custom("a claim is there twice"));
                    }
                }
                Ok(IdClaims(claims))
            }
        }
        deserializer.deserialize_map(Once)
    }
}
