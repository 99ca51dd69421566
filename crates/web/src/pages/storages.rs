//! The storage pages: how full are they, do they take files, and what are they made of?

use longhaul_api::native::{Page, StorageView, SubscriptionView, TapeQueue};
use longhaul_api::pools::PoolReport;
use longhaul_model::units;
use maud::{Markup, html};

use super::{Context, subscriptions};
use crate::layout::{Frame, Section, page};
use crate::show;

pub fn storages(context: Context<'_>, list: &Page<StorageView>) -> Markup {
    let (json, command) = ("/api/v1/storages", "longhaul storage list");
    let frame = Frame::live(context, "Storages", Section::Storages, json, command);
    page(
        &frame,
        html! {
            h1 { "Storages: how full are they, and do they take files?" }
            @if list.items.is_empty() {
                p.empty { "No storages yet: an agent offers those of its site when it connects." }
            } @else {
                (table(&list.items))
            }
            @if let Some(next) = &list.next {
                p.pager { a href={ "/ui/storages?after=" (show::segment(next)) } { "More" } }
            }
        },
    )
}

fn table(list: &[StorageView]) -> Markup {
    html! {
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Storage" }
                        th scope="col" { "Site" }
                        th scope="col" { "Kind" }
                        th scope="col" { "Used" }
                        th.number scope="col" { "Free" }
                        th.number.wide scope="col" { "Promised" }
                        th.number.wide scope="col" { "Managed" }
                        th scope="col" { "State" }
                    }
                }
                tbody {
                    @for storage in list {
                        tr {
                            td.name { a href={ "/ui/storages/" (storage.name) } { (storage.name) } }
                            td data-label="Site" { (site_link(storage)) }
                            td data-label="Kind" { (kind(storage)) }
                            td data-label="Used" { (used(storage.total_bytes, storage.free_bytes)) }
                            td.number data-label="Free" { (free(storage.total_bytes, storage.free_bytes)) }
                            td.number.wide { (show::size(storage.promised_bytes.unwrap_or_default())) }
                            td.number.wide { (show::size(storage.bytes)) }
                            td data-label="State" { (state(storage)) }
                        }
                    }
                }
            }
        }
    }
}

/// One storage with what it is made of and what is wanted there.
pub fn storage(context: Context<'_>, (storage, wanted): &(StorageView, Page<SubscriptionView>)) -> Markup {
    let json = format!("/api/v1/storages/{}", storage.name);
    let command = format!("longhaul storage show {}", storage.name);
    let frame = Frame::live(context, storage.name.as_str(), Section::Storages, json, command);
    page(
        &frame,
        html! {
            h1 { (storage.name) }
            dl.facts {
                dt { "State" }
                dd { (state(storage)) }
                dt { "Site" }
                dd { (site_link(storage)) }
                dt { "Made of" }
                dd { (kind(storage)) }
                dt { "Space" }
                dd {
                    (used(storage.total_bytes, storage.free_bytes)) " "
                    (free(storage.total_bytes, storage.free_bytes)) " free"
                    @if storage.total_bytes > 0 { " of " (show::size(storage.total_bytes)) }
                    @let promised_bytes = storage.promised_bytes.unwrap_or_default();
                    @if promised_bytes > 0 { ", " (show::size(promised_bytes)) " of it promised" }
                }
                dt { "Managed" }
                dd { (show::files(storage.files)) ", " (show::size(storage.bytes)) }
                @if let Some(agents) = &storage.agents {
                    dt { "Served by" }
                    dd { (units::plural(agents.len() as u64, "agent", "agents")) }
                }
                dt { "Sources are chosen by" }
                dd {
                    @match &storage.strategy {
                        Some(strategy) => (strategy),
                        None => "the service's strategy",
                    }
                }
                @if storage.relay {
                    dt { "Relay" }
                    dd { "files may pass through it on their way to other storages" }
                }
                @if let Some(queue) = &storage.tape_queue { (tape_queue(context, queue)) }
            }
            @if !storage.pools.is_empty() {
                h2 { "Pools" }
                (pools(&storage.pools))
            }
            h2 { "Wanted here" }
            (subscriptions::table(context, &wanted.items))
        },
    )
}

fn tape_queue(context: Context<'_>, queue: &TapeQueue) -> Markup {
    html! {
        dt { "Wanted from tape" }
        dd {
            (queue.words(context.now))
            @if let Some(failure) = &queue.last_failure {
                div.soft { "The last that did not come: " (failure) }
            }
        }
    }
}

fn site_link(storage: &StorageView) -> Markup {
    html! {
        @if let Some(site) = &storage.site { a href={ "/ui/sites/" (site) } { (site) } }
    }
}

/// What holds its files, in a few words.
fn kind(storage: &StorageView) -> Markup {
    html! {
        (storage.kind.word())
        @if !storage.pools.is_empty() {
            " " span.soft { (units::plural(storage.pools.len() as u64, "pool", "pools")) }
        }
        @if let Some(agents) = &storage.agents {
            " " span.soft { (units::plural(agents.len() as u64, "agent", "agents")) }
        }
        @if !storage.writable { " " span.soft { "read only" } }
    }
}

/// Where nobody tells the space, there is none to be drawn.
pub fn used(total_bytes: u64, free_bytes: u64) -> Markup {
    html! {
        @if total_bytes > 0 { (show::bar(total_bytes.saturating_sub(free_bytes), total_bytes)) }
        @else { span.soft { "not told" } }
    }
}

/// Free bytes, where they are told.
pub fn free(total_bytes: u64, free_bytes: u64) -> Markup {
    html! {
        @if total_bytes > 0 { (show::size(free_bytes)) } @else { "–" }
    }
}

fn state(storage: &StorageView) -> Markup {
    let failing = storage.pools.iter().filter(|pool| pool.trouble.is_some()).count();
    html! {
        @if let Some(fault) = &storage.trouble { (show::fault(fault)) }
        @else if failing > 0 {
            (show::state("warn", &format!("{failing} of {} pools in trouble", storage.pools.len())))
        }
        @else { (show::state("good", "healthy")) }
    }
}

/// The pools of a storage.
pub fn pools(list: &[PoolReport]) -> Markup {
    html! {
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Pool" }
                        th scope="col" { "Used" }
                        th.number scope="col" { "Free" }
                        th.number scope="col" { "Writes" }
                        th scope="col" { "State" }
                    }
                }
                tbody {
                    @for pool in list {
                        tr {
                            td.name { (pool.name) }
                            td data-label="Used" { (used(pool.total_bytes, pool.free_bytes)) }
                            td.number data-label="Free" { (free(pool.total_bytes, pool.free_bytes)) }
                            td.number data-label="Writes" {
                                @if let Some(rate) = pool.write_bytes_per_s { (show::rate(rate as f64)) }
                                @else { "–" }
                            }
                            td data-label="State" { (pool_state(pool)) }
                        }
                    }
                }
            }
        }
    }
}

fn pool_state(pool: &PoolReport) -> Markup {
    let is_stuck = pool.drain.as_ref().is_some_and(|drain| drain.stuck_files > 0);
    match &pool.trouble {
        Some(fault) => show::fault(fault),
        None => show::state(if is_stuck { "warn" } else { "good" }, &pool.words()),
    }
}
