//! The control plane: the loops that join catalog, scheduler and network, and the HTTP API over them.
//!
//! Three threads of events and one of requests. The *brain* (`brain`) owns the scheduler and what we believe of the
//! network; it never waits for a disk. The *scribe* (`scribe`) makes decisions and reports durable, many in one
//! transaction, and only then lets them leave the process. The *reader* (`reader`) fetches from the catalog what
//! the brain asks for. Requests of people and programs are answered by [`Operations`], one method per route.
//!
//! Not here: what moves next (`scheduler`), what is stored how (`catalog`), pages (`web`), moving bytes (`agent`, `engine`).
//! Start with [`Service::start`], then follow a lease: `brain` → `scribe` → `agents` (outboxes) → `http::agent`.

mod changes;
mod config;
mod metrics;
mod outbox;
mod problems;
mod rates;

pub use config::{Config, HttpLimits};
