//! Unverified claims of a JSON web token (RFC 7519), for passing it on. Nothing here is trusted: the service
//! that gets the token verifies it.

use longhaul_model::Timestamp;
use serde::Deserialize;

use super::jwt::TOKEN_BYTES_MAX;
use crate::text;

/// The scope of a refreshable token (OpenID Connect Core 1.0, section 11).
pub const OFFLINE_ACCESS: &str = "offline_access";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedClaims {
    pub issuer: String,
    /// Names separated by blanks, as in the token.
    pub scope: String,
    pub audience: Vec<String>,
    pub expires: Timestamp,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    exp: f64,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    aud: Names,
}

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Names {
    One(String),
    Many(Vec<String>),
    #[default]
    None,
}

impl UnverifiedClaims {
    /// None for a text that is no JSON web token with issuer and expiry.
    pub fn parse(token: &str) -> Option<UnverifiedClaims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut parts = token.split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        let claims: Claims = serde_json::from_slice(&text::from_base64(claims)?).ok()?;
        let seconds = claims.exp.clamp(0.0, 253_402_300_799.0) as i64;
        Some(UnverifiedClaims {
            issuer: claims.iss,
            scope: claims.scope,
            audience: match claims.aud {
                Names::One(name) => vec![name],
                Names::Many(names) => names,
                Names::None => Vec::new(),
            },
            expires: Timestamp::from_seconds(seconds),
        })
    }

    pub fn is_offline(&self) -> bool {
        self.scope.split(' ').any(|scope| scope == OFFLINE_ACCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.e30", text::to_base64(claims.as_bytes()))
    }

    #[test]
    fn claims_are_parsed() {
        let read = UnverifiedClaims::parse(&token(
            r#"{"iss":"https://i/","exp":1700000000.5,"scope":"storage.read:/ offline_access",
                "aud":["a","b"]}"#,
        ));
        let read = read.unwrap();
        assert_eq!(
            (read.issuer.as_str(), read.expires),
            ("https://i/", Timestamp::from_seconds(1_700_000_000))
        );
        assert!(read.is_offline() && read.audience == ["a", "b"]);
        let plain = UnverifiedClaims::parse(&token(
            r#"{"iss":"i","exp":1e300,"aud":"a","scope":"offline_access.not"}"#,
        ))
        .unwrap();
        assert!(!plain.is_offline() && plain.audience == ["a"]);
        for bad in ["{}", r#"{"iss":"i"}"#, r#"{"exp":1}"#, r#"{"iss":1,"exp":1}"#, "[]", "x"] {
            assert_eq!(UnverifiedClaims::parse(&token(bad)), None, "{bad}");
        }
        assert_eq!(UnverifiedClaims::parse("lht_0123456789"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,60}", claims in ".{0,60}") {
            let _ = (UnverifiedClaims::parse(&text), UnverifiedClaims::parse(&token(&claims)));
        }
    }
}
