//! Join tokens and API tokens: random secrets as text. They have 160 random bits, so a plain SHA-256 hash of
//! them is safe to store.

use std::fmt;
use std::str::FromStr;

use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

use crate::authority::random_bytes;
use crate::text;

/// Prefix of the text form of join tokens.
const JOIN_PREFIX: &str = "lhj_";
/// Bytes of a join token. The longest URL gives about 900.
const JOIN_TOKEN_BYTES_MAX: usize = 2048;
/// Bytes of the service's URL.
const URL_BYTES_MAX: usize = 512;
/// Bytes of the secret.
const SECRET_BYTES_MAX: usize = 128;

/// Everything that an agent needs to find, trust and join a service once. The text form is `lhj_` and
/// base64url.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    pub url: String,
    #[serde(rename = "ca")]
    pub ca_fingerprint: String,
    pub secret: String,
}

impl JoinToken {
    fn check(&self) -> Result<(), &'static str> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if self.url.len() > URL_BYTES_MAX || !self.url.starts_with("https://") || !plain(&self.url) {
            return Err("its address is no https URL");
        }
        if text::from_hex_32(&self.ca_fingerprint).is_none() {
            return Err("its fingerprint is malformed");
        }
        if self.secret.is_empty() || self.secret.len() > SECRET_BYTES_MAX || !plain(&self.secret) {
            return Err("its secret is malformed");
        }
        Ok(())
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::json!({ "url": self.url, "ca": self.ca_fingerprint, "secret": self.secret });
        write!(f, "{JOIN_PREFIX}{}", text::to_base64(json.to_string().as_bytes()))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({:?}, secret hidden)", self.url)
    }
}

impl FromStr for JoinToken {
    type Err = Fault;
    /// The message never quotes the text: it may be most of a good token.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let refuse = |why: &str| Fault::new(FaultCode::BadRequest, format!("this is no join token: {why}"));
        let text = text.trim();
        if text.len() > JOIN_TOKEN_BYTES_MAX {
            return Err(refuse("it is too long"));
        }
        let encoded = text.strip_prefix(JOIN_PREFIX).ok_or_else(|| refuse("it does not begin with lhj_"))?;
        let token: JoinToken = text::from_base64(encoded)
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or_else(|| refuse("it is incomplete, or was changed on the way"))?;
        token.check().map_err(refuse)?;
        Ok(token)
    }
}

/// 160 random bits as text behind a prefix such as `lht_`.
pub fn new_secret(prefix: &str) -> String {
    // Crockford's base 32 without look-alike letters, in lower case: it may have to be read aloud.
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut secret = String::with_capacity(prefix.len() + 32);
    secret.push_str(prefix);
    // 256 is a multiple of 32, so each character has its full five bits.
    secret.extend(random_bytes::<32>().iter().map(|byte| ALPHABET[(byte % 32) as usize] as char));
    secret
}

/// The hash stored instead of a secret.
pub fn hash_secret(secret: &str) -> [u8; 32] {
    text::sha256(secret.as_bytes())
}

/// Compares two hashes in constant time.
pub fn constant_time_eq(one: &[u8; 32], other: &[u8; 32]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> JoinToken {
        JoinToken {
            url: "https://longhaul.example:7700".into(),
            ca_fingerprint: "ab".repeat(32),
            secret: new_secret("lhs_"),
        }
    }

    #[test]
    fn a_join_token_survives_copying() {
        let token = token();
        let text = token.to_string();
        assert!(text.starts_with("lhj_") && text.len() < 400);
        assert_eq!(format!(" {text}\n").parse::<JoinToken>().unwrap(), token);
    }

    #[test]
    fn a_damaged_join_token_is_refused_without_quoting_it() {
        let good = token().to_string();
        let plain_http = JoinToken { url: "http://a".into(), ..token() }.to_string();
        let no_fingerprint = JoinToken { ca_fingerprint: "12".into(), ..token() }.to_string();
        let no_secret = JoinToken { secret: String::new(), ..token() }.to_string();
        let escape = JoinToken { url: "https://a\x1b[2J".into(), ..token() }.to_string();
        let long = format!("lhj_{}", "A".repeat(5_000));
        for bad in
            ["", "lhj_", &good[..60], &good[4..], &plain_http, &no_fingerprint, &no_secret, &escape, &long]
        {
            let fault = bad.parse::<JoinToken>().unwrap_err();
            assert_eq!(fault.code, FaultCode::BadRequest, "{bad}");
            assert!(bad.len() < 5 || !fault.detail.contains(bad));
        }
    }

    #[test]
    fn secrets_are_long_different_and_hidden() {
        let (one, other) = (new_secret("lht_"), new_secret("lht_"));
        assert_eq!(one.len(), 36);
        assert_ne!(one, other);
        assert!(constant_time_eq(&hash_secret(&one), &hash_secret(&one)));
        assert!(!constant_time_eq(&hash_secret(&one), &hash_secret(&other)));
        let token = token();
        assert!(!format!("{token:?}").contains(&token.secret));
    }

    proptest! {
        #[test]
        fn foreign_text_never_panics(text in "(lhj_)?[A-Za-z0-9_-]{0,200}|.{0,50}") {
            if let Ok(token) = text.parse::<JoinToken>() {
                prop_assert!(token.check().is_ok());
            }
        }

        #[test]
        fn foreign_contents_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200),
            url in ".{0,30}") {
            let foreign = format!("lhj_{}", text::to_base64(&bytes)).parse::<JoinToken>();
            prop_assert!(foreign.is_err());
            let odd = JoinToken { url, ..token() };
            prop_assert_eq!(odd.to_string().parse::<JoinToken>().is_ok(), odd.check().is_ok());
        }
    }
}
