//! Third-party copies (HTTP-TPC): a client asks this door to fetch a file from another server, or to send one
//! there, and is told how it goes. Pull: `COPY` with `Source`; push: `COPY` with a `Destination` elsewhere.
//!
//! A pull is a file on its way in as any other (see `put`): whole or absent, and what was there before stays
//! until then. If the client goes, the copy ends and leaves nothing.

mod client;
mod error;
mod markers;
mod pull;
mod push;

use http::{HeaderMap, Response, StatusCode, header};
use tokio::sync::mpsc;

use crate::answer::{Outcome, Refusal, set};
use crate::body::Body;
use crate::put::admit;
use crate::request::{may_overwrite, single};
use crate::rights::Action;
use crate::serve::{Call, blocking};
use crate::tape::or_on_tape;
use client::{Remote, no_client_tls};
use markers::{Progress, drive_with_markers};

/// Markers that wait to be sent; a client that takes none is gone.
const MARKERS_AHEAD: usize = 2;

/// Options that the client of a copy may set.
struct CopyOptions {
    /// `RequireChecksumVerification`.
    must_verify: bool,
}

pub(crate) async fn pull(call: Call, source: &str) -> Outcome {
    call.granted.check(Action::Create, &call.place.path)?;
    let terms = copy_options(call.request.headers())?;
    if call.place.is_root() || call.place.slash {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "a file's address does not end with /"));
    }
    let progress = Progress::default();
    let remote = remote(&call, source, &progress)?;
    let overwrite = may_overwrite(call.request.headers())?;
    let found = {
        let (shared, place) = (call.shared.clone(), call.place.clone());
        let (headers, granted) = (call.request.headers().clone(), call.granted.clone());
        blocking(move || admit(&shared, &place, &headers, &granted)).await?
    };
    if found.is_some() && !overwrite {
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "there is something at the destination"));
    }
    let turn = call.shared.transfer_slot().await?;
    let (sender, pieces) = mpsc::channel(MARKERS_AHEAD);
    let copy = pull::pull(
        call.shared.clone(),
        call.place.clone(),
        remote,
        terms,
        (found, overwrite, call.granted.clone()),
        progress.clone(),
    );
    tokio::spawn(async move {
        drive_with_markers(copy, progress, sender).await;
        drop(turn);
    });
    Ok(started(Body::Pieces(pieces)))
}

pub(crate) async fn push(call: Call, destination: &str) -> Outcome {
    call.granted.check(Action::Read, &call.place.path)?;
    let terms = copy_options(call.request.headers())?;
    let progress = Progress::default();
    let remote = remote(&call, destination, &progress)?;
    let overwrite = may_overwrite(call.request.headers())?;
    let file = {
        let (shared, place, granted) = (call.shared.clone(), call.place.clone(), call.granted.clone());
        let open = move || -> Outcome<_> {
            let file = shared.open_file(&granted, Action::Read, &place)?;
            file.check_online()?;
            Ok(file)
        };
        let (shared, place) = (call.shared.clone(), call.place.clone());
        blocking(move || open().map_err(|refusal| or_on_tape(&shared, &place, refusal))).await?
    };
    let turn = call.shared.transfer_slot().await?;
    let (sender, pieces) = mpsc::channel(MARKERS_AHEAD);
    let copy = push::push(
        (call.shared.clone(), call.place.clone(), call.shared.stream_check(&call.granted)),
        file.into(),
        remote,
        terms,
        overwrite,
        (progress.clone(), turn),
    );
    tokio::spawn(drive_with_markers(copy, progress, sender));
    Ok(started(Body::Pieces(pieces)))
}

fn remote(call: &Call, url: &str, progress: &Progress) -> Outcome<Remote> {
    let outgoing = call.settings().outgoing.clone().ok_or_else(no_client_tls)?;
    Remote::new(outgoing, url, call.request.headers(), call.settings().limits.stall, progress.clone())
}

/// Says at once that it has begun: the result is in the last line only.
fn started(body: Body) -> crate::answer::Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::ACCEPTED;
    set(answer.headers_mut(), header::CONTENT_TYPE, "text/perf-marker-stream");
    answer
}

fn copy_options(headers: &HeaderMap) -> Outcome<CopyOptions> {
    if let Some(kind) = single(headers, "credential")?
        && !kind.trim().eq_ignore_ascii_case("none")
    {
        let text = "Credential: only none is known here; give TransferHeaderAuthorization for the other side";
        return Err(Refusal::bad(text));
    }
    // One is enough here; gfal asks for none where its user did not say.
    if let Some(streams) = single(headers, "x-number-of-streams")?
        && streams.trim().parse::<u32>().is_err()
    {
        return Err(Refusal::bad("X-Number-Of-Streams is no number"));
    }
    let must_verify = match single(headers, "requirechecksumverification")?.map(str::trim) {
        None => false,
        Some(text) if text.eq_ignore_ascii_case("true") => true,
        Some(text) if text.eq_ignore_ascii_case("false") => false,
        Some(_) => return Err(Refusal::bad("RequireChecksumVerification is true or false")),
    };
    Ok(CopyOptions { must_verify })
}
