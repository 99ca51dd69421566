//! Decides what moves next, from where and why: demand → routes → queues → leases. Pure: no clock, socket,
//! file, thread or random source; time is an argument, input is [`Event`]s, output is [`Decision`]s; the same
//! events at the same times give the same decisions.
//!
//! Not here: what is wanted and where replicas are (`catalog`), what links can do (`network`), how bytes move
//! (`engine`).
//!
//! Start with [`Scheduler`]: `handle(event, now)`, then `poll_decision(now)` until it returns none, then
//! sleep until `next_wakeup()` or the next event. The path of a file through it: `demand` (wants become
//! transfers), `rank` (which want comes first), `queue` (where they wait), `lanes` (whose turn it is, by
//! [`Shares`]; `link_shares`: on a link with weights of its own), `pick` (which file), `dispatch` (source,
//! lease), `outcome` (what follows), `lease_recall` (stragglers). By which rule a source is chosen is a
//! [`Strategy`]. `examples/fake_clock.rs` drives it by hand.

mod arrival_history;
mod backoff_reset;
mod breaker;
mod cached_min_set;
mod circuits;
mod claim;
mod concurrency;
pub mod decision;
mod demand;
mod detours;
mod dispatch;
pub mod event;
mod exclusive_target;
mod explain;
mod forecast_scoring;
mod fts3;
mod id_map;
mod imported_knowledge;
mod lanes;
mod lease_recall;
mod limit_states;
mod limits;
mod link_shares;
mod links;
mod monotonic_clock;
mod obstacles;
mod outcome;
mod outlook;
mod pick;
pub mod query;
mod queue;
mod queue_key;
mod rank;
mod recent_rate;
pub mod record;
mod replica_races;
mod routes;
mod scheduler;
pub mod settings;
mod shares;
mod slab;
mod source_assignment;
mod source_latency;
mod sources;
mod state;
mod strategy;
mod target_throughput;
mod topology;
mod waiters;

pub use circuits::LinkCircuit;
pub use decision::{
    CancelWhy, Candidate, CandidateExplanation, Choice, ChoiceExplanation, Decision, Lease, LeaseRecall,
    Unusable,
};
pub use event::{
    AdoptedLease, AdoptedTransfer, Demand, DemandId, Event, Outcome, SiteInfo, SiteLimits, SiteState,
    StorageInfo, WantedFile,
};
pub use imported_knowledge::ImportedKnowledge;
pub use limits::{CircuitRule, Limit, LimitKind, Limits, Pattern};
pub use link_shares::{LinkShares, LinkWeight};
pub use query::{
    Counts, LeaseStatus, LinkBacklog, LinkStatus, MissingBytes, Outlook, StuckFiles, TransferStatus,
};
pub use scheduler::Scheduler;
pub use settings::{Backoff, Rules, Settings};
pub use shares::{CommunityShare, Party, Shares};
pub use strategy::{Strategy, UnknownStrategy};
