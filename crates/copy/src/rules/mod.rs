//! What goes where, and whether it has to go at all: pure functions over what is known of both sides, so that
//! pull, push, local and third-party copies follow the same rules.
//!
//! Three questions, in this order: where a source lands ([`land`]), whether two sources want one name
//! ([`Collisions`]), and what to do about what is there already ([`decide`]).
//!
//! Not here: looking at either side, and moving anything.

mod collisions;
mod decision;
mod placement;

pub use collisions::{COLLISIONS_MAX, Collisions};
pub use decision::{Decision, FileMeta, Policy, SkipReason, TargetEntry, Totals, decide, dry_run_line};
pub use placement::{Kind, Placement, Placements, Source, Target, TargetKind, TargetRoot, place_sources};
