//! Bringing data and names to disk, and remembering what was lost on the way.
//!
//! The kernel tells a write-back error once per descriptor and then drops the data: a second flush succeeds
//! without the bytes. So an error of the file system as a whole fails every temporary file that existed
//! then, whoever asked for the flush, and no flush is ever repeated in the hope of success.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use longhaul_model::{Fault, FaultCode};
use rustix::fs::{self, OFlags};
use rustix::io::{self, Errno};

use super::FlushPolicy;
use super::beneath::{Beneath, split};
use super::fault::{Role, fault};
use super::seam::{Call, Seam};
use super::work::{Opening, Work};
use crate::{Commit, TempName};

/// Up to so many directories are flushed one by one: cheaper than the whole file system, and other users'
/// data are left alone. Beyond, one flush of everything costs less than many of the file system's journal.
const DIRECTORIES_FLUSHED_SINGLY: usize = 4;

/// Directories remembered as durable; beyond, all are forgotten and flushed once more.
const NAMED_MAX: usize = 10_000;

pub(super) struct Flusher {
    policy: FlushPolicy,
    seam: Seam,
    /// Held during a flush of the file system, so that its error, told once, is counted before another such
    /// flush can succeed.
    flushing: Mutex<()>,
    ledger: Mutex<Ledger>,
    /// Directories whose own names are known to be on disk. One that was found there need not be: another
    /// commit, or a process that was killed, may have made it and not flushed it yet.
    named: Mutex<BTreeSet<Vec<u8>>>,
}

#[derive(Default)]
struct Ledger {
    /// Failed flushes of the file system as a whole, since the storage was opened.
    failures: u64,
    /// As many as there are temporary files.
    begun: HashMap<TempName, Begun>,
}

/// What is remembered of a temporary file.
struct Begun {
    /// The failures before it was begun, or none if a flush of its own failed.
    failures_before: Option<u64>,
    /// It was written at once, with these size, mode and time.
    put: Option<Put>,
}

type Put = (u64, Option<u32>, Option<i64>);

fn put_as(item: &Commit) -> Put {
    (item.size, item.mode, item.mtime_ns)
}

impl Flusher {
    pub(super) fn new(policy: FlushPolicy, seam: Seam) -> Self {
        Flusher {
            policy,
            seam,
            flushing: Mutex::default(),
            ledger: Mutex::default(),
            named: Mutex::default(),
        }
    }

    pub(super) fn policy(&self) -> FlushPolicy {
        self.policy
    }

    pub(super) fn begin(&self, temp: &TempName) {
        let mut ledger = self.ledger();
        let failures = ledger.failures;
        ledger.begun.insert(temp.clone(), Begun { failures_before: Some(failures), put: None });
    }

    /// The temporary file of `item` is as it shall be committed.
    pub(super) fn is_put(&self, item: &Commit) {
        if let Some(begun) = self.ledger().begun.get_mut(&item.temp) {
            begun.put = Some(put_as(item));
        }
    }

    /// Whether that was so when it was written; nobody else writes to it.
    pub(super) fn was_put(&self, item: &Commit) -> bool {
        self.ledger().begun.get(&item.temp).is_some_and(|begun| begun.put == Some(put_as(item)))
    }

    /// A flush of `temp` alone failed.
    pub(super) fn lose(&self, temp: &TempName) {
        self.ledger().begun.insert(temp.clone(), Begun { failures_before: None, put: None });
    }

    /// Whether a flush failed since `temp` was begun, in which case its data may be lost.
    pub(super) fn is_lost(&self, temp: &TempName) -> bool {
        let ledger = self.ledger();
        let lost = |begun: &Begun| begun.failures_before.is_none_or(|before| before < ledger.failures);
        ledger.begun.get(temp).is_some_and(lost)
    }

    /// `temp` is under its final name, or gone.
    pub(super) fn end(&self, temp: &TempName) {
        self.ledger().begun.remove(temp);
    }

    /// Flushes the data of complete temporary files, and the attributes of those that were given some; one
    /// result each.
    pub(super) fn flush_data(&self, work: &Work, batch: &[&Commit]) -> Vec<Result<(), Fault>> {
        if self.policy == FlushPolicy::None {
            return batch.iter().map(|_| Ok(())).collect();
        }
        if batch.len() > 1 && work.flushed_as_a_whole {
            let whole = self.flush_file_system(work);
            return batch.iter().map(|item| whole.clone().and_then(|()| self.check(&item.temp))).collect();
        }
        batch.iter().map(|item| self.flush_one(work, item).and_then(|()| self.check(&item.temp))).collect()
    }

    fn flush_one(&self, work: &Work, item: &Commit) -> Result<(), Fault> {
        let temp = &item.temp;
        let flush = || {
            let file = work.reopen(temp, Opening::Read)?.ok_or(Errno::NOENT)?;
            if item.sets_attributes() {
                self.flush_with(&file, temp, |file| fs::fsync(file))
            } else {
                self.flush_open(&file, temp)
            }
        };
        flush().map_err(|errno| fault(Role::Write, errno, format_args!("flushing the temporary file {temp}")))
    }

    /// Flushes the data of one temporary file, and of its attributes what reading it needs.
    pub(super) fn flush_open(&self, file: &OwnedFd, temp: &TempName) -> io::Result<()> {
        self.flush_with(file, temp, |file| fs::fdatasync(file))
    }

    fn flush_with(
        &self,
        file: &OwnedFd,
        temp: &TempName,
        sync: fn(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let flush = || {
            self.seam.before(Call::FlushData, temp.as_str())?;
            io::retry_on_intr(|| sync(file.as_fd()))
        };
        flush().inspect_err(|_| self.lose(temp))
    }

    fn flush_file_system(&self, work: &Work) -> Result<(), Fault> {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let flush = || {
            self.seam.before(Call::FlushFileSystem, "")?;
            io::retry_on_intr(|| fs::syncfs(&work.flush_handle))
        };
        flush().map_err(|errno| {
            self.ledger().failures += 1;
            fault(Role::Write, errno, "flushing the file system")
        })
    }

    fn check(&self, temp: &TempName) -> Result<(), Fault> {
        if !self.is_lost(temp) {
            return Ok(());
        }
        let detail = format!("the temporary file {temp} may have lost data when a flush failed");
        Err(Fault::new(FaultCode::TargetWrite, detail))
    }

    /// Flushes the names in these directories (paths without links; empty: the root).
    pub(super) fn flush_names(
        &self,
        work: &Work,
        beneath: &Beneath,
        directories: &BTreeSet<Vec<u8>>,
    ) -> Result<(), Fault> {
        if self.policy == FlushPolicy::None {
            return Ok(());
        }
        let all = self.with_unsure_parents(directories);
        if all.len() > DIRECTORIES_FLUSHED_SINGLY && work.flushed_as_a_whole {
            self.flush_file_system(work)?;
        } else {
            self.flush_singly(beneath, &all)?;
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() + all.len() > NAMED_MAX {
            named.clear();
        }
        named.extend(all);
        Ok(())
    }

    /// A directory of this path was made just now: its name is in no flush yet.
    pub(super) fn made(&self, path: &[u8]) {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    /// The directories themselves, and all above them up to the first whose name is known to be on disk.
    fn with_unsure_parents(&self, directories: &BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = directories.clone();
        for directory in directories {
            let mut path: &[u8] = directory;
            while !path.is_empty() && !named.contains(path) {
                path = split(path).0;
                all.insert(path.to_vec());
            }
        }
        all
    }

    fn flush_singly(&self, beneath: &Beneath, directories: &BTreeSet<Vec<u8>>) -> Result<(), Fault> {
        for path in directories {
            let shown = String::from_utf8_lossy(path);
            let flush = || {
                let directory = match beneath.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
                    // Emptied and pruned by a deletion meanwhile, so no name of ours is in it.
                    Err(Errno::NOENT) => return Ok(()),
                    opened => opened?,
                };
                self.seam.before(Call::FlushDirectory, &shown)?;
                io::retry_on_intr(|| fs::fsync(&directory))
            };
            flush().map_err(|errno| {
                fault(Role::Write, errno, format_args!("flushing the directory {:?}", &*shown))
            })?;
        }
        Ok(())
    }

    /// Flushes files under their final names (paths without links), with the names of all directories above.
    pub(super) fn flush_present(
        &self,
        work: &Work,
        beneath: &Beneath,
        paths: &[Vec<u8>],
    ) -> Result<(), Fault> {
        if self.policy == FlushPolicy::None || paths.is_empty() {
            return Ok(());
        }
        if work.flushed_as_a_whole {
            return self.flush_file_system(work);
        }
        let mut directories = BTreeSet::from([Vec::new()]);
        for path in paths {
            let flush = || {
                let file = beneath.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
                self.seam.before(Call::FlushData, &String::from_utf8_lossy(path))?;
                io::retry_on_intr(|| fs::fsync(&file))
            };
            flush().map_err(|errno| fault(Role::Write, errno, "flushing a file that was there"))?;
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            directories.extend(slashes.map(|(at, _)| path[..at].to_vec()));
        }
        self.flush_names(work, beneath, &directories)
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
