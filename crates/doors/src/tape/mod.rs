//! The WLCG Tape REST API, version 1: clients ask for files to be brought to disk, look after them, let them
//! go, and ask whether what they wrote is on tape.
//!
//! Here is who may do what, and the form of questions and answers. Not here: what is brought when, what is
//! kept of requests, and what a tape system is; all of that is behind [`Tape`]. Start with [`Tape`], then
//! [`serve`].

mod replies;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use longhaul_model::{Fault, FaultCode, Locality, Timestamp};

use crate::answer::{Answer, Outcome, Refusal, empty, set};
use crate::request::{RequestPath, single};
use crate::rights::Action;
use crate::serve::{Call, DoorContext, blocking};

pub(crate) use replies::problem;
#[cfg(feature = "testing")]
pub(crate) use requests::{FILES_MAX, METADATA_BYTES_MAX};
pub(crate) use requests::{parse_stage, path, paths};

const WELL_KNOWN: &str = ".well-known/wlcg-tape-rest-api";
const BASE: &str = "api/v1/tape";
/// `Retry-After` for a subject that has as many requests as are kept.
const RETRY_AFTER: &str = "300";

/// What is behind a door whose storage is on tape. Paths are those of files beneath the storage's root. Each
/// call may wait for disks, and [`Tape::locate`] for commands of the site: none is for the threads that serve
/// the network.
pub trait Tape: Send + Sync {
    /// The id of a new request for these files, which is kept over any kill. `Busy`: too much is asked for
    /// already.
    fn stage(&self, files: Vec<RequestedFile>) -> Result<String, Fault>;

    /// How far a request is; none if it is not known.
    fn report(&self, request: &str) -> Option<Report>;

    /// Files of a request are wanted no more; those that are on disk already stay.
    fn cancel(&self, request: &str, paths: &[String]) -> Result<(), Fault>;

    /// Files of a request need not stay on disk; paths that are none of its are passed over.
    fn release(&self, request: &str, paths: &[String]) -> Result<(), Fault>;

    /// Cancels and releases what is left of a request, and forgets it.
    fn end(&self, request: &str) -> Result<(), Fault>;

    /// Where files lie, in their order.
    fn locate(&self, paths: &[String]) -> Vec<Locality>;

    /// A file is about to have this name. `Busy`: it shall not, so much waits for tapes already.
    fn arriving(&self, path: &str) -> Result<(), Fault>;

    /// It has it, or was given up.
    fn arrived(&self, path: &str);
}

/// The tape of a door.
#[derive(Clone)]
pub struct TapeEnd {
    pub tape: Arc<dyn Tape>,
    /// Under which name clients mark what is meant for this site alone.
    pub site: String,
}

/// A file that is to be on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedFile {
    pub path: String,
    /// How long it shall stay there; none: as is usual here.
    pub lifetime: Option<Duration>,
    /// The client's metadata for the tape system, as JSON.
    pub metadata: Option<String>,
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub created: Timestamp,
    pub started: Option<Timestamp>,
    pub files: Vec<ReportedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedFile {
    pub path: String,
    pub state: StageState,
    /// It stays on disk for this request.
    pub pinned: bool,
    pub started: Option<Timestamp>,
    pub finished: Option<Timestamp>,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    Submitted,
    Started,
    Completed,
    Failed,
    Cancelled,
}

/// The operation that a path of the API names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Where the API is; for everybody.
    WellKnown,
    Stage,
    Request(String),
    Cancel(String),
    Release(String),
    ArchiveInfo,
    Unknown,
}

/// None: the address is one of a file. Those of the API hide files of the same names.
pub(crate) fn question(place: &RequestPath) -> Option<Question> {
    if place.path == WELL_KNOWN {
        return Some(Question::WellKnown);
    }
    let rest = place.path.strip_prefix(BASE)?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    Some(match parts.as_slice() {
        ["stage"] => Question::Stage,
        ["stage", id] => Question::Request((*id).to_owned()),
        ["stage", id, "cancel"] => Question::Cancel((*id).to_owned()),
        ["release", id] => Question::Release((*id).to_owned()),
        ["archiveinfo"] => Question::ArchiveInfo,
        _ => Question::Unknown,
    })
}

/// Where the API is, as the client calls this door.
pub(crate) fn well_known(end: &TapeEnd, method: &Method, headers: &http::HeaderMap) -> Outcome {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(wrong_method("GET, HEAD"));
    }
    let host = single(headers, "host")?.filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| Refusal::bad("the header Host is missing"))?;
    Ok(replies::json(StatusCode::OK, &replies::well_known(&end.site, &base(host))))
}

fn base(host: &str) -> String {
    format!("https://{host}/{BASE}")
}

fn wrong_method(allowed: &str) -> Refusal {
    let text = "this method is not served here";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text).with(header::ALLOW, allowed)
}

pub(crate) async fn serve(mut call: Call, end: TapeEnd, question: Question) -> Outcome {
    let method = call.request.method().clone();
    let is =
        |wanted: Method, allowed: &str| if method == wanted { Ok(()) } else { Err(wrong_method(allowed)) };
    // A question of thousands of files has its size: so many are in memory at once.
    let _turn = call.shared.tape_slot().await?;
    match question {
        Question::WellKnown => well_known(&end, &method, call.request.headers()),
        Question::Stage => {
            is(Method::POST, "POST")?;
            stage(call, end).await
        }
        Question::Request(id) if method == Method::DELETE => {
            with_request(call, end, id, |tape, id, _| tape.end(id)).await
        }
        Question::Request(id) => {
            is(Method::GET, "GET, DELETE")?;
            report(call, end, id).await
        }
        Question::Cancel(id) => {
            is(Method::POST, "POST")?;
            let paths = body_paths(&mut call).await?;
            cancel(call, end, id, paths).await
        }
        Question::Release(id) => {
            is(Method::POST, "POST")?;
            let paths = body_paths(&mut call).await?;
            release(call, end, id, paths).await
        }
        Question::ArchiveInfo => {
            is(Method::POST, "POST")?;
            archive_info(call, end).await
        }
        Question::Unknown => {
            Err(Refusal::new(StatusCode::NOT_FOUND, "the Tape REST API has no such address"))
        }
    }
}

async fn stage(mut call: Call, end: TapeEnd) -> Outcome {
    let body = call.small_body(requests::BODY_BYTES_MAX).await?;
    let files = parse_stage(&body, call.shared.storage().name(), &end.site)?;
    let host = call.header("host")?.unwrap_or_default().to_owned();
    let count = files.len();
    let (shared, granted) = (call.shared.clone(), call.granted.clone());
    let stage = move || {
        for file in &files {
            shared.check_place(&granted, Action::Stage, &file.path)?;
        }
        end.tape.stage(files).map_err(too_much)
    };
    let id = blocking(stage).await?;
    tracing::info!(request = id, files = count, who = ?call.granted.who, "files are asked for from tape");
    let mut answer = replies::json(StatusCode::CREATED, &replies::created(&id));
    set(answer.headers_mut(), header::LOCATION, &format!("{}/stage/{id}", base(&host)));
    Ok(answer)
}

/// A request that cannot be recorded is refused.
fn too_much(fault: Fault) -> Refusal {
    match fault.code {
        FaultCode::Busy => {
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, fault.detail).with(header::RETRY_AFTER, RETRY_AFTER)
        }
        _ => fault.into(),
    }
}

async fn report(call: Call, end: TapeEnd, id: String) -> Outcome {
    blocking(move || {
        let report = known(&end, &id)?;
        for file in &report.files {
            call.shared.check_place(&call.granted, Action::Stage, &file.path)?;
        }
        Ok(replies::json(StatusCode::OK, &replies::report(&id, &report)))
    })
    .await
}

fn known(end: &TapeEnd, id: &str) -> Outcome<Report> {
    let unknown = || Refusal::new(StatusCode::NOT_FOUND, "no request of this id is known here (any more)");
    end.tape.report(id).ok_or_else(unknown)
}

/// Does something to a whole request.
async fn with_request(
    call: Call,
    end: TapeEnd,
    id: String,
    act: impl FnOnce(&dyn Tape, &str, &Report) -> Result<(), Fault> + Send + 'static,
) -> Outcome {
    blocking(move || {
        let report = known(&end, &id)?;
        for file in &report.files {
            call.shared.check_place(&call.granted, Action::Stage, &file.path)?;
        }
        act(end.tape.as_ref(), &id, &report)?;
        Ok(done())
    })
    .await
}

fn done() -> Answer {
    let mut answer = empty(StatusCode::OK);
    set(answer.headers_mut(), header::CONTENT_LENGTH, "0");
    answer
}

async fn body_paths(call: &mut Call) -> Outcome<Vec<String>> {
    let body = call.small_body(requests::BODY_BYTES_MAX).await?;
    let storage = call.shared.storage().name().clone();
    paths(&body)?.iter().map(|text| path(text, &storage).map_err(Refusal::bad)).collect()
}

async fn cancel(call: Call, end: TapeEnd, id: String, paths: Vec<String>) -> Outcome {
    blocking(move || {
        let report = known(&end, &id)?;
        for path in &paths {
            call.shared.check_place(&call.granted, Action::Stage, path)?;
        }
        let of_it: std::collections::BTreeSet<&str> =
            report.files.iter().map(|file| file.path.as_str()).collect();
        if let Some(stranger) = paths.iter().find(|path| !of_it.contains(path.as_str())) {
            let text = format!("/{stranger} is no file of this request; nothing was cancelled");
            return Err(Refusal::bad(longhaul_model::units::printable(&text)));
        }
        end.tape.cancel(&id, &paths)?;
        Ok(done())
    })
    .await
}

async fn release(call: Call, end: TapeEnd, id: String, paths: Vec<String>) -> Outcome {
    blocking(move || {
        known(&end, &id)?;
        for path in &paths {
            call.shared.check_place(&call.granted, Action::Stage, path)?;
        }
        end.tape.release(&id, &paths)?;
        Ok(done())
    })
    .await
}

/// One answer for each path as it was asked: what is wrong with one is said of it alone.
async fn archive_info(mut call: Call, end: TapeEnd) -> Outcome {
    let body = call.small_body(requests::BODY_BYTES_MAX).await?;
    let asked = paths(&body)?;
    blocking(move || {
        let storage = call.shared.storage().name().clone();
        let mut about: Vec<Result<String, String>> = Vec::with_capacity(asked.len());
        let mut refused = None;
        for text in &asked {
            about.push(path(text, &storage).and_then(|path| {
                let may = call.shared.check_place(&call.granted, Action::Poll, &path);
                if let Err(refusal) = &may {
                    call.shared.record_decision(&call.asked, "door tape POST", &path, Err(&refusal.text));
                }
                may.map(|()| path).map_err(|refusal| refused.insert(refusal).text.clone())
            }));
        }
        let paths: Vec<String> = about.iter().filter_map(|path| path.as_ref().ok()).cloned().collect();
        // Who may ask nothing is told so by the status as well (and counted once more, as that request).
        if let (true, Some(refusal)) = (paths.is_empty(), refused) {
            return Err(refusal);
        }
        let mut found = end.tape.locate(&paths).into_iter();
        let located =
            about.into_iter().map(|path| path.map(|_| found.next().unwrap_or(Locality::Unavailable)));
        Ok(replies::json(StatusCode::OK, &replies::archive_info(&asked, located)))
    })
    .await
}

/// Turns "not on disk, perhaps on tape" into its own refusal; any other stays.
pub(crate) fn or_on_tape(shared: &DoorContext, place: &RequestPath, refusal: Refusal) -> Refusal {
    let Some(end) = &shared.settings.tape else { return refusal };
    if refusal.status != StatusCode::NOT_FOUND || place.is_root() || place.slash {
        return refusal;
    }
    match end.tape.locate(std::slice::from_ref(&place.path)).first() {
        Some(Locality::Tape) => Fault::new(FaultCode::OnTape, place.path.clone()).into(),
        _ => refusal,
    }
}

/// Whether a request changes nothing, though its method may.
pub(crate) fn only_asks(path: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.strip_prefix(BASE)).is_some_and(|rest| rest == "/archiveinfo")
}

pub(crate) fn is_ours(end: Option<&TapeEnd>, path: &str) -> bool {
    end.is_some() && RequestPath::parse(path).is_ok_and(|place| question(&place).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_api_are_told_from_those_of_files() {
        let of = |path: &str| question(&RequestPath::parse(path).unwrap());
        for (path, expected) in [
            ("/.well-known/wlcg-tape-rest-api", Question::WellKnown),
            ("/api/v1/tape/stage", Question::Stage),
            ("/api/v1/tape/stage/", Question::Stage),
            ("/api/v1/tape/stage/7c1f", Question::Request("7c1f".into())),
            ("/api/v1/tape/stage/7c1f/cancel", Question::Cancel("7c1f".into())),
            ("/api/v1/tape/release/7c1f", Question::Release("7c1f".into())),
            ("/api/v1/tape/archiveinfo", Question::ArchiveInfo),
            ("/api/v1/tape", Question::Unknown),
            ("/api/v1/tape/stage/7c1f/other", Question::Unknown),
        ] {
            assert_eq!(of(path), Some(expected), "{path}");
        }
        for file in ["/api/v1/tapes", "/run7/api/v1/tape/stage", "/.well-known/other", "/"] {
            assert_eq!(of(file), None, "{file}");
        }
        assert!(only_asks("/api/v1/tape/archiveinfo") && !only_asks("/api/v1/tape/stage"));
    }
}
