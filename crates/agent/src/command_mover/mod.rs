//! Mover commands: a site's own program fetches files in place of the engine (fdtcp, a script around
//! globus-url-copy, anything that takes fdtcp's copyjobfile and writes its reportfile). Its claims are not
//! trusted:
//!
//! ```text
//! leases ─► copyjobfile ─► command ─► reportfile ─► digests verified ─► commit ─► outcome
//! ```
//!
//! The command writes under temporary names in the storage's work directory; only a verified file gets its
//! final name. Everything else is as with the engine: leases, outcomes, cancellation, starting over after a
//! restart.
//!
//! Not here: running a command (`command`), the lines of the two files (`gateways::copyjob`). Start with
//! [`MoverConfig`](crate::MoverConfig); `mover` puts commands around the engine, `run` takes one from its
//! files to their outcomes, `commit` verifies files.

mod command_circuits;
mod commit;
mod mover;
mod run;
mod spool;

pub(crate) use mover::start;
