//! Renewal of tokens: a job may wait for longer than its tokens are valid.
//!
//! A token with the scope `offline_access` is exchanged at its issuer for a refresh token soon after its job
//! came (OAuth 2.0 token exchange, RFC 8693), and that for a fresh access token when a copy begins (RFC 6749,
//! section 6). While the copy runs, the token is renewed before it expires, and once more when a storage
//! refuses it. Tokens of jobs with `unmanaged_tokens`, tokens without that scope, and those that are still
//! valid for long enough are left alone.
//!
//! FTS lets files wait for the exchange and fails them if it fails; here they run with the token that they
//! have, as long as it is valid. Not here: the cache ([`Tokens`](crate::Tokens)).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::fts::delegation_id_of_token;
use longhaul_catalog::DelegationRow;
use longhaul_gateways::token_endpoint::{Purpose, TokenEndpoints};
use longhaul_model::{Blame, Fault, FaultCode, Timestamp, units};
use longhaul_security::bearer::UnverifiedClaims;
use longhaul_storage_remote::{RefreshResult, RefreshingToken, TokenRefresher};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::job_control::JobControl;
use crate::mover::{CopyOrder, Credential, End};
use crate::tokens::{EXPIRY_MARGIN, ExchangeRequest};

/// A refresh token that was not used for this long is deleted: its issuer has forgotten it too.
const REFRESH_TOKEN_TTL: Duration = Duration::from_secs(30 * 86_400);
/// After an issuer failed an exchange, this passes until the next one: it would fail token by token.
const ISSUER_BACKOFF: Duration = Duration::from_secs(30);
/// Certificates of a proxy's chain that are read for the end of its validity.
const PROXY_CHAIN_MAX: usize = 16;
/// Prefix of a token's id among the delegated credentials.
const TOKEN_ROW_PREFIX: &str = "token:";

fn purpose(claims: &UnverifiedClaims) -> Purpose<'_> {
    Purpose { scope: &claims.scope, audience: &claims.audience }
}

/// Exchanges the tokens of new jobs for refresh tokens, one after the other, until told to stop.
pub async fn run(
    job_control: Arc<JobControl>,
    mut requests: Receiver<ExchangeRequest>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let next = tokio::select! {
            next = requests.recv() => next,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(ExchangeRequest { id, token, claims }) = next else { return };
        let Some(endpoints) = &job_control.tokens.endpoints else { return };
        let lock = job_control.tokens.request_lock(&id);
        let locked = lock.lock().await;
        if matches!(stored_refresh_token(&job_control, &id).await, Ok(Some(_)) | Err(_)) {
            continue;
        }
        let exchanged = exchange(&job_control, endpoints, &id, &token, &claims).await;
        // A copy with the token need not wait for the backoff below.
        drop(locked);
        if let Err(fault) = exchanged {
            tracing::warn!(issuer = claims.issuer, %fault, "cannot exchange the token of a job for a \
                refresh token");
            tokio::select! {
                () = tokio::time::sleep(ISSUER_BACKOFF) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }
}

async fn exchange(
    job_control: &Arc<JobControl>,
    endpoints: &TokenEndpoints,
    id: &str,
    token: &str,
    claims: &UnverifiedClaims,
) -> Result<Zeroizing<String>, Fault> {
    let refresh_token = endpoints.exchange(&claims.issuer, token, purpose(claims)).await?;
    store_refresh_token(job_control, id, &claims.issuer, &refresh_token).await?;
    Ok(refresh_token)
}

async fn stored_refresh_token(
    job_control: &Arc<JobControl>,
    id: &str,
) -> Result<Option<Zeroizing<String>>, Fault> {
    let (job_control, row) = (job_control.clone(), format!("{TOKEN_ROW_PREFIX}{id}"));
    let read = tokio::task::spawn_blocking(move || job_control.identity.credentials().get(&row)).await;
    let row =
        read.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
    let text = row.and_then(|row| String::from_utf8(row.proxy?).ok());
    Ok(text.map(Zeroizing::new))
}

async fn store_refresh_token(
    job_control: &Arc<JobControl>,
    id: &str,
    issuer: &str,
    refresh_token: &str,
) -> Result<(), Fault> {
    let now = job_control.kernel.now();
    let row = DelegationRow {
        id: format!("{TOKEN_ROW_PREFIX}{id}"),
        user: issuer.to_owned(),
        request: None,
        proxy: Some(refresh_token.as_bytes().to_vec()),
        expires: Some(now.plus(REFRESH_TOKEN_TTL)),
        details: "{}".to_owned(),
        changed: now,
    };
    let job_control = job_control.clone();
    let written = tokio::task::spawn_blocking(move || job_control.identity.credentials().put(row)).await;
    Ok(written.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??)
}

/// The order with tokens that are valid for long enough, and that are renewed while the copy runs.
pub async fn with_renewed_tokens(
    job_control: &Arc<JobControl>,
    mut order: CopyOrder,
) -> Result<CopyOrder, Fault> {
    if !order.unmanaged_tokens {
        renew_at_start(job_control, &mut order.source, "SOURCE").await?;
        renew_at_start(job_control, &mut order.target, "DESTINATION").await?;
    }
    Ok(order)
}

async fn renew_at_start(job_control: &Arc<JobControl>, end: &mut End, scope: &str) -> Result<(), Fault> {
    let Credential::Bearer(token) = &end.credential else { return Ok(()) };
    let Some(claims) = job_control.tokens.renewable_claims(token) else { return Ok(()) };
    let refresher = JobTokenRefresher { job_control: job_control.clone(), token: token.clone(), claims };
    let now = job_control.kernel.now();
    let token = match refresher.obtain(token, false).await {
        Ok(fresh) => fresh.unwrap_or_else(|| token.clone()),
        Err(fault) if refresher.claims.expires > now => {
            let issuer = &refresher.claims.issuer;
            tracing::warn!(%issuer, %fault, "a copy begins with a token that expires soon");
            token.clone()
        }
        Err(fault) => {
            let which = scope.to_ascii_lowercase();
            let text =
                format!("{scope} [14] Failed to obtain refresh token for {which} token: {}", fault.detail);
            return Err(Fault::new(FaultCode::NotAuthenticated, text));
        }
    };
    end.credential = Credential::Refreshing(RefreshingToken::new(token, refresher));
    Ok(())
}

/// Renews the token of one end of a copy.
struct JobTokenRefresher {
    job_control: Arc<JobControl>,
    /// The token that came with the job.
    token: Zeroizing<String>,
    claims: UnverifiedClaims,
}

impl JobTokenRefresher {
    /// A token in place of `shown`, if that was refused or expires soon; none if it is valid for long enough.
    async fn obtain(&self, shown: &str, refused: bool) -> Result<Option<Zeroizing<String>>, Fault> {
        let JobTokenRefresher { job_control, token, claims } = self;
        let tokens = &job_control.tokens;
        let Some(endpoints) = &tokens.endpoints else { return Ok(None) };
        let now = job_control.kernel.now();
        let ends = if shown == token.as_str() { Some(claims.expires) } else { None };
        let ends = ends.or_else(|| UnverifiedClaims::parse(shown).map(|claims| claims.expires));
        if !refused && ends.is_none_or(|ends| ends.since(now) > EXPIRY_MARGIN) {
            return Ok(None);
        }
        let id = delegation_id_of_token(token, "");
        let lock = tokens.request_lock(&id);
        let _locked = lock.lock().await;
        if let Some(fresh) = tokens.cached(&id, now).filter(|fresh| fresh.as_str() != shown) {
            return Ok(Some(fresh));
        }
        let fresh = renew(job_control, endpoints, &id, token, claims, claims.expires > now).await?;
        tokens.cache(id, fresh.clone(), now);
        Ok(Some(fresh))
    }
}

impl TokenRefresher for JobTokenRefresher {
    fn renew<'a>(
        &'a self,
        token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = RefreshResult> + Send + 'a>> {
        Box::pin(async move { self.obtain(token, refused).await.map_err(|fault| fault.detail) })
    }
}

/// When the credentials of a copy expire, so that a refusal can be explained by that.
pub struct CredentialExpiry {
    /// Scope and side of each end, when its credential expires, and why it was not renewed.
    ends: Vec<(&'static str, &'static str, Timestamp, &'static str)>,
}

impl CredentialExpiry {
    pub fn new(job_control: &JobControl, order: &CopyOrder) -> CredentialExpiry {
        let expiry = |end: &End, scope, side| {
            let (expires, why) = match &end.credential {
                Credential::Bearer(token) => {
                    let claims = UnverifiedClaims::parse(token)?;
                    let why = match () {
                        () if order.unmanaged_tokens => {
                            "the job says that its tokens are not managed (unmanaged_tokens)"
                        }
                        () if !claims.is_offline() => "it cannot be renewed without the scope offline_access",
                        () if job_control.tokens.renewable_claims(token).is_none() => {
                            "its issuer does not know this service (client_id of service.fts.issuers)"
                        }
                        () => "it was not renewed",
                    };
                    (claims.expires, why)
                }
                Credential::Pem(pem) => {
                    (proxy_expires(pem)?, "delegate a new proxy and submit the job again")
                }
                Credential::None | Credential::Refreshing(_) | Credential::Keys(_) => return None,
            };
            Some((scope, side, expires, why))
        };
        let ends =
            [expiry(&order.source, "SOURCE", "source"), expiry(&order.target, "DESTINATION", "destination")];
        CredentialExpiry { ends: ends.into_iter().flatten().collect() }
    }

    /// Adds to a fault that blames a credential that the credential has expired, if it has.
    pub fn explain(&self, mut fault: Fault, now: Timestamp) -> Fault {
        if fault.blame != Blame::Credential {
            return fault;
        }
        let concerned = |scope: &str| {
            let elsewhere = self.ends.iter().any(|(other, ..)| {
                *other != scope && fault.detail.strip_prefix(other).is_some_and(|rest| rest.starts_with(" ["))
            });
            !elsewhere
        };
        let expired = self.ends.iter().filter(|(scope, _, ends, _)| *ends <= now && concerned(scope));
        let texts: Vec<String> = expired
            .map(|(_, side, ends, why)| {
                format!(
                    "the credential for the {side} expired at {ends}, {} ago: {why}",
                    units::duration(now.since(*ends))
                )
            })
            .collect();
        if !texts.is_empty() {
            fault.detail = format!("{} ({})", fault.detail, texts.join("; "));
        }
        fault
    }
}

/// When the first certificate of a proxy's chain expires.
fn proxy_expires(pem: &str) -> Option<Timestamp> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    let certificates = pem.match_indices(BEGIN).filter_map(|(at, _)| pem.get(at..));
    certificates
        .take(PROXY_CHAIN_MAX)
        .filter_map(|certificate| longhaul_security::expires(certificate).ok())
        .min()
}

async fn renew(
    job_control: &Arc<JobControl>,
    endpoints: &TokenEndpoints,
    id: &str,
    token: &str,
    claims: &UnverifiedClaims,
    is_valid: bool,
) -> Result<Zeroizing<String>, Fault> {
    let refresh_token = match stored_refresh_token(job_control, id).await? {
        Some(refresh_token) => refresh_token,
        None if is_valid => exchange(job_control, endpoints, id, token, claims).await?,
        None => {
            let text = "it was not exchanged for a refresh token while it was valid";
            return Err(Fault::new(FaultCode::NotAuthenticated, text));
        }
    };
    let answer = endpoints.refresh(&claims.issuer, &refresh_token, purpose(claims)).await?;
    // Also where the refresh token is the same as before: its use begins its TTL anew.
    store_refresh_token(job_control, id, &claims.issuer, answer.refresh.as_ref().unwrap_or(&refresh_token))
        .await?;
    answer
        .access
        .ok_or_else(|| Fault::new(FaultCode::ProtocolError, "the issuer's answer has no access token"))
}
