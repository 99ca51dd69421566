//! Preparation before anything is requested: is the file present already, and what is left of an earlier
//! attempt?

use std::sync::{Arc, Weak};

use longhaul_model::digest::PartDigest;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::mark::Treatment;
use longhaul_model::{Fault, FaultCode, Mark, Retry, Timestamp, Verification};
use longhaul_storage::{Identity, TargetFile};
use longhaul_wire::journal::{JournalEntry, OriginId, Record};
use longhaul_wire::{Coverage, FileKey, NewBatch, NewFile, SourceIdentity, Wanted};

use super::held_copy::HeldCopy;
use super::job::Job;
use super::reorder_buffer::ReorderBuffer;
use super::sources::{SourceList, replicas};
use super::target::Target;
use super::verify::{self, ChunkObserver};
use crate::context::EngineContext;
use crate::interface::{FetchBatch, FetchFile, Success};
use crate::sync::catch_panic;

/// A batch as submitted, with its jobs.
pub(crate) struct AcceptedBatch {
    pub(crate) batch: FetchBatch,
    /// Parallel to the batch's files; none for files that ended at once or are withheld.
    pub(crate) jobs: Vec<Option<Arc<Job>>>,
}

/// What remains to be done for a file.
enum Preparation {
    Fetch {
        wanted: Wanted,
        identity: Option<SourceIdentity>,
    },
    /// The temporary file is complete.
    Complete,
    AlreadyThere(Success),
}

impl Target {
    /// Creates the jobs of a batch without touching the storage. Files that cannot be fetched at all end
    /// here.
    pub(crate) fn accept(self: &Arc<Self>, batch: FetchBatch, shared: &Arc<EngineContext>) -> AcceptedBatch {
        let received = shared.wall();
        let jobs = batch.files.iter().map(|file| self.accept_file(file, &batch, received, shared)).collect();
        AcceptedBatch { batch, jobs }
    }

    fn accept_file(
        self: &Arc<Self>,
        file: &FetchFile,
        batch: &FetchBatch,
        received: Timestamp,
        shared: &Arc<EngineContext>,
    ) -> Option<Arc<Job>> {
        if batch.withheld.contains(&file.attempt) {
            return None;
        }
        let refuse = |fault: Fault| {
            shared.refuse_attempt(file, received, fault);
            None
        };
        if file.size > longhaul_model::limits::FILE_BYTES_MAX {
            return refuse(Fault::new(FaultCode::TooLarge, format!("{} bytes", file.size)));
        }
        let at = match self.rules.to_pfn(self.storage.name(), &file.lfn) {
            Ok(at) => at,
            Err(error) => {
                return refuse(Fault::from(error).blaming(longhaul_model::Blame::Target));
            }
        };
        if file.tree.as_ref().is_some_and(|tree| tree.size() != file.size) {
            return refuse(Fault::new(FaultCode::BadRequest, "the hash tree is for a file of another size"));
        }
        let key = FileKey::derive(self.storage.name(), &file.lfn, file.size, &file.digests);
        let Some(held) = shared.file_locks.try_lock(self.lane, key) else {
            return refuse(Fault::new(FaultCode::Busy, "another attempt works on the same file"));
        };
        let job = Arc::new(Job::new(
            file.clone(),
            batch.source_storage.clone(),
            self.clone(),
            at,
            origin_id(batch, file),
            held,
            shared,
        ));
        if shared.register_attempt(&job) {
            Some(job)
        } else {
            tracing::warn!(attempt = %file.attempt, "an attempt was submitted twice; the second is ignored");
            None
        }
    }

    /// Runs the preparing thread.
    pub(crate) fn run_preparer(self: &Arc<Self>, shared: &Arc<EngineContext>) {
        while let Some(prepare) = self.to_prepare.take() {
            let jobs: Vec<Weak<Job>> = prepare.jobs.iter().flatten().map(Arc::downgrade).collect();
            if let Err(fault) = catch_panic("preparing a batch", || self.prepare(prepare, shared)) {
                jobs.iter().filter_map(Weak::upgrade).for_each(|job| job.fail(fault.clone(), shared));
            }
        }
    }

    fn prepare(self: &Arc<Self>, prepare: AcceptedBatch, shared: &Arc<EngineContext>) {
        let AcceptedBatch { batch, jobs } = prepare;
        let _told_together = shared.events.batch();
        let mut listed = Vec::with_capacity(batch.files.len());
        let mut wanted_jobs = Vec::new();
        for (place, (file, job)) in batch.files.iter().zip(jobs).enumerate() {
            let mut new = NewFile {
                attempt: file.attempt,
                transfer: file.transfer,
                lfn: file.lfn.clone(),
                size: file.size,
                priority: file.priority,
                wanted: Wanted::Nothing,
                identity: None,
                checked: file.tree.is_some(),
                held_crc32c: None,
            };
            if let Some(job) = job.filter(|job| !job.is_over()) {
                match self.inspect(&job, batch.start_by, shared) {
                    Err(fault) => job.fail(fault, shared),
                    Ok(Preparation::AlreadyThere(success)) => {
                        job.mark_started(shared);
                        job.succeed(success, shared);
                    }
                    Ok(Preparation::Complete) => {
                        job.mark_started(shared);
                        Job::complete(vec![job]);
                    }
                    Ok(Preparation::Fetch { wanted, identity }) => {
                        new.wanted = wanted;
                        new.identity = identity;
                        new.held_crc32c = job.held.get().map(|copy| copy.crc32c.clone());
                        wanted_jobs.push((place, job));
                    }
                }
            }
            listed.push(new);
        }
        if wanted_jobs.is_empty() {
            return;
        }
        let (sources, replicas) = (SourceList::from_batch(&batch), replicas(&batch));
        let new = NewBatch {
            replicas,
            permit: batch.permit,
            storage: batch.source_storage,
            lane: self.lane,
            in_order: self.is_append_only(),
            start_by: batch.start_by,
            files: listed,
        };
        // Without marking, all work shares the same streams.
        let mark = if shared.marks.is_some() { batch.mark } else { Mark::default() };
        let treatment = Treatment { mark, class: batch.class, circuits: batch.circuits };
        shared.add_to_session(&sources, treatment, new, wanted_jobs);
    }

    fn inspect(
        &self,
        job: &Arc<Job>,
        start_by: Timestamp,
        shared: &EngineContext,
    ) -> Result<Preparation, Fault> {
        if shared.wall() > start_by {
            return Err(Fault::new(FaultCode::LeaseExpired, "the file waited too long at the target"));
        }
        if !self.storage.capabilities().writable {
            return Err(Fault::new(
                FaultCode::TargetReadOnly,
                format!("{} is exported for reading only", self.storage.name()),
            ));
        }
        let capabilities = self.storage.capabilities();
        if job.file.verification == Verification::Readback
            && !capabilities.reads_temps
            && !capabilities.discards
        {
            let detail = format!(
                "{} cannot read a file back before it is complete: choose end-to-end as the verification",
                self.storage.name()
            );
            return Err(Fault::new(FaultCode::TargetWrite, detail).retrying(Retry::Never));
        }
        if let Some(present) = self.storage.stat_target(&job.at).map_err(verify::blame_target)? {
            let mut checksums = Vec::new();
            let may_be_used = self.may_use_chunks(job);
            let mut observe = |chunk: &[u8]| {
                if may_be_used {
                    checksums.push(Some(crc32c::crc32c(chunk)));
                }
            };
            let compared = self.compare_present(job, present.size, &mut observe, shared);
            match compared {
                Ok(success) => return Ok(Preparation::AlreadyThere(success)),
                Err(fault) => self.replace_damaged(job, present, checksums, fault, shared)?,
            }
        }
        self.resume(job, shared)
    }

    /// Whether chunks of a damaged copy would be taken.
    fn may_use_chunks(&self, job: &Job) -> bool {
        job.file.replaces_damaged
            && HeldCopy::is_possible(job.file.size)
            && !self.distrusted_copies.lock().contains(&job.key)
    }

    /// Lets the commit replace the file that was just found to be another than the wanted one, if that is
    /// expected and the new one can be proven right; otherwise it stays, for `why`. `checksums` are those of
    /// the chunks that were read when it was compared.
    fn replace_damaged(
        &self,
        job: &Job,
        present: Identity,
        checksums: Vec<Option<u32>>,
        why: Fault,
        shared: &EngineContext,
    ) -> Result<(), Fault> {
        if !job.file.replaces_damaged || job.file.digests.is_empty() {
            return Err(why);
        }
        tracing::info!(attempt = %job.file.attempt, at = %job.at, why = %why.chain(), "a damaged file is \
            fetched again; it is replaced when the new one is verified");
        job.state.lock().replaces = Some(present);
        if !self.may_use_chunks(job) {
            return Ok(());
        }
        let copy = self.storage.open(&job.at).map_err(verify::blame_target)?;
        let given_up = || shared.is_stopping() || job.is_over();
        let copy = HeldCopy::read_rest(Arc::from(copy), job.file.size, checksums, &given_up)?;
        let _ = job.held.set(copy);
        Ok(())
    }

    /// A file has the final name: fine if it is the wanted one.
    pub(super) fn compare_present(
        &self,
        job: &Job,
        size: u64,
        observe: ChunkObserver<'_>,
        shared: &EngineContext,
    ) -> Result<Success, Fault> {
        let expected = &job.file.digests;
        let clash = |why: String| Err(Fault::new(FaultCode::NameClash, format!("{}: {why}", job.at)));
        if size != job.file.size {
            return clash(format!("it has {size} bytes, {} are expected", job.file.size));
        }
        if expected.is_empty() {
            return clash("there is no digest to compare it with".into());
        }
        let present = self.storage.open(&job.at).map_err(verify::blame_target)?;
        let given_up = || shared.is_stopping() || job.is_over();
        let Some(found) = verify::digest_present(&*present, expected.algorithms(), &given_up, observe)?
        else {
            return clash("it changed while it was compared".into());
        };
        if let Some((wanted, is)) = expected.contradiction(&found) {
            return clash(format!("it has {is}, {wanted} is expected"));
        }
        // An earlier commit may have been interrupted between its renames and its flush.
        self.storage.flush_present(std::slice::from_ref(&job.at)).map_err(verify::blame_target)?;
        tracing::debug!(attempt = %job.file.attempt, at = %job.at, wall = %shared.wall(), "the file is there \
            already");
        Ok(Success { digests: found, verification: Verification::Readback, already_there: true })
    }

    fn resume(&self, job: &Arc<Job>, shared: &EngineContext) -> Result<Preparation, Fault> {
        let anew = || Ok(Preparation::Fetch { wanted: Wanted::Everything, identity: None });
        let Some(entry) = self.journal.entry(&job.key).filter(|entry| entry.opened.origin == job.origin)
        else {
            return anew();
        };
        let Some(file) = self.storage.reopen(&job.temp, job.file.size).map_err(verify::blame_target)? else {
            return anew();
        };
        let mut coverage = trusted_coverage(&*file, &entry, job.file.size);
        let mut file: Arc<dyn TargetFile> = Arc::from(file);
        if let Some(line) = &job.reorder {
            let Some((prefix, kept)) = self.resume_append_only(job, file, &coverage, &entry, shared)? else {
                return anew();
            };
            file = kept;
            *line.lock() = ReorderBuffer::starting_at(prefix.len);
            coverage = Coverage::default();
            coverage.add(0, prefix);
        }
        let covered = coverage.covered_bytes();
        tracing::debug!(attempt = %job.file.attempt, covered, size = job.file.size, "resuming a file");
        if job.is_small() && covered < job.file.size {
            return anew();
        }
        let gaps = coverage.gaps(job.file.size);
        let written: u64 = entry.written.values().map(|part| part.len).sum();
        let mut state = job.state.lock();
        state.coverage = coverage;
        // Untrusted parts are fetched a second time.
        state.bytes_resent += (entry.durable.covered_bytes() + written).saturating_sub(covered);
        state.resumed = covered > 0;
        drop(state);
        *job.open.lock() = Some(file);
        if gaps.is_empty() {
            return Ok(Preparation::Complete);
        }
        Ok(Preparation::Fetch { wanted: Wanted::Parts(gaps), identity: Some(entry.opened.identity) })
    }
}

/// The valid prefix of an append-only file, and the file to continue with.
type ResumedPrefix = (PartDigest, Arc<dyn TargetFile>);

impl Target {
    /// The valid prefix of an append-only file, and the file to continue with. None if there is nothing to
    /// continue from.
    ///
    /// A crash may have left bytes beyond the last journal record. They cannot be overwritten, so the valid
    /// prefix is copied to a new temporary file, which is cheaper than fetching it again.
    fn resume_append_only(
        &self,
        job: &Arc<Job>,
        file: Arc<dyn TargetFile>,
        coverage: &Coverage,
        entry: &JournalEntry,
        shared: &EngineContext,
    ) -> Result<Option<ResumedPrefix>, Fault> {
        let Some(prefix) = coverage.runs().next().filter(|run| run.0 == 0).map(|run| run.1) else {
            return Ok(None);
        };
        let there = |offset: u64| file.read_at(&mut [0], offset).map(|read| read == 1);
        if !there(prefix.len - 1).map_err(verify::blame_target)? {
            return Ok(None);
        }
        if !there(prefix.len).map_err(verify::blame_target)? {
            return Ok(Some((prefix, file)));
        }
        tracing::debug!(attempt = %job.file.attempt, covered = prefix.len, "copying the valid prefix of a \
            file");
        self.journal.void_durably(job.key)?;
        let new: Arc<dyn TargetFile> =
            Arc::from(self.storage.create(&job.temp, Some(&job.at), job.file.size)?);
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut copied = PartDigest::EMPTY;
        while copied.len < prefix.len {
            let most = (prefix.len - copied.len).min(buffer.len() as u64) as usize;
            let read = file.read_at(&mut buffer[..most], copied.len).map_err(verify::blame_target)?;
            if read == 0 || shared.is_stopping() || job.is_over() {
                return Ok(None);
            }
            new.write_at(&buffer[..read], copied.len)?;
            copied = copied.then(PartDigest::compute(&buffer[..read]));
        }
        if copied != prefix {
            return Ok(None);
        }
        let written = Record::Written { key: job.key, offset: 0, part: prefix };
        self.journal.append(&[Record::Open { key: job.key, opened: entry.opened }, written])?;
        job.state.lock().unflushed.push((0, prefix.len));
        self.unflushed.lock().push((Arc::downgrade(job), shared.now()));
        Ok(Some((prefix, new)))
    }
}

/// The valid extents of an entry: flushed ones, and written ones whose checksum still matches.
fn trusted_coverage(file: &dyn TargetFile, entry: &JournalEntry, size: u64) -> Coverage {
    let mut coverage = entry.durable.clone();
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for (&offset, part) in &entry.written {
        let fits = offset.checked_add(part.len).is_some_and(|end| end <= size);
        if fits && verify_extent(file, offset, part, &mut buffer) {
            coverage.add(offset, *part);
        }
    }
    require_chunk_boundaries(coverage, size)
}

/// Extents are requested in whole chunks. All our records are at chunk boundaries; any other entry is not
/// ours.
fn require_chunk_boundaries(coverage: Coverage, size: u64) -> Coverage {
    let chunk = u64::from(CHUNK_BYTES);
    let fits = |offset: u64, len: u64| {
        let end = offset + len;
        offset.is_multiple_of(chunk) && end <= size && (end.is_multiple_of(chunk) || end == size)
    };
    if coverage.runs().all(|(offset, part)| fits(offset, part.len)) { coverage } else { Coverage::default() }
}

fn verify_extent(file: &dyn TargetFile, offset: u64, expected: &PartDigest, buffer: &mut [u8]) -> bool {
    let mut found = PartDigest::EMPTY;
    while found.len < expected.len {
        let most = (expected.len - found.len).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..most], offset + found.len) {
            Ok(read) if read > 0 => found = found.then(PartDigest::compute(&buffer[..read])),
            _ => return false,
        }
    }
    found == *expected
}

/// Identifies the origin of the bytes in the journal: parts of two replicas are never mixed, unless both were
/// verified with the same hash tree.
fn origin_id(batch: &FetchBatch, file: &FetchFile) -> OriginId {
    let mut text = Vec::new();
    match &file.tree {
        Some(tree) => text.extend_from_slice(tree.root().to_string().as_bytes()),
        None => {
            text.extend_from_slice(&batch.source_agent.0.to_le_bytes());
            text.extend_from_slice(batch.source_storage.as_str().as_bytes());
        }
    }
    let mut hasher = longhaul_model::Hasher::new([longhaul_model::Algorithm::Blake3]);
    hasher.update(&text);
    let mut short = [0; 8];
    if let Some(whole) = hasher.finish().get(longhaul_model::Algorithm::Blake3) {
        short.copy_from_slice(&whole.value()[..8]);
    }
    OriginId(u64::from_le_bytes(short))
}
