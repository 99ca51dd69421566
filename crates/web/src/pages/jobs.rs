//! The job pages (copies between URLs): how far along is a job, and what went wrong?

use longhaul_api::jobs::{JobDetail, JobFileView, JobView};
use longhaul_api::native::Page;
use longhaul_model::units::{self, printable};
use longhaul_model::{JobFileState, JobState};
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, action, page};
use crate::show;

/// The least urgent priority of a job, as FTS counts.
const JOB_PRIORITY_MIN: u8 = 1;
/// The most urgent priority of a job, as FTS counts.
const JOB_PRIORITY_MAX: u8 = 5;

pub fn jobs(context: Context<'_>, state: Option<JobState>, list: &Page<JobView>) -> Markup {
    let filter = state.map(|state| format!("state={}", word(&state))).unwrap_or_default();
    let command = state.map(|state| format!(" --state {}", word(&state))).unwrap_or_default();
    let frame = Frame::live(
        context,
        "Jobs",
        Section::Jobs,
        format!("/api/v1/jobs?{filter}"),
        format!("longhaul job list{command}"),
    );
    page(
        &frame,
        html! {
            h1 { "Jobs: what was submitted, and how far along is it?" }
            (filters(state))
            @if list.items.is_empty() {
                p.empty {
                    "No job matches. " code { "longhaul submit SOURCE TARGET" }
                    " copies a file between two storages; so do clients of FTS."
                }
            } @else {
                (table(context, list))
            }
            @if let Some(next) = &list.next {
                p.pager { a href={ "/ui/jobs?" (filter) "&after=" (show::segment(next)) } { "Older" } }
            }
        },
    )
}

fn filters(state: Option<JobState>) -> Markup {
    html! {
        form.filter method="get" action="/ui/jobs" {
            label {
                "State"
                select name="state" {
                    option value="" { "Any" }
                    @for one in JobState::ALL {
                        option value=(word(one)) selected[state == Some(*one)] { (word(one)) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

fn table(context: Context<'_>, list: &Page<JobView>) -> Markup {
    html! {
        div.scroll data-still {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Job" }
                        th scope="col" { "From → to" }
                        th scope="col" { "State" }
                        th.number scope="col" { "Files" }
                        th.wide scope="col" { "Community" }
                        th.wide scope="col" { "Submitted" }
                        th scope="col" { "Reason" }
                    }
                }
                tbody {
                    @for job in &list.items {
                        tr {
                            td.name { a href={ "/ui/jobs/" (job.id) } { (job.id) } }
                            td data-label="From → to" {
                                (endpoint(job.source.as_deref())) " → " (endpoint(job.target.as_deref()))
                            }
                            td.tight data-label="State" { (job_state(job.state)) }
                            td.number data-label="Files" {
                                @if let Some(done) = job.files_done { (units::count(done)) " of " }
                                (units::count(job.files))
                                @if let Some(failed) = job.files_failed.filter(|failed| *failed > 0) {
                                    br;
                                    (show::state("bad", &format!("{} failed", units::count(failed))))
                                }
                            }
                            td.wide { (printable(&job.community)) }
                            td.wide.tight { (show::ago(job.submitted, context.now)) }
                            td data-label="Reason" {
                                @if let Some(reason) = &job.reason { (printable(reason)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The common end of all files, or `several` if they differ.
fn endpoint(storage: Option<&str>) -> String {
    storage.map_or("several".to_owned(), printable)
}

fn word(state: &JobState) -> String {
    state.to_string()
}

fn job_state(state: JobState) -> Markup {
    let kind = match state {
        JobState::Finished | JobState::Active | JobState::Ready | JobState::Archiving => "good",
        JobState::Submitted | JobState::Staging | JobState::Canceled => "idle",
        JobState::FinishedDirty => "warn",
        JobState::Failed => "bad",
    };
    show::state(kind, &word(&state))
}

fn file_state(state: JobFileState) -> Markup {
    let kind = match state {
        JobFileState::Failed => "bad",
        _ if state == JobFileState::Finished || state.is_running() => "good",
        _ => "idle",
    };
    show::state(kind, &state.to_string())
}

pub fn job(context: Context<'_>, detail: &JobDetail) -> Markup {
    let job = &detail.job;
    let title = format!("Job {}", job.id);
    let frame = Frame {
        live: !job.state.is_terminal(),
        ..Frame::live(
            context,
            &title,
            Section::Jobs,
            format!("/api/v1/jobs/{}", job.id),
            format!("longhaul job show {}", job.id),
        )
    };
    page(
        &frame,
        html! {
            h1 { "Job " (job.id) " " small { "how far along is it, and what went wrong?" } }
            (progress(detail))
            h2 { "Status" }
            (facts(context, detail))
            (changes(context, job))
            h2 { "Files" }
            (files(context, detail))
        },
    )
}

fn progress(detail: &JobDetail) -> Markup {
    let counts = &detail.counts;
    let others = [
        ("running", counts.running),
        ("waiting", counts.waiting),
        ("failed", counts.failed),
        ("cancelled", counts.canceled),
        ("not needed so far", counts.unused),
    ];
    let all = counts.done + others.iter().map(|(_, count)| count).sum::<u64>();
    html! {
        div.card {
            @match detail.bytes {
                Some(bytes) => (show::bar(detail.bytes_done, bytes)),
                None => (show::bar(counts.done, all)),
            }
            p {
                (units::count(counts.done)) " of " (show::files(all)) " arrived, "
                (show::size(detail.bytes_done))
                @if let Some(bytes) = detail.bytes { " of " (show::size(bytes)) }
                @for (word, count) in others.iter().filter(|(_, count)| *count > 0) {
                    " · " (units::count(*count)) " " (word)
                }
            }
        }
    }
}

fn facts(context: Context<'_>, detail: &JobDetail) -> Markup {
    let job = &detail.job;
    html! {
        dl.facts {
            dt { "State" }
            dd { (job_state(job.state)) @if let Some(reason) = &job.reason { " " (printable(reason)) } }
            dt { "From" } dd { (endpoint(job.source.as_deref())) }
            dt { "To" } dd { (endpoint(job.target.as_deref())) }
            @if !job.state.is_terminal() { dt { "Rate" } dd { (show::rate(detail.rate_now)) } }
            dt { "Submitted" }
            dd {
                (show::time(job.submitted, context.now)) " by " (printable(&job.user)) ", charged to "
                (printable(&job.community))
            }
            @if let Some(at) = job.finished { dt { "Finished" } dd { (show::time(at, context.now)) } }
            @if let Some(at) = job.expires.filter(|_| !job.state.is_terminal()) {
                dt { "Expires" } dd { (show::time(at, context.now)) " unless it has started" }
            }
            dt { "Kind" } dd { (job.kind) ", priority " (job.priority) " of " (JOB_PRIORITY_MAX) }
        }
    }
}

fn changes(context: Context<'_>, job: &JobView) -> Markup {
    let address = format!("/ui/jobs/{}", job.id);
    let priority = |value: u8| [("priority", value.to_string())];
    let button = |fields: &[(&str, String)], label: &str| {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        action(context.viewer_for_community(&job.community), &address, &fields, label)
    };
    html! {
        @if !job.state.is_terminal() {
            div.actions {
                @if job.priority < JOB_PRIORITY_MAX {
                    (button(&priority(job.priority + 1), "Raise priority"))
                }
                @if job.priority > JOB_PRIORITY_MIN {
                    (button(&priority(job.priority - 1), "Lower priority"))
                }
                (button(&[("cancel", "true".to_owned())], "Cancel (keep what has arrived)"))
            }
        }
    }
}

fn files(context: Context<'_>, detail: &JobDetail) -> Markup {
    let hidden = detail.job.files.saturating_sub(detail.files.len() as u64);
    html! {
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "From → to" }
                        th.number.wide scope="col" { "Size" }
                        th scope="col" { "State" }
                        th.number.wide scope="col" { "Rate" }
                        th.wide scope="col" { "Started" }
                        th scope="col" { "Reason" }
                    }
                }
                tbody { @for file in &detail.files { (row(context, file)) } }
            }
        }
        @if hidden > 0 {
            p.soft {
                (units::plural(hidden, "more file is", "more files are")) " not shown: "
                code { "longhaul job show " (detail.job.id) " --files " (detail.job.files) }
            }
        }
    }
}

fn row(context: Context<'_>, file: &JobFileView) -> Markup {
    html! {
        tr {
            td.name { (printable(&file.source)) br; "→ " (printable(&file.target)) }
            td.number.wide { @if let Some(size) = file.size { (show::size(size)) } @else { "–" } }
            td.tight data-label="State" {
                (file_state(file.state))
                @if let Some(size) = file.size.filter(|size| *size > 0 && file.state.is_running()) {
                    " " span.soft { (show::percent(file.bytes_done, size)) }
                }
                @if file.attempts > 1 { br; span.soft { "attempt " (file.attempts) } }
                @if let Some(mode) = &file.mode { br; span.soft { "by " (printable(mode)) } }
                @else if let Some(mover) = &file.mover { br; span.soft { "streamed by " (printable(mover)) } }
            }
            td.number.wide { @if file.rate > 0.0 { (show::rate(file.rate)) } @else { "–" } }
            td.wide.tight {
                @if let Some(at) = file.started { (show::time(at, context.now)) } @else { "–" }
            }
            td data-label="Reason" {
                @if let Some(why) = &file.waits_for {
                    (printable(why))
                } @else if let Some(fault) = &file.fault {
                    (printable(&fault.text)) " "
                    span.soft { "(" (fault.blame.word()) @if fault.passing { ", may be temporary" } ")" }
                }
            }
        }
    }
}
