//! Third-party copies for leases: where the servers of two storages of this agent can copy between themselves
//! (HTTP-TPC), no byte passes through its host.
//!
//! ```text
//! leases ─► target's name is free ─► one server copies to a temporary file ─► verified ─► commit ─► outcome
//!                └──────────────────────────┴─ anything else: the engine ◄───────┘
//! ```
//!
//! The engine is behind each step: it gets what the servers do not do, and finds out what is wrong with a
//! file. Pairs of storages whose servers refuse are left to it for a while. Everything else is as with the
//! engine: leases, outcomes, cancellation, starting over after a restart.
//!
//! Not here: the protocol (`storage-remote`). Start with `mover`, which puts the servers around the engine;
//! `file_copy` takes one file from its lease to its outcome, `pairs` remembers who refuses.

mod file_copy;
mod mover;
mod pairs;

pub(crate) use mover::{StorageServers, start};
