//! Third-party copies for leases: where the servers of two storages can copy between themselves (HTTP-TPC),
//! no byte passes through the host of an agent.
//!
//! ```text
//! leases ─► target's name is free ─► one server copies to a temporary file ─► verified ─► commit ─► outcome
//!                └──────────────────────────┴─ anything else: the engine ◄───────┘
//! ```
//!
//! If another agent serves the source, this one asks it for access to each file (a call of the engine, under
//! the permit of the leases), and its own server pulls the file.
//!
//! The engine is behind each step: it gets what the servers do not do, and finds out what is wrong with a
//! file. Pairs of storages whose servers refuse are left to it for a while. Everything else is as with the
//! engine: leases, outcomes, cancellation, starting over after a restart.
//!
//! Not here: the protocol (`storage-remote`). Start with `mover`, which puts the servers around the engine;
//! `batch_copy` takes the files of a batch in turn, `file_copy` one of them from its lease to its outcome,
//! `pairs` remembers who refuses, `peer_files` and `file_access` are the two sides of a call between agents,
//! `file_calls` its messages.

mod batch_copy;
mod file_access;
mod file_calls;
mod file_copy;
mod mover;
mod pairs;
mod peer_files;
#[cfg(test)]
mod tests;

pub(crate) use mover::{StorageServers, start};
