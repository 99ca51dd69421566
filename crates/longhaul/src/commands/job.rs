//! `longhaul job`, and waiting for jobs with progress.

use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_api::formats::JobPriority;
use longhaul_api::jobs::{JobChange, JobDetail, JobFileView, JobView};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_model::units::{self, bytes, printable};
use longhaul_model::{CommunityName, FaultCode, JobFileState, JobId, JobState, Timestamp};

use super::{Context, status, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::progress::{Measure, ProgressBoard, lines};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, path, prose, right};
use crate::terminal::{Style, Tone};
use crate::time_format;

/// Priorities of jobs, the scale of FTS: 1 (lowest) to 5.
pub const PRIORITIES: std::ops::RangeInclusive<i64> =
    *JobPriority::RANGE.start() as i64..=*JobPriority::RANGE.end() as i64;
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List jobs, newest first
    List(ListArgs),
    /// Show a job and its files, failed ones first
    Show {
        /// Id of the job
        job: JobId,
        /// Maximum number of files
        #[arg(long, default_value_t = 100)]
        files: u32,
    },
    /// Wait for jobs to end, with progress; exits with 0 if all files arrived
    Wait {
        /// Ids of the jobs
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<JobId>,
        /// Maximum time to wait
        #[arg(long, value_name = "SECONDS")]
        within: Option<u64>,
    },
    /// Cancel jobs; files that have arrived stay
    Cancel {
        /// Ids of the jobs
        #[arg(required = true, value_name = "JOB")]
        jobs: Vec<JobId>,
    },
    /// Change a job's priority, on the scale of jobs (1 to 5)
    Priority {
        /// Id of the job
        job: JobId,
        /// Priority of the job: 1 (lowest) to 5; as a subscription's 1, 3, 5, 6 and 8 of 9
        #[arg(value_parser = clap::value_parser!(u8).range(PRIORITIES))]
        priority: u8,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only jobs in this state, such as active, failed or finished
    #[arg(long, value_parser = parse_state)]
    state: Option<JobState>,
    /// Only jobs of this community
    #[arg(long)]
    community: Option<CommunityName>,
    /// Only jobs from this host, or scheme://host
    #[arg(long, value_name = "HOST")]
    source: Option<String>,
    /// Only jobs to this host, or scheme://host
    #[arg(long, value_name = "HOST")]
    target: Option<String>,
    /// Only jobs submitted since: a duration ago such as 90m, 6h or 2d, or a time such as
    /// 2026-11-28T13:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// Maximum number of jobs
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

fn parse_state(text: &str) -> Result<JobState, String> {
    text.to_ascii_uppercase().parse()
}

/// `time_format::parse` adds a duration to now; a list looks back, so it is subtracted.
fn parse_since(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let (now, ahead) = (clock::now(), time_format::parse(text)?);
    Ok(Timestamp(now.0.saturating_sub(ahead.0.saturating_sub(now.0))))
}

pub async fn run(context: &Context, remote: &Remote, command: JobCommand) -> Result<Exit, Failure> {
    match command {
        JobCommand::List(args) => list(context, remote, args).await?,
        JobCommand::Show { job, files } => {
            let query = [("files", Some(files.to_string()))];
            let detail: JobDetail = remote.get(&routes::JOB_SHOW, &[&job.to_string()], &query).await?;
            context.output.view(&detail, human, |detail| files_table(&detail.files, clock::now()))?;
        }
        JobCommand::Wait { jobs, within } => {
            return wait(context, remote, &jobs, within.map(Duration::from_secs)).await;
        }
        JobCommand::Cancel { jobs } => {
            let mut items: Vec<JobView> = Vec::with_capacity(jobs.len());
            for job in jobs {
                items.push(remote.post(&routes::JOB_CANCEL, &[&job.to_string()], &()).await?);
            }
            context.output.sentence(&Page { items, next: None }, |page| {
                let said = page.items.iter().map(|job| format!("{} is {}", job.id, state_word(job.state)));
                said.collect::<Vec<_>>().join("\n")
            })?;
        }
        JobCommand::Priority { job, priority } => {
            let change = JobChange { priority };
            let view: JobView = remote.patch(&routes::JOB_CHANGE, &[&job.to_string()], &change).await?;
            context.output.sentence(&view, |job| {
                format!("{} has priority {}", job.id, words::job_priority(job.priority))
            })?;
        }
    }
    Ok(Exit::Ok)
}

async fn list(context: &Context, remote: &Remote, args: ListArgs) -> Result<(), Failure> {
    let query = [
        ("state", args.state.map(|state| state.word().to_owned())),
        ("community", args.community.as_ref().map(|name| name.as_str().to_owned())),
        ("source", args.source),
        ("target", args.target),
        ("since", args.since.map(|at| at.to_string())),
    ];
    let page: Page<JobView> = remote.list(&routes::JOB_LIST, &[], &query, args.limit).await?;
    context.output.list(&page, |page| table(&page.items, clock::now()))
}

// ---- waiting ---------------------------------------------------------------------------------------------

/// Shows progress until all jobs have ended, then how each ended.
pub async fn wait(
    context: &Context,
    remote: &Remote,
    jobs: &[JobId],
    limit: Option<Duration>,
) -> Result<Exit, Failure> {
    let goes_on = || {
        let ids: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        let ids = ids.join(" ");
        format!("the jobs continue; see: longhaul job wait {ids}     cancel: longhaul job cancel {ids}")
    };
    let watch = async {
        match limit {
            Some(limit) => {
                tokio::time::timeout(limit, watch(context, remote, jobs)).await.unwrap_or_else(|_| {
                    let why = format!("some jobs are still running after {}", units::duration(limit));
                    let failure = Failure::new(FaultCode::Busy, why).with_title("timed out");
                    Err(failure.with_remedy(goes_on()).with_exit(Exit::TimedOut))
                })
            }
            None => watch(context, remote, jobs).await,
        }
    };
    let Some(done) = super::unless_interrupted(context, goes_on, watch).await? else {
        return Ok(Exit::Interrupted);
    };
    let exit = exit_status(&done);
    context.output.sentence(&Page { items: done, next: None }, |page| {
        page.items.iter().map(end_sentence).collect::<Vec<_>>().join("\n")
    })?;
    Ok(exit)
}

async fn watch(context: &Context, remote: &Remote, jobs: &[JobId]) -> Result<Vec<JobDetail>, Failure> {
    let mut board = ProgressBoard::new(context.output.error, context.output.quiet);
    let mut details: Vec<JobDetail> = Vec::with_capacity(jobs.len());
    for job in jobs {
        details.push(remote.get(&routes::JOB_SHOW, &[&job.to_string()], &[]).await?);
    }
    loop {
        let now = clock::now();
        let names: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        let measures = names.iter().zip(&details).map(|(name, detail)| (name.as_str(), measure(detail, now)));
        let measures: Vec<(&str, Measure)> = measures.collect();
        board.show(now, &lines(&measures, context.output.error.width()), || {
            measures.iter().map(|(name, measure)| measure.plain(name)).collect::<Vec<_>>().join("\n")
        });
        if details.iter().all(|detail| detail.job.state.is_terminal()) {
            board.clear();
            return Ok(details);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        for detail in details.iter_mut().filter(|detail| !detail.job.state.is_terminal()) {
            *detail = remote.get_with_retry(&routes::JOB_SHOW, &[&detail.job.id.to_string()]).await?;
        }
    }
}

fn measure(detail: &JobDetail, now: Timestamp) -> Measure {
    let counts = &detail.counts;
    let ended = counts.done + counts.failed + counts.canceled;
    let waits = || {
        let why = detail.files.iter().find_map(|file| file.waits_for.as_ref());
        why.filter(|_| counts.running == 0).map(|why| format!("waiting: {}", printable(why)))
    };
    Measure {
        files_done: ended,
        files: Some(ended + counts.waiting + counts.running),
        bytes_done: detail.bytes_done,
        bytes: detail.bytes.map(|bytes| bytes.max(detail.bytes_done)),
        rate_now: detail.rate_now,
        rate_average: average(detail, now),
        end: if detail.job.state.is_terminal() {
            state_word(detail.job.state)
        } else {
            waits().unwrap_or_default()
        },
        left: String::new(),
        notes: if counts.failed > 0 {
            format!("{} failed", words::files(counts.failed))
        } else {
            String::new()
        },
    }
}

fn average(detail: &JobDetail, now: Timestamp) -> f64 {
    let seconds = detail.job.finished.unwrap_or(now).since(detail.job.submitted).as_secs_f64();
    if seconds > 0.5 { detail.bytes_done as f64 / seconds } else { 0.0 }
}

fn exit_status(jobs: &[JobDetail]) -> Exit {
    let arrived = jobs.iter().filter(|job| job.job.state == JobState::Finished).count();
    let in_part = jobs.iter().any(|job| job.job.state == JobState::FinishedDirty);
    match arrived {
        all if all == jobs.len() => Exit::Ok,
        0 if !in_part => Exit::Permanent,
        _ => Exit::Partly,
    }
}

/// The line for a job that has ended:
/// `ID: failed; 2 of 3 files arrived, 1.2 GB; https://…/f: HTTP 404 (turn: the source's administrator);
/// see: …`.
fn end_sentence(detail: &JobDetail) -> String {
    let job = &detail.job;
    let all = if job.kind == "replicas" { 1 } else { job.files };
    let mut parts = vec![
        format!("{}: {}", job.id, state_word(job.state)),
        format!(
            "{} of {} arrived, {}",
            units::count(detail.counts.done),
            words::files(all),
            bytes(detail.bytes_done)
        ),
    ];
    if job.state != JobState::Finished {
        let first = detail.files.iter().find_map(|file| {
            let fault = file.fault.as_ref().filter(|_| file.state == JobFileState::Failed)?;
            let whose = status::whose_turn(fault.blame);
            Some(format!("{}: {} (turn: {whose})", printable(&file.source), printable(&fault.text)))
        });
        parts.extend(first.or_else(|| job.reason.as_deref().map(printable)));
        parts.push(format!("see: longhaul job show {}", job.id));
    }
    parts.join("; ")
}

// ---- showing ---------------------------------------------------------------------------------------------

/// FTS's word for a state, in lower case.
fn state_word(state: JobState) -> String {
    state.word().to_lowercase()
}

fn table(jobs: &[JobView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("job"),
        left("state"),
        left("community"),
        right("priority"),
        right("files"),
        right("done"),
        right("failed"),
        left("from"),
        left("to"),
        left("submitted"),
        prose("reason").plain_title("because"),
    ]);
    for job in jobs {
        let several = |end: &Option<String>| match end {
            Some(end) => Cell::text(end),
            None => Cell::both("several", ""),
        };
        table.row([
            Cell::text(job.id.to_string()),
            state_cell(job.state),
            Cell::text(&job.community),
            Cell::both(words::job_priority(job.priority), job.priority.to_string()),
            Cell::count(job.files),
            Cell::maybe(job.files_done, Cell::count),
            Cell::maybe(job.files_failed, Cell::count),
            several(&job.source),
            several(&job.target),
            Cell::time(job.submitted, now),
            Cell::text(job.reason.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn state_cell(state: JobState) -> Cell {
    let cell = Cell::both(state_word(state), state.word());
    match state {
        JobState::Finished => cell.toned(Tone::Good),
        JobState::Failed | JobState::FinishedDirty => cell.toned(Tone::Bad),
        _ => cell,
    }
}

fn human(detail: &JobDetail, style: Style, width: Option<usize>) -> String {
    let now = clock::now();
    let job = &detail.job;
    let mut lines = vec![
        ("job", format!("{}, {}", job.id, kind_text(job))),
        ("state", format!("{}, priority {}", state_word(job.state), words::job_priority(job.priority))),
        ("for", format!("{} of {}", printable(&job.user), printable(&job.community))),
        ("files", counts_text(detail)),
        ("bytes", bytes_text(detail)),
        ("submitted", time_format::local(job.submitted, now)),
    ];
    lines.extend(job.finished.map(|at| ("ended", time_format::local(at, now))));
    lines.extend(
        job.expires.map(|at| ("expires", format!("{} if it has not started", time_format::ahead(at, now)))),
    );
    lines.extend(job.reason.as_ref().map(|reason| ("reason", printable(reason))));
    if job.metadata.as_object().is_some_and(|metadata| !metadata.is_empty()) {
        lines.push(("metadata", printable(&job.metadata.to_string())));
    }
    let mut text = facts(style, width, &lines);
    let failed: Vec<&JobFileView> =
        detail.files.iter().filter(|file| file.state == JobFileState::Failed).collect();
    for file in failed.iter().take(FAILED_FILES_DETAILED_MAX) {
        text.push('\n');
        text.push_str(&facts(style, width, &failure_facts(file)));
    }
    text.push('\n');
    text.push_str(&files_table(&detail.files, now).human(style, width));
    if job.files > detail.files.len() as u64 {
        let more = words::files(job.files - detail.files.len() as u64);
        text.push_str(&format!("and {more}: longhaul job show {} --files {}\n", job.id, job.files));
    }
    text
}

/// Failed files described in full; the others are only in the table.
const FAILED_FILES_DETAILED_MAX: usize = 5;

fn failure_facts(file: &JobFileView) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("failed", printable(&file.source)),
        ("to", printable(&file.target)),
        ("attempts", units::count(u64::from(file.attempts))),
    ];
    if let Some(fault) = &file.fault {
        lines.push(("reason", printable(&fault.text)));
        lines.push(("turn", status::whose_turn(fault.blame).to_owned()));
    }
    lines
}

fn kind_text(job: &JobView) -> &'static str {
    match job.kind.as_str() {
        "replicas" => "one file with several replicas",
        "hops" => "one file over several hops",
        "reuse" => "copies over one connection",
        _ => "copies",
    }
}

fn counts_text(detail: &JobDetail) -> String {
    let counts = &detail.counts;
    let parts = [
        (counts.failed, "failed"),
        (counts.running, "running"),
        (counts.waiting, "waiting"),
        (counts.done, "arrived"),
        (counts.canceled, "cancelled"),
        (counts.unused, "not needed yet"),
    ];
    let said = parts.iter().filter(|(number, _)| *number > 0);
    said.map(|(number, what)| format!("{} {what}", units::count(*number))).collect::<Vec<_>>().join(", ")
}

fn bytes_text(detail: &JobDetail) -> String {
    let of = detail
        .bytes
        .map_or_else(|| " (some sizes are unknown)".to_owned(), |all| format!(" of {}", bytes(all)));
    let rate =
        if detail.rate_now > 0.0 { format!(", {} now", units::rate(detail.rate_now)) } else { String::new() };
    format!("{}{of}{rate}", bytes(detail.bytes_done))
}

fn files_table(files: &[JobFileView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("state"),
        path("from"),
        path("to"),
        right("bytes"),
        right("rate"),
        right("attempts"),
        left("ended"),
        prose("reason").plain_title("because"),
    ]);
    for file in files {
        let state = Cell::both(file.state.word().to_lowercase(), file.state.word());
        table.row([
            state.toned_if(file.state == JobFileState::Failed, Tone::Bad),
            Cell::text(&file.source),
            Cell::text(&file.target),
            Cell::bytes(file.bytes_done),
            Cell::rate(file.rate),
            Cell::count(u64::from(file.attempts)),
            Cell::maybe(file.finished, |at| Cell::time(at, now)),
            Cell::text(reason_text(file)),
        ]);
    }
    table
}

fn reason_text(file: &JobFileView) -> String {
    match (&file.waits_for, &file.fault, &file.mode) {
        (Some(why), Some(fault), _) => format!("waiting for {why}; last attempt: {}", fault.text),
        (Some(why), None, _) => format!("waiting for {why}"),
        (None, Some(fault), _) => format!("{} (turn: {})", fault.text, status::whose_turn(fault.blame)),
        (None, None, Some(mode)) => format!("by {mode}"),
        (None, None, None) => {
            file.mover.as_ref().map(|mover| format!("streamed by {mover}")).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::jobs::{JobCounts, JobFault};
    use longhaul_model::Blame;

    fn detail(state: JobState) -> JobDetail {
        JobDetail {
            job: JobView {
                id: JobId(7),
                state,
                kind: "copies".into(),
                community: "atlas".into(),
                user: "alice".into(),
                priority: 3,
                source: None,
                target: Some("https://b".into()),
                files: 3,
                files_done: Some(2),
                files_failed: Some(1),
                submitted: Timestamp(1),
                finished: None,
                expires: None,
                reason: Some("One or more files failed".into()),
                metadata: serde_json::json!({}),
            },
            counts: JobCounts { done: 2, failed: 1, ..JobCounts::default() },
            bytes_done: 2_000,
            bytes: Some(3_000),
            rate_now: 0.0,
            files: vec![JobFileView {
                mover: None,
                id: 1,
                index: 0,
                state: JobFileState::Failed,
                source: "https://a/\u{1b}[2Jx".into(),
                target: "https://b/x".into(),
                activity: "default".into(),
                size: Some(1_000),
                checksum: None,
                attempts: 2,
                bytes_done: 0,
                rate: 0.0,
                started: None,
                finished: None,
                mode: None,
                fault: Some(JobFault {
                    blame: Blame::Source,
                    errno: 2,
                    text: "HTTP 404".into(),
                    passing: false,
                }),
                waits_for: None,
            }],
        }
    }

    #[test]
    fn the_end_says_what_failed_and_whose_turn_it_is() {
        let text = end_sentence(&detail(JobState::FinishedDirty));
        for part in [
            "finisheddirty",
            "2 of 3 files arrived",
            "HTTP 404 (turn: the source's administrator)",
            "longhaul job show",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(!text.contains('\u{1b}'));
        let shown = human(&detail(JobState::FinishedDirty), Style::plain(), None);
        assert!(
            shown.contains("1 failed, 2 arrived") && shown.contains("and 2 files: longhaul job show"),
            "{shown}"
        );
        assert!(shown.find("HTTP 404") < shown.find("state   from"), "{shown}");
    }

    #[test]
    fn exit_codes_follow_the_jobs() {
        use JobState::*;
        let of =
            |states: &[JobState]| exit_status(&states.iter().map(|state| detail(*state)).collect::<Vec<_>>());
        assert_eq!(of(&[Finished, Finished]), Exit::Ok);
        assert_eq!(of(&[Finished, Failed]), Exit::Partly);
        assert_eq!(of(&[FinishedDirty]), Exit::Partly);
        assert_eq!(of(&[Failed, Canceled]), Exit::Permanent);
    }

    #[test]
    fn a_list_looks_back() {
        assert!(parse_since("6h").unwrap() < clock::now());
        assert_eq!(
            parse_since("2026-11-28T13:00:00Z").unwrap().to_string(),
            "2026-11-28T13:00:00.000Z".to_owned()
        );
        assert_eq!(parse_state("finisheddirty").unwrap(), JobState::FinishedDirty);
        assert!(parse_state("done").is_err() && parse_since("soon").is_err());
    }
}
