//! JSON Web Signature, compact form (RFC 7515): parses the three parts and trusts none of them.

use longhaul_model::Fault;
use serde::Deserialize;

use super::refused;
use crate::text;

/// Bytes of a token; longer ones are refused unread.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Accepted signature algorithms (RFC 7518). No other can be named, neither `none` nor one with a shared
/// secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Ps256,
    Es256,
}

impl Algorithm {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Algorithm::Rs256,
            "PS256" => Algorithm::Ps256,
            "ES256" => Algorithm::Es256,
            _ => return None,
        })
    }
}

pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    /// The signed bytes.
    pub(super) message: &'a str,
    pub(super) claims: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

/// Keys and their URLs in the header (`jwk`, `jku`, `x5u`, `x5c`) are ignored: a token must not say which key
/// to trust.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
}

impl<'a> Token<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, Fault> {
        Token::parse_within(token, TOKEN_BYTES_MAX)
    }

    pub(super) fn parse_within(token: &'a str, bytes_max: usize) -> Result<Self, Fault> {
        if token.len() > bytes_max {
            return Err(refused(format!("the token has more than {bytes_max} bytes")));
        }
        let malformed = || refused("the token is no JSON web token with a signature");
        let (message, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = message.split_once('.').ok_or_else(malformed)?;
        let bytes = |part: &str| text::from_base64(part).filter(|bytes| !bytes.is_empty());
        let header: Header = bytes(header)
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| refused("the token's header cannot be read"))?;
        let algorithm = Algorithm::parse(&header.alg).ok_or_else(|| {
            let shown: String = header.alg.chars().take(20).collect();
            refused(format!("tokens signed by \"{shown}\" are not accepted: RS256, PS256 and ES256 are"))
        })?;
        if header.crit.is_some() {
            return Err(refused("the token's header has a condition that is not understood"));
        }
        Ok(Token {
            algorithm,
            kid: header.kid,
            message,
            claims: bytes(claims).ok_or_else(|| refused("the token's claims cannot be read"))?,
            signature: bytes(signature).ok_or_else(|| refused("the token has no signature"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(header: &str) -> String {
        format!("{}.{}.{}", text::to_base64(header.as_bytes()), text::to_base64(b"{}"), text::to_base64(b"s"))
    }

    #[test]
    fn only_signatures_by_key_pairs_are_read() {
        for name in ["RS256", "PS256", "ES256"] {
            assert!(Token::parse(&token(&format!(r#"{{"alg":"{name}"}}"#))).is_ok());
        }
        for name in ["none", "None", "HS256", "HS512", "rs256", "RS1", "", "EdDSA"] {
            assert!(Token::parse(&token(&format!(r#"{{"alg":"{name}"}}"#))).is_err(), "{name}");
        }
        for header in
            [r#"{"alg":"RS256","alg":"none"}"#, r#"{"alg":"RS256","crit":["b64"]}"#, r#"{"kid":"a"}"#, "[]"]
        {
            assert!(Token::parse(&token(header)).is_err(), "{header}");
        }
        let good = token(r#"{"alg":"RS256"}"#);
        let unsigned = good.rsplit_once('.').unwrap().0;
        for text in [unsigned.to_owned(), format!("{unsigned}."), format!("{good}."), format!("{good}=")] {
            assert!(Token::parse(&text).is_err(), "{text}");
        }
        assert!(Token::parse(&"x".repeat(TOKEN_BYTES_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "([A-Za-z0-9_-]{0,20}\\.?){0,4}|.{0,40}") {
            let _ = Token::parse(&text);
        }
    }
}
