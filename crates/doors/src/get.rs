//! GET and HEAD: files, byte ranges of files, and directory indexes for people.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use longhaul_model::DigestSet;
use longhaul_model::percent::encode_path;
use longhaul_storage::{Identity, SourceFile, digest_file};
use tokio::sync::mpsc;

use crate::answer::{Answer, Outcome, Refusal, empty, set};
use crate::body::{Body, FileBody, StreamCheck, read};
use crate::browse;
use crate::buffers::BUFFER_BYTES;
use crate::conditions::{self, Reading, etag, http_date};
use crate::digests::Want;
use crate::ranges::{self, RangeRequest};
use crate::request::{RequestPath, single};
use crate::rights::{Action, GrantedRights};
use crate::serve::{Call, DoorContext, blocking};
use crate::tape::or_on_tape;

/// Bytes of one read for digests.
const DIGEST_BYTES: usize = 1 << 20;
/// Pieces of an answer in several parts that wait to be sent.
const PIECES_AHEAD: usize = 2;
const PARTS_TYPE: &str = "application/octet-stream";

enum OpenTarget {
    Directory(Identity),
    /// A small file is read at once: it is not worth a second visit to another thread.
    File {
        file: Arc<dyn SourceFile>,
        at_once: Option<Bytes>,
    },
}

pub(crate) async fn get(call: Call, is_head: bool) -> Outcome {
    let (shared, place) = (call.shared.clone(), call.place.clone());
    let headers = call.request.headers();
    // A file on its way takes memory; a question about one does not.
    let turn = if is_head { None } else { Some(shared.transfer_slot().await?) };
    let has_range = headers.contains_key(header::RANGE);
    let opened = {
        let (shared, place, granted) = (shared.clone(), place.clone(), call.granted.clone());
        let wanted = Wanted { is_head, bytes: !is_head && !has_range };
        let open = move || {
            let opened = open(&shared, &granted, &place, wanted)?;
            match &opened {
                OpenTarget::File { file, .. } if !is_head => file.check_online()?,
                _ => {}
            }
            Ok(opened)
        };
        let (shared, place) = (call.shared.clone(), call.place.clone());
        blocking(move || match open() {
            Err(refusal) if !is_head => Err(or_on_tape(&shared, &place, refusal)),
            opened => opened,
        })
        .await?
    };
    let (file, at_once) = match opened {
        OpenTarget::Directory(identity) => {
            drop(turn);
            return directory(call, is_head, &identity).await;
        }
        OpenTarget::File { file, at_once } => (file, at_once),
    };
    let identity = file.identity();
    if conditions::check_for_reading(headers, &identity)? == Reading::NotModified {
        let mut answer = empty(StatusCode::NOT_MODIFIED);
        set(answer.headers_mut(), header::ETAG, &etag(&identity));
        return Ok(answer);
    }
    let wanted = match conditions::range_still_fits(headers, &identity)? {
        true => ranges::parse(single(headers, "range")?, identity.size),
        false => RangeRequest::Whole,
    };
    let want = Want::from_headers(headers);
    // A question brings nothing from tape.
    let digests = match file.check_online() {
        Ok(()) => digests(&shared, &place, &identity, want).await?,
        Err(_) => shared.remembered.get(&place.path, &identity),
    };
    let may_go_on = shared.stream_check(&call.granted);
    let mut answer = match (wanted, turn) {
        (RangeRequest::Nothing, _) => return Ok(unsatisfiable(&identity)),
        (RangeRequest::Whole, None) => whole(Body::empty(), identity.size),
        (RangeRequest::Whole, Some(turn)) => {
            let body = match at_once {
                Some(bytes) => Body::Whole(Some(bytes)),
                None => Body::File(Box::new(FileBody::new(
                    file,
                    shared.buffers.clone(),
                    (0, identity.size),
                    turn,
                    may_go_on,
                ))),
            };
            whole(body, identity.size)
        }
        (RangeRequest::Parts(parts), turn) => match (parts.as_slice(), turn) {
            ([part], turn) => {
                let body = match turn {
                    None => Body::empty(),
                    Some(turn) => {
                        let buffers = shared.buffers.clone();
                        Body::File(Box::new(FileBody::new(file, buffers, *part, turn, may_go_on)))
                    }
                };
                one_part(body, *part, identity.size)
            }
            (_, None) => whole(Body::empty(), identity.size),
            (_, Some(turn)) => {
                let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
                tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    let _ = send_parts(&shared, file.as_ref(), &parts, &may_go_on, &sender);
                });
                many_parts(Body::Pieces(pieces))
            }
        },
    };
    describe(&mut answer, &identity);
    want.insert_headers(&digests, answer.headers_mut());
    Ok(answer)
}

/// What an answer will have of a file.
#[derive(Clone, Copy)]
struct Wanted {
    is_head: bool,
    bytes: bool,
}

fn open(
    shared: &Arc<DoorContext>,
    granted: &GrantedRights,
    place: &RequestPath,
    wanted: Wanted,
) -> Outcome<OpenTarget> {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "there is no such file or directory");
    let action = match wanted.is_head {
        true => Action::Look,
        false if place.slash => Action::List,
        false => Action::Read,
    };
    let entry = shared.look_up(granted, action, place)?.ok_or_else(missing)?;
    if entry.is_directory {
        return Ok(OpenTarget::Directory(entry.identity));
    }
    if place.slash {
        return Err(missing());
    }
    let file: Arc<dyn SourceFile> = shared.open_file(granted, action, place)?.into();
    let size = file.identity().size;
    let at_once = match wanted.bytes && size > 0 && size <= BUFFER_BYTES as u64 {
        true => Some(read(file.as_ref(), &shared.buffers, (0, size), true)?),
        false => None,
    };
    Ok(OpenTarget::File { file, at_once })
}

async fn directory(call: Call, is_head: bool, identity: &Identity) -> Outcome {
    if is_head {
        let mut answer = empty(StatusCode::OK);
        set(answer.headers_mut(), header::CONTENT_TYPE, browse::CONTENT_TYPE);
        if let Some(date) = http_date(identity.mtime_ns) {
            set(answer.headers_mut(), header::LAST_MODIFIED, &date);
        }
        return Ok(answer);
    }
    if !call.place.slash {
        // Links in the page are relative to the directory.
        let to = format!("/{}/", encode_path(&call.place.path));
        let refusal = Refusal::new(StatusCode::PERMANENT_REDIRECT, "a directory's address ends with /");
        return Ok(refusal.with(header::LOCATION, &to).into_answer());
    }
    blocking(move || browse::page(&call)).await
}

fn whole(body: Body, size: u64) -> Answer {
    let mut answer = Response::new(body);
    set(answer.headers_mut(), header::CONTENT_LENGTH, &size.to_string());
    set(answer.headers_mut(), header::CONTENT_TYPE, PARTS_TYPE);
    answer
}

fn one_part(body: Body, (start, len): (u64, u64), size: u64) -> Answer {
    let mut answer = whole(body, len);
    *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    set(answer.headers_mut(), header::CONTENT_RANGE, &content_range(start, len, size));
    answer
}

fn content_range(start: u64, len: u64, size: u64) -> String {
    format!("bytes {start}-{}/{size}", start + len - 1)
}

/// Cannot occur by chance before a part's head: heads begin with two dashes and this whole line.
const BOUNDARY: &str = "longhaul-part-3b1f0c6a9d7e4852";

fn many_parts(body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    let kind = format!("multipart/byteranges; boundary={BOUNDARY}");
    set(answer.headers_mut(), header::CONTENT_TYPE, &kind);
    answer
}

/// None if the client went, or may have no more.
fn send_parts(
    shared: &DoorContext,
    file: &dyn SourceFile,
    parts: &[(u64, u64)],
    may_go_on: &StreamCheck,
    sender: &mpsc::Sender<std::io::Result<Bytes>>,
) -> Option<()> {
    let size = file.identity().size;
    for &(start, len) in parts {
        let range = content_range(start, len, size);
        let head =
            format!("\r\n--{BOUNDARY}\r\nContent-Type: {PARTS_TYPE}\r\nContent-Range: {range}\r\n\r\n");
        sender.blocking_send(Ok(head.into())).ok()?;
        let mut offset = start;
        while offset < start + len {
            let piece = (start + len - offset).min(BUFFER_BYTES as u64);
            let is_last = offset + piece == start + len;
            let bytes = match may_go_on() {
                true => read(file, &shared.buffers, (offset, piece), is_last).map_err(std::io::Error::other),
                false => Err(std::io::Error::from(std::io::ErrorKind::PermissionDenied)),
            };
            let failed = bytes.is_err();
            sender.blocking_send(bytes).ok()?;
            if failed {
                return None;
            }
            offset += piece;
        }
    }
    sender.blocking_send(Ok(format!("\r\n--{BOUNDARY}--\r\n").into())).ok()
}

fn unsatisfiable(identity: &Identity) -> Answer {
    let refusal = Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "no byte of the file lies in this range");
    refusal.with(header::CONTENT_RANGE, &format!("bytes */{}", identity.size)).into_answer()
}

fn describe(answer: &mut Answer, identity: &Identity) {
    let headers: &mut HeaderMap = answer.headers_mut();
    set(headers, header::ETAG, &etag(identity));
    set(headers, header::ACCEPT_RANGES, "bytes");
    if let Some(date) = http_date(identity.mtime_ns) {
        set(headers, header::LAST_MODIFIED, &date);
    }
    // Files come from anybody: a browser shows none of them as a page of this host.
    set(headers, header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
}

/// Digests from the cache, or computed, a few files at a time.
pub(crate) async fn digests(
    shared: &Arc<DoorContext>,
    place: &RequestPath,
    identity: &Identity,
    want: Want,
) -> Outcome<DigestSet> {
    let known = shared.remembered.get(&place.path, identity);
    let missing: Vec<_> = want.algorithms().filter(|algorithm| known.get(*algorithm).is_none()).collect();
    if missing.is_empty() {
        return Ok(known);
    }
    let turn = shared.digest_turns.acquire().await;
    let _turn =
        turn.map_err(|_| crate::serve::busy("the door is closing", std::time::Duration::from_secs(10)))?;
    let (shared, place, identity) = (shared.clone(), place.clone(), identity.clone());
    blocking(move || {
        let at = place.pfn(shared.storage().name())?;
        let (found, version) =
            digest_file(shared.storage().as_ref(), &at, missing, &mut vec![0; DIGEST_BYTES])?;
        shared.remembered.insert(&place.path, &version, &found);
        // Only of the version that is shown: another may lie where nothing may be read.
        Ok(shared.remembered.get(&place.path, &identity))
    })
    .await
}
