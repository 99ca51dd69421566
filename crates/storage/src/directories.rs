//! Directories as objects, for storages that have them: what WebDAV and other protocol servers show and
//! change.
//!
//! Not part of [`Storage`](crate::Storage), since transfers do not need them: there a directory is created
//! with its first file and removed with its last. Here an empty directory stays until it is removed.

use longhaul_model::{Fault, Pfn};

use crate::Identity;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component; empty for the root.
    pub name: String,
    /// Whether it is a directory; otherwise it is a regular file.
    pub is_directory: bool,
    /// Meaningless for a directory.
    pub identity: Identity,
    /// Where links led: the path without links of what was examined, if it is another than the path asked
    /// for. Nothing but the entry at this path was opened.
    pub real_path: Option<String>,
}

/// One page of a directory, in name order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Visible entries, in name order.
    pub entries: Vec<Entry>,
    /// Whether more entries follow after this name.
    pub more_after: Option<String>,
    /// As that of [`Entry`], of the directory that was read.
    pub real_path: Option<String>,
}

/// A storage with a directory tree. Paths are relative to its root; `""` is the root itself. Entries that are
/// neither a file nor a directory, or that lead out of the storage, are hidden.
///
/// Faults: `SourceMissing` (the entry does not exist), `NameClash` (something exists already, or is not what
/// was expected), `Conflict` (the parent directory is missing, or the directory is not empty).
pub trait Directories: Send + Sync {
    /// The entry at this path; none if there is none.
    ///
    /// # Errors
    /// `BadName` for an invalid path or one in the work directory; a fault of a read for other failures.
    fn stat_entry(&self, path: &str) -> Result<Option<Entry>, Fault>;

    /// Examines at most `limit` names, some of which may be hidden.
    ///
    /// # Errors
    /// `SourceMissing` if there is no such directory, or a file instead.
    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault>;

    /// Creates one directory in an existing one.
    ///
    /// # Errors
    /// `NameClash` if the name is taken, `Conflict` without the parent directory, `BadName` in the work
    /// directory.
    fn make_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `SourceMissing` without such a directory, `Conflict` if it is not empty, `NameClash` if it is a file.
    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Deletes a file if it is still the expected version; the directory stays. Idempotent. A link is
    /// deleted, not its target, also one to a directory; the path to it may have none.
    ///
    /// # Errors
    /// `Conflict` if it is another version.
    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;

    /// Renames a file or a directory atomically. An existing target stays, unless it is the file `replaces`.
    ///
    /// # Errors
    /// `SourceMissing` without the source, `NameClash` if the target exists, `Conflict` without its parent
    /// directory or if it lies in the source itself.
    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault>;
}
