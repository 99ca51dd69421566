//! The nouns of Longhaul: names, ids, sizes, times, digests, states, faults and limits.
//!
//! Pure: no clock, socket, file, thread or random source. Everything that crosses a room is made of
//! these types, so that a name, a unit or a limit is written once.
//!
//! Not here: requests and replies (`api`), frames (`wire`), beliefs (`network`), decisions (`scheduler`).
//! Start with [`Lfn`], [`DigestSet`] and [`Fault`].

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod address;
pub mod backoff;
pub mod cause;
pub mod digest;
#[allow(missing_docs)]
pub mod fault;
pub mod hex;
pub mod id;
pub mod job;
pub mod json;
pub mod lifecycle;
pub mod limits;
mod locality;
pub mod mark;
pub mod name;
pub mod percent;
pub mod rules;
pub mod steady_clock;
pub mod syntax;
pub mod time;
pub mod token_bucket;
pub mod tree;
pub mod units;

pub use backoff::{Backoff, Jitter};
pub use cause::{Cause, ErrorChain};
pub use digest::{Algorithm, Digest, DigestSet, Hasher};
pub use fault::{Blame, Fault, FaultCode, Retry};
pub use id::{
    AgentId, AttemptId, BlockId, CircuitOrderId, DatasetId, Epoch, FileId, IdMaker, IncidentId, SiteId,
    StageId, StorageId, SubscriptionId, TaskId, TransferId,
};
pub use job::{JobFileState, JobId, JobKind, JobState};
pub use lifecycle::{
    CircuitUse, DataSecurity, DigestOrigin, Executor, PoolState, StorageKind, SubscriptionState,
    TrafficClass, TransferState, Verification,
};
pub use locality::Locality;
pub use mark::{Dscp, Mark, SciTag};
pub use name::{
    ActivityName, BlockName, CommunityName, DatasetName, Lfn, NameError, Pfn, RegionName, SiteName,
    StorageName,
};
pub use rules::NameRules;
pub use steady_clock::{SteadyClock, SteadyReading};
pub use syntax::Syntax;
pub use time::Timestamp;
pub use token_bucket::TokenBucket;
pub use tree::Tree;
