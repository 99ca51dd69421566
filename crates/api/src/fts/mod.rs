//! The FTS3 REST API: requests, checked with the defaults and texts of FTS, and replies.
//!
//! FTS's own words hold here (VO, job, storage element); they go no further than this module and
//! `service::fts`. Not here: routes and rights (`service::fts`), states of jobs (`model::job`). Start with
//! [`Submission::parse`] for the way in and [`JobView`] for the way out.

mod configuration;
mod identity;
mod messages;
mod names;
mod query;
mod refusal;
mod render;
pub mod submission;
mod url;

pub use configuration::{
    ActivityShares, Ban, BanStatus, GlobalSettings, Grant, LinkSettings, ShareSetting, StorageSettings,
};
pub use identity::{
    BASE_ID, Level, Levels, WhoAmI, delegation_id, delegation_id_of_token, deterministic_id, uuid5, vo_id,
};
pub use messages::{FileChange, Message, MessageKind, PairMinute, Sayer};
pub use names::{HostNames, UrlNames};
pub use query::{FileQuery, JobQuery, Parameters, decode, split_list};
pub use refusal::Refusal;
pub use render::{
    Chosen, ErrorEntry, Fielded, FileView, JobEntry, JobResultEntry, JobView, Moment, NO_SUCH_JOB, RetryView,
    capabilities, job_results_to_json, jobs_to_json, no_such_job,
};
pub use submission::{Submission, SubmittedFile, WantedId};
