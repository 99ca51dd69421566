//! What is answered about jobs and files, under FTS's names.

use longhaul_model::Timestamp;
use longhaul_model::job::{JobFileState, JobId, JobKind, JobState};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::Refusal;

/// A time as the clients read it: to the second, UTC, without a zone. They parse with exactly that form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        // What is not a year of four digits has no other form either.
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

/// An object of which clients may ask for some fields only.
pub trait Fielded {
    const FIELDS: &'static [&'static str];
    /// Adds one field; nothing if there is none of that name.
    fn put<M: SerializeMap>(&self, map: &mut M, field: &str) -> Result<(), M::Error>;
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
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                $(map.serialize_entry(stringify!($field), &self.$field)?;)*
                map.end()
            }
        }
    };
}

fielded! {
    JobView {
        job_id: JobId,
        job_state: JobState,
        job_type: JobKind,
        /// Null if the files differ.
        source_se: Option<String>,
        dest_se: Option<String>,
        user_dn: String,
        cred_id: String,
        vo_name: String,
        reason: Option<String>,
        submit_time: Moment,
        job_finished: Option<Moment>,
        priority: u8,
        job_metadata: Value,
        retry: i64,
        retry_delay: i64,
        /// Unix time.
        max_time_in_queue: Option<i64>,
        cancel_job: bool,
        dst_file_report: bool,
        overwrite_flag: Option<char>,
        verify_checksum: char,
        source_spacetoken: String,
        destination_spacetoken: String,
        copy_pin_lifetime: i64,
        bring_online: i64,
        archive_timeout: i64,
        internal_job_params: Option<String>,
        target_qos: Option<String>,
        os_project_id: Option<String>,
        submit_host: String,
    }
}

fielded! {
    FileView {
        file_id: u64,
        file_index: u32,
        job_id: JobId,
        file_state: JobFileState,
        file_state_initial: JobFileState,
        vo_name: String,
        source_se: String,
        dest_se: String,
        source_surl: String,
        dest_surl: String,
        dest_surl_uuid: Option<String>,
        priority: u8,
        reason: Option<String>,
        recoverable: Option<bool>,
        /// As found.
        filesize: Option<u64>,
        /// As declared.
        user_filesize: u64,
        checksum: String,
        start_time: Option<Moment>,
        finish_time: Option<Moment>,
        staging_start: Option<Moment>,
        staging_finished: Option<Moment>,
        archive_start_time: Option<Moment>,
        archive_finish_time: Option<Moment>,
        staging_host: Option<String>,
        transfer_host: Option<String>,
        internal_file_params: Option<String>,
        pid: Option<u32>,
        /// Seconds.
        tx_duration: Option<f64>,
        /// MiB/s.
        throughput: Option<f64>,
        retry: u32,
        file_metadata: Value,
        staging_metadata: Value,
        archive_metadata: Value,
        selection_strategy: String,
        bringonline_token: Option<String>,
        log_file: Option<String>,
        log_debug: Option<bool>,
        activity: String,
        scitag: Option<u32>,
        src_token_id: Option<String>,
        dst_token_id: Option<String>,
        hashed_id: u32,
    }
}

/// Some fields of an object, in the order asked for; unknown ones are left out.
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

/// A job among the answers of a request about jobs, with what became of that request for it.
pub struct JobEntry<'a> {
    pub job: &'a JobView,
    pub http_status: &'a str,
    /// Absent where nothing was asked to be done. Otherwise present even if there is nothing to say: software
    /// reads it.
    pub http_message: Option<Option<&'a str>>,
    /// With the chosen fields of each.
    pub files: Option<(&'a [FileView], &'a [String])>,
}

impl Serialize for JobEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for field in JobView::FIELDS {
            self.job.put(&mut map, field)?;
        }
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

/// A job that cannot be answered for, among others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorEntry {
    pub job_id: String,
    pub http_status: String,
    pub http_message: String,
}

impl ErrorEntry {
    pub fn new(job: &str, refusal: &Refusal) -> ErrorEntry {
        ErrorEntry {
            job_id: job.to_owned(),
            http_status: refusal.status_line(),
            http_message: refusal.message.clone(),
        }
    }
}

/// One attempt that failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RetryView {
    pub file_id: u64,
    pub attempt: u32,
    pub datetime: Moment,
    pub reason: String,
    pub transfer_host: Option<String>,
    pub log_file: Option<String>,
}

pub const NO_SUCH_JOB: &str = "has been found";

pub fn no_such_job(job: &str) -> Refusal {
    let shown = longhaul_model::units::printable(&job.chars().take(80).collect::<String>());
    Refusal::missing(format!("No job with the id \"{shown}\" {NO_SUCH_JOB}"))
}

/// Answer to `GET /`: clients read the versions before anything else.
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
