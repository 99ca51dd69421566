//! The [`Storage`] interface to a named place that holds files, its posix adapter, a virtual storage for
//! network tests, a fault-injecting one in memory for unit tests, and one conformance suite for all of them.
//!
//! Guarantees of every adapter: a file has its final name only when it is complete and flushed (promise 1),
//! and nothing outside the exported root is read or written (promise 9), whatever names and links say.
//!
//! Not here: which file goes where, digest comparison and journals (`engine`), and how an LFN becomes a path
//! (`model`'s name rules).
//!
//! Start with [`Storage`]; then [`Posix`], whose `rooted_tree` module confines paths to the root and whose
//! `commit` module holds the order of flushes and renames.

#![warn(missing_docs, clippy::missing_errors_doc)]

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod digest;
mod directories;
mod fencing;
#[cfg(feature = "testing")]
pub mod hooked;
mod interface;
mod listing;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod pools;
mod posix;
mod virtual_store;

pub use digest::digest_file;
pub use directories::{Directories, Entry, Listing};
pub use fencing::{FenceResult, WriterFencing, WriterId};
pub use interface::{
    Capabilities, Commit, DirectoryCache, Identity, MODE_BITS, PARALLEL_MAX, Placement, PoolDevice,
    SkipReason, SourceFile, Space, Storage, TargetFile, TempName, TempNameError, Visit,
};
pub use pools::{DrainStatus, PoolClock, PoolOpener, PoolOptions, PoolStatus, PooledStorage, Relocation};
pub use posix::{DirectIo, FlushPolicy, NamePage, NoLinks, Posix, PosixOptions, PosixTuning};
pub use virtual_store::{Virtual, VirtualContent};
