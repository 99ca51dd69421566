//! Jobs in the native API: copies between URLs of storages that need not belong to this deployment.
//!
//! States are those of FTS, since its clients see the same jobs (`fts`); all other words are Longhaul's.

use longhaul_model::{Blame, CommunityName, JobFileState, JobId, JobState, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::formats;

/// Files of a job in a reply, unless the request says how many.
pub const FILES_SHOWN: u32 = 100;
/// Most files of a job in a reply.
pub const FILES_SHOWN_MAX: u32 = 20_000;

/// `POST /api/v1/jobs`: submits a copy job. With an `Idempotency-Key` header, a repetition returns the first
/// answer. A malformed job is refused before anything begins.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSubmit {
    /// Community whose share is charged; by default the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::CommunityName>)]
    pub community: Option<CommunityName>,
    /// Files to copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<JobFileSubmit>,
    /// Order within the activity, on the scale of jobs: 1 (least) to 5; default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::JobPriority>)]
    pub priority: Option<u8>,
    /// Class of work within the community.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Replace files that exist at a target.
    #[serde(default)]
    pub overwrite: bool,
    /// Further attempts after a failure; by default the service's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds between two attempts; by default the service's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_s: Option<u32>,
    /// Time limit of one copy in seconds; by default it depends on the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Seconds after which the job is given up if it has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_s: Option<u32>,
    /// Where to compare the given checksums: `source`, `target`, `both` or `none`; default `target` if there
    /// are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<formats::ChecksumEnd>)]
    pub verify: Option<String>,
    /// How to choose one of several sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The files are the hops of one route: each begins when the one before has arrived.
    #[serde(default)]
    pub hops: bool,
    /// Any object; shown with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// A job in the format of FTS, `{"files": […], "params": {…}}`, in place of all fields but `community`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fts: Option<Map<String, Value>>,
}

/// One file to copy.
#[derive(Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobFileSubmit {
    /// URLs of the file's replicas, any of which will do. Only a job of one file may have several.
    pub sources: Vec<String>,
    /// URL to copy to.
    pub target: String,
    /// Expected size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Expected checksum as `ALGORITHM:value`, such as `ADLER32:0a1b2c3d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Any object; shown with the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Bearer token for the sources. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_token: Option<String>,
    /// Bearer token for the target. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_token: Option<String>,
}

hides_secrets!(JobSubmit, JobFileSubmit);

/// `PATCH /api/v1/jobs/{job}`: changes a job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobChange {
    /// New priority, on the scale of jobs: 1 (least) to 5.
    #[schema(value_type = formats::JobPriority)]
    pub priority: u8,
}

/// A copy job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Id of the job.
    #[schema(value_type = String)]
    pub id: JobId,
    /// State as in FTS: SUBMITTED, STAGING, ACTIVE, ARCHIVING, FINISHED, FAILED, FINISHEDDIRTY or CANCELED.
    #[schema(value_type = String)]
    pub state: JobState,
    /// `copies`, `replicas` (of one file), `hops` (of one route) or `reuse` (of connections).
    pub kind: String,
    /// Community whose share is charged.
    pub community: String,
    /// Name of the submitter.
    pub user: String,
    /// Order within the activity, on the scale of jobs: 1 (least) to 5, which count as 1, 3, 5, 6 and 8 of a
    /// subscription's 9.
    pub priority: u8,
    /// Source as `scheme://host`; absent if the files differ.
    pub source: Option<String>,
    /// Target as `scheme://host`; absent if the files differ.
    pub target: Option<String>,
    /// Number of files; each replica and hop counts.
    pub files: u64,
    /// Files that arrived; only for jobs of independent copies.
    pub files_done: Option<u64>,
    /// Files that failed; only for jobs of independent copies.
    pub files_failed: Option<u64>,
    /// Time of submission.
    #[schema(value_type = String)]
    pub submitted: Timestamp,
    /// Time when the job ended.
    #[schema(value_type = Option<String>)]
    pub finished: Option<Timestamp>,
    /// Time when the job is given up if it has not begun.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Why the job failed; absent if it did not.
    pub reason: Option<String>,
    /// Metadata of the submission.
    #[schema(value_type = Object)]
    pub metadata: Value,
}

/// `GET /api/v1/jobs/{job}`: a job with its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    /// The job.
    pub job: JobView,
    /// Number of files by state.
    pub counts: JobCounts,
    /// Bytes that have arrived.
    pub bytes_done: u64,
    /// Bytes of all files; absent unless every size is known.
    pub bytes: Option<u64>,
    /// Rate of running copies together, in bytes per second.
    pub rate_now: f64,
    /// Failed files first, then running, waiting and finished ones.
    pub files: Vec<JobFileView>,
}

/// Number of files of a job by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// Files that wait.
    pub waiting: u64,
    /// Files under way.
    pub running: u64,
    /// Files that arrived.
    pub done: u64,
    /// Files that failed.
    pub failed: u64,
    /// Files that were cancelled.
    pub canceled: u64,
    /// Replicas and hops whose turn has not come.
    pub unused: u64,
}

/// One file of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFileView {
    /// Id of the file, unique in the deployment.
    pub id: u64,
    /// Position in the job; replicas of one file share it.
    pub index: u32,
    /// State as in FTS.
    #[schema(value_type = String)]
    pub state: JobFileState,
    /// Source URL.
    pub source: String,
    /// Target URL.
    pub target: String,
    /// Class of work within the community.
    pub activity: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// Checksum as `ALGORITHM:value`, if known.
    pub checksum: Option<String>,
    /// Attempts that began.
    pub attempts: u32,
    /// Bytes that have arrived.
    pub bytes_done: u64,
    /// Rate now, or the mean once it has ended, in bytes per second.
    pub rate: f64,
    /// Time when the latest attempt began.
    #[schema(value_type = Option<String>)]
    pub started: Option<Timestamp>,
    /// Time when the file arrived or failed.
    #[schema(value_type = Option<String>)]
    pub finished: Option<Timestamp>,
    /// How it was copied: `pull`, `push` or `stream`, followed by `by circuit` if it used one; `there` if an
    /// earlier attempt had brought it; `stream by the agent HOST of SITE` if an agent streamed it.
    pub mode: Option<String>,
    /// Mover of the latest attempt and why it was chosen, where an agent could have streamed it; for the
    /// first hundred files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<String>,
    /// Why the latest attempt failed.
    pub fault: Option<JobFault>,
    /// Why the file has not begun; absent if it has.
    pub waits_for: Option<String>,
}

/// Why the copy of a file failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobFault {
    /// Party that has to act.
    #[schema(value_type = formats::Blame)]
    pub blame: Blame,
    /// Error number of Linux.
    pub errno: u16,
    /// Explanation for people.
    pub text: String,
    /// True if another attempt may succeed.
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
