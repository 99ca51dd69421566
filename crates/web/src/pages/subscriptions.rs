//! The subscription pages: when will the data arrive, and what holds it up?

use longhaul_api::native::{Page, SubscriptionView};
use longhaul_model::{SubscriptionState, units};
use longhaul_security::ResourceScope;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, action, page};
use crate::show;

pub fn subscriptions(context: Context<'_>, list: &Page<SubscriptionView>) -> Markup {
    let frame = Frame::live(
        context,
        "Subscriptions",
        Section::Subscriptions,
        "/api/v1/subscriptions",
        "longhaul subscription list",
    );
    page(
        &frame,
        html! {
            h1 { "Subscriptions: what should be where, and when will it arrive?" }
            (table(context, &list.items))
            @if let Some(next) = &list.next {
                p.pager { a href={ "/ui/subscriptions?after=" (show::segment(next)) } { "Older" } }
            }
        },
    )
}

pub fn table(context: Context<'_>, items: &[SubscriptionView]) -> Markup {
    html! {
        @if items.is_empty() {
            p.empty {
                "No subscriptions yet. " code { "longhaul subscribe DATASET STORAGE" }
                " keeps a dataset at a storage."
            }
        } @else {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "Dataset" }
                            th scope="col" { "To" }
                            th scope="col" { "Done" }
                            th.number.wide scope="col" { "Files left" }
                            th.number.wide scope="col" { "Bytes left" }
                            th.number scope="col" { "Rate now" }
                            th scope="col" { "Expected" }
                            th scope="col" { "Held up by" }
                        }
                    }
                    tbody {
                        @for item in items {
                            tr {
                                td.name { a href={ "/ui/subscriptions/" (item.id) } { (subject(item)) } }
                                td data-label="To" { (item.storage) }
                                td data-label="Done" { (show::bar(item.bytes_present, item.bytes_wanted)) }
                                td.number.wide {
                                    (units::count(item.files_wanted.saturating_sub(item.files_present)))
                                }
                                td.number.wide {
                                    (show::size(item.bytes_wanted.saturating_sub(item.bytes_present)))
                                }
                                td.number data-label="Rate" {
                                    @if item.complete { "–" } @else { (show::rate(item.rate_now)) }
                                }
                                td data-label="Expected" {
                                    (expectation(context, item))
                                    @if is_deadline_in_danger(item) {
                                        br;
                                        (show::state("bad", "deadline in danger"))
                                    }
                                }
                                td data-label="Held up by" {
                                    @if !item.complete {
                                        @let reasons = item.expected.held_up_by.iter().take(2);
                                        @for (place, reason) in reasons.enumerate() {
                                            @if place > 0 { br; }
                                            (reason)
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
}

fn subject(item: &SubscriptionView) -> String {
    item.block.as_ref().map_or_else(|| item.dataset.to_string(), ToString::to_string)
}

fn is_deadline_in_danger(item: &SubscriptionView) -> bool {
    item.promise.as_ref().is_some_and(|promise| promise.in_danger_since.is_some())
}

fn expectation(context: Context<'_>, item: &SubscriptionView) -> Markup {
    match item.state {
        SubscriptionState::Active => show::expected(&item.expected, item.complete, context.now),
        SubscriptionState::Suspended => show::state("warn", "suspended"),
        SubscriptionState::Cancelled => show::state("idle", "cancelled"),
    }
}

pub fn subscription(context: Context<'_>, item: &SubscriptionView) -> Markup {
    let title = format!("{} → {}", subject(item), item.storage);
    let frame = Frame::live(
        context,
        &title,
        Section::Subscriptions,
        format!("/api/v1/subscriptions/{}", item.id),
        format!("longhaul subscription show {}", item.id),
    );
    let dataset = show::segment(item.dataset.as_str());
    page(
        &frame,
        html! {
            h1 {
                (subject(item)) " → " (item.storage) " "
                small { "when will it arrive, and what holds it up?" }
            }
            div.card {
                (show::bar(item.bytes_present, item.bytes_wanted))
                p {
                    (units::count(item.files_present)) " of " (show::files(item.files_wanted)) ", "
                    (show::size(item.bytes_present)) " of " (show::size(item.bytes_wanted))
                }
            }
            h2 { "When?" }
            dl.facts {
                dt { "Expected" } dd { (expectation(context, item)) }
                @if let Some(promise) = &item.promise {
                    dt { "Deadline" }
                    dd {
                        @if promise.in_danger_since.is_some() { (show::state("bad", "in danger")) " " }
                        (promise.words)
                    }
                } @else if let Some(deadline) = item.terms.deadline {
                    dt { "Deadline" } dd { (show::time(deadline, context.now)) }
                }
                @if let Some(at) = item.completed { dt { "Completed" } dd { (show::time(at, context.now)) } }
                dt { "Rate" }
                dd { (show::rate(item.rate_now)) " now, " (show::rate(item.rate_average)) " on average" }
                dt { "Running" } dd { (show::files(item.files_running)) }
                dt { "Retries" } dd { (units::count(item.retries)) }
                @if item.failed_files > 0 {
                    dt { "Failed" } dd { (show::state("bad", &show::files(item.failed_files))) }
                }
            }
            h2 { "What holds it up?" }
            (held_up_by(item))
            h2 { "Where did it come from?" }
            (sources(item))
            h2 { "Was it verified?" }
            p { (show::verified(&item.verified)) ". Requested: " (item.verification) "." }
            (changes(context, item))
            p.soft {
                "ID " code { (item.id) } " · priority " (item.priority) " of 9"
                @if item.custodial { " · custodial: two people cancel it" }
                @if let Some(consent) = &item.cancel_consent {
                    ", " (consent.who) " wants it, " (consent.missing) " has to consent"
                }
                @if let Some(community) = &item.terms.community { " · charged to " (community) }
                @if let Some(activity) = &item.terms.activity { " · activity " (activity) }
                @if let Some(strategy) = &item.terms.strategy { " · strategy " (strategy) }
                " · created " (show::time(item.created, context.now)) " · "
                a href={ "/ui/datasets/" (dataset) } { "dataset" } " · "
                a href={ "/ui/transfers?dataset=" (dataset) "&target=" (item.storage) } { "transfers" }
            }
        },
    )
}

fn held_up_by(item: &SubscriptionView) -> Markup {
    let reasons = &item.expected.held_up_by;
    html! {
        @if item.complete {
            p { "Nothing: it is complete." }
        } @else if !reasons.is_empty() {
            ul { @for reason in reasons { li { (reason) } } }
        } @else if let Some(why) = &item.expected.why_none {
            p { (why) }
        } @else {
            p { "Nothing in particular: it moves as fast as its links allow." }
        }
    }
}

fn sources(item: &SubscriptionView) -> Markup {
    let all: u64 = item.sources.iter().map(|share| share.files).sum();
    html! {
        @if item.sources.is_empty() {
            p.empty { "No files have arrived yet." }
        } @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Source" }
                            th.number scope="col" { "Files" }
                            th.number scope="col" { "Bytes" }
                            th scope="col" { "Share of files" }
                        }
                    }
                    tbody {
                        @for share in &item.sources {
                            tr {
                                td { (share.storage) }
                                td.number { (units::count(share.files)) }
                                td.number { (show::size(share.bytes)) }
                                td { (show::bar(share.files, all)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn changes(context: Context<'_>, item: &SubscriptionView) -> Markup {
    let address = format!("/ui/subscriptions/{}", item.id);
    let viewer = context
        .viewer_for(item.charged_to.as_ref().map_or(ResourceScope::Deployment, ResourceScope::Community));
    let priority =
        |value: u8, label: &str| action(viewer, &address, &[("priority", &value.to_string())], label);
    html! {
        @if item.state != SubscriptionState::Cancelled {
            div.actions {
                @if item.state == SubscriptionState::Active {
                    (action(viewer, &address, &[("state", "suspended")], "Suspend"))
                } @else {
                    (action(viewer, &address, &[("state", "active")], "Resume"))
                }
                @if item.priority < 9 {
                    (priority(item.priority + 1, "Raise priority"))
                }
                @if item.priority > 1 {
                    (priority(item.priority - 1, "Lower priority"))
                }
                (action(viewer, &address, &[("state", "cancelled")], "Cancel (keep what has arrived)"))
            }
        }
    }
}
