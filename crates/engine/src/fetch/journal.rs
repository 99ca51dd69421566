//! The write-ahead log (Mohan et al., ARIES, 1992) of one target storage, its journal: append, compaction by
//! rewriting, replay.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use longhaul_model::{Fault, FaultCode};
use longhaul_wire::FileKey;
use longhaul_wire::journal::{BootId, Journal, JournalEntry, Record};
use parking_lot::Mutex;

/// Below this size compaction is not worthwhile.
const COMPACT_BYTES_MIN: u64 = 4 << 20;
/// Approximate size of the longest record.
const RECORD_BYTES: usize = 96;
/// Upper bound of a plausible journal; a larger file is not ours.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// An open journal with its replayed state.
pub(crate) struct JournalFile {
    path: PathBuf,
    boot: BootId,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    bytes: u64,
    /// How much of it has been flushed: what a power failure is certain to leave.
    flushed_bytes: u64,
    /// Files whose durable extents became void by records that are not flushed. Until they are, a power
    /// failure would bring the extents back, and no new temporary file may have the same name.
    unflushed_voids: BTreeSet<FileKey>,
    /// The size at which it is compacted next.
    compact_at: u64,
    journal: Journal,
}

impl Inner {
    /// A journal that was just rewritten and flushed.
    fn new(file: File, bytes: u64, journal: Journal) -> Inner {
        // Twice the minimum, so that the amortised cost of compaction stays constant.
        let compact_at = COMPACT_BYTES_MIN.max(2 * bytes);
        Inner { file, bytes, flushed_bytes: bytes, unflushed_voids: BTreeSet::new(), compact_at, journal }
    }

    fn apply(&mut self, record: &Record) {
        if let Record::Open { key, .. } | Record::Closed { key } = record
            && self.journal.entry(key).is_some_and(|entry| entry.durable.covered_bytes() > 0)
        {
            self.unflushed_voids.insert(*key);
        }
        self.journal.apply(record);
    }
}

fn journal_fault(path: &Path, error: std::io::Error) -> Fault {
    Fault::new(FaultCode::StateDirectory, format!("{}: {error}", path.display())).with_source(error)
}

impl JournalFile {
    /// Replays the journal, drops a torn tail and entries that a reboot made void, and rewrites the rest.
    pub(crate) fn open(path: PathBuf, boot: BootId) -> Result<JournalFile, Fault> {
        let mut bytes = Vec::new();
        match File::open(&path) {
            Ok(file) => {
                file.take(JOURNAL_BYTES_MAX)
                    .read_to_end(&mut bytes)
                    .map_err(|error| journal_fault(&path, error))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(journal_fault(&path, error)),
        }
        let replayed = Journal::replay(&bytes, boot);
        if replayed.valid_bytes < bytes.len() {
            let torn = bytes.len() - replayed.valid_bytes;
            tracing::info!(path = %path.display(), torn, "cutting off the torn tail of the journal");
        }
        let (file, bytes) = rewrite(&path, boot, &replayed.journal)?;
        let inner = Mutex::new(Inner::new(file, bytes, replayed.journal));
        Ok(JournalFile { path, boot, inner })
    }

    /// Appends records: they are in the operating system's hands when this returns.
    pub(crate) fn append(&self, records: &[Record]) -> Result<(), Fault> {
        let mut bytes = Vec::with_capacity(records.len() * RECORD_BYTES);
        records.iter().for_each(|record| record.encode(&mut bytes));
        let mut inner = self.inner.lock();
        if let Err(error) = inner.file.write_all(&bytes) {
            // A partial record would hide all that follow it.
            let _ = inner.file.set_len(inner.bytes);
            return Err(journal_fault(&self.path, error));
        }
        inner.bytes += bytes.len() as u64;
        records.iter().for_each(|record| inner.apply(record));
        if inner.bytes > inner.compact_at {
            self.compact(&mut inner)?;
        }
        Ok(())
    }

    /// Appends records, and returns when they would survive a power failure.
    pub(crate) fn append_durably(&self, records: &[Record]) -> Result<(), Fault> {
        self.append(records)?;
        let inner = self.inner.lock();
        let file = inner.file.try_clone().map_err(|error| journal_fault(&self.path, error))?;
        let (bytes, voids) = (inner.bytes, inner.unflushed_voids.clone());
        drop(inner);
        file.sync_data().map_err(|error| journal_fault(&self.path, error))?;
        let mut inner = self.inner.lock();
        // Unless it was compacted meanwhile, which flushed it too.
        if inner.bytes >= bytes {
            inner.flushed_bytes = inner.flushed_bytes.max(bytes);
        }
        inner.unflushed_voids.retain(|key| !voids.contains(key));
        Ok(())
    }

    /// Makes a file's earlier records void, also after a power failure. To be called before a new temporary
    /// file of the same name is created: its bytes must not be taken for those that the records tell of.
    pub(crate) fn void_durably(&self, key: FileKey) -> Result<(), Fault> {
        let inner = self.inner.lock();
        let known = inner.journal.entry(&key).is_some_and(|entry| entry.durable.covered_bytes() > 0);
        let void = inner.unflushed_voids.contains(&key);
        drop(inner);
        match (known, void) {
            (true, _) => self.append_durably(&[Record::Closed { key }]),
            (false, true) => self.append_durably(&[]),
            (false, false) => Ok(()),
        }
    }

    fn compact(&self, inner: &mut Inner) -> Result<(), Fault> {
        let (file, bytes) = rewrite(&self.path, self.boot, &inner.journal)?;
        *inner = Inner::new(file, bytes, std::mem::take(&mut inner.journal));
        Ok(())
    }

    pub(crate) fn entry(&self, key: &FileKey) -> Option<JournalEntry> {
        self.inner.lock().journal.entry(key).cloned()
    }

    pub(crate) fn entries(&self) -> Vec<(FileKey, JournalEntry)> {
        self.inner.lock().journal.entries().map(|(key, entry)| (*key, entry.clone())).collect()
    }
}

/// Writes a new journal and renames it over the old one.
fn rewrite(path: &Path, boot: BootId, journal: &Journal) -> Result<(File, u64), Fault> {
    let new = path.with_extension("new");
    let mut bytes = Journal::header(boot);
    journal.compacted().iter().for_each(|record| record.encode(&mut bytes));
    let write = || {
        std::fs::write(&new, &bytes)?;
        File::open(&new)?.sync_all()?;
        std::fs::rename(&new, path)?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        OpenOptions::new().append(true).open(path)
    };
    let file = write().map_err(|error| journal_fault(path, error))?;
    Ok((file, bytes.len() as u64))
}

/// The boot ID of the machine. Where it is unknown, a random one, so that nothing unflushed is trusted.
pub(crate) fn boot_id(random: [u8; 16]) -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.bytes().filter_map(|c| char::from(c).to_digit(16).map(|digit| digit as u8)).collect();
    if digits.len() != 32 {
        return BootId(random);
    }
    let mut id = [0; 16];
    id.iter_mut().zip(digits.chunks(2)).for_each(|(byte, pair)| *byte = pair[0] << 4 | pair[1]);
    BootId(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Timestamp;
    use longhaul_model::digest::PartDigest;
    use longhaul_wire::SourceIdentity;
    use longhaul_wire::journal::{OriginId, SourceOpening};

    const BOOT: BootId = BootId([1; 16]);

    fn opened() -> SourceOpening {
        let identity = SourceIdentity { size: 1, mtime_ns: 2, inode: 3 };
        SourceOpening { at: Timestamp(1), origin: OriginId(1), identity }
    }

    /// Promise 4: appended records survive a crash, except one that the crash tore.
    #[test]
    fn appended_records_survive_a_crash_and_a_torn_tail() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let key = FileKey([1; 16]);
        let journal = JournalFile::open(path.clone(), BOOT).unwrap();
        let part = PartDigest::compute(b"abc");
        journal
            .append(&[Record::Open { key, opened: opened() }, Record::Written { key, offset: 0, part }])
            .unwrap();
        journal.append(&[Record::Whole { key: FileKey([2; 16]), opened: opened(), part }]).unwrap();
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(&path, bytes).unwrap();
        let journal = JournalFile::open(path.clone(), BOOT).unwrap();
        assert_eq!(journal.entries().len(), 1);
        assert_eq!(journal.entry(&key).unwrap().written.len(), 1);
        drop(journal);
        assert!(JournalFile::open(path, BootId([2; 16])).unwrap().entry(&key).unwrap().written.is_empty());
    }

    /// Keeps what was flushed only, as a power failure may.
    fn cut_power(journal: JournalFile, path: &std::path::Path) {
        let flushed = journal.inner.lock().flushed_bytes;
        drop(journal);
        OpenOptions::new().write(true).open(path).unwrap().set_len(flushed).unwrap();
    }

    /// The ways in which a file begins anew under the same temporary name.
    #[test]
    fn a_power_failure_brings_no_extents_of_an_earlier_file_back() {
        let key = FileKey([1; 16]);
        let part = PartDigest::compute(b"abc");
        let begin = [Record::Open { key, opened: opened() }, Record::Written { key, offset: 0, part }];
        let ends: [&[Record]; 3] =
            [&[], &[Record::Closed { key }], &[Record::Open { key, opened: opened() }]];
        for end in ends {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("journal");
            let journal = JournalFile::open(path.clone(), BOOT).unwrap();
            journal.append(&begin).unwrap();
            journal.append_durably(&[Record::Durable { key, offset: 0, len: part.len }]).unwrap();
            journal.append(end).unwrap();
            journal.void_durably(key).unwrap();
            // The new temporary file is created here.
            cut_power(journal, &path);
            let journal = JournalFile::open(path, BootId([2; 16])).unwrap();
            let trusted = journal.entry(&key).map_or(0, |entry| entry.durable.covered_bytes());
            assert_eq!(trusted, 0, "after {end:?}");
        }
    }

    #[test]
    fn files_that_never_were_flushed_begin_without_a_flush() {
        let directory = tempfile::tempdir().unwrap();
        let journal = JournalFile::open(directory.path().join("journal"), BOOT).unwrap();
        let flushed = journal.inner.lock().flushed_bytes;
        let key = FileKey([1; 16]);
        journal.append(&[Record::Open { key, opened: opened() }, Record::Closed { key }]).unwrap();
        journal.void_durably(key).unwrap();
        assert_eq!(journal.inner.lock().flushed_bytes, flushed);
    }

    #[test]
    fn compaction_keeps_the_journal_small() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let journal = JournalFile::open(path.clone(), BOOT).unwrap();
        let stays = FileKey([9; 16]);
        journal.append(&[Record::Open { key: stays, opened: opened() }]).unwrap();
        for round in 0..200u32 {
            let key = |n: u32| {
                let mut key = [0; 16];
                key[..8].copy_from_slice(&(u64::from(round) << 32 | u64::from(n)).to_le_bytes());
                FileKey(key)
            };
            let part = PartDigest::compute(b"x");
            let opens: Vec<Record> =
                (0..1_000).map(|n| Record::Whole { key: key(n), opened: opened(), part }).collect();
            let closes: Vec<Record> = (0..1_000).map(|n| Record::Closed { key: key(n) }).collect();
            journal.append(&opens).unwrap();
            journal.append(&closes).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * COMPACT_BYTES_MIN);
        assert_eq!(journal.entries().len(), 1);
        drop(journal);
        assert!(JournalFile::open(path, BOOT).unwrap().entry(&stays).is_some());
    }
}
