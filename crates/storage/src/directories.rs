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
    pub is_directory: bool,
    /// Meaningless for a directory.
    pub identity: Identity,
}

/// One page of a directory, in name order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Whether more entries follow after this name.
    pub more_after: Option<String>,
}

/// A storage with a directory tree. Paths are relative to its root; `""` is the root itself. Entries that are
/// neither a file nor a directory, or that lead out of the storage, are hidden.
///
/// Faults: `SourceMissing` (the entry does not exist), `NameClash` (something exists already, or is not what
/// was expected), `Conflict` (the parent directory is missing, or the directory is not empty).
pub trait Directories: Send + Sync {
    /// The entry at this path; none if there is none.
    fn stat_entry(&self, path: &str) -> Result<Option<Entry>, Fault>;

    /// Examines at most `limit` names, some of which may be hidden.
    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault>;

    /// Creates one directory in an existing one.
    fn make_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Removes an empty directory.
    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Deletes a file if it is still the expected version; the directory stays. Idempotent.
    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;

    /// Renames a file or a directory atomically. An existing target stays, unless it is the file `replaces`.
    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault>;
}
