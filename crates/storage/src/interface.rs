//! The one interface to a place that holds files, and the few nouns it needs.

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

use longhaul_model::hex;
use longhaul_model::{Fault, Pfn, StorageName};

use crate::Directories;

/// Most operations of a kind at once on one device: more would be threads that wait for each other.
pub const PARALLEL_MAX: u16 = 64;

/// How a storage can be used decides how the engine drives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub writable: bool,
    /// Names that differ in case only are one name here.
    pub case_insensitive: bool,
    /// A file may be written at any offset in any order. If not, each write has to begin where the file ends.
    pub random_write: bool,
    /// Storages of one device share what it bears at once. None: a device of its own.
    pub device: Option<u64>,
    /// Reads, and writes, that the device bears at once, up to [`PARALLEL_MAX`]. None: as the engine thinks
    /// best.
    pub parallel: Option<u16>,
    /// What is written is checked and dropped: reading it again may be refused, an earlier attempt is not
    /// resumed.
    pub discards: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: u64,
    /// What we may use: less than what is unused where the file system keeps a reserve.
    pub free_bytes: u64,
}

/// What must not change while a file is read; text form `size:mtime_ns:inode` for frames and journals.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub size: u64,
    pub mtime_ns: i64,
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

/// The name of a temporary file: 32 lower-case hexadecimal digits. Whoever makes it sees to it that it is
/// unique per agent and file identity, so that two agents may share a work directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TempName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a temporary file is named by 32 lower-case hexadecimal digits")]
pub struct TempNameError;

impl TempName {
    pub fn of_bytes(bytes: [u8; 16]) -> Self {
        TempName(hex::encode(&bytes))
    }

    pub fn parse(text: &str) -> Result<Self, TempNameError> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() == 32 && digits { Ok(TempName(text.to_owned())) } else { Err(TempNameError) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TempName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A complete temporary file, the name it shall have, and with what attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub temp: TempName,
    pub target: Pfn,
    /// A temporary file of another size is refused.
    pub size: u64,
    /// Who may read, write and execute it ([`MODE_BITS`]; the rest is dropped). None: as new files are made
    /// here.
    pub mode: Option<u32>,
    /// When it was modified, in nanoseconds since 1970. None: when it was written.
    pub mtime_ns: Option<i64>,
    /// The file that may have the name and is then replaced in one step: whoever opens the name gets the old
    /// one or the new one. Nothing there is fine as well; anything else there stays, and is a `NameClash`.
    pub replaces: Option<Identity>,
}

/// What of a mode a commit sets. Never set-user-id and its kin: they would be given to bytes that came from
/// elsewhere.
pub const MODE_BITS: u32 = 0o777;

impl Commit {
    /// Under a free name, with the attributes that it has.
    pub fn new(temp: TempName, target: Pfn, size: u64) -> Self {
        Commit { temp, target, size, mode: None, mtime_ns: None, replaces: None }
    }

    /// Whether something has to be set on the file besides its name.
    pub(crate) fn sets_attributes(&self) -> bool {
        self.mode.is_some() || self.mtime_ns.is_some()
    }
}

/// What a walk finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visit {
    File {
        at: Pfn,
        identity: Identity,
    },
    /// Something that cannot be registered as a file. A directory that is left out with all that is in it
    /// has a `path` that ends in `/`.
    LeftOut {
        /// Relative to the root; escaped for people.
        path: String,
        reason: LeftOut,
        detail: String,
    },
}

/// Why something is no file for us; `api` has the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeftOut {
    /// A link to what no file name beneath the root reaches, or to a directory (whose files, if it lies
    /// beneath the root, are found under their own names).
    LinkLeadsOut,
    BrokenLink,
    Device,
    Socket,
    Fifo,
    NotUtf8,
    NameRules,
    EmptyDirectory,
    Unreadable,
}

/// A file open for reading, by any number of threads.
pub trait SourceFile: Send + Sync {
    /// As it was when the file was opened.
    fn identity(&self) -> Identity;
    /// As it is now. What was read is one version of the file only if both are equal.
    fn identity_now(&self) -> Result<Identity, Fault>;
    /// Fewer bytes than fit only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault>;
    /// Whether its bytes are at hand; of those on tape only they are not, and every reading fails in this
    /// way.
    fn check_at_hand(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// A temporary file open for writing, by any number of threads.
pub trait TargetFile: Send + Sync {
    /// Where [`Capabilities::random_write`] is not given, at the end of what was written and nowhere else.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault>;
    /// Fewer bytes than fit only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault>;
    /// A hint: bring this extent to disk soon, and drop the extent hinted before from memory. Never waits
    /// for a disk and never fails.
    fn begin_writeback(&self, offset: u64, len: u64);
    /// Returns when all that was written would survive a power cut. After an error the file is lost: begin
    /// it anew, since a second flush may succeed without the bytes.
    fn flush(&self) -> Result<(), Fault>;
}

/// The directory that the file before lay in, for files that are opened one after the other. For a moment
/// only: names may change, and what was inside the storage may be moved out of it.
#[derive(Default)]
pub struct Nearby {
    /// The directory's path, and itself.
    pub(crate) directory: Option<(Vec<u8>, OwnedFd)>,
}

/// A named place that holds files. Nothing outside it is read or written, whatever names and links say.
///
/// Faults of reading blame the source, faults of writing the target; whoever reads at a target (to compare
/// with what is there) puts the blame right with [`Fault::blaming`].
pub trait Storage: Send + Sync {
    fn name(&self) -> &StorageName;

    fn capabilities(&self) -> Capabilities;

    fn space(&self) -> Result<Space, Fault>;

    /// A regular file's identity, none if nothing is there; anything else there is a fault.
    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault>;

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault>;

    /// The same for one of several small files, most of which lie in one directory. What the file is compared
    /// with when it has been read is how it was just before it was opened.
    fn open_nearby(&self, at: &Pfn, _nearby: &mut Nearby) -> Result<Box<dyn SourceFile>, Fault> {
        self.open(at)
    }

    /// Makes an empty temporary file, in place of an older one of that name, and reserves `size` bytes, so
    /// that a full storage is noticed before anything is sent.
    fn create(&self, temp: &TempName, size: u64) -> Result<Box<dyn TargetFile>, Fault>;

    /// Makes a temporary file of all its bytes at once, for a small file: [`Storage::create`] and one write.
    /// A storage may set the attributes already that its commit will ask for.
    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        self.create(&item.temp, item.size)?.write_at(bytes, 0)
    }

    /// Opens a temporary file of an earlier attempt; none if it is gone or larger than `size`.
    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault>;

    /// Group commit: sets attributes, flushes data and attributes of all, makes parent directories, gives all
    /// their final names, flushes the names. Nothing that is there is replaced (that is a `NameClash`, also
    /// if it is equal: compare before), except what [`Commit::replaces`] names. One result each, in order;
    /// success means that the file survives a power cut.
    ///
    /// After `TargetWrite` the temporary file is not to be trusted: remove it and begin anew.
    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>>;

    /// Makes files durable that lie under their final names already: an earlier commit may have been
    /// interrupted between the renames and the last flush. Call it before reporting a file as already there.
    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault>;

    /// Where a program of this host's finds a temporary file, if it can: for one that is not ours and writes
    /// it itself.
    fn temp_path(&self, _temp: &TempName) -> Option<PathBuf> {
        None
    }

    /// All temporary files, of whatever agent.
    fn temps(&self) -> Result<Vec<TempName>, Fault>;

    /// No error if it is gone already.
    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault>;

    /// Deletes a file if it is still the expected one, and the directories that become empty by that. No
    /// error if it is gone already. A link is deleted, not what it leads to.
    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;

    /// Visits everything at and beneath `path` (`""` is the root), in the order of names, component by
    /// component, until `visit` breaks. Files that vanish meanwhile are skipped.
    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault>;

    /// The same storage as a tree, if it is one.
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
        let name = TempName::of_bytes([0xab; 16]);
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
