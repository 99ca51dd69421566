//! One attempt at this target: the wanted file, its progress, and its outcome.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use longhaul_model::{Blame, Executor, Fault, FaultCode, Hasher, Pfn, StorageName};
use longhaul_storage::{Commit, Identity, Placement, TargetFile, TempName};
use longhaul_wire::journal::OriginId;
use longhaul_wire::{Coverage, FileKey, FileNumber, OriginNumber};
use parking_lot::Mutex;

use super::group_commit::CommitItem;
use super::held_copy::HeldCopy;
use super::large_files::LargeFileTask;
use super::reorder_buffer::ReorderBuffer;
use super::session::Session;
use super::target::{Target, TargetDisk};
use super::verify;
use super::write::Chunk;
use crate::context::EngineContext;
use crate::interface::{AttemptOutcome, AttemptTimeline, Event, FetchFile, SourceShare, Success};

/// Chunks that wait for one of several disks before files of others go ahead: enough to keep the disk busy,
/// and too few for a slow one to hold the buffers of all.
const DISK_BACKLOG_CHUNKS_MAX: usize = 16;

/// Locks on files in progress: two attempts at one file would write into the same temporary file.
#[derive(Clone, Default)]
pub(crate) struct FileLocks(Arc<Mutex<BTreeSet<(u16, FileKey)>>>);

pub(crate) struct FileLock {
    keys: FileLocks,
    key: (u16, FileKey),
}

impl FileLocks {
    pub(crate) fn try_lock(&self, lane: u16, key: FileKey) -> Option<FileLock> {
        self.0.lock().insert((lane, key)).then(|| FileLock { keys: self.clone(), key: (lane, key) })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.keys.0.lock().remove(&self.key);
    }
}

/// An attempt to fetch one file.
pub(crate) struct Job {
    pub(crate) file: FetchFile,
    source: StorageName,
    pub(super) target: Arc<Target>,
    pub(super) at: Pfn,
    pub(super) key: FileKey,
    pub(super) temp: TempName,
    pub(super) origin: OriginId,
    pub(super) state: Mutex<State>,
    /// The temporary file of a large file, once it is open.
    pub(super) open: Mutex<Option<Arc<dyn TargetFile>>>,
    /// Its disk among those of the target, and what is reserved for it there, once that is decided.
    disk: OnceLock<(usize, Arc<Placement>)>,
    /// The copy that is replaced, as far as its chunks may be good.
    pub(super) held: OnceLock<HeldCopy>,
    /// Out-of-order chunks of a large file on append-only storage.
    pub(super) reorder: Option<Mutex<ReorderBuffer<Chunk>>>,
    /// Digests of a large file that cannot be read back, computed as it is written in order.
    pub(super) written_digests: Option<Mutex<Hasher>>,
    file_lock: Mutex<Option<FileLock>>,
    shared: Weak<EngineContext>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) over: bool,
    /// The outcome, reported only when no other part of the engine works on the attempt, so that the next one
    /// finds no trace of it.
    end: Option<Box<AttemptOutcome>>,
    /// Remove the temporary file when nobody works on it any more.
    discard_temp: bool,
    pub(super) session: Option<(Weak<Session>, FileNumber)>,
    pub(super) coverage: Coverage,
    /// Written and not yet flushed: (offset, length).
    pub(super) unflushed: Vec<(u64, u64)>,
    /// A flush of these was requested.
    pub(super) flush_requested: bool,
    /// Verification of a small file, done while it was in memory.
    pub(super) verdict: Option<Success>,
    /// The damaged file that the commit may replace.
    pub(super) replaces: Option<Identity>,
    /// Bytes of an earlier attempt were kept.
    pub(super) resumed: bool,
    /// Taken from the copy that is replaced.
    pub(super) bytes_kept: u64,
    pub(super) bytes_moved: u64,
    pub(super) bytes_resent: u64,
    pub(super) times: AttemptTimeline,
    /// By source, for a file with a hash tree.
    shares: Vec<SourceShare>,
}

impl Job {
    pub(super) fn new(
        file: FetchFile,
        source: StorageName,
        target: Arc<Target>,
        at: Pfn,
        origin: OriginId,
        held: FileLock,
        shared: &Arc<EngineContext>,
    ) -> Job {
        let key = held.key.1;
        let temp = TempName::from_bytes(key.temporary_name(target.agent.0));
        let times = AttemptTimeline { received: shared.wall(), ..AttemptTimeline::default() };
        let is_large = file.size > longhaul_model::limits::SMALL_FILE_BYTES;
        let line = (is_large && target.is_append_only()).then(|| Mutex::new(ReorderBuffer::starting_at(0)));
        // Nothing is resumed there, so that the first byte written is the first byte of the file.
        let is_hashed = line.is_some() && !target.storage.capabilities().reads_temps;
        let written_digests = is_hashed.then(|| verify::sequential_hasher(&file)).flatten().map(Mutex::new);
        Job {
            file,
            source,
            target,
            at,
            key,
            temp,
            origin,
            state: Mutex::new(State { times, ..State::default() }),
            open: Mutex::new(None),
            disk: OnceLock::new(),
            held: OnceLock::new(),
            reorder: line,
            written_digests,
            file_lock: Mutex::new(Some(held)),
            shared: Arc::downgrade(shared),
        }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.file.size <= longhaul_model::limits::SMALL_FILE_BYTES
    }

    /// Whether it is still to be decided on which disk it lies. What replaces a file lies where that does.
    pub(super) fn needs_place(&self) -> bool {
        self.disk.get().is_none() && self.state.lock().replaces.is_none()
    }

    pub(super) fn set_place(&self, disk: usize, placement: Arc<Placement>) {
        // The first decision stands.
        let _ = self.disk.set((disk, placement));
    }

    pub(super) fn is_on_disk(&self, number: usize) -> bool {
        self.disk_number() == number
    }

    /// The first one before that is decided.
    fn disk_number(&self) -> usize {
        self.disk.get().map_or(0, |(number, _)| *number)
    }

    /// Whether its disk has enough to do with what has come, and other disks may have less.
    pub(super) fn waits_for_its_disk(&self) -> bool {
        self.target.has_pools() && self.disk().device.to_write.len() >= DISK_BACKLOG_CHUNKS_MAX
    }

    /// The disk on which it lies.
    pub(super) fn disk(&self) -> &TargetDisk {
        &self.target.disks[self.disk_number()]
    }

    /// How the complete temporary file gets its final name.
    pub(super) fn commit(&self) -> Commit {
        let replaces = self.state.lock().replaces.clone();
        Commit { replaces, ..Commit::new(self.temp.clone(), self.at.clone(), self.file.size) }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.state.lock().coverage.covered_bytes()
    }

    pub(crate) fn has_started(&self) -> bool {
        self.state.lock().times.started.is_some()
    }

    pub(super) fn mark_started(&self, shared: &EngineContext) {
        let at = shared.wall();
        let mut state = self.state.lock();
        if state.over || state.times.started.is_some() {
            return;
        }
        state.times.started = Some(at);
        drop(state);
        let attempt = self.file.attempt;
        tracing::debug!(%attempt, transfer = %self.file.transfer, lfn = self.file.lfn.shown(),
            size = self.file.size, "fetching a file");
        shared.emit(Event::Started { attempt, at });
    }

    /// Payload of this file has arrived.
    pub(super) fn note_arrived(&self, bytes: u64, shared: &EngineContext) {
        let now = shared.wall();
        let mut state = self.state.lock();
        state.bytes_moved += bytes;
        state.times.first_byte.get_or_insert(now);
        state.times.last_byte = Some(now);
    }

    /// Payload that arrived in vain, or has to be fetched again.
    pub(super) fn note_resent(&self, bytes: u64) {
        self.state.lock().bytes_resent += bytes;
    }

    /// Updates the statistics of one source; kept only for files with a hash tree.
    fn update_share(&self, from: OriginNumber, change: impl FnOnce(&mut SourceShare)) {
        if self.file.tree.is_none() {
            return;
        }
        let shares = &mut self.state.lock().shares;
        let place = usize::from(from.0);
        if shares.len() <= place {
            shares.resize_with(place + 1, SourceShare::default);
        }
        change(&mut shares[place]);
    }

    /// Correct bytes came from this source.
    pub(super) fn note_correct(&self, from: OriginNumber, bytes: u64) {
        self.update_share(from, |share| share.bytes += bytes);
    }

    /// Wrong bytes came from this source.
    pub(super) fn note_wrong(&self, from: OriginNumber, offset: u64, len: u64) {
        self.note_resent(len);
        self.update_share(from, |share| {
            if let Err(place) = share.wrong.binary_search(&(offset, len)) {
                share.wrong.insert(place, (offset, len));
            }
        });
    }

    pub(super) fn note_excluded(&self, from: OriginNumber, fault: Fault) {
        tracing::warn!(
            attempt = %self.file.attempt, lfn = self.file.lfn.shown(), replica = from.0,
                fault = %fault.chain(),
            "one of several sources is excluded"
        );
        self.update_share(from, |share| share.excluded = Some(fault));
    }

    /// Ends the attempt, once. What was written is kept if another attempt can use it.
    pub(super) fn fail(&self, fault: Fault, shared: &EngineContext) {
        let discard = !is_resumable(&fault);
        tracing::warn!(
            attempt = %self.file.attempt, transfer = %self.file.transfer, lfn = self.file.lfn.shown(),
                fault = %fault.chain(),
            "an attempt failed"
        );
        self.end(Err(fault), discard, shared);
    }

    pub(super) fn succeed(&self, success: Success, shared: &EngineContext) {
        tracing::debug!(
            attempt = %self.file.attempt, transfer = %self.file.transfer, lfn = self.file.lfn.shown(),
            already_there = success.already_there, "a file is complete"
        );
        let mut state = self.state.lock();
        state.times.committed = Some(shared.wall());
        drop(state);
        self.end(Ok(success), false, shared);
    }

    /// Promise 10: a fault at a source names the source and the file.
    fn name_source(&self, fault: Fault) -> Fault {
        let place = format!("{}:", self.source);
        if fault.blame != Blame::Source || fault.detail.starts_with(&place) {
            return fault;
        }
        let detail = format!("{place}{}: {}", self.file.lfn.shown(), fault.detail);
        Fault::new(fault.code, detail).blaming(fault.blame).retrying(fault.retry).with_source(fault)
    }

    fn end(&self, result: Result<Success, Fault>, discard: bool, shared: &EngineContext) {
        let mut state = self.state.lock();
        if state.over {
            return;
        }
        state.over = true;
        state.discard_temp |= discard;
        let finished = AttemptOutcome {
            attempt: self.file.attempt,
            transfer: self.file.transfer,
            epoch: self.file.epoch,
            result: result.map_err(|fault| self.name_source(fault)),
            bytes_moved: state.bytes_moved,
            bytes_resent: state.bytes_resent,
            times: state.times,
            shares: std::mem::take(&mut state.shares),
            executor: Some(Executor::Engines),
        };
        state.end = Some(Box::new(finished));
        drop(state);
        self.clear_reorder_buffer();
        shared.unregister_attempt(self.file.attempt);
    }

    /// Stops the attempt without an event.
    pub(crate) fn cancel(&self, shared: &EngineContext) {
        let mut state = self.state.lock();
        if state.over {
            return;
        }
        state.over = true;
        state.discard_temp = true;
        let session = state.session.take();
        drop(state);
        self.clear_reorder_buffer();
        tracing::info!(attempt = %self.file.attempt, transfer = %self.file.transfer, "an attempt is \
            cancelled");
        shared.unregister_attempt(self.file.attempt);
        if let Some((session, number)) = session
            && let Some(session) = session.upgrade()
        {
            session.remove_file(number);
        }
    }

    /// Ends the attempt because of a fault on this side, and removes it from its session.
    pub(super) fn abort(&self, fault: Fault, shared: &EngineContext) {
        let session = self.state.lock().session.take();
        if let Some((session, number)) = session
            && let Some(session) = session.upgrade()
        {
            session.remove_file(number);
        }
        self.fail(fault, shared);
    }

    /// The parts of an earlier source file are void: start from scratch.
    pub(super) fn restart(&self) {
        tracing::warn!(
            attempt = %self.file.attempt, transfer = %self.file.transfer, lfn = self.file.lfn.shown(),
            "the source's file has changed since an earlier attempt; starting from scratch"
        );
        *self.open.lock() = None;
        if let Some(line) = &self.reorder {
            *line.lock() = ReorderBuffer::starting_at(0);
        }
        let mut state = self.state.lock();
        state.bytes_resent += state.coverage.covered_bytes();
        state.coverage = Coverage::default();
        state.unflushed.clear();
        state.resumed = false;
    }

    /// Drops the chunks that wait for their turn.
    fn clear_reorder_buffer(&self) {
        if let Some(line) = &self.reorder {
            let waiting = line.lock().drain();
            drop(waiting);
        }
    }

    /// The files are completely written. Files of one target are committed together, which wakes its thread
    /// once.
    pub(super) fn complete(jobs: Vec<Arc<Job>>) {
        let (mut small, mut target) = (Vec::with_capacity(jobs.len()), None::<Arc<Target>>);
        for job in jobs {
            let in_memory = job.state.lock().verdict.is_some();
            if !in_memory {
                job.disk().large_tasks.push(LargeFileTask::Commit(job.clone()));
                continue;
            }
            if let Some(target) = target.replace(job.target.clone())
                && !Arc::ptr_eq(&target, &job.target)
            {
                target.to_commit.put_many(small.drain(..));
            }
            small.push(CommitItem::File(job));
        }
        if let Some(target) = target {
            target.to_commit.put_many(small);
        }
    }

    /// Marks the temporary file for removal when nobody works on it any more.
    pub(super) fn discard(&self) {
        self.state.lock().discard_temp = true;
    }
}

/// Whether what was written can serve a later attempt.
fn is_resumable(fault: &Fault) -> bool {
    let elsewhere = matches!(fault.blame, Blame::Network | Blame::Ourselves | Blame::Credential);
    // A source whose agent is away or was restarted, or that does not send a file, has not changed it.
    let is_silent =
        matches!(fault.code, FaultCode::Unreachable | FaultCode::Stalled | FaultCode::Interrupted);
    (elsewhere && fault.code != FaultCode::Internal) || is_silent
}

impl Drop for Job {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let held = self.file_lock.get_mut().take();
        let farewell = AttemptGuard { held, end: state.end.take(), shared: self.shared.clone() };
        if state.discard_temp {
            self.target.schedule_cleanup(self.temp.clone(), self.key, farewell);
        }
    }
}

/// The end of an attempt: releases the lock on its file, then reports the outcome.
pub(super) struct AttemptGuard {
    held: Option<FileLock>,
    end: Option<Box<AttemptOutcome>>,
    shared: Weak<EngineContext>,
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.held = None;
        if let (Some(end), Some(shared)) = (self.end.take(), self.shared.upgrade())
            // The next start resumes what the end of this process interrupts. A source that says so of itself
            // is another matter: without an end, the attempt would be under way for ever.
            && !(shared.is_stopping()
                && matches!(&end.result, Err(fault) if fault.code == FaultCode::Interrupted))
        {
            shared.emit(Event::Finished(*end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_attempt_may_hold_a_file() {
        let keys = FileLocks::default();
        let key = FileKey([1; 16]);
        let held = keys.try_lock(0, key);
        assert!(held.is_some() && keys.try_lock(0, key).is_none() && keys.try_lock(1, key).is_some());
        drop(held);
        assert!(keys.try_lock(0, key).is_some());
    }

    #[test]
    fn data_spoiled_at_the_source_or_target_is_not_resumed() {
        assert!(is_resumable(&Fault::new(FaultCode::ConnectionLost, "")));
        assert!(is_resumable(&Fault::new(FaultCode::Interrupted, "").blaming(Blame::Source)));
        assert!(is_resumable(&Fault::new(FaultCode::PermitRefused, "")));
        assert!(is_resumable(&Fault::new(FaultCode::Stalled, "").blaming(Blame::Source)));
        assert!(!is_resumable(&Fault::new(FaultCode::WrongDigest, "")));
        assert!(!is_resumable(&Fault::new(FaultCode::TargetFull, "")));
        assert!(!is_resumable(&Fault::new(FaultCode::Internal, "")));
    }
}
