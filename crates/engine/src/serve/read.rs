//! Reader threads of one storage: fill buffers and pass them to streams; an LRU cache keeps large files open.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode, Lfn};
use longhaul_storage::{DirectoryCache, Identity, SourceFile};
use longhaul_wire::source::JoinedStream;
use longhaul_wire::{ChunkHead, FileNumber, Frame, PackEntry, PackHead, RequestId, SourceIdentity};
use parking_lot::Mutex;

use super::{ServedExport, ServedFile, ServedSession};
use crate::buffer_pool::Buffer;
use crate::device::{Device, Operation};
use crate::net::{Link, Outgoing, Payload};
use crate::sync::catch_panic;

/// Large files that a session keeps open between chunks.
const OPEN_FILES_MAX: usize = 32;

pub(crate) struct ReadJob {
    pub(crate) serving: Arc<ServedSession>,
    pub(crate) exported: Arc<ServedExport>,
    pub(crate) link: Arc<Link>,
    pub(crate) stream: JoinedStream,
    pub(crate) request: RequestId,
    /// The files of a batch that was forgotten meanwhile are only numbers.
    pub(crate) files: Vec<Result<ServedFile, FileNumber>>,
    pub(crate) reading: ReadKind,
    pub(crate) buffer: Buffer,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadKind {
    Chunk {
        offset: u64,
        len: u32,
        /// CRC-32C of the chunk as the receiver holds it.
        held_crc32c: Option<u32>,
    },
    Pack,
}

/// An LRU cache of the open files of one session.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Mutex<BTreeMap<(FileNumber, Lfn), OpenFile>>,
}

struct OpenFile {
    /// The larger, the more recently used.
    used: u64,
    file: Arc<dyn SourceFile>,
}

impl OpenFiles {
    fn get(
        &self,
        wanted: &ServedFile,
        open: impl FnOnce() -> Result<Arc<dyn SourceFile>, Fault>,
    ) -> Result<Arc<dyn SourceFile>, Fault> {
        let key = (wanted.number, wanted.lfn.clone());
        let mut files = self.files.lock();
        let newest = files.values().map(|open| open.used).max().unwrap_or(0) + 1;
        if let Some(open) = files.get_mut(&key) {
            open.used = newest;
            return Ok(open.file.clone());
        }
        // Two readers may open the same file at once; both check their opening, and one is kept.
        drop(files);
        let file = open()?;
        let mut files = self.files.lock();
        if files.len() >= OPEN_FILES_MAX
            && let Some(oldest) = files.iter().min_by_key(|(_, open)| open.used).map(|(key, _)| key.clone())
        {
            files.remove(&oldest);
        }
        files.insert(key, OpenFile { used: newest, file: file.clone() });
        Ok(file)
    }

    fn remove(&self, file: &ServedFile) {
        self.files.lock().remove(&(file.number, file.lfn.clone()));
    }

    pub(crate) fn clear(&self) {
        self.files.lock().clear();
    }
}

impl ReadJob {
    /// Runs in a reader thread of the device.
    pub(crate) fn run(self, device: &Device) {
        let (serving, stream) = (self.serving.clone(), self.stream);
        let (link, request, files) = (self.link.clone(), self.request, self.files.len());
        let exported = self.exported.clone();
        if let Err(fault) = catch_panic("reading", || exported.serve(self, device)) {
            // The peer waits for an answer of this kind, whatever went wrong here.
            link.close(Some(fault));
            serving.payload_sent(stream, 0);
            tracing::error!(files, request = request.0, "a read was given up");
        }
    }
}

impl ServedExport {
    fn serve(&self, job: ReadJob, device: &Device) {
        match job.reading {
            ReadKind::Chunk { offset, len, held_crc32c } => {
                self.serve_chunk(job, device, (offset, len), held_crc32c);
            }
            ReadKind::Pack => self.serve_pack(job, device),
        }
    }

    fn serve_chunk(
        &self,
        mut job: ReadJob,
        device: &Device,
        (offset, len): (u64, u32),
        held_crc32c: Option<u32>,
    ) {
        let (file, result) = match job.files.pop() {
            Some(Ok(file)) => {
                let buffer = &mut job.buffer[..len as usize];
                let read = || self.read_chunk(&job.serving, &file, buffer, offset);
                let result = device.run(Operation::Read, len as usize, read);
                if let Err(fault) = &result {
                    warn(&job.serving, &file, fault);
                    job.serving.open_files.remove(&file);
                }
                (file.number, result)
            }
            Some(Err(number)) => (number, Err(batch_forgotten())),
            None => return,
        };
        match result {
            Ok(identity) => {
                let crc32c = crc32c::crc32c(&job.buffer[..len as usize]);
                let head = ChunkHead { request: job.request, file, offset, crc32c, identity };
                if held_crc32c == Some(crc32c) {
                    job.link.send_frame(&Frame::Unchanged(head));
                    drop(job.buffer);
                    job.serving.chunk_unchanged(job.stream, len);
                } else {
                    send(job, Frame::Data(head), len as usize);
                }
            }
            Err(fault) => {
                job.link.send_frame(&Frame::FileFault { request: job.request, file, fault });
                drop(job.buffer);
                job.serving.abandon_request(job.stream, job.request);
                job.serving.payload_sent(job.stream, 0);
            }
        }
    }

    fn read_chunk(
        &self,
        serving: &ServedSession,
        file: &ServedFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<SourceIdentity, Fault> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > file.size) {
            return Err(Fault::new(
                FaultCode::ProtocolError,
                "bytes behind the end of the file were asked for",
            ));
        }
        let open = serving.open_files.get(file, || self.open(serving, file, None).map(Arc::from))?;
        let identity = open.identity();
        check_size(file, &identity)?;
        open.read_exact_at(buffer, offset)?;
        check_unchanged(&*open, &identity)?;
        Ok(to_source_identity(&identity))
    }

    fn serve_pack(&self, mut job: ReadJob, device: &Device) {
        let mut entries = Vec::with_capacity(job.files.len());
        let mut at = 0;
        let mut directory_cache = DirectoryCache::default();
        for file in std::mem::take(&mut job.files) {
            let file = match file {
                Ok(file) => file,
                Err(number) => {
                    entries.push(PackEntry::Fault { file: number, fault: batch_forgotten() });
                    continue;
                }
            };
            let read = || self.read_small(&job.serving, &file, &mut directory_cache, &mut job.buffer[at..]);
            match device.run(Operation::Read, 0, read) {
                Ok(identity) => {
                    let end = at + file.size as usize;
                    let crc32c = crc32c::crc32c(&job.buffer[at..end]);
                    entries.push(PackEntry::Whole {
                        file: file.number,
                        size: file.size as u32,
                        crc32c,
                        identity,
                    });
                    at = end;
                }
                Err(fault) => {
                    warn(&job.serving, &file, &fault);
                    entries.push(PackEntry::Fault { file: file.number, fault });
                }
            }
        }
        let head = PackHead { request: job.request, entries };
        send(job, Frame::PackData(head), at);
    }

    fn read_small(
        &self,
        serving: &ServedSession,
        file: &ServedFile,
        directory_cache: &mut DirectoryCache,
        buffer: &mut [u8],
    ) -> Result<SourceIdentity, Fault> {
        let len = usize::try_from(file.size).ok().filter(|&len| len <= buffer.len());
        let buffer = len.and_then(|len| buffer.get_mut(..len)).ok_or_else(|| {
            Fault::new(FaultCode::ProtocolError, "the files of a pack do not fit into a chunk")
        })?;
        let open = self.open(serving, file, Some(directory_cache))?;
        let identity = open.identity();
        check_size(file, &identity)?;
        open.read_exact_at(buffer, 0)?;
        check_unchanged(&*open, &identity)?;
        Ok(to_source_identity(&identity))
    }

    fn open(
        &self,
        serving: &ServedSession,
        file: &ServedFile,
        directory_cache: Option<&mut DirectoryCache>,
    ) -> Result<Box<dyn SourceFile>, Fault> {
        tracing::debug!(
            target_agent = %serving.peer(), attempt = %file.attempt, transfer = %file.transfer,
                lfn = file.lfn.shown(),
            "serving a file"
        );
        let storage = &self.export.storage;
        let at =
            self.export.rules.to_pfn(storage.name(), &file.lfn).map_err(|error| {
                Fault::new(FaultCode::SourceMissing, error.to_string()).with_source(error)
            })?;
        match directory_cache {
            Some(directory_cache) => storage.open_with_cache(&at, directory_cache),
            None => storage.open(&at),
        }
    }
}

fn send(job: ReadJob, frame: Frame, len: usize) {
    let head = frame.encode(len as u32);
    let payload = Payload::new(job.buffer, len, job.serving, job.stream);
    job.link.send(Outgoing { head, payload: Some(payload), call: None });
}

fn batch_forgotten() -> Fault {
    Fault::new(FaultCode::PermitRefused, "the batch of this file was given up")
}

fn warn(serving: &ServedSession, file: &ServedFile, fault: &Fault) {
    tracing::warn!(
        target_agent = %serving.peer(), attempt = %file.attempt, transfer = %file.transfer,
            lfn = file.lfn.shown(), fault = %fault.chain(),
        "a file could not be served"
    );
}

fn to_source_identity(identity: &Identity) -> SourceIdentity {
    SourceIdentity { size: identity.size, mtime_ns: identity.mtime_ns, inode: identity.inode }
}

fn check_size(file: &ServedFile, identity: &Identity) -> Result<(), Fault> {
    let detail = || format!("{} has {} bytes, {} are registered", file.lfn.shown(), identity.size, file.size);
    match identity.size.cmp(&file.size) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(Fault::new(FaultCode::SourceTruncated, detail())),
        std::cmp::Ordering::Greater => Err(Fault::new(FaultCode::SourceChanged, detail())),
    }
}

fn check_unchanged(open: &dyn SourceFile, before: &Identity) -> Result<(), Fault> {
    let now = open.identity_now()?;
    if now == *before {
        return Ok(());
    }
    let code = if now.size < before.size { FaultCode::SourceTruncated } else { FaultCode::SourceChanged };
    Err(Fault::new(code, format!("it was {before}, it is {now} (size:mtime:inode)")))
}
