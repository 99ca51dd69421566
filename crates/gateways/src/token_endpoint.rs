//! Token endpoints of issuers: token exchange (RFC 8693) for a refresh token, and refresh (RFC 6749, section
//! 6), with our own client credentials.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http_body_util::Full;
use longhaul_model::percent::encode_component;
use longhaul_model::{Fault, FaultCode};
use longhaul_outbound::{self as outbound, AddressPolicy, HttpClient, read_authorities};
use longhaul_security::{ForeignServerTrust, foreign_client_tls};
use parking_lot::Mutex;
use serde::Deserialize;
use zeroize::Zeroizing;

const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// A token that is longer is none.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Characters of an issuer's reason for a refusal that are shown.
const REASON_CHARS_MAX: usize = 200;
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const REFRESH_TOKEN: &str = "urn:ietf:params:oauth:token-type:refresh_token";

/// Our client registration at one issuer.
pub struct OurClient {
    /// The issuer as its tokens name it.
    pub issuer: String,
    pub id: String,
    pub secret: Zeroizing<String>,
}

/// The tokens of a successful answer.
pub struct IssuedTokens {
    pub access: Option<Zeroizing<String>>,
    pub refresh: Option<Zeroizing<String>>,
}

/// What a token is for, as it says itself.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    pub scope: &'a str,
    pub audience: &'a [String],
}

pub struct TokenEndpoints {
    http: HttpClient<Full<Bytes>>,
    clients: BTreeMap<String, OurClient>,
    /// Token endpoints that were discovered, by issuer.
    found: Mutex<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: Option<String>,
    refresh_token: Option<String>,
    issued_token_type: Option<String>,
}

/// An issuer is the same with or without a trailing slash.
fn key(issuer: &str) -> &str {
    issuer.trim_end_matches('/')
}

impl TokenEndpoints {
    /// Issuers' servers are believed by authorities of the file, PEM; none: those of the system.
    pub fn open(clients: Vec<OurClient>, authorities: Option<&Path>) -> Result<Self, Fault> {
        Self::new(clients, &read_authorities(authorities)?)
    }

    pub fn new(clients: Vec<OurClient>, authorities_pem: &str) -> Result<Self, Fault> {
        let tls = foreign_client_tls(ForeignServerTrust::Authorities(authorities_pem))?;
        let clients = clients.into_iter().map(|client| (key(&client.issuer).to_owned(), client)).collect();
        Ok(TokenEndpoints {
            http: outbound::client(tls, AddressPolicy::Anywhere),
            clients,
            found: Mutex::default(),
        })
    }

    /// Whether we are somebody there.
    pub fn knows(&self, issuer: &str) -> bool {
        self.clients.contains_key(key(issuer))
    }

    /// A token that lasts, in place of one that is still good.
    pub async fn exchange(
        &self,
        issuer: &str,
        token: &str,
        purpose: Purpose<'_>,
    ) -> Result<Zeroizing<String>, Fault> {
        let form = [
            ("grant_type", EXCHANGE),
            ("subject_token", token),
            ("subject_token_type", ACCESS_TOKEN),
            ("requested_token_type", REFRESH_TOKEN),
        ];
        let given = self.request_tokens(issuer, &form, purpose).await?;
        let none = || broken(issuer, "it gave no refresh token");
        given.refresh.ok_or_else(none)
    }

    /// A fresh access token; and another that lasts, if the issuer changes those.
    pub async fn refresh(
        &self,
        issuer: &str,
        refresh: &str,
        purpose: Purpose<'_>,
    ) -> Result<IssuedTokens, Fault> {
        let form = [("grant_type", "refresh_token"), ("refresh_token", refresh)];
        let given = self.request_tokens(issuer, &form, purpose).await?;
        if given.access.is_none() {
            return Err(broken(issuer, "it gave no access token"));
        }
        Ok(given)
    }

    async fn request_tokens(
        &self,
        issuer: &str,
        form: &[(&str, &str)],
        purpose: Purpose<'_>,
    ) -> Result<IssuedTokens, Fault> {
        let Some(client) = self.clients.get(key(issuer)) else {
            return Err(Fault::new(FaultCode::NotAllowed, format!("{issuer} knows no client of ours")));
        };
        let endpoint = self.endpoint(issuer).await?;
        let audience = purpose.audience.iter().map(|name| ("audience", name.as_str()));
        let all = form.iter().copied().chain([("scope", purpose.scope)]).chain(audience);
        let body: Vec<String> = all
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={}", encode_component(value)))
            .collect();
        let login = format!("{}:{}", encode_component(&client.id), encode_component(&client.secret));
        let request = http::Request::post(&endpoint)
            .header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(login)))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body.join("&"))));
        let (status, body) =
            outbound::send_bounded(&self.http, &endpoint, request, ANSWER_TIME_MAX, ANSWER_BYTES_MAX).await?;
        if status != http::StatusCode::OK {
            return Err(refused(issuer, status, &body));
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| broken(issuer, "its answer cannot be read"))?;
        answer.given(issuer)
    }

    /// The endpoint from the issuer's discovery document.
    async fn endpoint(&self, issuer: &str) -> Result<String, Fault> {
        if let Some(found) = self.found().get(key(issuer)) {
            return Ok(found.clone());
        }
        #[derive(Deserialize)]
        struct Document {
            token_endpoint: String,
        }
        let url = format!("{}/.well-known/openid-configuration", key(issuer));
        let request = http::Request::get(&url).body(Full::default());
        let (status, body) =
            outbound::send_bounded(&self.http, &url, request, ANSWER_TIME_MAX, ANSWER_BYTES_MAX).await?;
        let document =
            serde_json::from_slice::<Document>(&body).ok().filter(|_| status == http::StatusCode::OK);
        let endpoint = document.map(|document| document.token_endpoint);
        let endpoint = endpoint.filter(|endpoint| endpoint.starts_with("https://"));
        let endpoint =
            endpoint.ok_or_else(|| broken(issuer, &format!("{url} ({status}) names no token endpoint")))?;
        self.found().insert(key(issuer).to_owned(), endpoint.clone());
        Ok(endpoint)
    }

    fn found(&self) -> parking_lot::MutexGuard<'_, BTreeMap<String, String>> {
        self.found.lock()
    }
}

impl Answer {
    fn given(self, issuer: &str) -> Result<IssuedTokens, Fault> {
        let (access, refresh) =
            (self.access_token.map(Zeroizing::new), self.refresh_token.map(Zeroizing::new));
        let is_token = |token: &Zeroizing<String>| {
            !token.is_empty()
                && token.len() <= TOKEN_BYTES_MAX
                && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if [&access, &refresh].into_iter().flatten().any(|token| !is_token(token)) {
            return Err(broken(issuer, "what it gave is no token"));
        }
        // By RFC 8693 whatever was asked for comes as the access token.
        let swapped = self.issued_token_type.as_deref() == Some(REFRESH_TOKEN) && refresh.is_none();
        Ok(match swapped {
            true => IssuedTokens { access: None, refresh: access },
            false => IssuedTokens { access, refresh },
        })
    }
}

fn broken(issuer: &str, why: &str) -> Fault {
    Fault::new(FaultCode::ProtocolError, format!("{issuer}: {why}"))
}

/// Never more than the error's own words: nothing that was sent is shown.
pub(crate) fn refused(issuer: &str, status: http::StatusCode, body: &[u8]) -> Fault {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Refusal {
        error: String,
        error_description: String,
    }
    let said: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let words: String =
        [said.error, said.error_description].join(" ").chars().take(REASON_CHARS_MAX).collect();
    let words = longhaul_model::units::printable(words.trim()).to_string();
    let code = if status.is_server_error() { FaultCode::Unreachable } else { FaultCode::NotAuthenticated };
    Fault::new(code, format!("{issuer} refuses ({status}): {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<(Option<String>, Option<String>), FaultCode> {
        let answer: Answer = serde_json::from_str(text).unwrap();
        let text = |token: Option<Zeroizing<String>>| token.map(|token| token.to_string());
        answer.given("i").map(|given| (text(given.access), text(given.refresh))).map_err(|fault| fault.code)
    }

    #[test]
    fn both_ways_of_giving_a_token_that_lasts_are_understood() {
        assert_eq!(
            given(r#"{"access_token":"a","refresh_token":"r","x":1}"#),
            Ok((Some("a".into()), Some("r".into())))
        );
        let exchanged = format!(r#"{{"access_token":"r","issued_token_type":"{REFRESH_TOKEN}"}}"#);
        assert_eq!(given(&exchanged), Ok((None, Some("r".into()))));
        for bad in [r#"{"access_token":""}"#, r#"{"refresh_token":"a b"}"#, "{\"access_token\":\"a\\nb\"}"] {
            assert_eq!(given(bad), Err(FaultCode::ProtocolError), "{bad}");
        }
    }

    #[test]
    fn refusals_show_what_the_issuer_says_and_nothing_else() {
        let body = br#"{"error":"invalid_grant","error_description":"it has expired"}"#;
        let fault = refused("https://i", http::StatusCode::BAD_REQUEST, body);
        assert_eq!(fault.code, FaultCode::NotAuthenticated);
        assert!(fault.detail.ends_with("(400 Bad Request): invalid_grant it has expired"), "{fault}");
        let odd = refused("https://i", http::StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(odd.code, FaultCode::Unreachable);
    }
}
