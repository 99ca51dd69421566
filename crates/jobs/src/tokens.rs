//! The token cache of jobs: which tokens of users can be renewed, and the fresh access tokens in their place.
//!
//! Refresh tokens are stored in the catalog, sealed, as delegated proxies are; fresh access tokens stay in
//! memory. Exchange and renewal are in `token_renewal`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::fts::delegation_id_of_token;
use longhaul_gateways::token_endpoint::{OurClient, TokenEndpoints};
use longhaul_identity::FtsConfig;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::bearer::UnverifiedClaims;
use longhaul_security::read_secret;
use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use zeroize::Zeroizing;

/// An access token with less time left than this is renewed before a copy begins: the margin of FTS.
pub(crate) const EXPIRY_MARGIN: Duration = Duration::from_secs(300);
/// Tokens that wait for their exchange. One that finds no room is exchanged when its first copy begins.
const EXCHANGE_QUEUE_MAX: usize = 10_000;
/// Fresh access tokens in memory. One beyond this is fetched again when it is needed.
const ACCESS_TOKENS_MAX: usize = 10_000;

pub struct Tokens {
    /// Where this service may renew tokens; none if it is a client of no issuer.
    pub(crate) endpoints: Option<TokenEndpoints>,
    exchange_queue: Sender<ExchangeRequest>,
    access_tokens: Mutex<BTreeMap<String, AccessToken>>,
    /// One request to an issuer per token at a time, whoever needs the answer.
    in_flight: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// A token of a job that is to be exchanged for a refresh token.
pub struct ExchangeRequest {
    pub(crate) id: String,
    pub(crate) token: Zeroizing<String>,
    pub(crate) claims: UnverifiedClaims,
}

#[derive(Clone)]
struct AccessToken {
    token: Zeroizing<String>,
    expires: Timestamp,
}

impl Tokens {
    /// Opens the issuers of which this service is a client. The receiver is for `token_renewal::run`.
    pub fn open(config: &FtsConfig) -> Result<(Tokens, Receiver<ExchangeRequest>), Fault> {
        let (exchange_queue, receiver) = channel(EXCHANGE_QUEUE_MAX);
        let mut clients = Vec::new();
        for issuer in &config.issuers {
            let (Some(id), Some(file)) = (&issuer.client_id, &issuer.client_secret_file) else { continue };
            let secret = secret(file)?;
            clients.push(OurClient { issuer: issuer.url.clone(), id: id.clone(), secret });
        }
        let authorities = config.issuer_authorities.as_deref();
        let open = |clients| TokenEndpoints::open(clients, authorities);
        let endpoints = Some(clients).filter(|clients| !clients.is_empty()).map(open).transpose()?;
        let (access_tokens, in_flight) = (Mutex::default(), Mutex::default());
        Ok((Tokens { endpoints, exchange_queue, access_tokens, in_flight }, receiver))
    }

    /// Whether this service is a client of any issuer.
    pub(crate) fn can_renew(&self) -> bool {
        self.endpoints.is_some()
    }

    /// Queues the tokens of a new job for their exchange. They are all different, and valid now.
    pub(crate) fn queue_exchange(&self, tokens: impl Iterator<Item = String>) {
        for token in tokens {
            let id = delegation_id_of_token(&token, "");
            let Some(claims) = self.renewable_claims(&token) else { continue };
            let _ =
                self.exchange_queue.try_send(ExchangeRequest { id, token: Zeroizing::new(token), claims });
        }
    }

    /// The claims of a token if this service may renew it: it has the scope `offline_access`, and its issuer
    /// knows this service.
    pub(crate) fn renewable_claims(&self, token: &str) -> Option<UnverifiedClaims> {
        let endpoints = self.endpoints.as_ref()?;
        UnverifiedClaims::parse(token).filter(|claims| claims.is_offline() && endpoints.knows(&claims.issuer))
    }

    /// The lock under which requests for this token are made.
    pub(crate) fn request_lock(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut in_flight = self.in_flight.lock();
        // Drops the locks that nobody waits for: there are as many tokens as jobs.
        in_flight.retain(|_, lock| Arc::strong_count(lock) > 1);
        in_flight.entry(id.to_owned()).or_default().clone()
    }

    /// The cached access token in place of a job's token, if it is valid for long enough.
    pub(crate) fn cached(&self, id: &str, now: Timestamp) -> Option<Zeroizing<String>> {
        let access_tokens = self.access_tokens.lock();
        let valid = access_tokens.get(id).filter(|access| access.expires.since(now) > EXPIRY_MARGIN);
        valid.map(|access| access.token.clone())
    }

    /// Caches a fresh access token, if there is room, and drops those that have expired.
    pub(crate) fn cache(&self, id: String, token: Zeroizing<String>, now: Timestamp) {
        let expires = UnverifiedClaims::parse(&token).map_or(now, |claims| claims.expires);
        let mut access_tokens = self.access_tokens.lock();
        access_tokens.retain(|_, access| access.expires > now);
        if access_tokens.len() < ACCESS_TOKENS_MAX {
            access_tokens.insert(id, AccessToken { token, expires });
        }
    }
}

fn secret(file: &Path) -> Result<Zeroizing<String>, Fault> {
    read_secret(file).map_err(|error| {
        let why = Fault::from(error).detail;
        Fault::new(FaultCode::BadRequest, format!("service.fts.issuers: client_secret_file: {why}"))
    })
}
