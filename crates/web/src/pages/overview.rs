//! The overview: what is moving, what is waiting, what is wrong?

use longhaul_api::native::{LinkView, Status};
use longhaul_model::{StorageName, units};
use maud::{Markup, html};

use super::Context;
use super::problems::problem_card;
use super::subscriptions::table as subscription_table;
use crate::layout::{Frame, Section, page};
use crate::{plot, show};

/// Worst problems on the overview; the problems page has the rest.
const PROBLEMS_SHOWN: usize = 5;
/// Subscriptions on the overview; the subscriptions page has the rest.
const SUBSCRIPTIONS_SHOWN: usize = 50;

pub fn overview(context: Context<'_>, status: &Status) -> Markup {
    let frame =
        Frame::live(context, "Overview", Section::Overview, "/api/v1/status", "longhaul status --watch");
    let open = status.problems.iter().filter(|problem| problem.open).count();
    let verified = format!("Verified so far, {}", show::files(status.files_done));
    let files = html! {
        (units::count(status.transfers_running)) " / " (units::count(status.transfers_waiting))
    };
    let problems = match open {
        0 => show::state("good", "none"),
        _ => show::state("warn", &open.to_string()),
    };
    page(
        &frame,
        html! {
            h1 { "Overview: what is moving, what is waiting, what is wrong?" }
            div.tiles {
                (tile(show::rate(status.rate_now), "Goodput now")) (tile(files, "Files running / waiting"))
                (tile(show::size(status.bytes_done), &verified))
                (tile(problems, "Open problems"))
            }
            h2 { "Which links carry data?" }
            (matrix(&status.links))
            h2 { "What is under way?" }
            @let shown = &status.subscriptions[..status.subscriptions.len().min(SUBSCRIPTIONS_SHOWN)];
            (subscription_table(context, shown))
            @if status.subscriptions.len() > shown.len() {
                p.pager { a href="/ui/subscriptions" { "All subscriptions" } }
            }
            h2 { "What is wrong?" }
            @if status.problems.is_empty() { p.empty { "No problems." } }
            @for problem in status.problems.iter().take(PROBLEMS_SHOWN) { (problem_card(context, problem)) }
            @if status.problems.len() > PROBLEMS_SHOWN { p { a href="/ui/problems" { "All problems" } } }
            h2 { "How fast was it?" }
            div.card { (plot::rates(&status.history, status.history_step_s)) }
            h2 { "What made attempts fail?" }
            @if status.failures_by_blame.iter().all(|count| count.count == 0) {
                p.empty { "No attempt has failed." }
            } @else {
                p {
                    @for count in status.failures_by_blame.iter().filter(|count| count.count > 0) {
                        span.state.idle { (count.blame) ": " (units::count(count.count)) } " "
                    }
                }
            }
        },
    )
}

fn tile(value: Markup, label: &str) -> Markup {
    html! { div.tile { div.value { (value) } div.label { (label) } } }
}

/// Sources by targets. A cell shows the success rate by symbol and colour, and the rate and count by number.
fn matrix(links: &[LinkView]) -> Markup {
    let mut sources: Vec<&StorageName> = links.iter().map(|link| &link.source).collect();
    let mut targets: Vec<&StorageName> = links.iter().map(|link| &link.target).collect();
    sources.sort();
    sources.dedup();
    targets.sort();
    targets.dedup();
    let find = |source: &StorageName, target: &StorageName| {
        links.iter().find(|link| link.source == *source && link.target == *target)
    };
    html! {
        @if links.is_empty() {
            p.empty {
                "No file has moved yet. " a href="/ui/sites" { "Sites" } " shows which agents are connected."
            }
        } @else {
            div.scroll {
                table.matrix {
                    caption { "From (rows) to (columns); the percentage is done ÷ (done + failed) attempts" }
                    thead {
                        tr {
                            th scope="col" { "From ╲ to" }
                            @for target in &targets { th scope="col" { (target) } }
                        }
                    }
                    tbody {
                        @for source in &sources {
                            tr {
                                th scope="row" { (source) }
                                @for target in &targets {
                                    td {
                                        @if let Some(link) = find(source, target) { (cell(link)) }
                                        @else { span.soft { "·" } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell(link: &LinkView) -> Markup {
    let tried = link.files_done + link.attempts_failed;
    let quality = if tried == 0 { 1.0 } else { link.files_done as f64 / tried as f64 };
    let kind = match quality {
        _ if tried == 0 => "idle",
        q if q >= 0.95 => "good",
        q if q >= 0.5 => "warn",
        _ => "bad",
    };
    let address = format!("/ui/transfers?source={}&target={}", link.source, link.target);
    html! {
        a href=(address) {
            span.rate { @if link.active > 0 { (units::rate(link.rate_now)) } @else { "idle" } }
        }
        (show::state(kind, &format!("{} %", (quality * 100.0).floor())))
        span.count { (show::files(link.files_done)) " · " (units::bytes(link.bytes_done)) }
    }
}
