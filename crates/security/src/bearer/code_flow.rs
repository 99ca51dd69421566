//! OpenID Connect authorization code flow (Core 1.0, section 3.1): provider metadata (Discovery 1.0) and the
//! token response. Callers have the sockets.

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::id_token::ID_TOKEN_BYTES_MAX;
use super::key_fetch::DOCUMENT_BYTES_MAX;
use super::trust::normalized_issuer;

/// Path of the metadata by OpenID Connect Discovery 1.0.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// Provider metadata (discovery document) as far as logins need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderMetadata {
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    /// Whether the client secret goes into the body (`client_secret_post`) instead of a header.
    pub secret_in_body: bool,
    /// Whether every authorization response names its issuer (RFC 9207).
    pub sends_issuer: bool,
}

impl ProviderMetadata {
    pub fn discovery_url(issuer: &str) -> String {
        format!("{}{WELL_KNOWN}", normalized_issuer(issuer))
    }

    pub fn parse(issuer: &str, bytes: &[u8]) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        struct Document {
            issuer: String,
            authorization_endpoint: String,
            token_endpoint: String,
            #[serde(default)]
            token_endpoint_auth_methods_supported: Vec<String>,
            #[serde(default)]
            authorization_response_iss_parameter_supported: bool,
        }
        let wrong = |why: String| {
            let detail = format!("the discovery document of {issuer}: {}", printable(&why));
            Fault::new(FaultCode::ProtocolError, detail)
        };
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(wrong(format!("more than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let document: Document =
            serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()).with_source(error))?;
        if normalized_issuer(&document.issuer) != normalized_issuer(issuer) {
            return Err(wrong(format!("it is of {}", document.issuer)));
        }
        for endpoint in [&document.authorization_endpoint, &document.token_endpoint] {
            // A header is made of one of them.
            let plain = endpoint.bytes().all(|byte| byte.is_ascii_graphic()) && !endpoint.contains('#');
            if !endpoint.starts_with("https://") || !plain {
                return Err(wrong(format!("it leads to no https address: {endpoint}")));
            }
        }
        let methods = document.token_endpoint_auth_methods_supported;
        let has = |method: &str| methods.iter().any(|one| one == method);
        Ok(ProviderMetadata {
            authorization_endpoint: document.authorization_endpoint,
            token_endpoint: document.token_endpoint,
            secret_in_body: has("client_secret_post") && !has("client_secret_basic"),
            sends_issuer: document.authorization_response_iss_parameter_supported,
        })
    }
}

/// The ID token of a token response. Everything else in it (access tokens, refresh tokens) is dropped.
pub fn extract_id_token(answer: &[u8]) -> Result<Zeroizing<String>, Fault> {
    #[derive(Deserialize)]
    struct Answer {
        id_token: Option<String>,
    }
    let wrong =
        |why: &str| Fault::new(FaultCode::ProtocolError, format!("the issuer's answer to the code {why}"));
    let answer: Answer = serde_json::from_slice(answer).map_err(|_| wrong("cannot be read"))?;
    let token = answer
        .id_token
        .map(Zeroizing::new)
        .ok_or_else(|| wrong("has no ID token: is `openid` among the scopes?"))?;
    if token.len() > ID_TOKEN_BYTES_MAX {
        return Err(wrong("has an ID token that is too long"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const ISSUER: &str = "https://login.example.org/realms/lab/";

    fn document() -> serde_json::Value {
        json!({ "issuer": "https://login.example.org/realms/lab",
            "authorization_endpoint": "https://login.example.org/a?x=1",
                "token_endpoint": "https://login.example.org/t", "jwks_uri": "https://login.example.org/k" })
    }

    fn parse(document: &serde_json::Value) -> Result<ProviderMetadata, Fault> {
        ProviderMetadata::parse(ISSUER, document.to_string().as_bytes())
    }

    #[test]
    fn a_document_says_where_to_go_and_how() {
        assert_eq!(
            ProviderMetadata::discovery_url(ISSUER),
            "https://login.example.org/realms/lab/.well-known/openid-configuration"
        );
        let found = parse(&document()).unwrap();
        assert_eq!(found.token_endpoint, "https://login.example.org/t");
        assert!(!found.secret_in_body && !found.sends_issuer);
        let mut with = document();
        with["token_endpoint_auth_methods_supported"] = json!(["private_key_jwt", "client_secret_post"]);
        with["authorization_response_iss_parameter_supported"] = json!(true);
        let found = parse(&with).unwrap();
        assert!(found.secret_in_body && found.sends_issuer);
        with["token_endpoint_auth_methods_supported"] = json!(["client_secret_post", "client_secret_basic"]);
        assert!(!parse(&with).unwrap().secret_in_body);
    }

    #[test]
    fn documents_of_others_and_odd_addresses_are_refused() {
        for (name, value) in [
            ("issuer", "https://login.example.org"),
            ("issuer", "https://login.example.org/realms/lab/x"),
            ("authorization_endpoint", "http://login.example.org/a"),
            ("authorization_endpoint", "javascript:alert(1)"),
            ("authorization_endpoint", "https://login.example.org/a\r\nset-cookie: x"),
            ("authorization_endpoint", "https://login.example.org/a#x"),
            ("token_endpoint", "file:///etc/passwd"),
        ] {
            let mut with = document();
            with[name] = json!(value);
            assert_eq!(parse(&with).unwrap_err().code, FaultCode::ProtocolError, "{value}");
        }
    }

    #[test]
    fn only_the_id_token_is_taken_of_an_answer() {
        let answer = json!({ "access_token": "a", "id_token": "x.y.z", "token_type": "Bearer" }).to_string();
        assert_eq!(*extract_id_token(answer.as_bytes()).unwrap(), "x.y.z");
        let none = extract_id_token(b"{\"access_token\":\"secret\"}").unwrap_err();
        assert!(none.detail.contains("openid") && !none.detail.contains("secret"), "{none}");
        let long = json!({ "id_token": "x".repeat(ID_TOKEN_BYTES_MAX + 1) }).to_string();
        assert!(extract_id_token(long.as_bytes()).is_err() && extract_id_token(b"<html>").is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (ProviderMetadata::parse(ISSUER, &bytes), extract_id_token(&bytes));
        }
    }
}
