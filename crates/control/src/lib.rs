//! The control plane's core: scheduler loop, commit loop, query loop, and the agents they serve.
//!
//! | thread | module | owns | waits for |
//! | --- | --- | --- | --- |
//! | `brain` | [`brain`] | the scheduler, with its beliefs about the network | its inputs only |
//! | `commit-loop` | [`commit_loop`] | the order in which decisions and reports get durable | the catalog |
//! | `query-loop` | [`query_loop`] | nothing | the catalog |
//! | `recorder` | [`recorded`] | files of a recording, if one is wished for | the disk |
//!
//! Each loop but the recorder is an [`event_loop::EventLoop`]; its thread only waits.
//!
//! Follow a lease: `brain` decides it, `commit_loop` makes it durable, `agents` puts it into its agent's
//! `outbox`. Work that agents' engines do not carry out goes to an [`executor`].
//!
//! Not here: what moves next (`scheduler`), what is stored how (`catalog`), HTTP (`service`). Start with
//! [`Kernel`], which every subsystem holds, and [`Control`].

mod agent_backlogs;
pub mod agent_health;
pub mod agents;
pub mod brain;
pub mod changes;
pub mod choice;
mod commissioning;
pub mod commit_loop;
mod control;
pub mod deadlines;
pub mod event_loop;
pub mod executor;
pub mod foreign_claims;
pub mod kernel;
pub mod limits;
pub mod live;
pub mod lost_files;
pub mod metrics;
pub mod mover_grants;
mod outbox;
pub mod pool_reports;
mod problems;
pub mod query_loop;
mod rates;
pub mod recorded;
pub mod report_bounds;
mod site_rates;
pub mod staging;
pub mod steering;
pub mod turned_away;
pub mod turns;

pub use control::Control;
pub use kernel::{Directory, Kernel, SchedulerHandle, WriterHandle, thread_fault};
