//! State of one tape driver: stage requests, pins, and files to migrate. Event-sourced: only records change
//! it, so that replay gives the same state. No clock, no file, no command: see `driver`.
//!
//! ```text
//! file of a request:    Submitted ─► Completed ─► Spent        its pin has expired, the disk may drop it
//!                            └────► Failed, Cancelled
//! file that arrived:    arriving ─► due ─► (on tape, or gone)
//! ```
//!
//! Which files a command works on is not recorded: after a restart it is run again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::stage_queue::{Offer, StageQueue, TapePlace};
use longhaul_doors::{Report, ReportedFile, RequestedFile, StageState};
use longhaul_model::{Fault, FaultCode, Timestamp};
use serde::{Deserialize, Serialize};

/// Stage requests of one storage.
pub(super) const REQUESTS_MAX: usize = 10_000;
/// Files of all stage requests of one storage.
pub(super) const FILES_MAX: usize = 200_000;
/// Files that wait for migration: beyond this, doors accept no more.
pub(super) const ARRIVALS_MAX: usize = 100_000;
/// How long a request is kept after its last file has ended or lost its pin; clients usually end theirs
/// earlier.
const REQUEST_RETENTION: Duration = Duration::from_secs(86_400);
/// Delay before a failed migration is tried again.
pub(super) const MIGRATE_RETRY_INTERVAL: Duration = Duration::from_secs(600);

pub(super) type Path = Arc<str>;
/// A file of a request: the request's id and the index.
type FileRef = (Arc<str>, u32);

/// An event; durable before it takes effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(super) enum Record {
    /// A new request, or (in a compacted log) one in its present state.
    Request {
        id: Arc<str>,
        request: Request,
    },
    Ended {
        at: Timestamp,
        end: End,
        files: Vec<FileRef>,
    },
    Released {
        at: Timestamp,
        files: Vec<FileRef>,
    },
    Spent {
        files: Vec<FileRef>,
    },
    /// Deleted by its client: it is not reported any more.
    Forgotten {
        id: Arc<str>,
    },
    Dropped {
        id: Arc<str>,
    },
    Arriving {
        path: Path,
    },
    /// The file is on tape, or gone.
    Settled {
        path: Path,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    OnDisk,
    Failed(String),
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Request {
    created: Timestamp,
    /// When the last file ended.
    last: Timestamp,
    #[serde(default)]
    forgotten: bool,
    files: Vec<File>,
    /// Files that are neither failed, cancelled nor spent.
    #[serde(skip)]
    open: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct File {
    path: Path,
    /// Lifetime of its pin.
    stays_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Arc<str>>,
    #[serde(default)]
    state: FileState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished: Option<Timestamp>,
    /// When a command for it began in this run.
    #[serde(skip)]
    started: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FileState {
    #[default]
    Submitted,
    Completed {
        until: Timestamp,
    },
    Spent,
    Failed(String),
    Cancelled,
}

/// A file to be migrated to tape.
#[derive(Debug)]
struct Arrival {
    /// When it may be migrated; none until it has its final name.
    due: Option<Timestamp>,
    /// Distinguishes several files that came under this name.
    stamp: u64,
    migrating: bool,
}

#[derive(Debug, Default)]
pub(super) struct TapeState {
    requests: BTreeMap<Arc<str>, Request>,
    files: usize,
    /// Files of requests that wait for a path to be staged.
    waiters: BTreeMap<Path, Vec<FileRef>>,
    queue: StageQueue,
    /// Paths that a command works on.
    in_command: BTreeSet<Path>,
    /// Pins by expiry.
    pins: BTreeSet<(Timestamp, Arc<str>, u32)>,
    /// Files of requests on disk and not spent, by path.
    pin_counts: BTreeMap<Path, u32>,
    arrivals: BTreeMap<Path, Arrival>,
    due: BTreeSet<(Timestamp, Path)>,
    stamp: u64,
}

/// Files of one path whose pins have expired.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ExpiredPins {
    pub(super) path: Path,
    pub(super) files: Vec<FileRef>,
    /// Nobody else has pinned the path or waits for it.
    pub(super) last: bool,
}

impl TapeState {
    // ---- questions of clients ------------------------------------------------------------------------

    /// The record of a new request.
    pub(super) fn new_request(
        &self,
        id: &str,
        files: Vec<RequestedFile>,
        now: Timestamp,
        (usual, most): (Duration, Duration),
    ) -> Result<Record, Fault> {
        let full = |what: &str| {
            let detail = format!(
                "{what} are asked for from this tape already: end requests that are done, and ask again later"
            );
            Err(Fault::new(FaultCode::Busy, detail))
        };
        if self.requests.len() >= REQUESTS_MAX {
            return full(&format!("{REQUESTS_MAX} requests"));
        }
        if self.files + files.len() > FILES_MAX {
            return full(&format!("{} of {FILES_MAX} files", self.files));
        }
        let file = |wanted: RequestedFile| File {
            path: wanted.path.into(),
            stays_s: wanted.lifetime.unwrap_or(usual).min(most).as_secs().max(1),
            metadata: wanted.metadata.map(Arc::from),
            state: FileState::Submitted,
            finished: None,
            started: None,
        };
        let files = files.into_iter().map(file).collect();
        let request = Request { created: now, last: now, forgotten: false, files, open: 0 };
        Ok(Record::Request { id: id.into(), request })
    }

    /// Ids of requests that begin like this and are reported.
    pub(super) fn requests_beginning(&self, prefix: &str) -> Vec<String> {
        let from = self.requests.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let ours = from.take_while(|(id, _)| id.starts_with(prefix));
        ours.filter(|(_, request)| !request.forgotten).map(|(id, _)| id.to_string()).collect()
    }

    fn visible_request(&self, id: &str) -> Option<(&Arc<str>, &Request)> {
        self.requests.get_key_value(id).filter(|(_, request)| !request.forgotten)
    }

    pub(super) fn report(&self, id: &str, now: Timestamp) -> Option<Report> {
        let (_, request) = self.visible_request(id)?;
        let one = |file: &File| ReportedFile {
            path: file.path.to_string(),
            state: match &file.state {
                FileState::Submitted if file.started.is_some() => StageState::Started,
                FileState::Submitted => StageState::Submitted,
                FileState::Completed { .. } | FileState::Spent => StageState::Completed,
                FileState::Failed(_) => StageState::Failed,
                FileState::Cancelled => StageState::Cancelled,
            },
            pinned: matches!(file.state, FileState::Completed { until } if until > now),
            started: file.started,
            finished: file.finished,
            error: if let FileState::Failed(why) = &file.state { Some(why.clone()) } else { None },
        };
        let started = request.files.iter().filter_map(|file| file.started).min();
        Some(Report { created: request.created, started, files: request.files.iter().map(one).collect() })
    }

    /// Cancels files that are not on disk yet.
    pub(super) fn cancel(&self, id: &str, paths: &[String], now: Timestamp) -> Option<Record> {
        let wanted: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        let files =
            self.files_where(id, |file| file.state == FileState::Submitted && wanted.contains(&*file.path));
        (!files.is_empty()).then_some(Record::Ended { at: now, end: End::Cancelled, files })
    }

    /// Ends the pins of these files now.
    pub(super) fn release(&self, id: &str, paths: &[String], now: Timestamp) -> Option<Record> {
        let wanted: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        let pinned = |file: &File| matches!(file.state, FileState::Completed { until } if until > now);
        let files = self.files_where(id, |file| pinned(file) && wanted.contains(&*file.path));
        (!files.is_empty()).then_some(Record::Released { at: now, files })
    }

    /// Ends everything of a request; it is not reported any more.
    pub(super) fn end_request(&self, id: &str, now: Timestamp) -> Vec<Record> {
        let Some((id, _)) = self.visible_request(id) else { return Vec::new() };
        let waiting = self.files_where(id, |file| file.state == FileState::Submitted);
        let pinned =
            self.files_where(id, |file| matches!(file.state, FileState::Completed { until } if until > now));
        let mut records = Vec::new();
        if !waiting.is_empty() {
            records.push(Record::Ended { at: now, end: End::Cancelled, files: waiting });
        }
        if !pinned.is_empty() {
            records.push(Record::Released { at: now, files: pinned });
        }
        records.push(Record::Forgotten { id: id.clone() });
        records
    }

    fn files_where(&self, id: &str, which: impl Fn(&File) -> bool) -> Vec<FileRef> {
        let Some((id, request)) = self.visible_request(id) else { return Vec::new() };
        let files = request.files.iter().enumerate().filter(|(_, file)| which(file));
        files.map(|(place, _)| (id.clone(), place as u32)).collect()
    }

    // ---- from tape to disk ---------------------------------------------------------------------------

    /// The next files for one stage command, at most `most`, with the clients' metadata, which is the same
    /// for all of them. `reserve` says whether the disk has room for a file, and keeps it.
    pub(super) fn next_stage(
        &mut self,
        most: usize,
        now: Timestamp,
        mut reserve: impl FnMut(&Path) -> bool,
    ) -> Option<(Vec<String>, Option<Arc<str>>)> {
        let mut queue = std::mem::take(&mut self.queue);
        let mut said = None;
        let paths = queue.next(most, now, |path| {
            let Some(metadata) = self.metadata_of(path) else { return Offer::Forget };
            if self.in_command.contains(path) {
                return Offer::Pass;
            }
            if said.as_ref().is_some_and(|said| *said != metadata) || !reserve(path) {
                return Offer::Stop;
            }
            said = Some(metadata);
            Offer::Take
        });
        self.queue = queue;
        paths.iter().for_each(|path| self.mark_started(path, now));
        let paths: Vec<String> = paths.iter().map(|path| path.to_string()).collect();
        (!paths.is_empty()).then(|| (paths, said.flatten()))
    }

    /// Whether places on tape are told; to be said before anything else.
    pub(super) fn expect_places(&mut self, has_places: bool) {
        self.queue = StageQueue::with_places(has_places);
    }

    /// After a replay: the time that places may take begins.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.queue.restart(now);
    }

    /// The first paths whose places on tape are to be asked for.
    pub(super) fn unplaced(&self, most: usize) -> Vec<Path> {
        self.queue.unplaced(most)
    }

    pub(super) fn place(&mut self, path: &Path, place: Option<TapePlace>) {
        self.queue.place(path, place);
    }

    /// Whether a path takes up disk for a request: it is pinned, or a command works on it.
    pub(super) fn occupies_disk(&self, path: &str) -> bool {
        self.pin_counts.contains_key(path) || self.in_command.contains(path)
    }

    /// Paths on disk for requests.
    pub(super) fn pinned_paths(&self) -> impl Iterator<Item = &Path> {
        self.pin_counts.keys()
    }

    /// The client's metadata; the outer none: nobody waits for the path any more.
    fn metadata_of(&self, path: &Path) -> Option<Option<Arc<str>>> {
        let (id, place) = self.waiters.get(path)?.first()?;
        Some(self.requests.get(id)?.files.get(*place as usize)?.metadata.clone())
    }

    fn mark_started(&mut self, path: &Path, now: Timestamp) {
        self.in_command.insert(path.clone());
        let who = self.waiters.get(path).cloned().unwrap_or_default();
        for (id, place) in who {
            if let Some(file) = self.requests.get_mut(&id).and_then(|all| all.files.get_mut(place as usize)) {
                file.started = Some(now);
            }
        }
    }

    pub(super) fn is_awaited(&self, path: &str) -> bool {
        self.waiters.contains_key(path)
    }

    /// The record of a staged path, for everybody who waits for it.
    pub(super) fn staged(&self, path: &str, end: End, now: Timestamp) -> Option<Record> {
        let files = self.waiters.get(path)?.clone();
        Some(Record::Ended { at: now, end, files })
    }

    /// Releases a path after a command; if somebody still waits for it, it is queued again.
    pub(super) fn release_path(&mut self, path: &str, now: Timestamp) {
        self.in_command.remove(path);
        self.queue.release(path);
        if let Some((path, _)) = self.waiters.get_key_value(path) {
            self.queue.push(path.clone(), now);
        }
    }

    // ---- the ends of pins ----------------------------------------------------------------------------

    /// Takes expired pins, by path. Where the site removes files, no other command begins on a path whose
    /// last pin has expired until it is removed.
    pub(super) fn take_expired_pins(&mut self, now: Timestamp, removes: bool) -> Vec<ExpiredPins> {
        let mut by_path: BTreeMap<Path, Vec<FileRef>> = BTreeMap::new();
        let mut later = Vec::new();
        while self.pins.first().is_some_and(|(until, _, _)| *until <= now) {
            let Some((until, id, place)) = self.pins.pop_first() else { break };
            let path = self.requests.get(&id).and_then(|all| all.files.get(place as usize));
            let Some(path) = path.map(|file| file.path.clone()) else { continue };
            if self.in_command.contains(&path) {
                later.push((until, id, place));
            } else {
                by_path.entry(path).or_default().push((id, place));
            }
        }
        self.pins.extend(later);
        let over = by_path.into_iter().map(|(path, files)| {
            let held = self.pin_counts.get(&path).copied().unwrap_or_default() as usize;
            let last = removes && held <= files.len() && !self.waiters.contains_key(&path);
            ExpiredPins { path, files, last }
        });
        let over: Vec<ExpiredPins> = over.collect();
        self.in_command.extend(over.iter().filter(|over| over.last).map(|over| over.path.clone()));
        over
    }

    /// Requests that may be dropped.
    pub(super) fn expired_requests(&self, now: Timestamp) -> Vec<Record> {
        let old = |request: &Request| {
            request.open == 0 && (request.forgotten || request.last + REQUEST_RETENTION <= now)
        };
        let ids = self.requests.iter().filter(|(_, request)| old(request)).map(|(id, _)| id.clone());
        ids.map(|id| Record::Dropped { id }).collect()
    }

    // ---- from disk to tape ---------------------------------------------------------------------------

    pub(super) fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn arriving(&self, path: &str) -> Record {
        Record::Arriving { path: path.into() }
    }

    /// The file has its name or was given up; either way it is checked when due.
    pub(super) fn arrived(&mut self, path: &str, due: Timestamp) {
        self.due_at(path, due);
    }

    /// Files that an earlier run was about to name, and perhaps has.
    pub(super) fn all_arrived(&mut self, due: Timestamp) {
        let waiting = self.arrivals.iter().filter(|(_, arrival)| arrival.due.is_none());
        let paths: Vec<Path> = waiting.map(|(path, _)| path.clone()).collect();
        paths.iter().for_each(|path| self.due_at(path, due));
    }

    fn due_at(&mut self, path: &str, due: Timestamp) {
        let Some((path, _)) = self.arrivals.get_key_value(path) else { return };
        let path = path.clone();
        if let Some(arrival) = self.arrivals.get_mut(&path) {
            if let Some(before) = arrival.due.replace(due) {
                self.due.remove(&(before, path.clone()));
            }
            self.due.insert((due, path));
        }
    }

    /// The next files for one migrate command, each with its stamp.
    pub(super) fn next_migrate(&mut self, most: usize, now: Timestamp) -> Vec<(String, u64)> {
        let mut next = Vec::new();
        for (_, path) in self.due.range(..(now + Duration::from_micros(1), Path::from(""))) {
            if next.len() >= most {
                break;
            }
            if let Some(arrival) = self.arrivals.get_mut(path)
                && !arrival.migrating
            {
                arrival.migrating = true;
                next.push((path.to_string(), arrival.stamp));
            }
        }
        next
    }

    /// The record of a migrated (or gone) file. Another file that came under its name meanwhile is migrated
    /// by itself.
    pub(super) fn migrated(&mut self, path: &str, stamp: u64) -> Option<Record> {
        let (path, arrival) = self.arrivals.get_key_value(path)?;
        if arrival.stamp == stamp {
            return Some(Record::Settled { path: path.clone() });
        }
        self.retry_migration(&path.clone(), None);
        None
    }

    /// Schedules another migration.
    pub(super) fn retry_migration(&mut self, path: &str, due: Option<Timestamp>) {
        if let Some(arrival) = self.arrivals.get_mut(path) {
            arrival.migrating = false;
        }
        due.into_iter().for_each(|due| self.due_at(path, due));
    }

    // ---- records -------------------------------------------------------------------------------------

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Request { id, request } => self.add(id, request),
            Record::Ended { at, end, files } => files.iter().for_each(|file| self.end_file(file, at, &end)),
            Record::Released { at, files } => files.iter().for_each(|file| self.end_pin(file, at)),
            Record::Spent { files } => files.iter().for_each(|file| self.spend_file(file)),
            Record::Forgotten { id } => {
                self.requests.get_mut(&id).into_iter().for_each(|request| request.forgotten = true);
            }
            Record::Dropped { id } => self.drop_request(&id),
            Record::Arriving { path } => {
                self.stamp += 1;
                let before = self.arrivals.remove(&path);
                if let Some(due) = before.as_ref().and_then(|before| before.due) {
                    self.due.remove(&(due, path.clone()));
                }
                let migrating = before.is_some_and(|before| before.migrating);
                self.arrivals.insert(path, Arrival { due: None, stamp: self.stamp, migrating });
            }
            Record::Settled { path } => {
                if let Some(due) = self.arrivals.remove(&path).and_then(|arrival| arrival.due) {
                    self.due.remove(&(due, path));
                }
            }
        }
    }

    /// The shortest list of records that produces this state.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let requests = self.requests.iter();
        let requests =
            requests.map(|(id, request)| Record::Request { id: id.clone(), request: request.clone() });
        requests.chain(self.arrivals.keys().map(|path| Record::Arriving { path: path.clone() }))
    }

    fn add(&mut self, id: Arc<str>, mut request: Request) {
        self.drop_request(&id);
        request.open = 0;
        for (place, file) in request.files.iter().enumerate() {
            let member = (id.clone(), place as u32);
            match &file.state {
                FileState::Submitted => {
                    let wish = self.waiters.entry(file.path.clone()).or_default();
                    if wish.is_empty() {
                        self.queue.push(file.path.clone(), request.created);
                    }
                    wish.push(member);
                }
                FileState::Completed { until } => {
                    self.pins.insert((*until, member.0, member.1));
                    *self.pin_counts.entry(file.path.clone()).or_default() += 1;
                }
                FileState::Spent | FileState::Failed(_) | FileState::Cancelled => continue,
            }
            request.open += 1;
        }
        self.files += request.files.len();
        self.requests.insert(id, request);
    }

    fn end_file(&mut self, member: &FileRef, at: Timestamp, end: &End) {
        let Some(request) = self.requests.get_mut(&member.0) else { return };
        let Some(file) = request.files.get_mut(member.1 as usize) else { return };
        if file.state != FileState::Submitted {
            return;
        }
        let until = at + Duration::from_secs(file.stays_s);
        file.state = match end {
            End::OnDisk => FileState::Completed { until },
            End::Failed(why) => FileState::Failed(why.clone()),
            End::Cancelled => FileState::Cancelled,
        };
        file.finished = Some(at);
        request.last = request.last.max(at);
        let path = file.path.clone();
        match end {
            End::OnDisk => {
                self.pins.insert((until, member.0.clone(), member.1));
                *self.pin_counts.entry(path.clone()).or_default() += 1;
            }
            _ => request.open -= 1,
        }
        if let Some(wish) = self.waiters.get_mut(&path) {
            wish.retain(|other| other != member);
            if wish.is_empty() {
                self.waiters.remove(&path);
            }
        }
    }

    fn end_pin(&mut self, member: &FileRef, at: Timestamp) {
        let Some(file) =
            self.requests.get_mut(&member.0).and_then(|all| all.files.get_mut(member.1 as usize))
        else {
            return;
        };
        if let FileState::Completed { until } = &mut file.state
            && self.pins.remove(&(*until, member.0.clone(), member.1))
        {
            *until = at;
            self.pins.insert((at, member.0.clone(), member.1));
        }
    }

    fn spend_file(&mut self, member: &FileRef) {
        let Some(request) = self.requests.get_mut(&member.0) else { return };
        let Some(file) = request.files.get_mut(member.1 as usize) else { return };
        let FileState::Completed { until } = file.state else { return };
        file.state = FileState::Spent;
        request.open -= 1;
        request.last = request.last.max(until);
        self.pins.remove(&(until, member.0.clone(), member.1));
        if let Some(held) = self.pin_counts.get_mut(&file.path) {
            *held -= 1;
            if *held == 0 {
                self.pin_counts.remove(&file.path);
            }
        }
    }

    /// Only a closed request is dropped, or replaced by a compacted one.
    fn drop_request(&mut self, id: &Arc<str>) {
        let Some(request) = self.requests.remove(id) else { return };
        self.files -= request.files.len();
    }
}

#[cfg(test)]
mod tests;
