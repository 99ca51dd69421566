//! Jobs in the native API: copies between URLs of storages that need not know this deployment.
//!
//! States are those of FTS, since the same jobs are seen by its clients (`fts`); everything else is in our
//! words.

use longhaul_model::{Blame, CommunityName, JobFileState, JobId, JobState, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Files of a job that are shown where nobody says how many, and the most.
pub const FILES_SHOWN: u32 = 100;
pub const FILES_SHOWN_MAX: u32 = 20_000;

/// `POST /api/v1/jobs`. With an `Idempotency-Key` header a repetition returns the first answer. What is wrong
/// with it is answered before anything begins.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSubmit {
    /// The community whose share is charged; default: the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub community: Option<CommunityName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<JobFileSubmit>,
    /// 1 (least) to 5; default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Class of work within the community.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Replace what stands at a target.
    #[serde(default)]
    pub overwrite: bool,
    /// How often a file is tried again; default: as the service has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Between two tries; default: as the service has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_s: Option<u32>,
    /// For one copy; default: by its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Given up if it has not begun by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_s: Option<u32>,
    /// What is compared with the checksums given: `source`, `target`, `both` or `none`; default: `target` if
    /// there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// How one of several sources is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The files are hops of one way: each begins when the one before has arrived.
    #[serde(default)]
    pub hops: bool,
    /// Anything; it is shown with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// A job in the format of FTS, `{"files": […], "params": {…}}`, in place of all but `community`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fts: Option<Map<String, Value>>,
}

/// One file of a job.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobFileSubmit {
    /// URLs of its replicas; any of them will do. Several only in a job of one file.
    pub sources: Vec<String>,
    /// URL to which it is copied.
    pub target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// `ALGORITHM:value`, such as `ADLER32:0a1b2c3d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Bearer token that the sources take. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_token: Option<String>,
    /// Bearer token that the target takes. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_token: Option<String>,
}

hides_secrets!(JobSubmit, JobFileSubmit);

/// `PATCH /api/v1/jobs/{job}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// 1 (least) to 5.
    pub priority: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    #[schema(value_type = String)]
    pub id: JobId,
    /// As FTS has it: SUBMITTED, STAGING, ACTIVE, ARCHIVING, FINISHED, FAILED, FINISHEDDIRTY or CANCELED.
    #[schema(value_type = String)]
    pub state: JobState,
    /// `copies`, `replicas` (of one file), `hops` (of one way) or `reuse` (of connections).
    pub kind: String,
    pub community: String,
    pub user: String,
    pub priority: u8,
    /// `scheme://host`; none if the files differ.
    pub source: Option<String>,
    pub target: Option<String>,
    /// Replicas and hops count each.
    pub files: u64,
    /// Files that arrived, for jobs whose files are independent copies.
    pub files_done: Option<u64>,
    pub files_failed: Option<u64>,
    #[schema(value_type = String)]
    pub submitted: Timestamp,
    #[schema(value_type = Option<String>)]
    pub finished: Option<Timestamp>,
    /// Given up if it has not begun by then.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// What it ended with, if it did not go well.
    pub reason: Option<String>,
    #[schema(value_type = Object)]
    pub metadata: Value,
}

/// `GET /api/v1/jobs/{job}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    pub job: JobView,
    pub counts: JobCounts,
    /// Arrived so far.
    pub bytes_done: u64,
    /// Bytes of all files, if the size of each is known.
    pub bytes: Option<u64>,
    /// Bytes per second, of what is being copied.
    pub rate_now: f64,
    /// Those that failed first, then those that run, that wait, and that are done.
    pub files: Vec<JobFileView>,
}

/// Its files by where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    pub waiting: u64,
    pub running: u64,
    pub done: u64,
    pub failed: u64,
    pub canceled: u64,
    /// Replicas and hops whose turn has not come.
    pub unused: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFileView {
    pub id: u64,
    /// Replicas of one file share it.
    pub index: u32,
    #[schema(value_type = String)]
    pub state: JobFileState,
    pub source: String,
    pub target: String,
    pub activity: String,
    pub size: Option<u64>,
    pub checksum: Option<String>,
    pub attempts: u32,
    pub bytes_done: u64,
    /// Bytes per second, now or on average.
    pub rate: f64,
    #[schema(value_type = Option<String>)]
    pub started: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    pub finished: Option<Timestamp>,
    /// By which way it came: `pull`, `push` or `stream`; followed by `by circuit` if it came by one; `there`
    /// if an attempt before had brought it; `stream by the agent HOST of SITE` if one streamed it.
    pub mode: Option<String>,
    /// The mover of the last attempt and why it was chosen, where an agent could have streamed it; for the
    /// first hundred files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<String>,
    /// Why the last attempt failed.
    pub fault: Option<JobFault>,
    /// Why it has not begun, if so.
    pub waits_for: Option<String>,
}

/// What happened to a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFault {
    /// The party that has to act.
    #[schema(value_type = String)]
    pub blame: Blame,
    /// As Linux numbers errors.
    pub errno: u16,
    pub text: String,
    /// Another try may well help.
    pub passing: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_is_strict_and_shows_no_token() {
        let body =
            r#"{"files":[{"sources":["https://a/x"],"target":"https://b/x","source_token":"canary"}]}"#;
        let submit: JobSubmit = serde_json::from_str(body).unwrap();
        assert_eq!(format!("{submit:?} {:?}", submit.files[0]), "JobSubmit(secret) JobFileSubmit(secret)");
        for wrong in [r#"{"file":[]}"#, r#"{"files":[{"sources":[]}]}"#, r#"{"priority":"high"}"#] {
            assert!(serde_json::from_str::<JobSubmit>(wrong).is_err(), "{wrong}");
        }
    }
}
