//! One pool: its state, what it has to do, and a file that is being written in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use longhaul_model::{Blame, Fault, FaultCode, PoolState};
use parking_lot::Mutex;

use super::PoolClock;
use super::choice::Candidate;
use super::pool_load::PoolLoad;
use crate::{Capabilities, Space, Storage, TargetFile};

/// How long a pool that failed to take a file comes last.
const REST_TIME: Duration = Duration::from_secs(60);

/// Opens the storage of one pool.
pub type PoolOpener = Box<dyn Fn() -> Result<Arc<dyn Storage>, Fault> + Send + Sync>;

/// A pool to be opened.
pub struct PoolOptions {
    /// Unique in the storage; what people call it.
    pub name: String,
    /// Opens its files, by the name of the whole storage: at the start, and as long as it is out of service.
    pub open: PoolOpener,
    /// What it is for.
    pub state: PoolState,
}

/// What is known of a pool at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolStatus {
    /// Unique in the storage.
    pub name: String,
    /// What it is for.
    pub state: PoolState,
    /// None where it cannot be told.
    pub space: Option<Space>,
    /// Promised to files that are being written, and not yet written.
    pub waiting_bytes: u64,
    /// Bytes per second of the time in which it had something to write; none before the first measurement.
    pub bytes_per_s: Option<f64>,
    /// Why it is out of service, or failed to take a file within the last minute.
    pub fault: Option<Fault>,
    /// How far its draining is, once that has begun.
    pub drain: Option<DrainStatus>,
}

/// How far the draining of a pool is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainStatus {
    /// Files that went to other pools since the start.
    pub moved_files: u64,
    /// Files that could not be moved yet; they are tried again.
    pub stuck_files: u64,
    /// Why the last of them could not.
    pub last_fault: Option<Fault>,
    /// Nothing is left in the pool.
    pub is_empty: bool,
}

pub(super) struct Pool {
    pub(super) name: String,
    pub(super) state: PoolState,
    pub(super) load: PoolLoad,
    open: PoolOpener,
    /// None before its root could be opened.
    storage: Mutex<Option<Arc<dyn Storage>>>,
    /// It was opened, and its temporary files were not looked for.
    is_new: AtomicBool,
    /// Why it is out of service.
    outage: Mutex<Option<Fault>>,
    failure: Mutex<Option<PoolFailure>>,
    pub(super) drain: Mutex<Option<DrainStatus>>,
    /// As last looked at, so that a choice need not wait for the disk.
    space: Mutex<Option<Space>>,
}

struct PoolFailure {
    fault: Fault,
    rests_until: Duration,
}

impl Pool {
    pub(super) fn new(options: PoolOptions) -> Pool {
        let PoolOptions { name, open, state } = options;
        Pool {
            name,
            state,
            load: PoolLoad::default(),
            open,
            storage: Mutex::default(),
            is_new: AtomicBool::new(false),
            outage: Mutex::default(),
            failure: Mutex::default(),
            drain: Mutex::default(),
            space: Mutex::default(),
        }
    }

    /// Its files, while it is in service.
    ///
    /// # Errors
    /// `SourceUnreadable` while it is not.
    pub(super) fn storage(&self) -> Result<Arc<dyn Storage>, Fault> {
        if let Some(fault) = &*self.outage.lock() {
            return Err(fault.clone());
        }
        self.storage.lock().clone().ok_or_else(|| self.out_of_service("it was not opened yet"))
    }

    /// Its root, to look whether it is the right one. While the pool is out of service it is opened anew: a
    /// disk may have been mounted over the directory that was open.
    pub(super) fn root(&self) -> Result<Arc<dyn Storage>, Fault> {
        if let Ok(storage) = self.storage() {
            return Ok(storage);
        }
        let opened = (self.open)()?;
        *self.storage.lock() = Some(opened.clone());
        self.is_new.store(true, Ordering::Release);
        Ok(opened)
    }

    /// Why it cannot be a pool, whatever its mark; looked for once after each opening.
    pub(super) fn unfitness(&self) -> Option<String> {
        let is_new = self.is_new.load(Ordering::Acquire);
        let twins = is_new && self.capabilities().is_some_and(|capabilities| capabilities.case_insensitive);
        twins.then(|| "its file system does not tell upper from lower case: choose another one".to_owned())
    }

    /// Its files, once after each opening that has put it into service.
    pub(super) fn take_if_new(&self) -> Option<Arc<dyn Storage>> {
        let storage = self.storage().ok()?;
        self.is_new.swap(false, Ordering::AcqRel).then_some(storage)
    }

    /// Takes it out of service, or back; true if that is a change.
    pub(super) fn set_outage(&self, why: Option<String>) -> bool {
        let fault = why.map(|why| self.out_of_service(&why));
        let mut outage = self.outage.lock();
        let changed = outage.is_some() != fault.is_some();
        *outage = fault;
        changed
    }

    fn out_of_service(&self, why: &str) -> Fault {
        Fault::new(FaultCode::SourceUnreadable, format!("pool {} is out of service: {why}", self.name))
    }

    /// What it can; none before it could be opened.
    pub(super) fn capabilities(&self) -> Option<Capabilities> {
        self.storage.lock().as_ref().map(|storage| storage.capabilities())
    }

    pub(super) fn space(&self) -> Result<Space, Fault> {
        let space = self.storage()?.space()?;
        *self.space.lock() = Some(space);
        Ok(space)
    }

    /// What decides whether it gets the next file, as far as it is known without a look at the disk.
    pub(super) fn candidate_as_known(&self) -> Option<Candidate> {
        let space = self.storage().ok().and_then(|_| *self.space.lock())?;
        Some(self.candidate_with(space))
    }

    /// What decides whether it gets the next file.
    pub(super) fn candidate(&self) -> Result<Candidate, Fault> {
        Ok(self.candidate_with(self.space()?))
    }

    fn candidate_with(&self, space: Space) -> Candidate {
        Candidate {
            free_bytes: space.free_bytes,
            total_bytes: space.total_bytes,
            waiting_bytes: self.load.waiting_bytes(),
            bytes_per_s: self.load.bytes_per_s(),
        }
    }

    /// Notes that it did not take a file; false if that is not its fault.
    pub(super) fn note_failure(&self, fault: &Fault, now: Duration) -> bool {
        match fault.code {
            // The next file may be smaller.
            FaultCode::TargetFull => true,
            FaultCode::TargetReadOnly | FaultCode::TargetWrite | FaultCode::SourceUnreadable => {
                *self.failure.lock() =
                    Some(PoolFailure { fault: fault.clone(), rests_until: now + REST_TIME });
                true
            }
            _ => false,
        }
    }

    /// Whether it has failed to take a file within the last minute.
    pub(super) fn is_resting(&self, now: Duration) -> bool {
        self.failure.lock().as_ref().is_some_and(|failure| now < failure.rests_until)
    }

    pub(super) fn takes_nothing(&self) -> Fault {
        let detail = format!("pool {} is read-only, and the file that is replaced lies there", self.name);
        Fault::new(FaultCode::TargetReadOnly, detail)
    }

    pub(super) fn status(&self, now: Duration) -> PoolStatus {
        let failure = || {
            let failure = self.failure.lock();
            failure.as_ref().filter(|failure| now < failure.rests_until).map(|failure| failure.fault.clone())
        };
        PoolStatus {
            name: self.name.clone(),
            state: self.state,
            space: self.space().ok(),
            waiting_bytes: self.load.waiting_bytes(),
            bytes_per_s: self.load.bytes_per_s(),
            fault: self.storage().err().or_else(failure),
            drain: self.drain.lock().clone(),
        }
    }
}

/// A temporary file in a pool, whose writes are measured.
pub(super) struct PoolFile {
    file: Box<dyn TargetFile>,
    pool: Arc<Pool>,
    clock: PoolClock,
    /// Promised and not yet written.
    promised_bytes: AtomicU64,
}

impl PoolFile {
    pub(super) fn new(file: Box<dyn TargetFile>, pool: &Arc<Pool>, size: u64, clock: PoolClock) -> PoolFile {
        pool.load.promise(size);
        PoolFile { file, pool: pool.clone(), clock, promised_bytes: AtomicU64::new(size) }
    }

    /// Runs what occupies the pool.
    fn occupy(&self, bytes: u64, operation: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        self.pool.load.begin((self.clock)());
        let done = operation();
        let now = (self.clock)();
        self.pool.load.end(if done.is_ok() { bytes } else { 0 }, now);
        done.inspect_err(|fault| {
            self.pool.note_failure(fault, now);
        })
    }
}

impl TargetFile for PoolFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        self.occupy(len, || self.file.write_at(bytes, offset))?;
        let take = |promised: u64| Some(promised.saturating_sub(len));
        let before = self.promised_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        // Nothing is left to release for bytes that are written twice.
        self.pool.load.release(before.unwrap_or_default().min(len));
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.file.read_at(buffer, offset)
    }

    fn begin_writeback(&self, offset: u64, len: u64) {
        self.file.begin_writeback(offset, len);
    }

    fn flush(&self) -> Result<(), Fault> {
        self.occupy(0, || self.file.flush())
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        self.pool.load.release(*self.promised_bytes.get_mut());
    }
}

/// A fault of a pool, at a target.
pub(super) fn at_target(fault: Fault) -> Fault {
    fault.blaming(Blame::Target)
}
