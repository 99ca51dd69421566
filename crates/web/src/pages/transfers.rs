//! The transfer pages: which files are moving, which fail, and why from this source?

use std::time::Duration;

use longhaul_api::native::{
    AttemptView, Candidate, Choice, Page, TransferDetail, TransferQuery, TransferView,
};
use longhaul_model::{TransferState, units};
use longhaul_security::ResourceScope;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, action, page};
use crate::{plot, show};

pub fn transfers(context: Context<'_>, query: &TransferQuery, list: &Page<TransferView>) -> Markup {
    let filter = filter_text(query);
    let frame = Frame {
        live: query.after.is_none(),
        ..Frame::live(
            context,
            "Transfers",
            Section::Transfers,
            format!("/api/v1/transfers?{filter}"),
            command(query),
        )
    };
    page(
        &frame,
        html! {
            h1 { "Transfers: which files are moving, and which are stuck?" }
            (filters(query))
            @if list.items.is_empty() {
                p.empty { "No transfer matches." }
            } @else {
                div.scroll data-still {
                    table.stack {
                        thead {
                            tr {
                                th scope="col" { "File" }
                                th.number.wide scope="col" { "Size" }
                                th scope="col" { "From → to" }
                                th scope="col" { "State" }
                                th.wide scope="col" { "Since" }
                                th scope="col" { "Reason" }
                            }
                        }
                        tbody {
                            @for item in &list.items {
                                tr {
                                    td.name { a href={ "/ui/transfers/" (item.id) } { (item.lfn.shown()) } }
                                    td.number.wide { (show::size(item.size)) }
                                    td data-label="From → to" {
                                        @if let Some(source) = &item.source { (source) " " }
                                        "→ " (item.target)
                                    }
                                    td.tight data-label="State" {
                                        (show::transfer_state(item.state))
                                        @if item.state == TransferState::Leased && item.size > 0 {
                                            " " span.soft { (show::percent(item.bytes_done, item.size)) }
                                        }
                                        @if item.attempts > 1 { br; span.soft { "attempt " (item.attempts) } }
                                    }
                                    td.wide.tight { (show::ago(item.changed, context.now)) }
                                    td data-label="Reason" {
                                        @if let Some(why) = &item.waits_for { (why) }
                                        @else if let Some(fault) = &item.fault { (fault.to_string()) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @if let Some(next) = &list.next {
                p.pager {
                    a href={ "/ui/transfers?" (filter) "&after=" (show::segment(next)) } { "Older" }
                }
            }
        },
    )
}

/// The filters that are set, not yet encoded.
fn filter_pairs(query: &TransferQuery) -> impl Iterator<Item = (&'static str, String)> {
    let pairs = [
        ("dataset", query.dataset.as_ref().map(ToString::to_string)),
        ("source", query.source.as_ref().map(ToString::to_string)),
        ("target", query.target.as_ref().map(ToString::to_string)),
        ("state", query.state.map(|state| state.to_string())),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

fn filter_text(query: &TransferQuery) -> String {
    let set: Vec<String> =
        filter_pairs(query).map(|(name, value)| format!("{name}={}", show::segment(&value))).collect();
    set.join("&")
}

fn command(query: &TransferQuery) -> String {
    let mut text = String::from("longhaul transfer list");
    for (name, value) in filter_pairs(query) {
        text.push_str(&format!(" --{name} {value}"));
    }
    text
}

fn filters(query: &TransferQuery) -> Markup {
    let text = |value: Option<String>| value.unwrap_or_default();
    html! {
        form.filter method="get" action="/ui/transfers" {
            label {
                "Dataset"
                input name="dataset" value=(text(query.dataset.as_ref().map(ToString::to_string)));
            }
            label {
                "From"
                input name="source" size="10" value=(text(query.source.as_ref().map(ToString::to_string)));
            }
            label {
                "To"
                input name="target" size="10" value=(text(query.target.as_ref().map(ToString::to_string)));
            }
            label {
                "State"
                select name="state" {
                    option value="" { "Any" }
                    @for state in TransferState::ALL {
                        option value=(state) selected[query.state == Some(*state)] { (state) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

pub fn transfer(context: Context<'_>, detail: &TransferDetail) -> Markup {
    let item = &detail.transfer;
    let title = item.lfn.shown();
    let frame = Frame {
        live: !item.state.is_terminal(),
        ..Frame::live(
            context,
            &title,
            Section::Transfers,
            format!("/api/v1/transfers/{}", item.id),
            format!("longhaul transfer explain {}", item.id),
        )
    };
    page(
        &frame,
        html! {
            h1 { (item.lfn.shown()) " " small { "why this source, and where did the time go?" } }
            dl.facts {
                dt { "State" }
                dd { (show::transfer_state(item.state)) @if let Some(why) = &item.waits_for { " " (why) } }
                dt { "Dataset" }
                dd { a href={ "/ui/datasets/" (show::segment(item.dataset.as_str())) } { (item.dataset) } }
                dt { "Size" } dd { (show::size(item.size)) }
                dt { "To" } dd { (item.target) }
                @if let Some(how) = item.verification { dt { "Verified" } dd { (how) } }
                @if let Some(fault) = &item.fault { dt { "Last fault" } dd { (show::fault(fault)) } }
                dt { "ID" } dd { code { (item.id) } }
            }
            @if matches!(item.state, TransferState::Waiting | TransferState::Failed) {
                div.actions {
                    @let address = format!("/ui/transfers/{}/retry", item.id);
                    (action(context.viewer_for(ResourceScope::Deployment), &address, &[], "Retry now"))
                }
            }
            @if detail.attempts.is_empty() { p.empty { "No attempt has started." } }
            @for (place, attempt) in detail.attempts.iter().enumerate() {
                h2 { "Attempt " (place + 1) " from " (attempt.source) }
                (attempt_card(context, attempt))
            }
        },
    )
}

fn attempt_card(context: Context<'_>, attempt: &AttemptView) -> Markup {
    let waited = Duration::from_micros(attempt.choice.waited_us);
    let end = if attempt.finished {
        attempt.times.committed.or(attempt.times.last_byte).unwrap_or(attempt.chosen)
    } else {
        context.now
    };
    html! {
        div.card {
            p {
                @if attempt.already_there {
                    (show::state("good", "the right file was already there"))
                } @else if let Some(fault) = &attempt.fault {
                    (show::fault(fault))
                } @else if attempt.finished {
                    (show::state("good", "done"))
                    @if let Some(how) = attempt.verification { ", verified " (how) }
                    @if let Some(executor) = attempt.executor { ", " (executor.sentence()) }
                } @else {
                    (show::state("good", "running"))
                }
            }
            (plot::phase_bars(&plot::phases(&attempt.times, waited, end)))
            p.soft {
                "chosen " (show::time(attempt.chosen, context.now)) " · moved "
                (show::size(attempt.bytes_moved)) " · resent " (show::size(attempt.bytes_resent))
                @if !attempt.digests.is_empty() { " · " code { (attempt.digests) } }
                " · attempt " code { (attempt.id) }
            }
            (choice(&attempt.choice))
        }
    }
}

fn choice(choice: &Choice) -> Markup {
    html! {
        p { b { "Why this source: " } (choice.reason) }
        @if !choice.waited_for.is_empty() { p { b { "Waited for: " } (choice.waited_for) } }
        @if !choice.candidates.is_empty() {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Candidate" }
                            th.number scope="col" { "Expected time" }
                            th.number scope="col" { "Rate" }
                            th scope="col" { "Rate from" }
                            th.number scope="col" { "Queued" }
                            th.number scope="col" { "Failures" }
                            th scope="col" { "" }
                        }
                    }
                    tbody { @for candidate in &choice.candidates { (candidate_row(candidate)) } }
                }
            }
        }
    }
}

fn candidate_row(candidate: &Candidate) -> Markup {
    html! {
        tr {
            td { (candidate.storage) }
            td.number {
                @if let Some(us) = candidate.finish_us { (units::duration(Duration::from_micros(us))) }
                @else { "–" }
            }
            td.number { (show::rate(candidate.rate_bytes_per_s)) }
            td.soft { (candidate.rate_by) }
            td.number { (show::size(candidate.bytes_ahead)) }
            td.number { (format!("{:.1} %", candidate.failure_share * 100.0)) }
            td {
                @if candidate.chosen { (show::state("good", "chosen")) }
                @else if let Some(why) = &candidate.unusable { (show::state("warn", why)) }
            }
        }
    }
}
