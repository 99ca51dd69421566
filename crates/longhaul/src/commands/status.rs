//! `longhaul status` and `longhaul problems`.

use std::time::Duration;

use clap::Args;
use longhaul_api::native::{Page, ProblemView, Status, SubscriptionView};
use longhaul_api::routes;
use longhaul_model::units::{bytes, count, printable};
use longhaul_model::{SubscriptionState, Timestamp};

use super::subscription::stuck_clause;
use super::{Context, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::progress::ProgressBoard;
use crate::remote::Remote;
use crate::table::{Cell, Table, left, percent, prose, right};
use crate::terminal::{Style, Tone, cut, wrapped};
use crate::time_format;

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Problems shown by `status`; `problems` shows all.
const PROBLEMS_SHOWN_MAX: usize = 3;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Refresh every second until Ctrl-C
    #[arg(long, short)]
    watch: bool,
}

#[derive(Debug, Args)]
pub struct ProblemsArgs {
    /// Also show problems that no longer block anything
    #[arg(long)]
    all: bool,
}

pub async fn status(context: &Context, remote: &Remote, args: StatusArgs) -> Result<Exit, Failure> {
    let output = &context.output;
    if !args.watch {
        let status: Status = remote.get(&routes::STATUS, &[], &[]).await?;
        output.view(&status, human, |status| subscriptions(&status.subscriptions, status.now))?;
        return Ok(Exit::Ok);
    }
    watch(context, remote).await
}

/// Shows the status again and again, with the time of what is shown.
async fn watch(context: &Context, remote: &Remote) -> Result<Exit, Failure> {
    let output = &context.output;
    let mut board = ProgressBoard::new(output.out, false);
    let mut status: Status = remote.get_with_retry(&routes::STATUS, &[]).await?;
    let mut answered = clock::now();
    let mut silent = false;
    loop {
        if output.out.is_terminal && output.format == Format::Human {
            let text = watch_text(&status, answered, silent, output.out.style, output.out.width());
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            board.show(clock::now(), &lines, String::new);
        } else if !silent {
            output.view(&status, human, |status| subscriptions(&status.subscriptions, status.now))?;
        }
        let next = async {
            tokio::time::sleep(WATCH_INTERVAL).await;
            remote.poll(&routes::STATUS, &[]).await
        };
        let answer = tokio::select! {
            answer = next => answer?,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Ok),
        };
        let was_silent = std::mem::replace(&mut silent, answer.is_none());
        if let Some(fresh) = answer {
            (status, answered) = (fresh, clock::now());
        } else if !was_silent && !output.out.is_terminal {
            output.print_message(&no_answer_since(answered, clock::now()));
        }
    }
}

/// Says that the service is silent, and since when.
pub fn no_answer_since(answered: Timestamp, now: Timestamp) -> String {
    format!("no answer since {}", time_format::local(answered, now))
}

/// The status under the time of the answer that it is from.
fn watch_text(
    status: &Status,
    answered: Timestamp,
    silent: bool,
    style: Style,
    width: Option<usize>,
) -> String {
    let heading = watch_heading(answered, silent, clock::now(), style);
    format!("{heading}\n{}", human(status, style, width))
}

fn watch_heading(answered: Timestamp, silent: bool, now: Timestamp, style: Style) -> String {
    if silent {
        style.paint(Tone::Bad, &format!("{}; below is how it was then", no_answer_since(answered, now)))
    } else {
        style.paint(Tone::Faint, &format!("as of {}", time_format::local(answered, now)))
    }
}

pub async fn problems(context: &Context, remote: &Remote, args: ProblemsArgs) -> Result<Exit, Failure> {
    let mut all: Vec<ProblemView> = remote.list_all(&routes::PROBLEM_LIST, &[], &[]).await?;
    all.retain(|problem| args.all || problem.open);
    let page = Page { items: all, next: None };
    context.output.view(
        &page,
        |page, style, width| {
            if page.items.is_empty() {
                return "no problems\n".to_owned();
            }
            page.items
                .iter()
                .map(|problem| problem_text(problem, clock::now(), style, width))
                .collect::<Vec<_>>()
                .join("\n")
        },
        |page| problem_table(&page.items),
    )?;
    Ok(Exit::Ok)
}

/// Datasets in transfer, then problems.
fn human(status: &Status, style: Style, width: Option<usize>) -> String {
    let mut text = if status.subscriptions.is_empty() {
        "no subscriptions yet; create one: longhaul subscribe DATASET STORAGE\n".to_owned()
    } else {
        subscriptions(&status.subscriptions, status.now).human(style, width)
    };
    if status.subscriptions_more > 0 {
        text.push_str(&format!(
            "and {} more: longhaul subscription list\n",
            count(status.subscriptions_more)
        ));
    }
    text.push_str(&format!(
        "\n{}   {} running, {} waiting   {} ({}) moved in total; up since {}\n",
        words::rate(status.rate_now),
        words::plural(status.transfers_running, "transfer"),
        count(status.transfers_waiting),
        words::files(status.files_done),
        bytes(status.bytes_done),
        time_format::local(status.started, status.now),
    ));
    let open: Vec<&ProblemView> = status.problems.iter().filter(|problem| problem.open).collect();
    if open.is_empty() {
        text.push_str(&format!("{}\n", style.paint(Tone::Good, "no problems")));
    } else {
        let shown: Vec<String> =
            open.iter().take(PROBLEMS_SHOWN_MAX).map(|problem| problem_summary(problem)).collect();
        let number = words::plural(open.len() as u64, "problem");
        let line = format!("{number}:  {}", shown.join("    "));
        let line = width.map_or(line.clone(), |width| cut(&line, width.max(40)).into_owned());
        text.push_str(&format!("{}\n  more: longhaul problems\n", style.paint(Tone::Warn, &line)));
    }
    let failed: Vec<String> = status
        .failures_by_blame
        .iter()
        .filter(|blame| blame.count > 0)
        .map(|blame| format!("{} by {}", count(blame.count), blame.blame))
        .collect();
    if !failed.is_empty() {
        text.push_str(&format!("failed attempts so far: {}\n", failed.join(", ")));
    }
    text
}

/// Table of subscriptions, shared with `subscription list`.
pub fn subscriptions(list: &[SubscriptionView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("dataset"),
        left("to"),
        right("done"),
        right("left"),
        right("rate now"),
        left("expected"),
        prose("held up by"),
    ]);
    for subscription in list.iter().filter(|subscription| subscription.state != SubscriptionState::Cancelled)
    {
        let what = subscription.block.as_ref().map_or(subscription.dataset.as_str(), |block| block.as_str());
        table.row([
            Cell::text(what),
            Cell::text(subscription.storage.as_str()),
            done_cell(subscription),
            Cell::bytes(subscription.bytes_wanted.saturating_sub(subscription.bytes_present)),
            Cell::rate(subscription.rate_now),
            expected_cell(subscription, now),
            delay_cell(subscription),
        ]);
    }
    table
}

pub fn percent_done(subscription: &SubscriptionView) -> u64 {
    let files = (subscription.files_present, subscription.files_wanted);
    percent_present(subscription.complete, files, (subscription.bytes_present, subscription.bytes_wanted))
}

/// Percentage of good files or of their bytes, whichever is lower; of each, what is there and what there is
/// in all. The one rule for what a storage has of a dataset.
pub fn percent_present(complete: bool, files: (u64, u64), bytes: (u64, u64)) -> u64 {
    if complete { 100 } else { percent(files.0, files.1).min(percent(bytes.0, bytes.1)) }
}

pub fn done_cell(subscription: &SubscriptionView) -> Cell {
    let share = percent_done(subscription);
    Cell::both(format!("{share} %"), share.to_string()).toned_if(subscription.complete, Tone::Good)
}

pub fn expected_cell(subscription: &SubscriptionView, now: Timestamp) -> Cell {
    let end = &subscription.expected;
    if subscription.complete {
        return Cell::maybe(subscription.completed, |at| {
            Cell::both(format!("done {}", time_format::local(at, now)), at.to_string())
        });
    }
    let stuck = stuck_clause(subscription);
    match (end.median, end.ninety) {
        (Some(median), Some(ninety)) if ninety > median => {
            let (until, ninety) = (time_format::expected(median, now), time_format::expected(ninety, now));
            Cell::both(format!("{until} (90 %: {ninety}){stuck}"), median.to_string())
        }
        (Some(median), _) => {
            Cell::both(format!("{}{stuck}", time_format::expected(median, now)), median.to_string())
        }
        (None, _) => Cell::both("no estimate", ""),
    }
}

pub fn delay_cell(subscription: &SubscriptionView) -> Cell {
    let mut reasons: Vec<&str> = Vec::new();
    if subscription.state == SubscriptionState::Suspended {
        reasons.push("suspended");
    }
    reasons.extend(subscription.expected.held_up_by.iter().map(String::as_str));
    if reasons.is_empty() && !subscription.complete {
        reasons.extend(subscription.expected.why_none.as_deref());
    }
    if reasons.is_empty() { Cell::both("", "") } else { Cell::text(reasons.join("; ")) }
}

fn problem_summary(problem: &ProblemView) -> String {
    let place = problem.storage.as_ref().map(|storage| format!(" at {storage}")).unwrap_or_default();
    format!("{} {}{place}: {}", problem.fault.code, problem.fault.code.title(), count(problem.count))
}

/// A problem in full: what, why, whose turn, what to do, since when, examples.
fn problem_text(problem: &ProblemView, now: Timestamp, style: Style, width: Option<usize>) -> String {
    let fault = &problem.fault;
    let place = problem.storage.as_ref().map(|storage| format!(" at {storage}")).unwrap_or_default();
    let tone = if problem.open { Tone::Bad } else { Tone::Faint };
    let mut text = format!(
        "{} {}{place}, {}\n",
        style.paint(tone, &fault.code.to_string()),
        printable(fault.code.title()),
        words::plural(problem.count, "time"),
    );
    let mut part = |name: &str, value: String| {
        if !value.is_empty() {
            text.push_str(&wrapped(&format!("  {name:<5} {value}"), width, 8));
            text.push('\n');
        }
    };
    part("why:", time_format::sentence(&fault.detail, now));
    part("turn:", whose_turn(fault.blame).to_owned());
    part("next:", printable(&problem.remedy));
    let still = if problem.open { ", still open" } else { "" };
    let (first, last) =
        (time_format::local(problem.first_seen, now), time_format::local(problem.last_seen, now));
    let seen = if first == last { first } else { format!("{first} to {last}") };
    part("seen:", format!("{seen}{still}"));
    part(
        "e.g.:",
        problem.examples.iter().take(3).map(|example| printable(example)).collect::<Vec<_>>().join("   "),
    );
    text
}

pub fn whose_turn(blame: longhaul_model::Blame) -> &'static str {
    use longhaul_model::Blame::*;
    match blame {
        Source => "the source's administrator",
        Target => "the target's administrator",
        Network => "the network",
        Credential => "whoever issues credentials and permissions",
        Request => "whoever made the request",
        Ourselves => "Longhaul itself",
    }
}

fn problem_table(problems: &[ProblemView]) -> Table {
    let mut table = Table::new([
        left("code"),
        left("storage"),
        right("count"),
        left("blame"),
        left("last seen"),
        left("open"),
        prose("detail"),
    ]);
    for problem in problems {
        table.row([
            Cell::text(problem.fault.code.to_string()),
            Cell::maybe(problem.storage.as_ref(), |storage| Cell::text(storage.as_str())),
            Cell::count(problem.count),
            Cell::text(problem.fault.blame.word()),
            Cell::text(problem.last_seen.to_string()),
            Cell::text(if problem.open { "yes" } else { "no" }),
            Cell::text(&problem.fault.detail),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_has_the_time_of_its_answer() {
        let answered = Timestamp::from_seconds(1_763_717_531);
        let now = answered + Duration::from_secs(27);
        let heading = |silent| watch_heading(answered, silent, now, Style::plain());
        let time = time_format::local(answered, now);
        assert_eq!(heading(false), format!("as of {time}"));
        assert_eq!(heading(true), format!("no answer since {time}; below is how it was then"));
    }

    #[test]
    fn what_a_status_leaves_out_it_counts() {
        let now = Timestamp::from_seconds(1_763_717_531);
        let status = |subscriptions_more| Status {
            deployment: "test".into(),
            version: "1".into(),
            now,
            started: now,
            rate_now: 0.0,
            files_done: 0,
            bytes_done: 0,
            transfers_running: 0,
            transfers_waiting: 0,
            subscriptions: Vec::new(),
            subscriptions_more,
            links: Vec::new(),
            problems: Vec::new(),
            failures_by_blame: Vec::new(),
            history: Vec::new(),
            history_step_s: 1,
        };
        let text = |more| human(&status(more), Style::plain(), None);
        assert!(text(564).contains("and 564 more: longhaul subscription list"), "{}", text(564));
        assert!(!text(0).contains("more:"), "{}", text(0));
    }
}
