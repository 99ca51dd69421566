//! Monitoring messages that FTS publishes when a file of a job changes its state. Pure.
//!
//! Phases that are not distinguished here (preparation and finalization by SRM, checksums at the ends) have
//! times of 0, and so do sizes of buffers that nobody set. Not here: publishing (`service::messages`). Start
//! with [`FileChange`].

mod error;
mod shapes;

use longhaul_model::Timestamp;
use longhaul_model::job::{JobFileState, JobId, JobKind, JobState, storage_element};
use serde::Serialize;
use serde_json::Value;

use super::submission::Parameters;
use error::ErrorShown;

pub use shapes::{Complete, QueueState, Start, State};

/// Kind of message; each has a topic of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// Bytes of a file begin to flow.
    Start,
    /// An attempt ended.
    Complete,
    /// A file changed its state.
    State,
    /// Activity of a pair of storages. FTS sends it after each decision of its optimizer; here it covers one
    /// minute, since each start is decided by itself.
    QueueState,
}

impl MessageKind {
    /// All kinds, in the order of their numbers on disk.
    pub const ALL: [MessageKind; 4] =
        [MessageKind::Start, MessageKind::Complete, MessageKind::State, MessageKind::QueueState];

    /// The kind in one word, as in the names of topics.
    pub fn word(self) -> &'static str {
        match self {
            MessageKind::Start => "start",
            MessageKind::Complete => "complete",
            MessageKind::State => "state",
            MessageKind::QueueState => "queue_state",
        }
    }
}

/// The sender of messages: this service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sayer {
    /// Name under which the service is known.
    pub endpnt: String,
    /// Name of the machine, if it has one.
    pub fqdn: Option<String>,
    /// Whether messages name users.
    pub users: bool,
}

/// A change of a file's state, with the file as of then.
#[derive(Clone, Debug, PartialEq)]
pub struct FileChange {
    /// Time of the change.
    pub at: Timestamp,
    /// State before; absent at submission.
    pub from: Option<JobFileState>,
    /// State after.
    pub to: JobFileState,
    /// Job of the file.
    pub job: JobId,
    /// Kind of the job.
    pub job_kind: JobKind,
    /// State of the job after the change.
    pub job_state: JobState,
    /// Number of files in the job.
    pub job_files: u64,
    /// VO of the job.
    pub vo: String,
    /// DN of the submitter.
    pub user: String,
    /// Time of submission.
    pub submitted: Timestamp,
    /// Parameters of the job.
    pub parameters: Parameters,
    /// Id of the file.
    pub file: u64,
    /// Position in the job; replicas of one file share it.
    pub index: u32,
    /// Source URL.
    pub source: String,
    /// Target URL.
    pub target: String,
    /// Target URL of the last hop; empty unless the job has several hops.
    pub final_target: String,
    /// Activity of the file.
    pub activity: String,
    /// Size in bytes, as the user declared it.
    pub size: Option<u64>,
    /// State in which the file began.
    pub initial: JobFileState,
    /// Metadata of the file.
    pub file_metadata: Value,
    /// Metadata for staging from tape.
    pub staging_metadata: Value,
    /// Metadata for archiving to tape.
    pub archive_metadata: Value,
    /// Flow label of SciTags.
    pub scitag: Option<u32>,
    /// Attempts that were followed by another, including this change.
    pub retries: u32,
    /// Why it failed, as `SCOPE [errno] text`, or the reason that a user gave.
    pub reason: String,
    /// Whether another attempt may succeed.
    pub recoverable: bool,
    /// Time when the attempt was decided.
    pub began: Option<Timestamp>,
    /// Time when its bytes began to flow.
    pub started: Option<Timestamp>,
    /// Time when the attempt ended.
    pub ended: Option<Timestamp>,
    /// Bytes copied.
    pub bytes: Option<u64>,
    /// How it was copied: pulled, pushed or streamed.
    pub mode: Option<String>,
    /// Beginning and end of staging from tape.
    pub staging: (Option<Timestamp>, Option<Timestamp>),
    /// Beginning and end of archiving to tape.
    pub archiving: (Option<Timestamp>, Option<Timestamp>),
}

/// Activity of a pair of storages in one minute, and what waits there at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairMinute {
    /// End of the minute.
    pub at: Timestamp,
    /// Source as `scheme://host`.
    pub source: String,
    /// Target as `scheme://host`.
    pub target: String,
    /// Most copies at the same time.
    pub active: u32,
    /// Difference of `active` from the minute before.
    pub more: i64,
    /// Copies that succeeded.
    pub done: u32,
    /// Copies that failed.
    pub failed: u32,
    /// Rate in bytes per second.
    pub rate: f64,
    /// Exponentially weighted moving average of the rate, in bytes per second.
    pub smoothed_rate: f64,
    /// Mean duration of successful copies, in seconds.
    pub duration_mean: f64,
    /// Mean size of successful copies, in bytes.
    pub size_mean: f64,
    /// Standard deviation of their size, in bytes.
    pub size_deviation: f64,
    /// Waiting files, and their attempts so far; absent if they could not be counted.
    pub waiting: Option<(u64, u64)>,
}

impl PairMinute {
    /// The activity in words.
    pub fn rationale(&self) -> String {
        let PairMinute { active, done, failed, .. } = self;
        format!("{active} at once, {done} done, {failed} failed; each start is decided by itself")
    }

    /// Share of copies that succeeded, in percent; 100 if none ended.
    pub fn success_rate(&self) -> f64 {
        let ended = self.done + self.failed;
        if ended > 0 { 100.0 * f64::from(self.done) / f64::from(ended) } else { 100.0 }
    }

    /// The message about this minute.
    pub fn message(&self, sayer: &Sayer) -> Message {
        let said = QueueState {
            source_se: &self.source,
            dest_se: &self.target,
            throughput: self.rate,
            throughput_ema: self.smoothed_rate,
            duration_avg: self.duration_mean,
            filesize_avg: self.size_mean,
            filesize_stddev: self.size_deviation,
            success_rate: self.success_rate(),
            retry_count: self.waiting.map(|(_, retries)| retries),
            active_count: self.active,
            submitted_count: self.waiting.map(|(files, _)| files),
            connections: self.active,
            diff: self.more,
            rationale: self.rationale(),
            timestamp: ms(self.at),
            endpnt: &sayer.endpnt,
        };
        message(MessageKind::QueueState, None, sayer, &said)
    }
}

/// A message, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Kind of message, which selects the topic.
    pub kind: MessageKind,
    /// VO for the headers; in messages of state only.
    pub vo: Option<String>,
    /// JSON text.
    pub body: String,
}

impl FileChange {
    /// Messages about the change, in order.
    pub fn messages(&self, sayer: &Sayer) -> Vec<Message> {
        let mut messages = Vec::new();
        if self.to == JobFileState::Active && self.from != Some(JobFileState::Active) {
            messages.push(message(MessageKind::Start, None, sayer, &self.start(sayer)));
        }
        if let Some(outcome) = self.outcome() {
            let complete = self.complete(sayer, outcome);
            messages.push(message(MessageKind::Complete, None, sayer, &complete));
        }
        let vo = Some(self.vo.clone());
        messages.push(message(MessageKind::State, vo, sayer, &self.state(sayer)));
        messages
    }

    /// Outcome of the attempt that ends with this change. An attempt that was taken back, as at a restart,
    /// has none, since it is repeated.
    fn outcome(&self) -> Option<Outcome> {
        use JobFileState::*;
        if !self.from.is_some_and(JobFileState::is_running) || self.ended.is_none() {
            return None;
        }
        match self.to {
            Finished | Archiving => Some(Outcome::Ok),
            Failed | Submitted | Staging => Some(Outcome::Error),
            Canceled => Some(Outcome::Abort),
            _ => None,
        }
    }

    /// The message that bytes begin to flow.
    pub fn start(&self, sayer: &Sayer) -> Start<'_> {
        Start {
            transfer_id: self.transfer_id(),
            job_id: self.job,
            file_id: self.file,
            endpnt: sayer.endpnt.clone(),
            timestamp: ms(self.started.unwrap_or(self.at)),
            vo: &self.vo,
            src_url: &self.source,
            dst_url: &self.target,
            src_hostname: host(&self.source),
            dst_hostname: host(&self.target),
            src_site_name: "",
            dst_site_name: "",
            t_channel: self.channel(),
            src_srm_v: "",
            dest_srm_v: "",
            srm_space_token_src: &self.parameters.source_spacetoken,
            srm_space_token_dst: &self.parameters.destination_spacetoken,
            user_dn: self.user_dn(sayer),
            is_archiving: self.is_archiving(),
            file_metadata: &self.file_metadata,
            job_metadata: self.parameters.metadata(),
        }
    }

    /// The message about the new state.
    pub fn state(&self, sayer: &Sayer) -> State<'_> {
        let submission = self.from.is_none();
        State {
            endpnt: sayer.endpnt.clone(),
            user_dn: self.user_dn(sayer),
            src_url: &self.source,
            dst_url: &self.target,
            vo_name: &self.vo,
            source_se: storage_element(&self.source).unwrap_or_default(),
            dest_se: storage_element(&self.target).unwrap_or_default(),
            job_id: self.job,
            file_id: self.file,
            job_state: self.job_state,
            file_state: self.to,
            retry_counter: self.retries,
            retry_max: self.parameters.retry,
            user_filesize: self.size.unwrap_or(0),
            timestamp: ms(self.at),
            submit_time: ms(self.submitted),
            staging_start: self.staging.0.map_or(0, ms),
            staging_finished: self.staging.1.map_or(0, ms),
            staging: self.initial.is_staging(),
            archiving_start: self.archiving.0.map_or(0, ms),
            archiving_finished: self.archiving.1.map_or(0, ms),
            archiving: self.parameters.archive_timeout > -1,
            reason: &self.reason,
            job_metadata: self.parameters.metadata(),
            file_metadata: &self.file_metadata,
            staging_metadata: submission.then_some(&self.staging_metadata),
            archive_metadata: submission.then_some(&self.archive_metadata),
        }
    }

    fn complete(&self, sayer: &Sayer, outcome: Outcome) -> Complete<'_> {
        let (began, ended) = (self.began.unwrap_or(self.at), self.ended.unwrap_or(self.at));
        let times = Times::new(began, self.started, ended);
        let error = ErrorShown::classify(outcome, &self.reason);
        let (from, to) = (scheme(&self.source), scheme(&self.target));
        let bytes = self.bytes.unwrap_or(0);
        let several = self.job_kind == JobKind::Hops;
        let last = several && u64::from(self.index) + 1 >= self.job_files;
        Complete {
            tr_id: self.transfer_id(),
            job_id: self.job,
            file_id: self.file,
            endpnt: sayer.endpnt.clone(),
            vo: &self.vo,
            src_url: &self.source,
            dst_url: &self.target,
            src_hostname: host(&self.source),
            dst_hostname: host(&self.target),
            src_se: storage_element(&self.source).unwrap_or_default(),
            dst_se: storage_element(&self.target).unwrap_or_default(),
            src_site_name: "",
            dst_site_name: "",
            t_channel: self.channel(),
            channel_type: "urlcopy",
            protocol_translation: transferred(&from) != transferred(&to),
            protocol: to.clone(),
            src_transfer_protocol: transferred(&from),
            dst_transfer_protocol: transferred(&to),
            src_protocol: from,
            dst_protocol: to,
            t_final_transfer_state: outcome.word(),
            t_final_transfer_state_flag: u8::from(outcome == Outcome::Ok),
            error_message: error.text,
            t_error_code: error.number,
            tr_error_scope: error.scope,
            t_failure_phase: error.phase,
            tr_error_category: error.category,
            is_recoverable: outcome == Outcome::Error && self.recoverable,
            tr_timestamp_start: ms(began),
            tr_timestamp_complete: ms(ended),
            timestamp_tr_st: times.started,
            timestamp_tr_comp: times.over,
            timestamp_chk_src_st: 0,
            timestamp_chk_src_ended: 0,
            timestamp_checksum_dest_st: 0,
            timestamp_checksum_dest_ended: 0,
            time_srm_prep_st: 0,
            time_srm_prep_end: 0,
            time_srm_fin_st: 0,
            time_srm_fin_end: 0,
            transfer_time: times.transfer,
            operation_time: times.operation,
            srm_preparation_time: 0,
            srm_finalization_time: 0,
            srm_overhead_time: times.operation - times.transfer,
            srm_overhead_percentage: times.overhead(),
            timestamp_checksum_src_diff: 0,
            timestamp_checksum_dst_diff: 0,
            throughput: times.throughput(self.bytes),
            file_size: self.size.unwrap_or(bytes),
            f_size: self.size.unwrap_or(bytes),
            tr_bt_transfered: bytes,
            nstreams: self.parameters.nostreams.unwrap_or(1),
            buf_size: self.parameters.buffer_size.unwrap_or(0),
            tcp_buf_size: self.parameters.buffer_size.unwrap_or(0),
            block_size: 0,
            t_timeout: self.parameters.timeout.unwrap_or(0),
            chk_timeout: 0,
            scitag: self.scitag.unwrap_or(0),
            file_metadata: &self.file_metadata,
            job_metadata: self.parameters.metadata(),
            activity: &self.activity,
            retry: if self.to.is_terminal() { self.retries } else { self.retries.saturating_sub(1) },
            retry_max: self.parameters.retry,
            job_state: match self.job_kind {
                JobKind::Replicas | JobKind::Hops => self.job_state.word(),
                JobKind::Regular | JobKind::Reuse => "UNKNOWN",
            },
            job_m_replica: self.job_kind == JobKind::Replicas,
            job_multihop: several,
            transfer_lasthop: last,
            is_archiving: self.is_archiving(),
            ipver: "unknown",
            transfer_type: transfer_type(self.mode.as_deref()),
            auth_method: match self.parameters.auth_method.as_str() {
                "" => "null",
                method => method,
            },
            final_destination: &self.final_target,
            eviction_code: -1,
            cleanup_code: -1,
            overwrite_on_disk_flag: matches!(self.parameters.overwrite_flag, Some('D' | 'Q')),
            overwrite_on_disk_deletion_code: -1,
            user_dn: self.user_dn(sayer),
            src_srm_v: "",
            dest_srm_v: "",
            srm_space_token_src: &self.parameters.source_spacetoken,
            srm_space_token_dst: &self.parameters.destination_spacetoken,
        }
    }

    /// Rucio takes what follows the last `__` for the job id.
    fn transfer_id(&self) -> String {
        let time = self.began.unwrap_or(self.at).to_string();
        let minute = time.get(..16).unwrap_or(&time);
        let time: String = match minute.split_once('T') {
            Some((day, clock)) => format!("{day}-{}", clock.replace(':', "")),
            None => minute.to_owned(),
        };
        format!("{time}__{}__{}__{}__{}", host(&self.source), host(&self.target), self.file, self.job)
    }

    fn channel(&self) -> String {
        let element = |url: &str| storage_element(url).unwrap_or_default();
        format!("{}__{}", element(&self.source), element(&self.target))
    }

    fn user_dn(&self, sayer: &Sayer) -> &str {
        if sayer.users { &self.user } else { "" }
    }

    /// Whether the file is archived: in a multi-hop job only the last hop is.
    fn is_archiving(&self) -> bool {
        let last = self.job_kind != JobKind::Hops || u64::from(self.index) + 1 >= self.job_files;
        self.parameters.archive_timeout > -1 && last
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Ok,
    Error,
    Abort,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "Ok",
            Outcome::Error => "Error",
            Outcome::Abort => "Abort",
        }
    }
}

/// Times of an attempt in milliseconds; 0 for phases that it did not reach.
struct Times {
    started: i64,
    over: i64,
    transfer: i64,
    operation: i64,
}

impl Times {
    fn new(began: Timestamp, started: Option<Timestamp>, ended: Timestamp) -> Times {
        let operation = (ms(ended) - ms(began)).max(0);
        let Some(started) = started else { return Times { started: 0, over: 0, transfer: 0, operation } };
        let transfer = (ms(ended) - ms(started)).clamp(0, operation);
        Times { started: ms(started), over: ms(ended), transfer, operation }
    }

    fn overhead(&self) -> f64 {
        if self.operation == 0 {
            return 0.0;
        }
        (self.operation - self.transfer) as f64 * 100.0 / self.operation as f64
    }

    /// Bytes per second; -1 if unknown.
    fn throughput(&self, bytes: Option<u64>) -> f64 {
        match bytes {
            Some(bytes) if self.transfer > 0 => bytes as f64 * 1_000.0 / self.transfer as f64,
            _ => -1.0,
        }
    }
}

fn transfer_type(mode: Option<&str>) -> &str {
    // What else there is to say of a way stands behind its word.
    match mode.map(|mode| mode.split([' ', ',']).next().unwrap_or(mode)) {
        Some("pull") => "3rd pull",
        Some("push") => "3rd push",
        Some("stream") => "streamed",
        Some(other) => other,
        None => "",
    }
}

fn scheme(url: &str) -> String {
    url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default()
}

/// The protocol on the wire.
fn transferred(scheme: &str) -> String {
    if scheme == "davs" { "https".to_owned() } else { scheme.to_owned() }
}

fn host(url: &str) -> String {
    let element = storage_element(url).unwrap_or_default();
    element.split_once("://").map(|(_, host)| host.to_owned()).unwrap_or_default()
}

fn ms(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000)
}

/// Serializes a message with its sender, and with the trailing blank that old consumers cut off.
fn message(kind: MessageKind, vo: Option<String>, sayer: &Sayer, said: &impl Serialize) -> Message {
    let whole = WithName { said, fqdn: sayer.fqdn.as_deref() };
    // All keys are texts: there is nothing that could fail.
    let mut body = serde_json::to_string(&whole).unwrap_or_default();
    body.push(' ');
    Message { kind, vo, body }
}

#[derive(Serialize)]
struct WithName<'a, T> {
    #[serde(flatten)]
    said: &'a T,
    #[serde(skip_serializing_if = "Option::is_none")]
    fqdn: Option<&'a str>,
}

#[cfg(test)]
mod tests;
