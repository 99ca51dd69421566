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
//! [`Shares`]; `link_shares`: on a link with weights of its own), `pick` (which file), `deal` (source,
//! lease), `outcome` (what follows), `second_thoughts` (what is asked back). By which rule a source is chosen
//! is a [`Strategy`].

mod assign;
mod at_once;
mod breaker;
mod circuits;
mod claim;
mod deal;
pub mod decision;
mod demand;
mod detours;
mod ease;
pub mod event;
mod explain;
mod first;
mod foresight;
mod fts3;
mod key;
mod keyed;
mod lanes;
mod lately;
mod lesson;
mod limits;
mod link_shares;
mod links;
mod news;
mod opening;
mod outcome;
mod outlook;
mod pick;
pub mod query;
mod queue;
mod rank;
pub mod record;
mod routes;
mod scheduler;
mod second_thoughts;
pub mod settings;
mod shares;
mod sorted;
mod sources;
mod state;
mod steady;
mod strategy;
mod table;
mod topology;
mod waiters;
mod width;

pub use circuits::OnCircuit;
pub use decision::{
    CancelWhy, Candidate, CandidateInWords, Choice, ChoiceInWords, Decision, GiveBack, Lease, Unusable,
};
pub use event::{
    Adopted, AdoptedLease, Demand, DemandId, Event, Outcome, SiteInfo, SiteLimits, SiteState, StorageInfo,
    WantedFile,
};
pub use lesson::Lesson;
pub use limits::{CircuitRule, Limit, LimitOf, Limits, Pattern};
pub use link_shares::{LinkShares, LinkWeight};
pub use query::{Counts, Lacking, LeasedNow, LinkAhead, LinkNow, Outlook, TransferNow};
pub use scheduler::Scheduler;
pub use settings::{Backoff, Rules, Settings};
pub use shares::{CommunityShare, Party, Shares};
pub use strategy::{Strategy, UnknownStrategy};
