//! The [`Storage`] interface to a named place that holds files, its posix adapter, a virtual one for tests of
//! networks, a faulty one in memory for tests of our own, and one conformance suite for all of them.
//!
//! What an adapter promises: a file has its final name only when it is complete and flushed (promise 1), and
//! nothing outside the exported root is read or written (promise 9), whatever names and links say.
//!
//! Not here: which file goes where, what is compared with which digest, journals (`engine`), and how an LFN
//! becomes a path (`model`'s name rules).
//!
//! Start with [`Storage`]; then [`Posix`], whose `beneath` module guards the root and whose `commit` module
//! holds the order of flushes and renames.

pub mod conformance;
mod digest;
mod directories;
mod interface;
mod listing;
pub mod memory;
mod posix;
mod virtual_store;

pub use digest::digest_file;
pub use directories::{Directories, Entry, Listing};
pub use interface::{
    Capabilities, Commit, Identity, LeftOut, MODE_BITS, Nearby, PARALLEL_MAX, SourceFile, Space, Storage,
    TargetFile, TempName, TempNameError, Visit,
};
pub use posix::{DirectIo, FlushPolicy, Manner, NamePage, NoLinks, Posix, PosixOptions};
pub use virtual_store::{Virtual, VirtualContent};
