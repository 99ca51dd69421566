//! The dataset pages: what exists, and where is it?

use longhaul_api::native::{BlockView, DatasetView, Page, ReplicaView, SubscriptionView};
use longhaul_model::units;
use longhaul_security::ResourceScope;
use maud::{Markup, html};

use super::Context;
use super::subscriptions::table as subscription_table;
use crate::layout::{Frame, Section, Viewer, action, page};
use crate::show;

pub fn datasets(context: Context<'_>, list: &Page<DatasetView>) -> Markup {
    let frame =
        Frame::live(context, "Datasets", Section::Datasets, "/api/v1/datasets", "longhaul dataset list");
    page(
        &frame,
        html! {
            h1 { "Datasets: what exists, and where is it?" }
            @if list.items.is_empty() {
                p.empty {
                    "No dataset is registered. " code { "longhaul dataset register NAME --scan STORAGE:PATH" }
                    " registers what a storage holds."
                }
            } @else {
                div.scroll {
                    table {
                        thead {
                            tr {
                                th scope="col" { "Dataset" }
                                th.number scope="col" { "Files" }
                                th.number scope="col" { "Size" }
                                th.number.wide scope="col" { "Blocks" }
                                th scope="col" { "Storages" }
                                th.wide scope="col" { "State" }
                            }
                        }
                        tbody {
                            @for item in &list.items {
                                tr {
                                    td.name {
                                        a href={ "/ui/datasets/" (show::segment(item.name.as_str())) } {
                                            (item.name)
                                        }
                                    }
                                    td.number { (units::count(item.files)) }
                                    td.number { (show::size(item.bytes)) }
                                    td.number.wide { (units::count(item.blocks)) }
                                    td {
                                        @for (place, replica) in item.replicas.iter().enumerate() {
                                            @if place > 0 { ", " }
                                            (replica.storage)
                                            @if !replica.complete {
                                                " "
                                                span.soft {
                                                    (show::percent(replica.good_bytes(), item.bytes))
                                                }
                                            }
                                        }
                                    }
                                    td.wide { (dataset_state(item)) }
                                }
                            }
                        }
                    }
                }
            }
            @if let Some(next) = &list.next {
                p.pager { a href={ "/ui/datasets?after=" (show::segment(next)) } { "Next page" } }
            }
        },
    )
}

fn dataset_state(item: &DatasetView) -> Markup {
    match &item.scan {
        Some(scan) if !scan.done => {
            show::state("good", &format!("scanning, {} so far", show::files(scan.files_done)))
        }
        _ if item.open => show::state("idle", "open: files may be added"),
        _ => show::state("idle", "closed"),
    }
}

pub fn dataset(
    context: Context<'_>,
    item: &DatasetView,
    blocks: &Page<BlockView>,
    subscriptions: &[SubscriptionView],
    storages: &[String],
) -> Markup {
    let title = item.name.to_string();
    let segment = show::segment(item.name.as_str());
    let frame = Frame::live(
        context,
        &title,
        Section::Datasets,
        format!("/api/v1/datasets/{segment}"),
        format!("longhaul dataset show {}", item.name),
    );
    page(
        &frame,
        html! {
            h1 { (item.name) " " small { "where is it, and what holds it up?" } }
            div.tiles {
                div.tile { div.value { (units::count(item.files)) } div.label { "Files" } }
                div.tile { div.value { (show::size(item.bytes)) } div.label { "Size" } }
                div.tile { div.value { (units::count(item.blocks)) } div.label { "Blocks" } }
                div.tile { div.value { (dataset_state(item)) } div.label { "Community " (item.community) } }
            }
            h2 { "Where is it?" }
            (replicas(item, &item.replicas))
            h2 { "Where should it be?" }
            (subscription_table(context, subscriptions))
            (subscribe(context.viewer_for(ResourceScope::Community(&item.community)), &segment, storages))
            h2 { "Which blocks?" }
            (block_table(item, blocks, &segment))
            h2 { "What was left out?" }
            (left_out(item))
        },
    )
}

fn replicas(item: &DatasetView, replicas: &[ReplicaView]) -> Markup {
    html! {
        @if replicas.is_empty() {
            p.empty { "Nowhere: no storage holds any of its files." }
        } @else {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "Storage" }
                            th scope="col" { "Holds" }
                            th.number scope="col" { "Files" }
                            th.number scope="col" { "Bytes" }
                            th scope="col" { "Verified" }
                        }
                    }
                    tbody {
                        @for replica in replicas {
                            tr {
                                td { (replica.storage) }
                                td data-label="Holds" {
                                    @if replica.complete { (show::state("good", "complete")) }
                                    @else { (show::bar(replica.good_bytes(), item.bytes)) }
                                }
                                td.number data-label="Files" { (units::count(replica.files)) }
                                td.number data-label="Bytes" { (show::size(replica.bytes)) }
                                td data-label="Verified" {
                                    (show::verified(&replica.verified))
                                    @if replica.suspect_files > 0 {
                                        br;
                                        @let suspect = units::count(replica.suspect_files);
                                        (show::state("bad", &format!("{suspect} suspect")))
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

fn subscribe(viewer: Option<Viewer<'_>>, segment: &str, storages: &[String]) -> Markup {
    let address = format!("/ui/datasets/{segment}/subscribe");
    html! {
        @if !storages.is_empty() {
            div.actions {
                @for storage in storages {
                    (action(viewer, &address, &[("storage", storage)], &format!("Subscribe at {storage}")))
                }
            }
        }
    }
}

fn block_table(item: &DatasetView, blocks: &Page<BlockView>, segment: &str) -> Markup {
    html! {
        @if blocks.items.is_empty() {
            p.empty { "None yet." }
        } @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Block" }
                            th.number scope="col" { "Files" }
                            th.number scope="col" { "Size" }
                            th scope="col" { "Storages" }
                        }
                    }
                    tbody {
                        @for block in &blocks.items {
                            tr {
                                td.name { (block.name) @if block.open { " " span.soft { "open" } } }
                                td.number { (units::count(block.files)) }
                                td.number { (show::size(block.bytes)) }
                                td {
                                    @for (place, replica) in block.replicas.iter().enumerate() {
                                        @if place > 0 { ", " }
                                        (replica.storage)
                                        @if !replica.complete {
                                            " "
                                            span.soft {
                                                (show::percent(replica.good_files(), block.files))
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
        @if let Some(next) = &blocks.next {
            p.pager { a href={ "/ui/datasets/" (segment) "?after=" (show::segment(next)) } { "Next page" } }
        }
        p.soft { (units::plural(item.blocks, "block", "blocks")) " in total" }
    }
}

fn left_out(item: &DatasetView) -> Markup {
    html! {
        @if item.left_out.is_empty() { p { "Nothing." } }
        @for count in &item.left_out {
            details {
                summary { (units::count(count.count)) " × " (format!("{:?}", count.reason)) }
                ul {
                    @for example in &count.examples {
                        li {
                            code { (units::printable(&example.path)) } " "
                            span.soft { (units::printable(&example.detail)) }
                        }
                    }
                }
            }
        }
    }
}
