//! A command of the site that moves files in place of the engine: an fdtcp, a globus-url-copy behind a
//! script, whatever takes fdtcp's copyjobfile and writes its reportfile. It is told where each file is and
//! where to put it, and its word is not taken:
//!
//! ```text
//! leases ─► copyjobfile ─► command ─► reportfile ─► each file read again, compared with the catalog's digest ─► its name ─► outcome
//! ```
//!
//! The command writes under temporary names of the storage's work directory; only what this agent has found
//! right gets its final name. Everything else is as with the engine: leases, outcomes, what is cancelled,
//! what is begun anew after a restart.
//!
//! Not here: running one command (`command`), lines of the two files (`gateways::copyjob`). Start with
//! [`MoverConfig`](crate::MoverConfig); `mover` puts it around the engine, `run` is one command from its files to its outcomes,
//! `commit` what makes a file count.

mod command_circuits;
mod commit;
mod mover;
mod run;
mod spool;

pub(crate) use mover::start;
