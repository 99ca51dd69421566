//! Writer threads: verify arrived data, write it and journal it.
//!
//! The order is always: data, then its journal record, then the report to the session.

use std::sync::{Arc, Weak};

use longhaul_model::Fault;
use longhaul_model::digest::PartDigest;
use longhaul_storage::TargetFile;
use longhaul_wire::journal::{Record, SourceOpening};
use longhaul_wire::{ChunkHead, FileNumber, OriginNumber, PackedFile, SourceIdentity};

use super::arrival::{Arrival, ArrivalContent};
use super::job::Job;
use super::large_files::LargeFileTask;
use super::session::Session;
use super::target::Target;
use super::verify;
use crate::buffer_pool::Buffer;
use crate::context::EngineContext;
use crate::device::Operation;
use crate::sync::catch_panic;

/// Write-back starts after each such extent: smaller ones cost more system calls, larger ones leave more for
/// the final flush.
const WRITEBACK_BYTES: u64 = 8 << 20;
/// A flush is due after this many bytes: the most that a power failure costs, besides two seconds.
const FLUSH_BYTES: u64 = 128 << 20;

/// A payload to write.
pub(crate) struct WriteJob {
    pub(crate) session: Arc<Session>,
    pub(crate) arrival: Arrival,
}

/// A verified chunk that waits for its turn.
pub(super) struct Chunk {
    session: Arc<Session>,
    buffer: Buffer,
    head: ChunkHead,
    part: PartDigest,
}

impl WriteJob {
    /// Runs in a writer thread.
    pub(crate) fn run(self, shared: &Arc<EngineContext>) {
        let WriteJob { session, arrival } = self;
        let from = arrival.from;
        let jobs: Vec<Weak<Job>> =
            arrival.bytes_by_job().iter().map(|(job, _)| Arc::downgrade(job)).collect();
        let written = catch_panic("writing", || match arrival.content {
            ArrivalContent::Chunk { job, head } => {
                write_chunk((session, from), &job, head, arrival.buffer, arrival.filled, shared);
            }
            ArrivalContent::Held { job, head } => {
                write_held((session, from), &job, head, arrival.buffer, shared);
            }
            // All files of a pack belong to one target.
            ArrivalContent::Pack { files } => {
                let target = files.first().map(|(job, _)| job.target.clone());
                if let Some(target) = target {
                    target.write_pack((&session, from), files, arrival.buffer, shared);
                }
            }
        });
        if let Err(fault) = written {
            jobs.iter().filter_map(Weak::upgrade).for_each(|job| job.abort(fault.clone(), shared));
        }
    }
}

/// Writes a chunk from the copy that is held. If it cannot be read, or is not as it was, it is fetched.
fn write_held(
    (session, from): (Arc<Session>, OriginNumber),
    job: &Arc<Job>,
    head: ChunkHead,
    mut buffer: Buffer,
    shared: &Arc<EngineContext>,
) {
    let Some(copy) = job.held.get() else { return };
    let len = (job.file.size.saturating_sub(head.offset)).min(buffer.len() as u64) as usize;
    let read = job.disk().device.run(Operation::Read, len, || copy.read(&mut buffer[..len], head.offset));
    let is_held = match read {
        Ok(()) => crc32c::crc32c(&buffer[..len]) == head.crc32c,
        Err(fault) => {
            tracing::warn!(attempt = %job.file.attempt, at = %job.at, offset = head.offset,
                fault = %fault.chain(), "a chunk that was held cannot be read again; it is fetched");
            false
        }
    };
    if !is_held {
        drop(buffer);
        return session.chunk_not_held(head.file, head.offset);
    }
    job.state.lock().bytes_kept += len as u64;
    write_chunk((session, from), job, head, buffer, len, shared);
}

fn write_chunk(
    (session, from): (Arc<Session>, OriginNumber),
    job: &Arc<Job>,
    head: ChunkHead,
    buffer: Buffer,
    len: usize,
    shared: &Arc<EngineContext>,
) {
    if job.is_over() {
        return;
    }
    let part = PartDigest::compute(&buffer[..len]);
    if part.crc32c != head.crc32c {
        drop(buffer);
        return report_damaged(&session, job, head.file, head.offset, part.len);
    }
    if !matches_tree(job, head.offset, &buffer[..len]) {
        drop(buffer);
        return report_wrong((&session, from), job, head.file, head.offset, part.len);
    }
    job.note_correct(from, part.len);
    let chunk = Chunk { session, buffer, head, part };
    let Some(line) = &job.reorder else {
        job.target.write_verified(job, chunk, shared, || ());
        return;
    };
    line.lock().push(head.offset, chunk);
    // The writer that finds the head of line writes it, and all that waited for it.
    loop {
        let next = line.lock().take_next();
        let Some(chunk) = next else { return };
        if let Some(hasher) = &job.written_digests {
            hasher.lock().update(&chunk.buffer[..chunk.part.len as usize]);
        }
        let end = chunk.head.offset + chunk.part.len;
        if !job.target.write_verified(job, chunk, shared, || line.lock().written(end)) {
            return;
        }
    }
}

impl Target {
    /// Calls `next` when other writers may proceed, before the session is told. False if the file failed.
    fn write_verified(
        &self,
        job: &Arc<Job>,
        chunk: Chunk,
        shared: &Arc<EngineContext>,
        next: impl FnOnce(),
    ) -> bool {
        if job.is_over() {
            return false;
        }
        let Chunk { session, buffer, head, part } = chunk;
        let put = self.write_and_journal(job, &buffer[..part.len as usize], &head, part, shared);
        // Its slot has to be free before the session requests more.
        drop(buffer);
        match put {
            Ok(()) => {
                next();
                session.chunks_written(&[(head.file, head.offset)]);
                true
            }
            Err(fault) => {
                job.abort(fault, shared);
                false
            }
        }
    }

    fn write_and_journal(
        &self,
        job: &Arc<Job>,
        bytes: &[u8],
        head: &ChunkHead,
        part: PartDigest,
        shared: &EngineContext,
    ) -> Result<(), Fault> {
        let file = self.open(job, head.identity, shared)?;
        job.disk().device.run(Operation::Write, bytes.len(), || file.write_at(bytes, head.offset))?;
        let end = head.offset + part.len;
        if end.is_multiple_of(WRITEBACK_BYTES) {
            file.begin_writeback(end - WRITEBACK_BYTES, WRITEBACK_BYTES);
        }
        self.journal.append(&[Record::Written { key: job.key, offset: head.offset, part }])?;
        let mut state = job.state.lock();
        if !state.coverage.add(head.offset, part) {
            tracing::error!(attempt = %job.file.attempt, offset = head.offset, "a chunk was written twice");
        }
        let first = state.unflushed.is_empty();
        state.unflushed.push((head.offset, part.len));
        let due = !state.flush_requested
            && state.unflushed.iter().map(|extent| extent.1).sum::<u64>() >= FLUSH_BYTES;
        state.flush_requested |= due;
        drop(state);
        if first {
            self.unflushed.lock().push((Arc::downgrade(job), shared.now()));
        }
        if due {
            job.disk().large_tasks.push(LargeFileTask::Flush(job.clone()));
        }
        Ok(())
    }

    /// The temporary file of a large file, created for its first chunk.
    fn open(
        &self,
        job: &Job,
        identity: SourceIdentity,
        shared: &EngineContext,
    ) -> Result<Arc<dyn TargetFile>, Fault> {
        let mut open = job.open.lock();
        if let Some(file) = &*open {
            return Ok(file.clone());
        }
        self.journal.void_durably(job.key)?;
        let file: Arc<dyn TargetFile> =
            Arc::from(self.storage.create(&job.temp, Some(&job.at), job.file.size)?);
        self.journal
            .append(&[Record::Open { key: job.key, opened: source_opening(job, identity, shared) }])?;
        *open = Some(file.clone());
        Ok(file)
    }

    fn write_pack(
        &self,
        (session, from): (&Arc<Session>, OriginNumber),
        files: Vec<(Arc<Job>, PackedFile)>,
        buffer: Buffer,
        shared: &Arc<EngineContext>,
    ) {
        let mut records = Vec::with_capacity(files.len());
        let mut written: Vec<(FileNumber, u64)> = Vec::with_capacity(files.len());
        let (mut bad, mut other) = (Vec::new(), Vec::new());
        for (job, packed) in &files {
            if job.is_over() {
                continue;
            }
            let bytes = &buffer[packed.at as usize..(packed.at + packed.size) as usize];
            let part = PartDigest::compute(bytes);
            if part.crc32c != packed.crc32c {
                bad.push((job, packed));
                continue;
            }
            if !matches_tree(job, 0, bytes) {
                other.push((job, packed));
                continue;
            }
            job.note_correct(from, part.len);
            // Each file passes the gate by itself: a narrow gate must not admit hundreds at once.
            match job.disk().device.run(Operation::Write, 0, || self.write_small(job, bytes, part)) {
                Ok(()) => {
                    records.push(Record::Whole {
                        key: job.key,
                        opened: source_opening(job, packed.identity, shared),
                        part,
                    });
                    written.push((packed.file, 0));
                }
                Err(fault) => job.abort(fault, shared),
            }
        }
        drop(buffer);
        for (job, packed) in bad {
            report_damaged(session, job, packed.file, 0, packed.size.into());
        }
        for (job, packed) in other {
            report_wrong((session, from), job, packed.file, 0, packed.size.into());
        }
        if let Err(fault) = self.journal.append(&records) {
            files.iter().for_each(|(job, _)| job.abort(fault.clone(), shared));
        }
        session.chunks_written(&written);
    }

    /// Verifies a small file in memory, then writes it.
    fn write_small(&self, job: &Job, bytes: &[u8], part: PartDigest) -> Result<(), Fault> {
        let in_memory = verify::check_memory(&job.file, bytes, part)?;
        let written = if job.file.verification == longhaul_model::Verification::Readback {
            let file = self.storage.create(&job.temp, Some(&job.at), job.file.size)?;
            let reread = || verify::check_readback(&job.file, &*file, part, false, &|| false);
            file.write_at(bytes, 0).and_then(|()| reread())
        } else {
            let item = job.commit();
            self.storage.put(&item, bytes).map(|()| in_memory)
        };
        // Nothing of it is worth keeping, whatever the fault.
        let verdict = written.inspect_err(|_| job.discard())?;
        let mut state = job.state.lock();
        state.coverage.add(0, part);
        state.verdict = Some(verdict);
        Ok(())
    }
}

fn report_damaged(session: &Arc<Session>, job: &Job, file: FileNumber, offset: u64, len: u64) {
    tracing::warn!(
        attempt = %job.file.attempt, transfer = %job.file.transfer, lfn = job.file.lfn.shown(), offset,
        "a chunk arrived damaged"
    );
    job.note_resent(len);
    session.chunk_damaged(file, offset);
}

/// Whether the bytes match the hash tree, if there is one.
fn matches_tree(job: &Job, offset: u64, bytes: &[u8]) -> bool {
    job.file.tree.as_ref().is_none_or(|tree| tree.fits(offset, bytes))
}

/// The bytes match their checksum but not the file: their source is to blame.
fn report_wrong(
    (session, from): (&Arc<Session>, OriginNumber),
    job: &Job,
    file: FileNumber,
    offset: u64,
    len: u64,
) {
    tracing::warn!(
        attempt = %job.file.attempt, transfer = %job.file.transfer, lfn = job.file.lfn.shown(), offset,
        replica = from.0, "a source sent bytes that are not those of the file"
    );
    job.note_wrong(from, offset, len);
    session.chunk_wrong(file, offset, from);
}

fn source_opening(job: &Job, identity: SourceIdentity, shared: &EngineContext) -> SourceOpening {
    SourceOpening { at: shared.wall(), origin: job.origin, identity }
}
