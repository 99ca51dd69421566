//! Tokens of jobs that outlive themselves: a job may wait for longer than a token is good. One with
//! `offline_access` is exchanged at its issuer for one that lasts, soon after it came, and that for a fresh
//! one when a copy begins. `unmanaged_tokens` of a job, and a token without that scope, are left alone; so is
//! one that is still good long enough. The same is done while a copy runs, and once more when a storage does
//! not take a token any more.
//!
//! What lasts is kept in the catalog, as delegated proxies are; what is fresh in memory. FTS lets files wait
//! for the exchange and fails them if it does; here they go on with the token that they have, as long as it
//! is good.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::fts::delegation_id_of_token;
use longhaul_catalog::DelegationRow;
use longhaul_control::guard;
use longhaul_gateways::token_endpoint::{OurClient, Purpose, TokenEndpoints};
use longhaul_identity::FtsConfig;
use longhaul_model::{Blame, Fault, FaultCode, Timestamp, units};
use longhaul_security::bearer::UnverifiedClaims;
use longhaul_security::read_secret;
use longhaul_storage_remote::{RefreshResult, RefreshingToken, TokenRefresher};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::JobControl;
use crate::mover::{CopyOrder, Credential, End};

/// A copy that begins with less left is given a fresh one, as FTS does.
const MARGIN: Duration = Duration::from_secs(300);
/// What was not used for so long is forgotten: the issuer has done so too.
const KEPT: Duration = Duration::from_secs(30 * 86_400);
/// Tokens that wait to be exchanged; one that finds no room is exchanged when its first copy begins.
const WAITING_MAX: usize = 10_000;
/// Fresh ones in memory.
const FRESH_MAX: usize = 10_000;
/// After an issuer has failed; it fails a token at a time.
const PAUSE: Duration = Duration::from_secs(30);
/// Certificates of a proxy that are looked at.
const CHAIN_MAX: usize = 16;
/// Before the id of a token, among delegated credentials.
const ROW: &str = "token:";

pub struct Tokens {
    endpoints: Option<TokenEndpoints>,
    wanted: Sender<Wanted>,
    fresh: Mutex<BTreeMap<String, Fresh>>,
    /// One question for a token at a time, whoever needs the answer.
    asking: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

pub struct Wanted {
    id: String,
    token: Zeroizing<String>,
    about: UnverifiedClaims,
}

#[derive(Clone)]
struct Fresh {
    token: Zeroizing<String>,
    expires: Timestamp,
}

impl Tokens {
    /// The receiver is for [`run`].
    pub fn open(config: &FtsConfig) -> Result<(Tokens, Receiver<Wanted>), Fault> {
        let (wanted, receiver) = channel(WAITING_MAX);
        let mut clients = Vec::new();
        for issuer in &config.issuers {
            let (Some(id), Some(file)) = (&issuer.client_id, &issuer.client_secret_file) else { continue };
            let secret = secret(file)?;
            clients.push(OurClient { issuer: issuer.url.clone(), id: id.clone(), secret });
        }
        let authorities = config.issuer_authorities.as_deref();
        let open = |clients| TokenEndpoints::open(clients, authorities);
        let endpoints = Some(clients).filter(|clients| !clients.is_empty()).map(open).transpose()?;
        Ok((Tokens { endpoints, wanted, fresh: Mutex::default(), asking: Mutex::default() }, receiver))
    }

    /// Whether any issuer knows us.
    pub(crate) fn are_renewed(&self) -> bool {
        self.endpoints.is_some()
    }

    /// A job came with these, all different; they are good now.
    pub(crate) fn came(&self, tokens: impl Iterator<Item = String>) {
        for token in tokens {
            let id = delegation_id_of_token(&token, "");
            let Some(about) = self.managed(&token) else { continue };
            let _ = self.wanted.try_send(Wanted { id, token: Zeroizing::new(token), about });
        }
    }

    /// What it says of itself, if we may have another in its place.
    fn managed(&self, token: &str) -> Option<UnverifiedClaims> {
        let endpoints = self.endpoints.as_ref()?;
        UnverifiedClaims::parse(token).filter(|about| about.is_offline() && endpoints.knows(&about.issuer))
    }

    fn asking(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut asking = guard(&self.asking);
        // Those that nobody waits for any more: there are as many tokens as jobs.
        asking.retain(|_, lock| Arc::strong_count(lock) > 1);
        asking.entry(id.to_owned()).or_default().clone()
    }

    fn fresh(&self, id: &str, now: Timestamp) -> Option<Zeroizing<String>> {
        let fresh = guard(&self.fresh);
        fresh.get(id).filter(|fresh| fresh.expires.since(now) > MARGIN).map(|fresh| fresh.token.clone())
    }
}

fn secret(file: &Path) -> Result<Zeroizing<String>, Fault> {
    read_secret(file).map_err(|error| {
        let why = Fault::from(error).detail;
        Fault::new(FaultCode::BadRequest, format!("service.fts.issuers: client_secret_file: {why}"))
    })
}

fn purpose(about: &UnverifiedClaims) -> Purpose<'_> {
    Purpose { scope: &about.scope, audience: &about.audience }
}

/// Exchanges what comes with jobs, one after the other, until told to stop.
pub async fn run(
    job_control: Arc<JobControl>,
    mut wanted: Receiver<Wanted>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let next = tokio::select! {
            next = wanted.recv() => next,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(Wanted { id, token, about }) = next else { return };
        let Some(endpoints) = &job_control.tokens.endpoints else { return };
        let asking = job_control.tokens.asking(&id);
        let alone = asking.lock().await;
        if matches!(kept(&job_control, &id).await, Ok(Some(_)) | Err(_)) {
            continue;
        }
        let exchanged = exchange(&job_control, endpoints, &id, &token, &about).await;
        // A copy with the token need not wait for what follows.
        drop(alone);
        if let Err(fault) = exchanged {
            tracing::warn!(issuer = about.issuer, fault = %fault.chain(),
                "a token of a job was not exchanged for one that \
                lasts");
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
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
    about: &UnverifiedClaims,
) -> Result<Zeroizing<String>, Fault> {
    let lasting = endpoints.exchange(&about.issuer, token, purpose(about)).await?;
    keep(job_control, id, &about.issuer, &lasting).await?;
    Ok(lasting)
}

async fn kept(job_control: &Arc<JobControl>, id: &str) -> Result<Option<Zeroizing<String>>, Fault> {
    let (job_control, row) = (job_control.clone(), format!("{ROW}{id}"));
    let read = tokio::task::spawn_blocking(move || job_control.identity.credentials().get(&row)).await;
    let row =
        read.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
    let text = row.and_then(|row| String::from_utf8(row.proxy?).ok());
    Ok(text.map(Zeroizing::new))
}

async fn keep(job_control: &Arc<JobControl>, id: &str, issuer: &str, lasting: &str) -> Result<(), Fault> {
    let now = job_control.kernel.now();
    let row = DelegationRow {
        id: format!("{ROW}{id}"),
        user: issuer.to_owned(),
        request: None,
        proxy: Some(lasting.as_bytes().to_vec()),
        expires: Some(now.plus(KEPT)),
        details: "{}".to_owned(),
        changed: now,
    };
    let job_control = job_control.clone();
    let written = tokio::task::spawn_blocking(move || job_control.identity.credentials().put(row)).await;
    Ok(written.map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??)
}

/// The order with tokens that are good for long enough, and that are had anew while the copy runs.
pub async fn refreshed(job_control: &Arc<JobControl>, mut order: CopyOrder) -> Result<CopyOrder, Fault> {
    if !order.unmanaged_tokens {
        refresh(job_control, &mut order.source, "SOURCE").await?;
        refresh(job_control, &mut order.target, "DESTINATION").await?;
    }
    Ok(order)
}

async fn refresh(job_control: &Arc<JobControl>, end: &mut End, scope: &str) -> Result<(), Fault> {
    let Credential::Bearer(token) = &end.credential else { return Ok(()) };
    let Some(about) = job_control.tokens.managed(token) else { return Ok(()) };
    let source = Source { job_control: job_control.clone(), token: token.clone(), about };
    let now = job_control.kernel.now();
    let token = match source.obtain(token, false).await {
        Ok(fresh) => fresh.unwrap_or_else(|| token.clone()),
        Err(fault) if source.about.expires > now => {
            tracing::warn!(issuer = source.about.issuer, fault = %fault.chain(),
                "a copy begins with a token that ends soon");
            token.clone()
        }
        Err(fault) => {
            let which = scope.to_ascii_lowercase();
            let text =
                format!("{scope} [14] Failed to obtain refresh token for {which} token: {}", fault.detail);
            return Err(Fault::new(FaultCode::NotAuthenticated, text));
        }
    };
    end.credential = Credential::Refreshing(RefreshingToken::new(token, source));
    Ok(())
}

/// Where tokens come from that take the place of one of a job.
struct Source {
    job_control: Arc<JobControl>,
    /// With which the job came.
    token: Zeroizing<String>,
    about: UnverifiedClaims,
}

impl Source {
    /// Another in place of this one, which came from here: if it was refused, or ends soon. None: it is good
    /// for long enough.
    async fn obtain(&self, shown: &str, refused: bool) -> Result<Option<Zeroizing<String>>, Fault> {
        let Source { job_control, token, about } = self;
        let tokens = &job_control.tokens;
        let Some(endpoints) = &tokens.endpoints else { return Ok(None) };
        let now = job_control.kernel.now();
        let ends = if shown == token.as_str() { Some(about.expires) } else { None };
        let ends = ends.or_else(|| UnverifiedClaims::parse(shown).map(|about| about.expires));
        if !refused && ends.is_none_or(|ends| ends.since(now) > MARGIN) {
            return Ok(None);
        }
        let id = delegation_id_of_token(token, "");
        let asking = tokens.asking(&id);
        let _asking = asking.lock().await;
        if let Some(fresh) = tokens.fresh(&id, now).filter(|fresh| fresh.as_str() != shown) {
            return Ok(Some(fresh));
        }
        let fresh = renewed(job_control, endpoints, &id, token, about, about.expires > now).await?;
        let expires = UnverifiedClaims::parse(&fresh).map_or(now, |about| about.expires);
        let mut all = guard(&tokens.fresh);
        all.retain(|_, fresh| fresh.expires > now);
        if all.len() < FRESH_MAX {
            all.insert(id, Fresh { token: fresh.clone(), expires });
        }
        Ok(Some(fresh))
    }
}

impl TokenRefresher for Source {
    fn renew<'a>(
        &'a self,
        token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = RefreshResult> + Send + 'a>> {
        Box::pin(async move { self.obtain(token, refused).await.map_err(|fault| fault.detail) })
    }
}

/// What is known of the credentials of a copy, so that it can be said why they were not enough.
pub struct Shown {
    /// Where, when they end, and why there are no others after that.
    ends: Vec<(&'static str, &'static str, Timestamp, &'static str)>,
}

impl Shown {
    pub fn of(job_control: &JobControl, order: &CopyOrder) -> Shown {
        let one = |end: &End, scope, side| {
            let (expires, why) = match &end.credential {
                Credential::Bearer(token) => {
                    let about = UnverifiedClaims::parse(token)?;
                    let why = match () {
                        () if order.unmanaged_tokens => "the job says that its tokens are used as they are",
                        () if !about.is_offline() => {
                            "it has no scope offline_access, by which it could be renewed"
                        }
                        () if job_control.tokens.managed(token).is_none() => {
                            "its issuer does not know this service (client_id of service.fts.issuers)"
                        }
                        () => "it was not renewed",
                    };
                    (about.expires, why)
                }
                Credential::Pem(pem) => (proxy_ends(pem)?, "delegate again, and submit the job again"),
                Credential::None | Credential::Refreshing(_) | Credential::Keys(_) => return None,
            };
            Some((scope, side, expires, why))
        };
        let ends = [one(&order.source, "SOURCE", "source"), one(&order.target, "DESTINATION", "destination")];
        Shown { ends: ends.into_iter().flatten().collect() }
    }

    /// Says of what credentials were not good enough for that they have ended, if so.
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
        let over = self.ends.iter().filter(|(scope, _, ends, _)| *ends <= now && concerned(scope));
        let texts: Vec<String> = over
            .map(|(_, side, ends, why)| {
                format!(
                    "the credential for the {side} ended at {ends}, {} ago: {why}",
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

/// When the first certificate of a proxy's chain to end does so.
fn proxy_ends(pem: &str) -> Option<Timestamp> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    let certificates = pem.match_indices(BEGIN).filter_map(|(at, _)| pem.get(at..));
    certificates.take(CHAIN_MAX).filter_map(|one| longhaul_security::expires(one).ok()).min()
}

async fn renewed(
    job_control: &Arc<JobControl>,
    endpoints: &TokenEndpoints,
    id: &str,
    token: &str,
    about: &UnverifiedClaims,
    is_good: bool,
) -> Result<Zeroizing<String>, Fault> {
    let lasting = match kept(job_control, id).await? {
        Some(lasting) => lasting,
        None if is_good => exchange(job_control, endpoints, id, token, about).await?,
        None => {
            let text = "it was not exchanged for one that lasts while it was good";
            return Err(Fault::new(FaultCode::NotAuthenticated, text));
        }
    };
    let given = endpoints.refresh(&about.issuer, &lasting, purpose(about)).await?;
    // Also the same again: it was used, and is to be kept for longer.
    keep(job_control, id, &about.issuer, given.refresh.as_ref().unwrap_or(&lasting)).await?;
    given.access.ok_or_else(|| Fault::new(FaultCode::ProtocolError, "there is no access token"))
}
