//! PUT: a file comes in whole, or nothing of it stays.
//!
//! Its bytes go to a temporary file and are digested on the way. When all are there and agree with the length
//! and every digest that the client gave, the storage flushes them and gives the file its name in one step:
//! whoever reads that name sees the old file or the new one. Whatever ends the request earlier (a client that
//! goes, a full disk, a stop) removes the temporary file; what a kill leaves is removed at the next start.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Hasher, Pfn};
use longhaul_storage::{Commit, Entry, Identity, Storage, TargetFile, TempName};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::answer::{Outcome, Refusal, empty, set};
use crate::conditions::{check_for_change, etag};
use crate::digests::claimed;
use crate::least_rate::LeastRate;
use crate::lock::check_locks;
use crate::locks::WriteScope;
use crate::request::RequestPath;
use crate::rights::{Action, GrantedRights};
use crate::serve::{Call, DoorContext, blocking};

/// Collected before they are written: one visit to another thread for many records.
const BATCH_BYTES: usize = 512 << 10;
/// Handed to the disk while more come, so that the flush at the end has little left.
const WRITEBACK_BYTES: u64 = 16 << 20;
/// A name may change hands between the check and the commit.
const COMMIT_TRIES: usize = 4;
/// Computed of every file that comes: they cost next to nothing, and are asked for next.
const ALWAYS: [Algorithm; 2] = [Algorithm::Adler32, Algorithm::Crc32c];

pub(crate) async fn put(mut call: Call) -> Outcome {
    let headers = call.request.headers();
    if headers.contains_key(header::CONTENT_RANGE) {
        let text = "files are written as a whole: leave out Content-Range";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, text));
    }
    if call.place.is_root() || call.place.slash {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "a file's address does not end with /"));
    }
    let claimed = claimed(headers)?;
    let length = declared_length(headers)?;
    let turn = call.shared.transfer_slot().await?;
    let (shared, place) = (call.shared.clone(), call.place.clone());
    let (checked, granted) = (headers.clone(), call.granted.clone());
    let incoming = blocking(move || {
        let found = admit(&shared, &place, &checked, &granted)?;
        Incoming::begin(&shared, &place, length, claimed, found)
    });
    let mut incoming = incoming.await?;
    receive(&mut call, &mut incoming, length).await?;
    let (conditions, granted, place) = (call.request.headers().clone(), call.granted, call.place);
    let shared = call.shared;
    let finish = move || {
        shared.check_token(&granted)?;
        // Somebody may have locked it while it came.
        check_locks_of_file(&shared, &conditions, &granted, &place, incoming.found.as_ref())?;
        incoming.finish(|found| {
            check_for_change(&conditions, found)?;
            may_replace(&granted, &place.path, found)
        })
    };
    let (identity, replaced) = blocking(finish).await?;
    drop(turn);
    let mut answer = empty(if replaced { StatusCode::NO_CONTENT } else { StatusCode::CREATED });
    set(answer.headers_mut(), header::ETAG, &etag(&identity));
    Ok(answer)
}

/// None with a body in chunks. The HTTP library has checked that there is one length only.
fn declared_length(headers: &HeaderMap) -> Outcome<Option<u64>> {
    let Some(value) = headers.get(header::CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| Refusal::bad("Content-Length is no number"))
}

/// Checks everything that can be checked before the first byte is accepted.
pub(crate) fn admit(
    shared: &DoorContext,
    place: &RequestPath,
    headers: &HeaderMap,
    granted: &GrantedRights,
) -> Outcome<Option<Identity>> {
    let found = shared.look_up(granted, Action::Change, place)?;
    if found.as_ref().is_some_and(|entry| entry.is_directory) {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "there is a directory of this name"));
    }
    let identity = found.map(|entry| entry.identity);
    check_for_change(headers, identity.as_ref())?;
    may_replace(granted, &place.path, identity.as_ref())?;
    check_locks_of_file(shared, headers, granted, place, identity.as_ref())?;
    if identity.is_none() {
        check_parent(shared, place)?;
    }
    Ok(identity)
}

/// A new file is a new member of its directory too.
fn check_locks_of_file(
    shared: &DoorContext,
    headers: &HeaderMap,
    granted: &GrantedRights,
    place: &RequestPath,
    found: Option<&Identity>,
) -> Outcome<()> {
    let touches = [WriteScope::One(&place.path), WriteScope::Members(place.parent())];
    let touches = if found.is_some() { &touches[..1] } else { &touches };
    check_locks(shared, headers, granted, place, touches).map(drop)
}

/// The directory of a new file, unless missing ones are made.
pub(crate) fn check_parent(shared: &DoorContext, place: &RequestPath) -> Outcome<()> {
    let parent = RequestPath { path: place.parent().to_owned(), slash: true };
    let there = |entry: Entry| entry.is_directory;
    if shared.settings.make_parents || parent.is_root() || shared.stat(&parent)?.is_some_and(there) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::CONFLICT, "the directory of this file is not there"))
}

/// A right to make new files replaces none, also none that came while this one was on its way.
pub(crate) fn may_replace(granted: &GrantedRights, path: &str, found: Option<&Identity>) -> Outcome<()> {
    if found.is_none() {
        return Ok(());
    }
    granted.check(Action::Change, path)
}

async fn receive(call: &mut Call, incoming: &mut Incoming, length: Option<u64>) -> Outcome<()> {
    let limits = call.shared.settings.limits;
    let mut rate = LeastRate::new(limits.bytes_per_stall_min, limits.stall);
    let mut batch = Batch::default();
    loop {
        let Some(frame) = next_frame(call, &mut rate).await? else { break };
        let Ok(bytes) = frame.into_data() else { continue };
        batch.add(bytes);
        if length.is_some_and(|length| incoming.taken + batch.len as u64 > length) {
            return Err(Refusal::bad("the body is longer than Content-Length says"));
        }
        if batch.is_full() {
            call.shared.check_token(&call.granted)?;
            incoming.take(std::mem::take(&mut batch)).await?;
        }
    }
    incoming.take(batch).await?;
    incoming.written().await?;
    match length {
        Some(length) if length != incoming.taken => {
            let text = format!("{} bytes came, Content-Length says {length}", incoming.taken);
            Err(Refusal::bad(text))
        }
        _ => Ok(()),
    }
}

async fn next_frame(call: &mut Call, rate: &mut LeastRate) -> Outcome<Option<hyper::body::Frame<Bytes>>> {
    let began = Instant::now();
    let frame = tokio::time::timeout(rate.patience(), call.request.body_mut().frame()).await;
    let late = |_| {
        let text = "the body does not come, or too slowly; nothing of it is kept";
        Refusal::new(StatusCode::REQUEST_TIMEOUT, text)
    };
    let broken = |error| Refusal::bad(format!("the body broke off: {error}; nothing of it is kept"));
    let frame = frame.map_err(late)?.transpose().map_err(broken)?;
    let bytes = frame.as_ref().and_then(|frame| frame.data_ref()).map_or(0, |bytes| bytes.len() as u64);
    rate.add(bytes, began.elapsed());
    Ok(frame)
}

#[derive(Default)]
pub(crate) struct Batch {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Batch {
    pub(crate) fn add(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        self.pieces.push(bytes);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= BATCH_BYTES
    }
}

/// A file on its way in. Dropping it removes what has come.
pub(crate) struct Incoming {
    shared: Arc<DoorContext>,
    at: Pfn,
    place: RequestPath,
    claimed: DigestSet,
    found: Option<Identity>,
    guard: Guard,
    /// Away while it is being written to.
    writer: Option<Writer>,
    writing: Option<JoinHandle<Result<Writer, Fault>>>,
    /// Bytes taken so far.
    pub(crate) taken: u64,
}

struct Writer {
    file: Box<dyn TargetFile>,
    hasher: Hasher,
    written: u64,
    hinted: u64,
}

/// Removes the temporary file unless it has its final name.
struct Guard {
    storage: Arc<dyn Storage>,
    temp: TempName,
    is_kept: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (storage, temp) = (self.storage.clone(), self.temp.clone());
        let remove = move || {
            if let Err(fault) = storage.remove_temp(&temp) {
                tracing::warn!(fault = %fault.chain(),
                    "what came of a file cannot be removed; the next start will try again");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

impl Incoming {
    /// `found` is what has the name now and may be replaced.
    pub(crate) fn begin(
        shared: &Arc<DoorContext>,
        place: &RequestPath,
        size: Option<u64>,
        claimed: DigestSet,
        found: Option<Identity>,
    ) -> Outcome<Incoming> {
        let at = place.pfn(shared.storage().name())?;
        let temp = shared.temp_name();
        let file = shared.storage().create(&temp, Some(&at), size.unwrap_or(0))?;
        let guard = Guard { storage: shared.storage().clone(), temp, is_kept: false };
        let wanted = claimed.algorithms().filter(|algorithm| !ALWAYS.contains(algorithm));
        let hasher = Hasher::new(ALWAYS.into_iter().chain(wanted));
        Ok(Incoming {
            shared: shared.clone(),
            at,
            place: place.clone(),
            claimed,
            found,
            guard,
            writer: Some(Writer { file, hasher, written: 0, hinted: 0 }),
            writing: None,
            taken: 0,
        })
    }

    /// Writes what has come, while the next bytes come.
    pub(crate) async fn take(&mut self, batch: Batch) -> Outcome<()> {
        self.written().await?;
        if batch.len == 0 {
            return Ok(());
        }
        self.taken += batch.len as u64;
        if let Some(mut writer) = self.writer.take() {
            self.writing = Some(tokio::task::spawn_blocking(move || {
                writer.write(&batch)?;
                Ok(writer)
            }));
        }
        Ok(())
    }

    /// The same on a thread that may wait for the disk.
    pub(crate) fn take_here(&mut self, batch: Batch) -> Outcome<()> {
        self.taken += batch.len as u64;
        match &mut self.writer {
            Some(writer) => Ok(writer.write(&batch)?),
            None => Err(Fault::new(FaultCode::Internal, "a file is written to twice at once").into()),
        }
    }

    /// Waits until all that was taken is written.
    pub(crate) async fn written(&mut self) -> Outcome<()> {
        let Some(writing) = self.writing.as_mut() else { return Ok(()) };
        let done = writing.await;
        self.writing = None;
        match done {
            Ok(Ok(writer)) => {
                self.writer = Some(writer);
                Ok(())
            }
            Ok(Err(fault)) => Err(fault.into()),
            Err(error) => Err(Fault::new(FaultCode::Internal, error.to_string()).with_source(error).into()),
        }
    }

    /// Compares and commits; `check` is asked again about what is there, if that has changed. Says whether a
    /// file was replaced.
    pub(crate) fn finish(
        mut self,
        check: impl Fn(Option<&Identity>) -> Outcome<()>,
    ) -> Outcome<(Identity, bool)> {
        let Some(writer) = self.writer.take() else {
            return Err(Fault::new(FaultCode::Internal, "a file ends while it is written to").into());
        };
        let digests = writer.hasher.finish();
        if let Some((ours, theirs)) = digests.contradiction(&self.claimed) {
            let text =
                format!("the bytes that came have {ours}, {theirs} was given; nothing of them is kept");
            return Err(Refusal::bad(text));
        }
        // A file is known to be on its way to tape before it is there, so that none is forgotten.
        let tape = self.shared.settings.tape.clone();
        if let Some(end) = &tape {
            end.tape.arriving(&self.place.path)?;
        }
        let committed = self.commit(check);
        if let Some(end) = &tape {
            end.tape.arrived(&self.place.path);
        }
        let replaced = committed?;
        self.guard.is_kept = true;
        let storage = self.shared.storage();
        let there = storage.stat(&self.at)?;
        let identity =
            there.ok_or_else(|| Fault::new(FaultCode::Conflict, "the file was removed at once"))?;
        if !replaced {
            // Another file's, which somebody else removed.
            self.shared.properties.remove_all(&self.place.path);
        }
        // Somebody else's replacement a moment later has other digests.
        if identity.size == self.taken {
            self.shared.remembered.insert(&self.place.path, &identity, &digests);
        }
        Ok((identity, replaced))
    }

    fn commit(&mut self, check: impl Fn(Option<&Identity>) -> Outcome<()>) -> Outcome<bool> {
        let mut last = None;
        for _ in 0..COMMIT_TRIES {
            let item = Commit {
                replaces: self.found.clone(),
                ..Commit::new(self.guard.temp.clone(), self.at.clone(), self.taken)
            };
            match self.shared.storage().commit(&[item]).pop() {
                Some(Ok(())) => return Ok(self.found.is_some()),
                Some(Err(fault)) if fault.code == FaultCode::NameClash => last = Some(fault),
                Some(Err(fault)) => return Err(fault.into()),
                None => break,
            }
            let found = self.shared.stat(&self.place)?;
            if found.as_ref().is_some_and(|entry| entry.is_directory) {
                break;
            }
            let found = found.map(|entry| entry.identity);
            check(found.as_ref())?;
            if found == self.found {
                break;
            }
            self.found = found;
        }
        Err(last.unwrap_or_else(|| Fault::new(FaultCode::Conflict, self.at.to_string())).into())
    }
}

impl Writer {
    fn write(&mut self, batch: &Batch) -> Result<(), Fault> {
        for piece in &batch.pieces {
            self.hasher.update(piece);
            self.file.write_at(piece, self.written)?;
            self.written += piece.len() as u64;
        }
        if self.written - self.hinted >= WRITEBACK_BYTES {
            self.file.begin_writeback(self.hinted, self.written - self.hinted);
            self.hinted = self.written;
        }
        Ok(())
    }
}
