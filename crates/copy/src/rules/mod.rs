//! The rules of a copy: what goes where, and whether it has to be copied at all. Pure functions, so that
//! pull, push, local and third-party copies follow the same rules.
//!
//! Three steps in this order: where a source is placed ([`place_sources`]), whether two sources claim one
//! name ([`Collisions`]), and what to do about what exists already ([`decide`]).
//!
//! Not here: inspecting either end, and moving anything.

mod collisions;
mod decision;
mod placement;

pub use collisions::{COLLISIONS_MAX, Collisions};
pub use decision::{Decision, FileMeta, Policy, SkipReason, TargetEntry, Totals, decide, dry_run_line};
pub use placement::{Kind, Placement, Placements, Source, Target, TargetKind, TargetRoot, place_sources};
