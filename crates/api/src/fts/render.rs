//! Replies about jobs and files, with the names of FTS.

use longhaul_model::Timestamp;
use longhaul_model::job::{JobFileState, JobId, JobKind, JobState};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::Refusal;

/// A time as FTS's clients parse it: to the second, in UTC, without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        // Years beyond four digits have no form that clients parse.
        f.write_str(text.get(..19).unwrap_or(&text))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Timestamp> for Moment {
    fn from(at: Timestamp) -> Moment {
        Moment(at)
    }
}

/// An object of which clients may request single fields.
pub trait Fielded {
    /// Names of all fields, in order.
    const FIELDS: &'static [&'static str];
    /// Adds one field to the map; nothing if there is none of that name.
    ///
    /// # Errors
    /// The serializer failed.
    fn put<M: SerializeMap>(&self, map: &mut M, field: &str) -> Result<(), M::Error>;
    /// Adds all fields to the map, in order.
    ///
    /// # Errors
    /// The serializer failed.
    fn put_all<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;
}

macro_rules! fielded {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[$about])* pub $field: $kind,)* }

        impl Fielded for $name {
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];
            fn put<M: SerializeMap>(&self, map: &mut M, field: &str) -> Result<(), M::Error> {
                match field {
                    $(stringify!($field) => map.serialize_entry(stringify!($field), &self.$field),)*
                    _ => Ok(()),
                }
            }
            fn put_all<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                $(map.serialize_entry(stringify!($field), &self.$field)?;)*
                Ok(())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                self.put_all(&mut map)?;
                map.end()
            }
        }
    };
}

fielded! {
    /// A job, as FTS shows it.
    JobView {
        /// Id of the job.
        job_id: JobId,
        /// State of the job.
        job_state: JobState,
        /// Kind of the job, one letter.
        job_type: JobKind,
        /// Source storage element; null if the files differ.
        source_se: Option<String>,
        /// Target storage element; null if the files differ.
        dest_se: Option<String>,
        /// DN of the submitter.
        user_dn: String,
        /// Delegation id of the submitter.
        cred_id: String,
        /// VO of the job.
        vo_name: String,
        /// Why it failed.
        reason: Option<String>,
        /// Time of submission.
        submit_time: Moment,
        /// Time when it ended.
        job_finished: Option<Moment>,
        /// Priority, 1 (least) to 5.
        priority: u8,
        /// Metadata, with the authentication method.
        job_metadata: Value,
        /// Further attempts after a failure; 0 for the default, -1 for none.
        retry: i64,
        /// Seconds between two attempts.
        retry_delay: i64,
        /// Unix time when it is given up if it has not begun.
        max_time_in_queue: Option<i64>,
        /// True if it was cancelled.
        cancel_job: bool,
        /// True if a report about existing target files was requested.
        dst_file_report: bool,
        /// When existing files are replaced; see `Parameters`.
        overwrite_flag: Option<char>,
        /// Where checksums are compared: `s`, `t`, `b` or `n`.
        verify_checksum: char,
        /// Space token of the source; not used.
        source_spacetoken: String,
        /// Space token of the target; not used.
        destination_spacetoken: String,
        /// Seconds that a staged file is pinned; -1 if not requested.
        copy_pin_lifetime: i64,
        /// Time limit of staging in seconds; -1 if not requested.
        bring_online: i64,
        /// Time limit of archiving in seconds; -1 if not requested.
        archive_timeout: i64,
        /// Options of the copies, as FTS encodes them.
        internal_job_params: Option<String>,
        /// Always null.
        target_qos: Option<String>,
        /// Always null.
        os_project_id: Option<String>,
        /// Host name of this service.
        submit_host: String,
    }
}

fielded! {
    /// A file of a job, as FTS shows it.
    FileView {
        /// Id of the file.
        file_id: u64,
        /// Position in the job; replicas of one file share it.
        file_index: u32,
        /// Job of the file.
        job_id: JobId,
        /// State of the file.
        file_state: JobFileState,
        /// State in which the file began.
        file_state_initial: JobFileState,
        /// VO of the job.
        vo_name: String,
        /// Source storage element.
        source_se: String,
        /// Target storage element.
        dest_se: String,
        /// Source URL.
        source_surl: String,
        /// Target URL.
        dest_surl: String,
        /// Always null.
        dest_surl_uuid: Option<String>,
        /// Priority, 1 (least) to 5.
        priority: u8,
        /// Why the latest attempt failed.
        reason: Option<String>,
        /// Whether another attempt may succeed; null without a reason.
        recoverable: Option<bool>,
        /// Size in bytes, as found; null until then.
        filesize: Option<u64>,
        /// Size in bytes, as declared; 0 if it was not.
        user_filesize: u64,
        /// Checksum as `ALG:value`, or the algorithm.
        checksum: String,
        /// Time when the copy began.
        start_time: Option<Moment>,
        /// Time when the file ended.
        finish_time: Option<Moment>,
        /// Time when staging began.
        staging_start: Option<Moment>,
        /// Time when staging ended.
        staging_finished: Option<Moment>,
        /// Time when archiving began.
        archive_start_time: Option<Moment>,
        /// Time when archiving ended.
        archive_finish_time: Option<Moment>,
        /// Host name of this service, once staging began.
        staging_host: Option<String>,
        /// Host name of this service, once an attempt began.
        transfer_host: Option<String>,
        /// Always null.
        internal_file_params: Option<String>,
        /// Always null.
        pid: Option<u32>,
        /// Duration of the copy in seconds.
        tx_duration: Option<f64>,
        /// Mean rate of the copy in MiB/s.
        throughput: Option<f64>,
        /// Attempts that were followed by another.
        retry: u32,
        /// Metadata of the file.
        file_metadata: Value,
        /// Metadata for staging from tape.
        staging_metadata: Value,
        /// Metadata for archiving to tape.
        archive_metadata: Value,
        /// How one of several sources is chosen.
        selection_strategy: String,
        /// Id of the staging request at the storage.
        bringonline_token: Option<String>,
        /// Always null.
        log_file: Option<String>,
        /// Always null.
        log_debug: Option<bool>,
        /// Activity of the file.
        activity: String,
        /// Flow label of SciTags.
        scitag: Option<u32>,
        /// Id of the source's token.
        src_token_id: Option<String>,
        /// Id of the target's token.
        dst_token_id: Option<String>,
        /// A number that spreads files evenly, 0 to 65,535.
        hashed_id: u32,
    }
}

/// Some fields of an object, in the order requested; unknown ones are left out.
pub struct Chosen<'a, T>(pub &'a T, pub &'a [String]);

impl<T: Fielded> Serialize for Chosen<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut before: Vec<&str> = Vec::new();
        for field in self.1 {
            if !before.contains(&field.as_str()) {
                self.0.put(&mut map, field)?;
                before.push(field);
            }
        }
        map.end()
    }
}

/// A job in the reply to a request about several jobs, with the result of that request.
pub struct JobEntry<'a> {
    /// The job.
    pub job: &'a JobView,
    /// Result for this job, such as `200 Ok`.
    pub http_status: &'a str,
    /// Absent where no action was requested; otherwise present, null if there is nothing to tell, since
    /// software reads it.
    pub http_message: Option<Option<&'a str>>,
    /// Files of the job, and the names of the fields to show.
    pub files: Option<(&'a [FileView], &'a [String])>,
}

impl Serialize for JobEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.job.put_all(&mut map)?;
        map.serialize_entry("http_status", self.http_status)?;
        if let Some(message) = self.http_message {
            map.serialize_entry("http_message", &message)?;
        }
        if let Some((files, fields)) = self.files {
            let chosen: Vec<_> = files.iter().map(|file| Chosen(file, fields)).collect();
            map.serialize_entry("files", &chosen)?;
        }
        map.end()
    }
}

/// An error about one job in the reply to a request about several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorEntry {
    /// Id of the job, as the request gave it.
    pub job_id: String,
    /// Status and title, such as `404 Not Found`.
    pub http_status: String,
    /// Explanation for people.
    pub http_message: String,
}

impl ErrorEntry {
    /// The entry for a job about which a request was refused.
    pub fn new(job: &str, refusal: &Refusal) -> ErrorEntry {
        ErrorEntry {
            job_id: job.to_owned(),
            http_status: refusal.status_line(),
            http_message: refusal.message.clone(),
        }
    }
}

/// What one job of a request became.
#[derive(Serialize)]
#[serde(untagged)]
pub enum JobResultEntry<'a> {
    /// The job, as it is now.
    Job(JobEntry<'a>),
    /// Why there is nothing to show.
    Error(&'a ErrorEntry),
}

/// The results of a request about several jobs, in JSON.
///
/// Polls of jobs are the most frequent requests. Their JSON is made here, and not in the crate that answers
/// them: in a release this crate is compiled as one part, so that the serializer's many small functions
/// become inline (decision 0030).
///
/// # Errors
/// A value has no JSON.
pub fn job_results_to_json(results: &[JobResultEntry<'_>]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(results)
}

/// A list of jobs in JSON, made here for the same reason as [`job_results_to_json`].
///
/// # Errors
/// A value has no JSON.
pub fn jobs_to_json(jobs: &[JobView]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(jobs)
}

/// A failed attempt of a file, as FTS shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RetryView {
    /// Id of the file.
    pub file_id: u64,
    /// Number of the attempt.
    pub attempt: u32,
    /// Time when it ended.
    pub datetime: Moment,
    /// Why it failed.
    pub reason: String,
    /// Host name of this service.
    pub transfer_host: Option<String>,
    /// Always null.
    pub log_file: Option<String>,
}

/// End of the message for an unknown job, which software compares.
pub const NO_SUCH_JOB: &str = "has been found";

/// The error for an unknown job.
pub fn no_such_job(job: &str) -> Refusal {
    let shown = longhaul_model::units::printable(&job.chars().take(80).collect::<String>());
    Refusal::missing(format!("No job with the id \"{shown}\" {NO_SUCH_JOB}"))
}

/// Reply to `GET /`: clients read the versions before anything else.
pub fn capabilities() -> Value {
    let link = |href: &str, title: &str| json!({ "href": href, "title": title });
    json!({
        "delegation": { "major": 1, "minor": 0, "patch": 0 },
        "api": { "major": 3, "minor": 14, "patch": 2 },
        "core": { "major": "3", "minor": "14", "patch": "4" },
        "schema": { "major": 10, "minor": 0, "patch": 1,
            "message": "Longhaul, serving the interface of FTS3" },
        "_links": {
            "curies": [{ "name": "fts", "href": "/api-docs/schema/submit", "templated": false }],
            "fts:whoami": link("/whoami", "Who the service takes you for"),
            "fts:joblist": link("/jobs{?vo_name,user_dn,dlg_id,state_in}", "Jobs"),
            "fts:job": link("/jobs/{id}", "One job"),
            "fts:configaudit": link("/config/audit", "Changes of the configuration"),
            "fts:submitschema": link("/api-docs/schema/submit", "JSON schema of a submission"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobView {
        JobView {
            job_id: JobId(7),
            job_state: JobState::FinishedDirty,
            job_type: JobKind::Regular,
            source_se: Some("https://a".into()),
            dest_se: None,
            user_dn: "/CN=a".into(),
            cred_id: "0".repeat(16),
            vo_name: "testvo".into(),
            reason: None,
            submit_time: Moment(Timestamp(1_795_246_831_987_000)),
            job_finished: None,
            priority: 3,
            job_metadata: json!({ "auth_method": "certificate" }),
            retry: 0,
            retry_delay: 0,
            max_time_in_queue: None,
            cancel_job: false,
            dst_file_report: false,
            overwrite_flag: Some('Y'),
            verify_checksum: 'b',
            source_spacetoken: String::new(),
            destination_spacetoken: String::new(),
            copy_pin_lifetime: -1,
            bring_online: -1,
            archive_timeout: -1,
            internal_job_params: None,
            target_qos: None,
            os_project_id: None,
            submit_host: "fts.example.org".into(),
        }
    }

    #[test]
    fn times_have_neither_fraction_nor_zone() {
        assert_eq!(Moment(Timestamp(1_795_246_831_987_000)).to_string(), "2026-11-21T07:40:31");
    }

    #[test]
    fn a_job_reads_as_the_reference_shows_it() {
        let job = job();
        let entry = JobEntry { job: &job, http_status: "200 Ok", http_message: None, files: None };
        let value = serde_json::to_value(&entry).unwrap();
        assert_eq!((&value["job_state"], &value["job_type"]), (&json!("FINISHEDDIRTY"), &json!("N")));
        assert_eq!(
            (&value["overwrite_flag"], &value["submit_time"]),
            (&json!("Y"), &json!("2026-11-21T07:40:31"))
        );
        assert_eq!(value["dest_se"], Value::Null);
        assert!(value.get("http_message").is_none() && value.get("files").is_none());
        let entry = JobEntry { http_message: Some(None), files: Some((&[], &[])), ..entry };
        let value = serde_json::to_value(&entry).unwrap();
        assert_eq!((&value["http_message"], &value["files"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn fields_are_chosen_and_unknown_ones_left_out() {
        let fields = ["vo_name", "colour", "job_id", "vo_name"].map(str::to_owned);
        let text = serde_json::to_string(&Chosen(&job(), &fields)).unwrap();
        assert_eq!(text, r#"{"vo_name":"testvo","job_id":"00000000-0000-0000-0000-000000000007"}"#);
    }
}
