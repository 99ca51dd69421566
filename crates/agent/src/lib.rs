//! The site daemon: joins leases, engine, storages, tasks and reports.
//!
//! It asks the service for work and tells it what came of it, in two loops that never wait for each other.
//! What it was given and what it has not yet told are in its ledger, durable at any kill, so that the service
//! may be away for as long as it likes (Promises 3, 5).
//!
//! Not here: what to move and from where (`scheduler`), moving bytes (`engine`), files and names (`storage`),
//! certificates (`security`), what the messages look like (`api::agent`), how a way to a peer is looked at
//! (`doctor::probe`). No algorithms live here. Start with [`Agent::run`] and [`Config`]; then `ledger`, which
//! holds what must not be lost.

mod agent;
mod attempts;
mod backoff;
#[cfg(test)]
mod bent;
mod circuits;
mod clock;
mod command;
mod config;
mod control;
mod decided;
mod doors;
mod foreign;
mod guard;
mod hooks;
mod http;
mod join;
mod ledger;
mod marking;
mod measure;
mod mover;
mod null_mover;
mod outside_mover;
mod record_log;
mod renew;
mod report;
mod spaces;
mod state_dir;
mod stop;
mod tape;
mod tasks;
#[cfg(test)]
mod tests;
mod work;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use agent::Agent;
pub use circuits::CircuitLinkConfig;
pub use config::{Config, Flush, StorageConfig};
pub use doors::{DoorConfig, DoorRight, DoorRule};
pub use foreign::ForeignMoverConfig;
pub use hooks::HooksConfig;
pub use join::{Joined, join};
pub use marking::MarkingConfig;
pub use measure::UplinkConfig;
pub use null_mover::NullLinks;
pub use outside_mover::{MoverConfig, SourceNames};
pub use tape::TapeConfig;

/// Our locks guard state that each step leaves whole, so a panic elsewhere does not spoil it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
