//! Jobs: copies between URLs of storages that need not know us, as users of FTS submit them; an executor of
//! the scheduler's leases.
//!
//! | thread | module | owns | waits for |
//! | --- | --- | --- | --- |
//! | `job-loop` | `job_loop` | the order in which jobs' changes become durable, many at once | the catalog |
//!
//! Copies, tape and renewal of tokens are tasks of the service's runtime; each tells the job loop how it
//! ended. The scheduler is the same as that of subscriptions (`docs/decisions/0017`): end points are storages
//! of it, and what waits for one end point under the same terms is one demand, whose files it asks for a
//! window at a time. The FTS configuration is policy here: bans, links, limits, keys ([`config_store`]).
//!
//! Not here: the states (`model::job`), rows (`catalog`), how bytes move ([`ForeignMover`]), FTS's own paths
//! and texts (`service`). Start with [`JobControl`], then follow a file: `job_loop` → `queues` →
//! `control::brain` → `job_loop` → `copies` → `job_loop`.

pub mod agent_streams;
mod attempts;
mod authorise;
pub mod by_circuit;
pub mod cloud_keys;
mod config;
pub mod config_store;
mod copies;
mod derived_limits;
mod executor;
mod ids;
mod job_control;
mod job_loop;
mod job_options;
mod jobs;
mod mover;
mod names;
mod order;
mod pairs;
mod progress;
mod queued;
mod queues;
mod remote;
mod s3;
mod submission;
pub mod tape;
mod token_renewal;
mod tokens;
pub mod views;
mod work;

pub use config::{JobsConfig, UserFiles};
pub use config_store::ConfigStore;
pub use derived_limits::{CopyModes, HostCopies};
pub use executor::QueuedFilesSource;
pub use ids::party_of;
pub use job_control::{ChangeListener, JobControl, JobSettings};
pub use job_loop::JobLoop;
pub use jobs::Jobs;
pub use mover::{
    CopyOrder, Credential, DirectCopy, End, ExistingFile, ForeignMover, Moved, Stop, Unmoved, Verify,
};
pub use names::{NamesConfig, url_names};
pub use order::delegated;
pub use pairs::{Minute, Pairs};
pub use progress::{Progress, RunningCopies};
pub use queued::QueuedFiles;
pub use remote::{end as remote_end, mover};
pub use s3::S3Config;
pub use submission::{FileDetails, OWN_TOKEN, TOO_MANY};
pub use tape::TapeConfig;
pub use token_renewal::run as run_tokens;
pub use tokens::{ExchangeRequest, Tokens};
pub use work::{JobNews, Reply, Work};
