//! Transfer nodes: one storage, several agents, each behind a link of its own. How much more several carry
//! than one, and what they carry while one after the other is killed and started again.
//!
//! Links are emulated ([`crate::wan`]); the root that the agents share, and that of the source, are in
//! memory, so that links and processors alone limit. Start with [`Experiment::run`].

mod experiment;
mod outcome;
mod world;

pub use experiment::Experiment;
pub use outcome::{Outcome, Phase};
