//! Dispatch of one request: authenticate, authorize, audit, and call the method.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::body::Incoming;
use longhaul_model::Fault;
use longhaul_security::macaroon::Macaroons;
use longhaul_storage::{Directories, Entry, Storage, TempName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::{Answer, Outcome, Refusal, empty, set};
use crate::audit::{self, AuditSubject};
use crate::body::{Body, StreamCheck};
use crate::buffers::Buffers;
use crate::digests::DigestCache;
use crate::locks::Locks;
use crate::macaroons;
use crate::properties::Properties;
use crate::request::{Destination, RequestPath, destination, single};
use crate::rights::{Action, GrantedRights, not_authenticated};
use crate::settings::{Access, Settings};
use crate::{get, lock, propfind, proppatch, put, tape, tree};

/// Directories told at once: each keeps a thread as long as its client takes what it asked for.
const LISTINGS_MAX: usize = 32;
/// Files read for their digests at once: each takes a core.
const DIGESTS_MAX: usize = 2;
/// Questions about tapes answered at once: each may hold the names of ten thousand files.
const TAPE_REQUESTS_MAX: usize = 16;
pub(crate) const ALLOW: &str =
    "OPTIONS, GET, HEAD, POST, PUT, DELETE, MKCOL, COPY, MOVE, PROPFIND, PROPPATCH, LOCK, UNLOCK";
/// The classes of RFC 4918 that are served.
pub(crate) const DAV: &str = "1, 2";

/// The state that all connections of a door share.
pub(crate) struct DoorContext {
    pub(crate) settings: Settings,
    access: RwLock<Arc<Access>>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) remembered: DigestCache,
    pub(crate) locks: Mutex<Locks>,
    pub(crate) properties: Properties,
    pub(crate) macaroons: Macaroons,
    opened: Instant,
    pub(crate) turns: Arc<Semaphore>,
    listings: Arc<Semaphore>,
    pub(crate) digest_turns: Semaphore,
    tape_turns: Arc<Semaphore>,
    /// Part of temporary names: unique to this run of the process.
    pub(crate) run: u32,
    pub(crate) counter: std::sync::atomic::AtomicU32,
}

/// The client at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: std::net::SocketAddr,
    /// Names in its certificate, none if it showed none; or why the certificate does not count.
    pub(crate) subjects: Result<Arc<[String]>, Arc<str>>,
    /// When the first certificate of its chain ends; never if it showed none.
    pub(crate) certificate_ends: jiff::Timestamp,
}

impl DoorContext {
    /// `access` is moved out of the settings, since it changes.
    pub(crate) fn new(settings: Settings, access: Access, run: u32) -> Result<DoorContext, Fault> {
        Ok(DoorContext {
            locks: Mutex::default(),
            properties: Properties::open(settings.properties.clone())?,
            macaroons: Macaroons::new(),
            opened: Instant::now(),
            access: RwLock::new(Arc::new(access)),
            turns: Arc::new(Semaphore::new(settings.limits.transfers)),
            listings: Arc::new(Semaphore::new(LISTINGS_MAX)),
            digest_turns: Semaphore::new(DIGESTS_MAX),
            tape_turns: Arc::new(Semaphore::new(TAPE_REQUESTS_MAX)),
            buffers: Arc::default(),
            remembered: DigestCache::default(),
            run,
            counter: 0.into(),
            settings,
        })
    }

    /// The clock of locks.
    pub(crate) fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }

    pub(crate) fn access(&self) -> Arc<Access> {
        self.access.read().clone()
    }

    pub(crate) fn replace_access(&self, access: Access) {
        *self.access.write() = Arc::new(access);
    }

    /// Fails once the token that opened a request was revoked: what is on its way for it ends.
    pub(crate) fn check_token(&self, granted: &GrantedRights) -> Outcome<()> {
        if granted.still_hold(&self.access().rights) {
            return Ok(());
        }
        let text = "the token of this request was revoked while it went on; nothing more is done for it";
        Err(not_authenticated(text, Some("invalid_token")))
    }

    /// The same for a file on its way out.
    pub(crate) fn stream_check(self: &Arc<Self>, granted: &GrantedRights) -> StreamCheck {
        let (shared, granted) = (self.clone(), granted.clone());
        Arc::new(move || granted.still_hold(&shared.access().rights))
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.settings.storage
    }

    /// A name that is unique in the work directory: owner, run, counter.
    pub(crate) fn temp_name(&self) -> TempName {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.settings.owner);
        name[8..12].copy_from_slice(&self.run.to_be_bytes());
        let count = self.counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        name[12..].copy_from_slice(&count.to_be_bytes());
        TempName::from_bytes(name)
    }

    /// Waits for a slot to transfer a file.
    pub(crate) async fn transfer_slot(&self) -> Outcome<OwnedSemaphorePermit> {
        self.acquire_slot(&self.turns, "as many files as this door bears are on their way").await
    }

    /// Waits for a slot to list a directory.
    pub(crate) async fn listing_slot(&self) -> Outcome<OwnedSemaphorePermit> {
        self.acquire_slot(&self.listings, "as many directories as this door bears are being listed").await
    }

    /// Waits for a slot to serve a request of the Tape REST API.
    pub(crate) async fn tape_slot(&self) -> Outcome<OwnedSemaphorePermit> {
        self.acquire_slot(
            &self.tape_turns,
            "as many questions about tapes as this door bears are being answered",
        )
        .await
    }

    async fn acquire_slot(&self, turns: &Arc<Semaphore>, why_not: &str) -> Outcome<OwnedSemaphorePermit> {
        let turn = tokio::time::timeout(self.settings.limits.turn, turns.clone().acquire_owned());
        match turn.await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(busy(why_not, Duration::from_secs(10))),
        }
    }

    /// The entry at a path, also in storages without directories. What is shown of it to anybody has to pass
    /// [`DoorContext::look_up`].
    pub(crate) fn stat(&self, place: &RequestPath) -> Result<Option<Entry>, Fault> {
        if let Some(directories) = self.storage().directories() {
            return directories.stat_entry(&place.path);
        }
        let at = longhaul_model::Pfn::new(self.storage().name().clone(), &place.path)?;
        let name = place.path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(self.storage().stat(&at)?.map(|identity| Entry {
            name,
            is_directory: false,
            identity,
            real_path: None,
        }))
    }
}

/// Storages that are no trees have files only.
pub(crate) fn directories(storage: &dyn Storage) -> Outcome<&dyn Directories> {
    storage.directories().ok_or_else(|| {
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "this storage has no directories to be shown or changed")
    })
}

pub(crate) fn busy(text: impl Into<String>, again: Duration) -> Refusal {
    let seconds = again.as_secs().max(1).to_string();
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text).with(header::RETRY_AFTER, &seconds)
}

/// Runs what waits for disks away from the threads that serve the network.
pub(crate) async fn blocking<T: Send + 'static>(
    body: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    match tokio::task::spawn_blocking(body).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a step of a door broke");
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; the agent's log has it"))
        }
    }
}

/// One request, as the methods see it.
pub(crate) struct Call {
    pub(crate) shared: Arc<DoorContext>,
    pub(crate) request: Request<Incoming>,
    pub(crate) place: RequestPath,
    pub(crate) granted: GrantedRights,
    pub(crate) asked: AuditSubject,
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> Outcome<Option<&str>> {
        single(self.request.headers(), name)
    }

    /// Where a copy or a move goes, within this door.
    pub(crate) fn destination(&self) -> Outcome<Option<Destination>> {
        let Some(text) = self.header("destination")? else { return Ok(None) };
        destination(text, self.request.headers(), &self.settings().names).map(Some)
    }

    /// `Depth: infinity` is the default of what is about whole trees.
    pub(crate) fn is_deep(&self) -> Outcome<bool> {
        match self.header("depth")?.map(str::trim) {
            Some("0") => Ok(false),
            None | Some("infinity") => Ok(true),
            Some(_) => Err(Refusal::bad("the header Depth is 0 or infinity")),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Reads what is left of a body that should be small.
    pub(crate) async fn small_body(&mut self, most: usize) -> Outcome<Vec<u8>> {
        use http_body_util::BodyExt;
        let stall = self.shared.settings.limits.stall;
        let read = async {
            let mut bytes = Vec::new();
            while let Some(frame) = self.request.body_mut().frame().await {
                let frame = frame.map_err(|error| Refusal::bad(format!("the body broke off: {error}")))?;
                bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
                if bytes.len() > most {
                    let text = format!("the body has more than {most} bytes");
                    return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
                }
            }
            Ok(bytes)
        };
        let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        tokio::time::timeout(stall, read).await.map_err(late)?
    }
}

pub(crate) async fn serve(shared: Arc<DoorContext>, peer: Peer, request: Request<Incoming>) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let is_head = method == Method::HEAD;
    let in_chunks = request.headers().contains_key(header::TRANSFER_ENCODING);
    let is_tape = tape::is_ours(shared.settings.tape.as_ref(), &path);
    let asks = matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND");
    let only_asks = asks || is_tape && tape::only_asks(&path);
    let changes = !only_asks;
    let (mut who, mut asked) = (Vec::new(), AuditSubject::from_request(&peer, request.headers()));
    let operation = audit::operation(&method, is_tape);
    let mut answer = match answer(shared.clone(), &peer, request, &mut who, &mut asked).await {
        Ok(answer) => {
            if changes {
                shared.record_decision(&asked, &operation, &path, Ok(()));
                tracing::info!(%method, path = %longhaul_model::units::printable(&path), from = %peer.address,
                    ?who, status = answer.status().as_u16(), "changed through a door");
            }
            answer
        }
        Err(refusal) => {
            if matches!(refusal.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                shared.record_decision(&asked, &operation, &path, Err(&refusal.text));
            }
            let text = longhaul_model::units::printable(&refusal.text);
            tracing::debug!(%method, path = %longhaul_model::units::printable(&path), from = %peer.address,
                status = refusal.status.as_u16(), text, "refused");
            let mut answer = if is_tape { tape::problem(refusal) } else { refusal.into_answer() };
            if is_head {
                *answer.body_mut() = Body::empty();
            }
            answer
        }
    };
    let headers = answer.headers_mut();
    headers.entry(header::SERVER).or_insert(HeaderValue::from_static("longhaul"));
    if in_chunks {
        // RFC 9112, 6.1: where both framings were given, the one that was not believed must not frame what
        // follows. The HTTP library hides that there were two, so the connection ends with every request of
        // this kind.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// `who` and `asked_by` are told as soon as they are known.
async fn answer(
    shared: Arc<DoorContext>,
    peer: &Peer,
    request: Request<Incoming>,
    who: &mut Vec<String>,
    asked_by: &mut AuditSubject,
) -> Outcome {
    check_framing(&request)?;
    let place = RequestPath::from_request(&request)?;
    if request.method() == Method::OPTIONS {
        return Ok(options());
    }
    let asked =
        shared.settings.tape.clone().and_then(|end| tape::question(&place).map(|question| (end, question)));
    if let Some((end, tape::Question::WellKnown)) = &asked {
        return tape::well_known(end, request.method(), request.headers());
    }
    let issued = shared.settings.issued.as_ref();
    let subjects = peer.subjects.as_ref().map_err(|why| not_authenticated(why, None))?;
    // A connection may stay open for longer than what was shown when it began.
    if peer.certificate_ends <= jiff::Timestamp::now() {
        let text = "the certificate of this connection has expired: connect again with a valid one";
        return Err(not_authenticated(text, None));
    }
    let rights = &shared.access().rights;
    let granted = match macaroons::verify_bearer(&shared.macaroons, request.headers(), peer.address.ip())? {
        Some(shown) => rights.delegated(subjects, shown, &shared.macaroons),
        None => rights.check(subjects, request.headers(), issued).await?,
    };
    who.clone_from(&granted.who);
    asked_by.authenticated(&granted);
    let method = request.method().clone();
    let call = Call { shared, request, place, granted, asked: asked_by.clone() };
    if let Some((end, question)) = asked {
        return tape::serve(call, end, question).await;
    }
    let needs = match method.as_str() {
        "GET" if call.place.slash => Action::List,
        "GET" => Action::Read,
        "HEAD" | "PROPFIND" => Action::Look,
        // What is there already is looked at by the method, and needs more.
        "PUT" => Action::Create,
        "MKCOL" => Action::MakeDirectory,
        "DELETE" | "MOVE" | "PROPPATCH" => Action::Change,
        "LOCK" | "UNLOCK" => Action::Create,
        "POST" if macaroons::is_macaroon_request(call.request.headers()) => {
            return macaroons::issue(call, subjects, peer.certificate_ends).await;
        }
        // Which right is needed where depends on the direction.
        "COPY" => return tree::copy(call).await,
        _ => return Err(not_allowed()),
    };
    call.granted.check(needs, &call.place.path)?;
    match method.as_str() {
        "GET" => get::get(call, false).await,
        "HEAD" => get::get(call, true).await,
        "PUT" => put::put(call).await,
        "DELETE" => tree::delete(call).await,
        "MKCOL" => tree::make(call).await,
        "MOVE" => tree::rename(call).await,
        "PROPFIND" => propfind::propfind(call).await,
        "PROPPATCH" => proppatch::proppatch(call).await,
        "LOCK" => lock::lock(call).await,
        _ => lock::unlock(&call),
    }
}

fn not_allowed() -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this method is not served here").with(header::ALLOW, ALLOW)
}

fn options() -> Answer {
    let mut answer = empty(StatusCode::OK);
    let headers = answer.headers_mut();
    set(headers, header::ALLOW, ALLOW);
    set(headers, http::HeaderName::from_static("dav"), DAV);
    set(headers, http::HeaderName::from_static("ms-author-via"), "DAV");
    set(headers, header::ACCEPT_RANGES, "bytes");
    set(headers, header::CONTENT_LENGTH, "0");
    answer
}

/// What two programs on the way could understand differently. The HTTP library refuses most of it by itself.
fn check_framing(request: &Request<Incoming>) -> Outcome<()> {
    let headers = request.headers();
    single(headers, "host")?;
    if single(headers, "content-encoding")?.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        let text = "bodies are taken as they are: leave out Content-Encoding";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    Ok(())
}
