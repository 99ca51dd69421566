//! The experiment of the ANSE paper, scaled down: two sites, a path that half belongs to others, and a
//! dedicated one of the same rate, onto which the target's agent moves in the middle.
//!
//! The paper: two circuits of 10 Gbit/s, one of them shared with 5 Gbit/s of UDP; 10 h of jobs of 30 files on
//! the shared one, then 10 h on the other. Here rates are a fiftieth and hours are seconds, so that it takes
//! about a minute. Start with [`Experiment::run`]; [`World`] serves the tests of circuits at the agent as
//! well.

mod background;
mod experiment;
mod figures;
mod plot;
mod record;
mod world;

pub use background::Background;
pub use experiment::{Experiment, Outcome};
pub use figures::{Bar, Figures};
pub use record::{Record, Sample};
pub use world::{CIRCUIT, SHARED, Terms, World, in_world};
