//! Key sets of token issuers (OpenID discovery and JWKS) over HTTPS, cached. What an answer means is in
//! `security::bearer`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, USER_AGENT};
use http_body_util::{BodyExt, Empty, Limited};
use longhaul_model::{ErrorChain, Fault, FaultCode, Timestamp};
use longhaul_outbound::{self as outbound, AddressPolicy, HttpClient, read_authorities};
use longhaul_security::bearer::{
    Audience, ExpectedLogin, FetchResponse, FetchStep, KEYS_BYTES_MAX, LoginIdentity, TokenIdentity,
    TokenRefusal, TokenTrust,
};
use longhaul_security::{ForeignServerTrust, foreign_client_tls};
use tokio::sync::Mutex;

/// A client waits for the answer with its token, so an issuer has less time than archives have.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Verifies tokens, and asks their issuers for keys where that is needed.
pub struct Issuers {
    trust: Arc<TokenTrust>,
    http: HttpClient<Empty<Bytes>>,
    /// One question to an issuer at a time, whoever needs the answer: the others find it there. By the
    /// trusted issuer.
    asking: parking_lot::Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

impl Issuers {
    /// Issuers' servers are believed by certificates of these authorities, PEM.
    pub fn new(trust: Arc<TokenTrust>, authorities_pem: &str) -> Result<Self, Fault> {
        Self::within(trust, authorities_pem, AddressPolicy::Anywhere)
    }

    /// The same; their documents do not lead everywhere.
    pub fn within(
        trust: Arc<TokenTrust>,
        authorities_pem: &str,
        policy: AddressPolicy,
    ) -> Result<Self, Fault> {
        let tls = foreign_client_tls(ForeignServerTrust::Authorities(authorities_pem))?;
        Ok(Issuers { trust, http: outbound::client(tls, policy), asking: Default::default() })
    }

    /// The same with a file of authorities; none: those of the system.
    pub fn open(trust: Arc<TokenTrust>, authorities: Option<&Path>) -> Result<Self, Fault> {
        Self::new(trust, &read_authorities(authorities)?)
    }

    /// Verifies a token and returns its identity. Fetches the issuer's keys first if they are not cached, or
    /// if the signing key is not among them.
    pub async fn verify(
        &self,
        token: &str,
        audience: Audience,
        now: Timestamp,
    ) -> Result<TokenIdentity, Fault> {
        self.with_keys(|| self.trust.verify(token, audience, now), now).await
    }

    /// Verifies an ID token and returns who logged in. Fetches keys as [`Issuers::verify`] does.
    pub async fn verify_login(
        &self,
        id_token: &str,
        expected: &ExpectedLogin<'_>,
        now: Timestamp,
    ) -> Result<LoginIdentity, Fault> {
        self.with_keys(|| self.trust.verify_login(id_token, expected, now), now).await
    }

    async fn with_keys<T>(
        &self,
        verify: impl Fn() -> Result<T, TokenRefusal>,
        now: Timestamp,
    ) -> Result<T, Fault> {
        let issuer = match verify() {
            Ok(identity) => return Ok(identity),
            Err(TokenRefusal::Refused(fault)) => return Err(fault),
            Err(TokenRefusal::KeysWanted(issuer)) => issuer,
        };
        let asking = self.asking(&issuer);
        let asked = asking.lock().await;
        if let Err(TokenRefusal::KeysWanted(_)) = verify() {
            // Told by what follows: a failure to ask is why the keys are not there.
            let _ = self.fetch_keys(&issuer, now).await;
        }
        drop(asked);
        verify().map_err(|refusal| match refusal {
            TokenRefusal::Refused(fault) => fault,
            TokenRefusal::KeysWanted(issuer) => {
                Fault::new(FaultCode::Busy, format!("the keys of {issuer} are being asked for"))
            }
        })
    }

    /// Asks the issuers whose keys are getting old, to be called every minute or so. What went wrong with
    /// which.
    pub async fn refresh(&self, now: Timestamp) -> Vec<(String, Fault)> {
        let mut faults = Vec::new();
        for issuer in self.trust.issuers_due(now) {
            let asking = self.asking(&issuer);
            let _asked = asking.lock().await;
            if let Err(fault) = self.fetch_keys(&issuer, now).await {
                faults.push((issuer, fault));
            }
        }
        faults
    }

    fn asking(&self, issuer: &str) -> Arc<Mutex<()>> {
        let mut asking = self.asking.lock();
        asking.entry(issuer.to_owned()).or_default().clone()
    }

    async fn fetch_keys(&self, issuer: &str, now: Timestamp) -> Result<(), Fault> {
        let Some(mut fetch) = self.trust.fetch(issuer, now) else { return Ok(()) };
        loop {
            let answer = self.get(fetch.url()).await;
            if let FetchStep::Done(keys) = fetch.handle_response(answer) {
                return self.trust.install(issuer, keys, now);
            }
        }
    }

    async fn get(&self, url: &str) -> Result<FetchResponse, Fault> {
        let whole = tokio::time::timeout(ANSWER_TIME_MAX, self.get_whole(url)).await;
        whole.unwrap_or_else(|_| {
            let detail = format!("{url}: no answer within {} s", ANSWER_TIME_MAX.as_secs());
            Err(Fault::new(FaultCode::Stalled, detail))
        })
    }

    async fn get_whole(&self, url: &str) -> Result<FetchResponse, Fault> {
        if !url.starts_with("https://") {
            return Err(Fault::new(FaultCode::BadRequest, format!("{url} is no https address")));
        }
        let request = http::Request::get(url)
            .header(USER_AGENT, concat!("longhaul/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json")
            .body(Empty::new())
            .map_err(|error| {
                Fault::new(FaultCode::BadRequest, format!("{url}: {error}")).with_source(error)
            })?;
        let reply = self.http.request(request).await.map_err(|error| {
            Fault::new(FaultCode::Unreachable, format!("{url}: {}", ErrorChain::new(&error)))
                .with_source(error)
        })?;
        if reply.status() != http::StatusCode::OK {
            // Redirects too: an issuer says where its keys are in its document.
            return Err(Fault::new(FaultCode::ProtocolError, format!("{url} answered {}", reply.status())));
        }
        let max_age = reply.headers().get(CACHE_CONTROL).and_then(|value| max_age(value.to_str().ok()?));
        let body = Limited::new(reply.into_body(), KEYS_BYTES_MAX).collect().await;
        let body = body.map_err(|error| {
            let detail =
                format!("{url}: the answer cannot be read: {error} (at most {KEYS_BYTES_MAX} bytes are)");
            Fault::new(FaultCode::ConnectionLost, detail)
        })?;
        Ok(FetchResponse { body: body.to_bytes().to_vec(), max_age })
    }
}

fn max_age(cache_control: &str) -> Option<Duration> {
    let parts = cache_control.split(',').map(str::trim);
    let seconds = parts.filter_map(|part| part.strip_prefix("max-age=")?.parse().ok()).next()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_found_among_other_words() {
        assert_eq!(max_age("public, max-age=60, must-revalidate"), Some(Duration::from_secs(60)));
        for text in ["", "no-store", "max-age=", "max-age=x", "max-age=-1", "s-maxage=5"] {
            assert_eq!(max_age(text), None, "{text}");
        }
    }
}
