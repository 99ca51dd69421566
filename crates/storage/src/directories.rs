//! Directories as things of their own, for storages that have them: what a door shows and changes.
//!
//! Not part of [`Storage`](crate::Storage), since data is moved without them: there a directory is made with
//! the first file in it and goes with the last. Here an empty one stays until it is removed.

use longhaul_model::{Fault, Pfn};

use crate::Identity;

/// What lies under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component; empty for the root.
    pub name: String,
    pub is_directory: bool,
    /// Of a directory the size means nothing.
    pub identity: Identity,
}

/// Some of a directory's entries, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// There are more, after this name.
    pub more_after: Option<String>,
}

/// A storage that is a tree. Paths are relative to its root, `""` is the root itself. What is neither a file
/// nor a directory, or leads out of the storage, is not shown.
///
/// Faults: `SourceMissing` (it is not there), `NameClash` (something is there already, or is not what was
/// expected), `Conflict` (the directory that it should lie in is missing, or the directory is not empty).
pub trait Directories: Send + Sync {
    /// What is there now; none if nothing is.
    fn look(&self, path: &str) -> Result<Option<Entry>, Fault>;

    /// At most `limit` names are looked at, of which some may not be shown.
    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault>;

    /// Makes one directory, in one that is there.
    fn make_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Removes an empty directory.
    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault>;

    /// Deletes a file if it is still the expected one; the directory stays. No error if it is gone already.
    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;

    /// Gives a file or a directory another name, in one step. What has that name stays, unless it is the file
    /// `replaces`.
    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault>;
}
