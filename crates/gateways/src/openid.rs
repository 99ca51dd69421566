//! Log-in by OpenID Connect, authorization code flow with PKCE (RFC 7636): where browsers are sent, and whose
//! code came back. The meaning of an issuer's answers is in `security::bearer`; rights are decided elsewhere.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http_body_util::Full;
use longhaul_model::address::IpNetwork;
use longhaul_model::percent::encode_component;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_outbound::{self as outbound, AddressPolicy, HttpClient, read_authorities};
use longhaul_security::bearer::{
    ExpectedLogin, IssuerRule, LoginIdentity, ProviderMetadata, TokenSettings, TokenTrust, extract_id_token,
};
use longhaul_security::{ForeignServerTrust, LoginRedirect, PendingLogin, foreign_client_tls};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::issuers::Issuers;
use crate::token_endpoint::refused;

/// Somebody waits before a blank page.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// How long the issuer's discovery document is cached.
const DOCUMENT_TTL: Duration = Duration::from_secs(3_600);
/// After it did not answer; until then it is not asked for everybody who wants to log in.
const REFETCH_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// Leeway for clocks that are behind the issuer's.
const LEEWAY: Duration = Duration::from_secs(60);
/// Bytes of an authorization code.
const CODE_BYTES_MAX: usize = 4_096;

/// Our client registration at the issuer.
pub struct LoginClient {
    /// `https://login.example.org/realms/lab`, as its tokens say.
    pub issuer: String,
    pub client_id: String,
    /// None: a public client, protected by PKCE alone.
    pub secret: Option<Zeroizing<String>>,
    pub scopes: Vec<String>,
    /// The redirect URI, as registered at the issuer.
    pub redirect: String,
}

/// The answer that a browser brings back, once it was matched to a login of ours.
pub struct LoginAnswer<'a> {
    pub code: &'a str,
    /// The issuer that claims to answer (RFC 9207).
    pub issuer: Option<&'a str>,
    pub login: &'a PendingLogin,
}

pub struct LoginIssuer {
    client: LoginClient,
    http: HttpClient<Full<Bytes>>,
    issuers: Issuers,
    /// One question for it at a time: the others find the answer there.
    document: Mutex<Option<(Timestamp, Result<ProviderMetadata, Fault>)>>,
}

impl LoginIssuer {
    /// Its server is believed by authorities of the file, PEM; none: those of the system. Its document leads
    /// to its own host, to public addresses, and to those allowed.
    pub fn open(
        client: LoginClient,
        authorities: Option<&Path>,
        allow: Vec<IpNetwork>,
    ) -> Result<Self, Fault> {
        let named = client.issuer.parse::<http::Uri>().ok().and_then(|url| url.host().map(str::to_owned));
        let no_issuer = || {
            let detail = format!("{:?} is no issuer (https://host/path)", client.issuer);
            Fault::new(FaultCode::BadRequest, detail)
        };
        let policy = AddressPolicy::Public { trusted_host: Some(named.ok_or_else(no_issuer)?), allow };
        let rule = IssuerRule { issuer: client.issuer.clone(), vo: None, required_scope: None };
        let settings = TokenSettings { issuers: vec![rule], audiences: Vec::new(), leeway: LEEWAY };
        let (trust, pem) = (Arc::new(TokenTrust::new(settings)?), read_authorities(authorities)?);
        let tls = foreign_client_tls(ForeignServerTrust::Authorities(&pem))?;
        let http = outbound::client(tls, policy.clone());
        Ok(LoginIssuer {
            client,
            http,
            issuers: Issuers::within(trust, &pem, policy)?,
            document: Mutex::default(),
        })
    }

    /// The authorization URL for the browser.
    pub async fn address(&self, begun: &LoginRedirect, now: Timestamp) -> Result<String, Fault> {
        let document = self.document(now).await?;
        let scopes = self.client.scopes.join(" ");
        let parameters = [
            ("response_type", "code"),
            ("client_id", &self.client.client_id),
            ("redirect_uri", &self.client.redirect),
            ("scope", &scopes),
            ("state", &begun.state),
            ("nonce", &begun.nonce),
            ("code_challenge", &begun.challenge),
            ("code_challenge_method", "S256"),
        ];
        let endpoint = document.authorization_endpoint;
        let joined = if endpoint.contains('?') { '&' } else { '?' };
        Ok(format!("{endpoint}{joined}{}", form(&parameters)))
    }

    /// Redeems a code for the identity of the person.
    pub async fn redeem(&self, answer: LoginAnswer<'_>, now: Timestamp) -> Result<LoginIdentity, Fault> {
        let issuer = &self.client.issuer;
        let document = self.document(now).await?;
        let trimmed = |issuer: &str| issuer.trim_end_matches('/').to_owned();
        let is_theirs = answer.issuer.map_or(!document.sends_issuer, |from| trimmed(from) == trimmed(issuer));
        if !is_theirs {
            let detail = format!("the answer is not by {issuer} (iss): log in again");
            return Err(Fault::new(FaultCode::NotAuthenticated, detail));
        }
        if answer.code.is_empty() || answer.code.len() > CODE_BYTES_MAX {
            return Err(Fault::new(FaultCode::BadRequest, format!("{issuer} sent no code that is one")));
        }
        let token = self.exchange(&document, answer.code, &answer.login.verifier).await?;
        let expected =
            ExpectedLogin { issuer, client_id: &self.client.client_id, nonce: &answer.login.nonce };
        self.issuers.verify_login(&token, &expected, now).await
    }

    async fn exchange(
        &self,
        document: &ProviderMetadata,
        code: &str,
        verifier: &str,
    ) -> Result<Zeroizing<String>, Fault> {
        let client = &self.client;
        let mut parameters = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &client.redirect),
            ("code_verifier", verifier),
        ];
        let mut request = http::Request::post(&document.token_endpoint)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        match &client.secret {
            Some(secret) if document.secret_in_body => {
                parameters.extend([("client_id", client.client_id.as_str()), ("client_secret", secret)]);
            }
            Some(secret) => {
                let login = Zeroizing::new(format!(
                    "{}:{}",
                    encode_component(&client.client_id),
                    encode_component(secret)
                ));
                let login = Zeroizing::new(STANDARD.encode(login.as_bytes()));
                request = request.header(AUTHORIZATION, format!("Basic {}", *login));
            }
            None => parameters.push(("client_id", &client.client_id)),
        }
        let request = request.body(Full::new(Bytes::from(form(&parameters))));
        let (status, body) = self.send(&document.token_endpoint, request).await?;
        if status != http::StatusCode::OK {
            return Err(refused(&client.issuer, status, &body));
        }
        extract_id_token(&body)
    }

    async fn document(&self, now: Timestamp) -> Result<ProviderMetadata, Fault> {
        let mut kept = self.document.lock().await;
        if let Some((at, found)) = &*kept {
            let good_for = if found.is_ok() { DOCUMENT_TTL } else { REFETCH_INTERVAL_MIN };
            if now.since(*at) < good_for {
                return found.clone();
            }
        }
        let found = self.fetch_document().await;
        *kept = Some((now, found.clone()));
        found
    }

    async fn fetch_document(&self) -> Result<ProviderMetadata, Fault> {
        let url = ProviderMetadata::discovery_url(&self.client.issuer);
        let (status, body) = self.send(&url, http::Request::get(&url).body(Full::default())).await?;
        if status != http::StatusCode::OK {
            return Err(Fault::new(FaultCode::ProtocolError, format!("{url} answered {status}")));
        }
        ProviderMetadata::parse(&self.client.issuer, &body)
    }

    async fn send(
        &self,
        url: &str,
        request: http::Result<http::Request<Full<Bytes>>>,
    ) -> Result<(http::StatusCode, Bytes), Fault> {
        outbound::send_bounded(&self.http, url, request, ANSWER_TIME_MAX, ANSWER_BYTES_MAX).await
    }
}

impl std::fmt::Debug for LoginIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoginIssuer({})", self.client.issuer)
    }
}

fn form(parameters: &[(&str, &str)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", encode_component(value)));
    pairs.collect::<Vec<_>>().join("&")
}
