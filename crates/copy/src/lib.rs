//! The `copy` and `serve` commands as a library: URLs, listings, filters, batch files, third-party copies.
//!
//! ```text
//! copy ─► pull         server ─► local     listing_diff ─► plan_queue ─► fetch_job ─► rename_on_commit
//!      ─► push         local  ─► server    push_steps ─► plan_queue ─► the server's receive_job ─► the same
//!      ─► third_party  server ─► server    the target's server runs a pull
//!      ─► local_copy   within this host    local::plan ─► local
//! ```
//!
//! Planning takes several modules, each with one task:
//!
//! | module | task |
//! | --- | --- |
//! | `rules` | pure rules: where a source is placed, name collisions, copy or skip or refuse |
//! | `listing_diff` | a pull from one server: its listing against the target, giving steps |
//! | `pull_steps` | a pull from several servers: failover of listings, BLAKE3 trees for the steps |
//! | `push_steps` | a push: local files against the server, giving steps |
//! | `local::plan` | a local copy: entries with their decisions, one by one |
//! | `plan_queue` | steps planned ahead of the copy, with backpressure |
//!
//! Both ends of an ad-hoc copy are agents of a deployment that their shared secret defines (`site`); requests
//! between them are in `protocol`. A pull may read from several servers at once (`replicas`): then the tree
//! of each file is fetched before the file is begun (`pull_steps`, `trees`), and the engine verifies every
//! chunk against it.
//!
//! Not here: moving bytes (`engine`), paths in a file system (`storage`), the command line (`longhaul`).
//! Start with [`copy`] and [`Server`].

pub mod accounts;
pub mod batch;
mod batch_copy;
mod circuit;
mod clock;
mod copy;
mod fetch_job;
pub mod filter;
mod listing_diff;
pub mod local;
mod local_copy;
mod options;
mod plan_queue;
mod progress;
mod protocol;
mod pull;
mod pull_steps;
mod push;
mod push_export;
mod push_steps;
mod remote;
mod rename_on_commit;
mod replicas;
pub mod report;
pub mod rules;
pub mod server;
mod site;
mod ssh;
mod state;
mod stop;
mod target_index;
mod third_party;
mod trees;
pub mod url;
pub mod walk;

pub use batch_copy::copy_pairs;
pub use copy::{CopyRequest, copy};
pub use longhaul_gateways::circuits::CircuitConfig;
pub use longhaul_model::DataSecurity;
pub use options::{MEMORY_BYTES, Options};
pub use progress::{
    CircuitNote, FileOutcome, Outcome, Progress, ReplicaShare, ReplicaTotals, Totals, WrongRange,
};
pub use replicas::SERVERS_MAX;
pub use server::{RetainedKey, ServeOptions, Server};
pub use stop::Stop;
pub use url::Endpoint;
