//! Jobs as the native API and the pages show them.

use std::collections::BTreeMap;

use longhaul_api::fts::submission::Parameters;
use longhaul_api::jobs::{JobCounts, JobDetail, JobFault, JobFileView, JobView};
use longhaul_catalog::{JobFileRow, JobRow};
use longhaul_model::job::{JOBS_HALF, parse_reason};
use longhaul_model::{Blame, JobFileState, JobKind, SubscriptionId, Timestamp, units};
use serde_json::Value;

use crate::ids;
use crate::job_control::JobControl;

/// Queues of one job that the scheduler is asked about: its files go to few servers.
const QUEUES_MAX: usize = 16;
/// Files of one queue that the scheduler has in mind, of which it tells why each waits.
const WAITING_MAX: usize = 2_000;
/// Files of one job whose attempts are asked for who moved them.
const EXPLAINED_MAX: usize = 100;
const DRAINS: &str = "an administrator: this service drains, so nothing new begins (/config/drain)";
const ITS_TURN: &str = "its turn: files that were submitted before it go first";

pub fn job(row: &JobRow) -> JobView {
    let parameters: Parameters = serde_json::from_str(&row.details).unwrap_or_default();
    JobView {
        id: row.id,
        state: row.state,
        kind: kind(row.kind).to_owned(),
        community: row.vo.clone(),
        user: row.user.clone(),
        priority: row.priority,
        source: row.source_se.clone(),
        target: row.target_se.clone(),
        files: row.files,
        files_done: row.files_finished,
        files_failed: row.files_failed,
        submitted: row.submitted,
        finished: row.finished,
        expires: row.expires,
        reason: (!row.reason.is_empty()).then(|| row.reason.clone()),
        metadata: match parameters.job_metadata {
            metadata @ Value::Object(_) => metadata,
            _ => Value::Object(serde_json::Map::new()),
        },
    }
}

fn kind(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Regular => "copies",
        JobKind::Replicas => "replicas",
        JobKind::Hops => "hops",
        JobKind::Reuse => "reuse",
    }
}

/// With so many of its files at the most.
pub fn detail(job_control: &JobControl, row: &JobRow, mut files: Vec<JobFileRow>, most: usize) -> JobDetail {
    let now = job_control.kernel.now();
    let mut detail = JobDetail {
        job: job(row),
        counts: counts(&files),
        bytes_done: 0,
        bytes: Some(0),
        rate_now: 0.0,
        files: Vec::new(),
    };
    for file in files.iter().filter(|file| file.state != JobFileState::NotUsed) {
        let moved = moved(job_control, file, now);
        detail.bytes_done = detail.bytes_done.saturating_add(moved.bytes);
        let whole = if file.state == JobFileState::Finished { Some(moved.bytes) } else { file.size };
        detail.bytes = detail.bytes.zip(whole).map(|(sum, bytes)| sum.saturating_add(bytes));
        if file.state.is_running() {
            detail.rate_now += moved.rate;
        }
    }
    files.sort_by_key(|file| (rank(file.state), file.id));
    files.truncate(most);
    let reasons = reasons(job_control, &files, now);
    detail.files = files
        .into_iter()
        .enumerate()
        .map(|(at, file)| {
            let waits_for = waits_for(&file, &reasons, row.kind, now);
            shown(job_control, file, waits_for, at < EXPLAINED_MAX, now)
        })
        .collect();
    detail
}

fn counts(files: &[JobFileRow]) -> JobCounts {
    use JobFileState::*;
    let mut counts = JobCounts::default();
    for file in files {
        *match file.state {
            Finished => &mut counts.done,
            Failed => &mut counts.failed,
            Canceled => &mut counts.canceled,
            NotUsed => &mut counts.unused,
            Active | Ready | Archiving | Started => &mut counts.running,
            TokenPrep | Staging | Submitted | ForceStart | OnHold | OnHoldStaging => &mut counts.waiting,
        } += 1;
    }
    counts
}

/// What people look for comes first.
fn rank(state: JobFileState) -> u8 {
    use JobFileState::*;
    match state {
        Failed => 0,
        Active | Archiving | Started => 1,
        Ready => 2,
        TokenPrep | Staging | Submitted | ForceStart | OnHold | OnHoldStaging => 3,
        Canceled => 4,
        Finished => 5,
        NotUsed => 6,
    }
}

struct Moving {
    bytes: u64,
    rate: f64,
}

fn moved(job_control: &JobControl, file: &JobFileRow, now: Timestamp) -> Moving {
    let per_second = |bytes: u64, from: Timestamp, until: Timestamp| {
        let seconds = until.since(from).as_secs_f64();
        if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
    };
    if let Some(progress) = job_control.jobs.progress(file.id) {
        return Moving { bytes: progress.bytes, rate: per_second(progress.bytes, progress.since, now) };
    }
    let bytes = file.bytes.unwrap_or(0);
    let took = file.started.zip(file.finished);
    Moving { bytes, rate: took.map_or(0.0, |(from, until)| per_second(bytes, from, until)) }
}

fn shown(
    job_control: &JobControl,
    file: JobFileRow,
    waits_for: Option<String>,
    explained: bool,
    now: Timestamp,
) -> JobFileView {
    let moved = moved(job_control, &file, now);
    let mover = if explained { mover(job_control, &file) } else { None };
    JobFileView {
        id: file.id,
        index: file.index,
        state: file.state,
        attempts: attempts(&file),
        bytes_done: moved.bytes,
        rate: moved.rate,
        fault: fault(&file),
        waits_for,
        source: file.source,
        target: file.target,
        activity: file.activity,
        size: file.size,
        checksum: file.checksum.filter(|checksum| checksum.contains(':')),
        started: file.started,
        finished: file.finished,
        mode: file.mode,
        mover,
    }
}

/// The mover of the last attempt, if its explanation names one: for streamed copies, and those that might
/// have been streamed.
fn mover(job_control: &JobControl, file: &JobFileRow) -> Option<String> {
    let running = file.attempt.filter(|_| file.state.is_running());
    if let Some(choice) = running.and_then(|attempt| job_control.jobs.stream_ledger.choice(attempt)) {
        return Some(choice);
    }
    let may_have_one = match &file.mode {
        Some(mode) => mode.starts_with("stream"),
        None => file.attempt.is_some(),
    };
    if !may_have_one {
        return None;
    }
    let attempts = job_control.job_file_attempts(file.id).ok()?;
    let choice: Value = serde_json::from_str(&attempts.last()?.choice).ok()?;
    choice["mover"].as_str().map(str::to_owned)
}

/// Those that began; the one that is waited for has not.
fn attempts(file: &JobFileRow) -> u32 {
    let one = u32::from(file.attempt.is_some());
    match file.state {
        state if state.is_queued() => file.retries,
        JobFileState::Canceled => file.retries.max(one),
        _ => file.retries + one,
    }
}

fn fault(file: &JobFileRow) -> Option<JobFault> {
    if file.reason.is_empty() {
        return None;
    }
    let (blame, errno, text) = parse_reason(&file.reason).unwrap_or((Blame::Request, 0, &file.reason));
    Some(JobFault { blame, errno, text: text.to_owned(), passing: file.recoverable })
}

/// Why files wait that the scheduler has in mind; of the others of a queue, what holds all of it up.
#[derive(Default)]
struct Reasons {
    files: BTreeMap<u64, String>,
    queues: BTreeMap<u64, String>,
}

fn reasons(job_control: &JobControl, files: &[JobFileRow], now: Timestamp) -> Reasons {
    let waiting = files.iter().filter(|file| file.state.is_queued() && file.not_before <= now);
    let mut queues: Vec<u64> = waiting.map(|file| file.queue).collect();
    queues.sort_unstable();
    queues.dedup();
    queues.truncate(QUEUES_MAX);
    if queues.is_empty() {
        return Reasons::default();
    }
    if job_control.drains() {
        let queues = queues.into_iter().map(|queue| (queue, DRAINS.to_owned())).collect();
        return Reasons { queues, ..Reasons::default() };
    }
    let asked = job_control.kernel.scheduler.query(move |scheduler, now| {
        let mut reasons = Reasons::default();
        for queue in queues {
            let demand = SubscriptionId(JOBS_HALF | queue);
            for transfer in scheduler.transfers(Some(demand), None, WAITING_MAX) {
                let why = scheduler.explain_wait(transfer.transfer, now);
                reasons.files.extend(why.map(|why| (ids::file_number(transfer.file), why)));
            }
            let outlook = scheduler.outlook(demand, now);
            let why = outlook.why_none.into_iter().chain(outlook.held_up_by).next();
            reasons.queues.extend(why.map(|why| (queue, why)));
        }
        reasons
    });
    asked.unwrap_or_default()
}

fn waits_for(file: &JobFileRow, reasons: &Reasons, kind: JobKind, now: Timestamp) -> Option<String> {
    use JobFileState::*;
    let fixed = |text: &str| Some(text.to_owned());
    match file.state {
        Submitted | ForceStart if file.not_before > now => {
            let wait = units::duration(file.not_before.since(now));
            Some(format!("its next try, in {wait}, at {}", file.not_before))
        }
        Submitted | ForceStart => {
            let known = reasons.files.get(&file.id).or_else(|| reasons.queues.get(&file.queue));
            Some(known.cloned().unwrap_or_else(|| ITS_TURN.to_owned()))
        }
        Ready => fixed("a place among the copies that run at a time (service.jobs.copies)"),
        TokenPrep => fixed("the exchange of its tokens"),
        Staging => fixed("its tape system to be asked for it: files of one storage are asked for together"),
        OnHold | OnHoldStaging => fixed("the end of a ban: an administrator has banned one of its storages"),
        NotUsed if kind == JobKind::Hops => fixed("the hop before it"),
        NotUsed => fixed("the replica that is tried first"),
        Started | Active | Archiving | Finished | Failed | Canceled => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever stands still says why.
    #[test]
    fn no_file_waits_without_a_reason() {
        for &state in JobFileState::ALL {
            let file = JobFileRow { state, ..row() };
            let waits = waits_for(&file, &Reasons::default(), JobKind::Regular, Timestamp(5)).is_some();
            assert_eq!(
                waits,
                counts(&[file]).waiting + u64::from(state == JobFileState::Ready) > 0
                    || state == JobFileState::NotUsed,
                "{state}"
            );
        }
        let later = JobFileRow { not_before: Timestamp(60_000_005), ..row() };
        let why = waits_for(&later, &Reasons::default(), JobKind::Regular, Timestamp(5)).unwrap();
        assert!(why.starts_with("its next try, in 1"), "{why}");
    }

    #[test]
    fn an_attempt_counts_when_it_has_begun() {
        let file = |state, retries| JobFileRow { state, retries, attempt: Some(9.into()), ..row() };
        assert_eq!(attempts(&row()), 0);
        for (state, retries, expected) in [
            (JobFileState::Submitted, 1, 1),
            (JobFileState::Active, 1, 2),
            (JobFileState::Failed, 0, 1),
            (JobFileState::Canceled, 0, 1),
        ] {
            assert_eq!(attempts(&file(state, retries)), expected, "{state}");
        }
    }

    #[test]
    fn a_reason_says_whose_turn_it_is() {
        let file = JobFileRow { reason: "SOURCE [2] gone".into(), ..row() };
        let expected = JobFault { blame: Blame::Source, errno: 2, text: "gone".into(), passing: false };
        assert_eq!(fault(&file), Some(expected));
        let file = JobFileRow { reason: "Job canceled by the user".into(), ..row() };
        assert_eq!(fault(&file).map(|fault| (fault.blame, fault.errno)), Some((Blame::Request, 0)));
        assert_eq!(fault(&row()), None);
    }

    fn row() -> JobFileRow {
        JobFileRow {
            id: 1,
            job: longhaul_model::JobId(1),
            index: 0,
            state: JobFileState::Submitted,
            source: String::new(),
            target: String::new(),
            size: None,
            checksum: None,
            activity: String::new(),
            vo: String::new(),
            priority: 3,
            retries: 0,
            attempt: None,
            not_before: Timestamp(0),
            reason: String::new(),
            recoverable: false,
            started: None,
            finished: None,
            bytes: None,
            mode: None,
            details: String::new(),
            queue: 1,
            tape: longhaul_catalog::TapeTimes::default(),
        }
    }
}
