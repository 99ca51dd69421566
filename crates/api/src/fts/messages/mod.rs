//! Monitoring messages as FTS publishes them: what is said when a file of a job changes its state. Pure.
//!
//! Phases that are not told apart here (preparation and finalization by SRM, checksums at the ends) have
//! times of 0, and so have sizes of buffers that nobody set. Not here: who hears of it and how
//! (`service::messages`). Start with [`FileChange`].

mod error;
mod shapes;

use longhaul_model::Timestamp;
use longhaul_model::job::{JobFileState, JobId, JobKind, JobState, storage_element};
use serde::Serialize;
use serde_json::Value;

use super::submission::Parameters;
use error::ErrorShown;

pub use shapes::{Complete, QueueState, Start, State};

/// Which of FTS's kinds a message is; each has a topic of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    Start,
    Complete,
    State,
    /// What became of a pair of storages. FTS tells it when its optimizer has decided; here each start is
    /// decided for itself, and a minute of them is told.
    QueueState,
}

impl MessageKind {
    /// In the order of their numbers on disk.
    pub const ALL: [MessageKind; 4] =
        [MessageKind::Start, MessageKind::Complete, MessageKind::State, MessageKind::QueueState];

    pub fn word(self) -> &'static str {
        match self {
            MessageKind::Start => "start",
            MessageKind::Complete => "complete",
            MessageKind::State => "state",
            MessageKind::QueueState => "queue_state",
        }
    }
}

/// The sender of a message: this service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sayer {
    /// The name under which the service is known.
    pub endpnt: String,
    /// The machine's; not said where there is none.
    pub fqdn: Option<String>,
    /// Whether users are named.
    pub users: bool,
}

/// A file went from one state to another, and all that is told of it, as of then.
#[derive(Clone, Debug, PartialEq)]
pub struct FileChange {
    pub at: Timestamp,
    /// None: it was submitted.
    pub from: Option<JobFileState>,
    pub to: JobFileState,
    pub job: JobId,
    pub job_kind: JobKind,
    pub job_state: JobState,
    pub job_files: u64,
    pub vo: String,
    pub user: String,
    pub submitted: Timestamp,
    pub parameters: Parameters,
    pub file: u64,
    pub index: u32,
    pub source: String,
    pub target: String,
    /// Where the last hop leads; empty unless there are several.
    pub final_target: String,
    pub activity: String,
    /// As its user said.
    pub size: Option<u64>,
    pub initial: JobFileState,
    pub file_metadata: Value,
    pub staging_metadata: Value,
    pub archive_metadata: Value,
    pub scitag: Option<u32>,
    /// Attempts that were followed by another, this change included.
    pub retries: u32,
    /// `SCOPE [errno] text`, or what a user ended it with.
    pub reason: String,
    pub recoverable: bool,
    /// When the attempt was decided, when its bytes began to flow, and when it ended.
    pub began: Option<Timestamp>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub bytes: Option<u64>,
    /// By which way: pull, push, streamed.
    pub mode: Option<String>,
    /// Since when it was brought from tape, and until when.
    pub staging: (Option<Timestamp>, Option<Timestamp>),
    /// The same of its way to tape.
    pub archiving: (Option<Timestamp>, Option<Timestamp>),
}

/// A minute of a pair of storages, with what waits there at its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairMinute {
    pub at: Timestamp,
    /// `scheme://host`.
    pub source: String,
    pub target: String,
    /// Most copies at once, and how many more than in the minute before.
    pub active: u32,
    pub more: i64,
    pub done: u32,
    pub failed: u32,
    /// Bytes a second.
    pub rate: f64,
    pub smoothed_rate: f64,
    /// Over copies that ended well: seconds, and bytes.
    pub duration_mean: f64,
    pub size_mean: f64,
    pub size_deviation: f64,
    /// Files that wait, and how often these were tried before; none: nobody could count them.
    pub waiting: Option<(u64, u64)>,
}

impl PairMinute {
    pub fn rationale(&self) -> String {
        let PairMinute { active, done, failed, .. } = self;
        format!("{active} at once, {done} done, {failed} failed; each start is decided by itself")
    }

    /// 100 if nothing ended.
    pub fn success_rate(&self) -> f64 {
        let ended = self.done + self.failed;
        if ended > 0 { 100.0 * f64::from(self.done) / f64::from(ended) } else { 100.0 }
    }

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
    pub kind: MessageKind,
    /// Said beside the body, in messages of state only.
    pub vo: Option<String>,
    pub body: String,
}

impl FileChange {
    /// What is said of it, in the order in which it is said.
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

    /// What an attempt came to that ends with this change. An attempt that was taken back, as at a restart,
    /// came to nothing and is repeated: it has no end.
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

    /// What follows the last `__` is the job: Rucio goes by that.
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

    /// Whether the file is archived: of a multi-hop job only the last hop is.
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

/// In milliseconds; 0 for what did not come about.
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

    /// Bytes per second, -1 if it is not known.
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

/// What goes over the wire.
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

/// With who says it where that is to be said, and the space behind it that old consumers cut off.
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
