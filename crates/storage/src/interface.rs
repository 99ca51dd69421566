//! The storage interface and its types.

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

use longhaul_model::hex;
use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Pfn, StorageName};

use crate::{Directories, PoolStatus};

/// The maximum of concurrent operations of a kind on one device.
pub const PARALLEL_MAX: u16 = 64;

/// The capabilities that determine how the engine drives a storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether files can be created, replaced and deleted.
    pub writable: bool,
    /// Names that differ only in case are one name.
    pub case_insensitive: bool,
    /// Whether a file may be written at any offset in any order. Otherwise each write has to start at the end
    /// of the file.
    pub random_write: bool,
    /// Storages with the same device share its I/O budget. None: a device of its own.
    pub device: Option<u64>,
    /// Concurrent reads, and concurrent writes, of the device, up to [`PARALLEL_MAX`]. None: the engine's
    /// default.
    pub parallel: Option<u16>,
    /// Written bytes are verified and discarded: reading them back may be refused, and an earlier attempt is
    /// not resumed.
    pub discards: bool,
    /// [`Storage::reopen`] finds the temporary files of earlier attempts. Otherwise each attempt starts from
    /// scratch, and a flush of an incomplete file says nothing.
    pub resumes: bool,
    /// Temporary files can be read back before they are committed.
    pub reads_temps: bool,
    /// A commit sets mode and modification time. Otherwise they are the storage's business.
    pub sets_attributes: bool,
    /// Every name that a PFN can have is kept. Otherwise those with control characters, with backslashes, or
    /// as long as a name can be may be refused.
    pub keeps_any_name: bool,
    /// [`Storage::space`] is never unknown.
    pub always_tells_space: bool,
    /// Names lie in directories: none can be that of a file and of a directory. Otherwise every path is a
    /// name of its own.
    pub has_directories: bool,
    /// Deleting the last file of a directory removes the directory. Otherwise it stays.
    pub removes_empty_directories: bool,
}

/// The device of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDevice {
    /// The system's device number, or one that stands for it.
    pub number: u64,
    /// Concurrent reads, and concurrent writes, of the device. None: the engine's default.
    pub parallel: Option<u16>,
}

/// Where files that are not created yet will lie. What it has reserved there is free again when it is
/// dropped.
pub struct Placement {
    /// The device of the pool.
    pub device: u64,
    pub(crate) _reservation: Box<dyn Send + Sync>,
}

/// Space of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system or quota, in bytes; 0 if nobody can tell it.
    pub total_bytes: u64,
    /// The usable space: less than the unused space where the file system keeps a reserve.
    pub free_bytes: u64,
}

/// The version of a file, which must not change while it is read; text form `size:mtime_ns:inode` in frames
/// and journals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Inode number: tells a replaced file from an edited one; 0 where the storage has none.
    pub inode: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.size, self.mtime_ns, self.inode)
    }
}

impl FromStr for Identity {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "an identity is size:mtime:inode in decimal digits".to_owned();
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or_else(wrong);
        let (size, mtime_ns, inode) = (next()?, next()?, next()?);
        Ok(Identity {
            size: size.parse().map_err(|_| wrong())?,
            mtime_ns: mtime_ns.parse().map_err(|_| wrong())?,
            inode: inode.parse().map_err(|_| wrong())?,
        })
    }
}

/// The name of a temporary file: 32 lower-case hexadecimal digits. The caller makes it unique per agent and
/// file identity, so that two agents may share a work directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TempName(String);

/// The text is not a name of a temporary file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a temporary file is named by 32 lower-case hexadecimal digits")]
pub struct TempNameError;

impl TempName {
    /// The name with these bytes as hexadecimal digits.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        TempName(hex::encode(&bytes))
    }

    /// Parses a name, for instance one found in a work directory.
    ///
    /// # Errors
    /// The text is not 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, TempNameError> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() == 32 && digits { Ok(TempName(text.to_owned())) } else { Err(TempNameError) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TempName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A complete temporary file, its final name, and its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The temporary file to commit.
    pub temp: TempName,
    /// The final name.
    pub target: Pfn,
    /// The expected size; a temporary file of another size is refused.
    pub size: u64,
    /// Permission bits ([`MODE_BITS`]; the rest is dropped). None: the default for new files.
    pub mode: Option<u32>,
    /// Modification time in nanoseconds since 1970. None: the time of writing.
    pub mtime_ns: Option<i64>,
    /// The file of that name that may be replaced, atomically: a reader of the name sees the old or the new
    /// file. A missing file is fine as well; any other file stays and is a `NameClash`.
    pub replaces: Option<Identity>,
}

/// The bits of a mode that a commit sets. Never set-user-id and similar bits, which must not apply to remote
/// content.
pub const MODE_BITS: u32 = 0o777;

impl Commit {
    /// Commits under an unused name, without setting attributes.
    pub fn new(temp: TempName, target: Pfn, size: u64) -> Self {
        Commit { temp, target, size, mode: None, mtime_ns: None, replaces: None }
    }

    /// Whether any attribute has to be set.
    pub(crate) fn sets_attributes(&self) -> bool {
        self.mode.is_some() || self.mtime_ns.is_some()
    }
}

/// An entry found by a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visit {
    /// A regular file.
    File {
        /// Its path in the storage.
        at: Pfn,
        /// Its version.
        identity: Identity,
    },
    /// Something that cannot be registered as a file. A directory skipped with its contents has a `path` that
    /// ends in `/`.
    Skipped {
        /// Relative to the root; escaped for display.
        path: String,
        /// Why it is not a file.
        reason: SkipReason,
        /// Particulars for people, such as the target of a link; escaped.
        detail: String,
    },
}

/// Why an entry is not a file; `api` has the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// A link to something that no file name beneath the root reaches, or to a directory (whose files, if it
    /// lies beneath the root, are found under their own names).
    LinkLeadsOut,
    /// A link without a target, or in a loop of links.
    BrokenLink,
    /// A block or character device.
    Device,
    /// A Unix socket.
    Socket,
    /// A named pipe.
    Fifo,
    /// The name is not UTF-8.
    NotUtf8,
    /// The storage's name rules give it no LFN.
    NameRules,
    /// A directory without anything in it.
    EmptyDirectory,
    /// The program may not read it, or the disk fails.
    Unreadable,
}

/// A file open for reading, by any number of threads.
pub trait SourceFile: Send + Sync {
    /// The version at the time of opening.
    fn identity(&self) -> Identity;
    /// The current version. What was read is one version of the file only if both are equal.
    ///
    /// # Errors
    /// The file cannot be examined any more.
    fn identity_now(&self) -> Result<Identity, Fault>;
    /// Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// `SourceUnreadable` if the disk fails, `OnTape` if the bytes are not online.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault>;
    /// Fills the buffer, for a reader that knows the size of the file.
    ///
    /// # Errors
    /// `SourceTruncated` if the file ends before, and as [`SourceFile::read_at`].
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Fault> {
        let read = if buffer.is_empty() { 0 } else { self.read_at(buffer, offset)? };
        if read < buffer.len() {
            let detail = format!("the file ends at byte {}", offset.saturating_add(read as u64));
            return Err(Fault::new(FaultCode::SourceTruncated, detail));
        }
        Ok(())
    }
    /// Whether the bytes are online; those of a file on tape are not, and every read fails with this fault.
    ///
    /// # Errors
    /// `OnTape` if they are not.
    fn check_online(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// A temporary file open for writing, by any number of threads.
pub trait TargetFile: Send + Sync {
    /// Without [`Capabilities::random_write`], only at the current end of the file.
    ///
    /// # Errors
    /// `TargetFull`, or `TargetWrite` for any other failure; `Internal` for a write that an append-only
    /// storage cannot do.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault>;
    /// Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// `TargetWrite` if the bytes cannot be read back.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault>;
    /// A hint: start writing this extent to disk, and evict the previously hinted extent from memory. Never
    /// blocks on a disk and never fails.
    fn begin_writeback(&self, offset: u64, len: u64);
    /// Returns when everything written would survive a power failure. After an error the file is lost: start
    /// from scratch, since a second flush may succeed without the bytes.
    ///
    /// # Errors
    /// `TargetWrite`: nothing written to the file may be trusted any more.
    fn flush(&self) -> Result<(), Fault>;
}

/// The open directory of the previous file, for files that are opened one after the other. Keep it only
/// briefly: names may change, and a directory may be moved out of the storage.
#[derive(Default)]
pub struct DirectoryCache {
    /// The directory's path and descriptor.
    pub(crate) directory: Option<(Vec<u8>, OwnedFd)>,
}

/// A named place that holds files. Nothing outside it is read or written, whatever names and links say
/// (promise 9).
///
/// Faults of reads blame the source, faults of writes the target; a reader at a target (which compares with
/// existing data) corrects the blame with [`Fault::blaming`].
pub trait Storage: Send + Sync {
    /// The name by which the catalog knows the storage.
    fn name(&self) -> &StorageName;

    /// What the storage can do; constant while it is open.
    fn capabilities(&self) -> Capabilities;

    /// Total and free space at this moment.
    ///
    /// # Errors
    /// The storage cannot tell, for instance because it is not mounted.
    fn space(&self) -> Result<Space, Fault>;

    /// The pools that the storage consists of; none if it is one file system.
    fn pools(&self) -> Vec<PoolStatus> {
        Vec::new()
    }

    /// The devices of the pools, each once; empty for one file system.
    fn pool_devices(&self) -> Vec<PoolDevice> {
        Vec::new()
    }

    /// Decides in which pool temporary files of these sizes will be created, all in one, so that what comes
    /// for them can wait for its disk. Never blocks on a disk. None if the storage is one file system, or no
    /// pool has room: then their creation decides.
    fn place(&self, _files: &[(&TempName, u64)]) -> Option<Placement> {
        None
    }

    /// The version of a regular file, none if it does not exist; anything else of that name is a fault.
    ///
    /// # Errors
    /// `SourceUnreadable` for a directory or anything else that is not a regular file.
    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault>;

    /// The version of the regular file that a new one of this name would meet. As [`Storage::stat`], but a
    /// pool that is out of service is not waited for: a file that is brought meanwhile is there twice
    /// afterwards.
    ///
    /// # Errors
    /// As [`Storage::stat`].
    fn stat_target(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.stat(at)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `SourceMissing` without such a file, `SourceUnreadable` if it is not a regular file or cannot be
    /// opened.
    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault>;

    /// Opens one of several small files, most of which lie in one directory. The version to compare with
    /// after reading is the one just before the opening.
    ///
    /// # Errors
    /// As [`Storage::open`].
    fn open_with_cache(&self, at: &Pfn, _nearby: &mut DirectoryCache) -> Result<Box<dyn SourceFile>, Fault> {
        self.open(at)
    }

    /// The version of a file with digests that the storage's server tells, at least one of these algorithms:
    /// as it keeps them, or computes them now. None if it tells none: then the file has to be read.
    ///
    /// # Errors
    /// `SourceMissing` without such a file, `SourceUnreadable` if the server cannot be asked.
    fn told_digests(
        &self,
        _at: &Pfn,
        _algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        Ok(None)
    }

    /// Creates an empty temporary file, replacing an older one of that name, and reserves `size` bytes, so
    /// that a full storage is detected before data is sent. `target` is the name that the commit will give
    /// it: an object store has to know it now. None: it will not be committed.
    ///
    /// # Errors
    /// `TargetFull` without the space, `TargetReadOnly` or `TargetWrite` if it cannot be created.
    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault>;

    /// Creates a temporary file with all its bytes, for a small file: [`Storage::create`] and one write. A
    /// storage may already set the attributes of the later commit.
    ///
    /// # Errors
    /// As [`Storage::create`] and [`TargetFile::write_at`].
    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        self.create(&item.temp, Some(&item.target), item.size)?.write_at(bytes, 0)
    }

    /// Opens a temporary file of an earlier attempt; none if it is gone or larger than `size`.
    ///
    /// # Errors
    /// The temporary file exists and cannot be opened.
    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault>;

    /// Group commit: sets attributes, flushes data and attributes of all files, creates parent directories,
    /// renames all to their final names, flushes the names. Nothing that exists is replaced (that is a
    /// `NameClash`, even if it is equal: compare before), except what [`Commit::replaces`] names. One result
    /// each, in order; success means that the file survives a power failure.
    ///
    /// After `TargetWrite` the temporary file is not to be trusted: remove it and start from scratch.
    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>>;

    /// Makes files under their final names durable: an earlier commit may have been interrupted between the
    /// renames and the last flush. Call it before reporting an existing file as complete.
    ///
    /// # Errors
    /// `TargetWrite` if a flush fails.
    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault>;

    /// The path of a temporary file, if it has one: for a local program that writes it itself.
    fn temp_path(&self, _temp: &TempName) -> Option<PathBuf> {
        None
    }

    /// All temporary files, of all agents.
    ///
    /// # Errors
    /// The work directory cannot be read.
    fn temps(&self) -> Result<Vec<TempName>, Fault>;

    /// Removes a temporary file. Idempotent.
    ///
    /// # Errors
    /// The file exists and cannot be removed.
    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault>;

    /// The text of the mark in the root, by which its agent knows it again; none without a mark, and for a
    /// storage that cannot have one.
    ///
    /// # Errors
    /// The mark cannot be read.
    fn root_mark(&self) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    /// Writes the mark in the root durably; an older one is replaced.
    ///
    /// # Errors
    /// `TargetReadOnly` or `TargetWrite` if it cannot be written.
    fn put_root_mark(&self, _text: &str) -> Result<(), Fault> {
        Err(Fault::new(FaultCode::TargetReadOnly, format!("{} has no root for a mark", self.name())))
    }

    /// Writes the mark in the root, unless there is one. The mark that the root has then: another agent may
    /// have been first.
    ///
    /// # Errors
    /// As [`Storage::put_root_mark`] and [`Storage::root_mark`].
    fn claim_root_mark(&self, text: &str) -> Result<String, Fault> {
        match self.root_mark()? {
            Some(there) => Ok(there),
            None => self.put_root_mark(text).map(|()| text.to_owned()),
        }
    }

    /// Deletes a file if it is still the expected version, and the directories that become empty. Idempotent.
    /// A link is deleted, not its target.
    ///
    /// # Errors
    /// `Conflict` if the file is another version; `TargetReadOnly` or `TargetWrite` if it cannot be deleted.
    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;

    /// Visits everything at and beneath `path` (`""` is the root) until `visit` breaks: in name order,
    /// component by component, where the storage has directories. Files that vanish meanwhile are skipped.
    ///
    /// # Errors
    /// `SourceMissing` if `path` does not exist, `BadName` if it is invalid, `SourceUnreadable` if a
    /// directory cannot be read.
    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault>;

    /// The storage as a directory tree, if it is one.
    fn directories(&self) -> Option<&dyn Directories> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn temp_names() {
        let name = TempName::from_bytes([0xab; 16]);
        assert_eq!(TempName::parse(name.as_str()), Ok(name));
        for bad in [
            "",
            "ab",
            &"AB".repeat(16),
            &"ab".repeat(17),
            &"é".repeat(16),
            "../../../../../../../../../../aaaa",
        ] {
            assert!(TempName::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn identities_have_a_text_form(size: u64, mtime_ns: i64, inode: u64) {
            let identity = Identity { size, mtime_ns, inode };
            prop_assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
        }

        #[test]
        fn no_text_panics(text in "[0-9:x-]{0,60}") {
            let _ = text.parse::<Identity>();
            let _ = TempName::parse(&text);
        }
    }
}
