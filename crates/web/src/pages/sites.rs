//! Is this site well, and does anyone have to act?

use longhaul_api::agent::StorageKind;
use longhaul_api::commissioning::CommissionState;
use longhaul_api::native::{AgentView, SiteState, SiteView, StorageView};
use longhaul_model::units;
use longhaul_security::ResourceScope;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Place, action, page};
use crate::show;

pub fn sites(context: Context<'_>, list: &[SiteView]) -> Markup {
    let frame = Frame::live(context, "Sites", Place::Sites, "/api/v1/sites", "longhaul site list");
    page(
        &frame,
        html! {
            h1 { "Sites: who is there, and is everyone well?" }
            @if list.is_empty() {
                p.empty {
                    "No site has been added. " code { "longhaul site add NAME" }
                    " makes one, and a token for its agent."
                }
            } @else {
                div.scroll {
                    table.stack {
                        thead {
                            tr {
                                th scope="col" { "site" }
                                th scope="col" { "state" }
                                th scope="col" { "agent" }
                                th.number scope="col" { "in" }
                                th.number scope="col" { "out" }
                                th.number.wide scope="col" { "queued" }
                                th.number.wide scope="col" { "free" }
                            }
                        }
                        tbody {
                            @for site in list {
                                tr {
                                    td { a href={ "/ui/sites/" (site.name) } { (site.name) } }
                                    td data-label="state" { (standing(site)) }
                                    td data-label="agent" { (agents_in_short(context, &site.agents)) }
                                    td.number data-label="in" { (show::rate(site.rate_in)) }
                                    td.number data-label="out" { (show::rate(site.rate_out)) }
                                    td.number.wide {
                                        (units::count(site.queued_files)) " files" br;
                                        (show::size(site.queued_bytes))
                                    }
                                    td.number.wide {
                                        @for storage in &site.storages {
                                            (show::size(storage.free_bytes)) br;
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        },
    )
}

fn standing(site: &SiteView) -> Markup {
    let trouble = site.storages.iter().find_map(|storage| storage.trouble.as_ref());
    html! {
        @match site.state {
            SiteState::Open => {
                @if let Some(fault) = trouble { (show::state("bad", fault.code.title())) }
                @else { (show::state("good", "open")) }
            }
            SiteState::Draining => (show::state("warn", "draining")),
            SiteState::Paused => (show::state("warn", "paused")),
        }
        @if let Some(reason) = &site.reason { br; span.soft { "“" (reason) "”" } }
    }
}

fn agents_in_short(context: Context<'_>, agents: &[AgentView]) -> Markup {
    html! {
        @if agents.is_empty() { span.soft { "none has joined" } }
        @for agent in agents {
            @if agent.connected {
                (show::state("good", "connected"))
            } @else if let Some(at) = agent.last_contact {
                (show::state("bad", &format!("silent, last heard {}", show::ago(at, context.now))))
            } @else {
                (show::state("idle", "not heard of yet"))
            }
            br;
        }
    }
}

pub fn site(context: Context<'_>, site: &SiteView) -> Markup {
    let title = site.name.to_string();
    let frame = Frame::live(
        context,
        &title,
        Place::Sites,
        format!("/api/v1/sites/{}", site.name),
        format!("longhaul site show {}", site.name),
    );
    page(
        &frame,
        html! {
            h1 { (site.name) " " small { "is it well, and does anyone have to act?" } }
            dl.facts {
                dt { "state" } dd { (standing(site)) }
                dt { "now" }
                dd {
                    (show::rate(site.rate_in)) " in (" (site.active_in) " files), "
                    (show::rate(site.rate_out)) " out (" (site.active_out) " files)"
                }
                dt { "waiting to come in" }
                dd { (units::count(site.queued_files)) " files, " (show::size(site.queued_bytes)) }
                dt { "limits in" }
                dd { (limit(site.limits.active_in)) ", " (rate_limit(site.limits.in_bytes_per_s)) }
                dt { "limits out" }
                dd { (limit(site.limits.active_out)) ", " (rate_limit(site.limits.out_bytes_per_s)) }
            }
            (changes(context, site))
            h2 { "Storages" }
            (storages(&site.storages))
            @if !site.links.is_empty() {
                h2 { "Links" }
                (commissioned(context, site))
            }
            h2 { "Agents" }
            (agents(context, &site.agents))
        },
    )
}

fn limit(value: Option<u32>) -> String {
    value.map_or_else(|| "any number of files at once".into(), |n| format!("{n} files at once"))
}

fn rate_limit(value: Option<u64>) -> String {
    value.map_or_else(|| "any rate".into(), |n| units::rate(n as f64))
}

fn changes(context: Context<'_>, site: &SiteView) -> Markup {
    let address = format!("/ui/sites/{}", site.name);
    let viewer = context.who_may(ResourceScope::Site(&site.name));
    html! {
        div.actions {
            @if site.state == SiteState::Open {
                (action(viewer, &address, &[("state", "draining")], "Drain (finish what runs)"))
                (action(viewer, &address, &[("state", "paused")], "Pause"))
            } @else {
                (action(viewer, &address, &[("state", "open")], "Resume"))
            }
        }
    }
}

fn storages(list: &[StorageView]) -> Markup {
    html! {
        @if list.is_empty() {
            p.empty { "None: its agent has not offered one yet." }
        } @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "storage" }
                            th scope="col" { "used" }
                            th.number scope="col" { "free" }
                            th.number scope="col" { "files of ours" }
                            th.number scope="col" { "bytes of ours" }
                            th scope="col" { "state" }
                        }
                    }
                    tbody {
                        @for storage in list {
                            tr {
                                td {
                                    (storage.name)
                                    @if storage.kind == StorageKind::Virtual { " " span.soft { "virtual" } }
                                    @if !storage.writable { " " span.soft { "read only" } }
                                    @if storage.relay { " " span.soft { "relay" } }
                                    @if let Some(strategy) = &storage.strategy {
                                        " " span.soft { "sources by " (strategy) }
                                    }
                                }
                                td {
                                    @let used_bytes = storage.total_bytes.saturating_sub(storage.free_bytes);
                                    (show::bar(used_bytes, storage.total_bytes))
                                }
                                td.number { (show::size(storage.free_bytes)) }
                                td.number { (units::count(storage.files)) }
                                td.number { (show::size(storage.bytes)) }
                                td {
                                    @if let Some(fault) = &storage.trouble { (show::fault(fault)) }
                                    @else { (show::state("good", "well")) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What test transfers said of the links; untested ones are in no list.
fn commissioned(context: Context<'_>, site: &SiteView) -> Markup {
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th scope="col" { "link" }
                        th scope="col" { "state" }
                        th.number scope="col" { "best rate" }
                        th.number scope="col" { "round trip" }
                        th scope="col" { "why" }
                        th scope="col" { "since" }
                    }
                }
                tbody {
                    @for link in &site.links {
                        tr {
                            td { (link.source) " → " (link.target) }
                            td {
                                @match link.state {
                                    CommissionState::Commissioned => { (show::state("good", "commissioned")) }
                                    CommissionState::Degraded => { (show::state("bad", "degraded")) }
                                    CommissionState::Commissioning => { "commissioning" }
                                    CommissionState::Untested => { span.soft { "untested" } }
                                }
                            }
                            @if let Some(test) = &link.test {
                                td.number { (show::rate(test.rate_best)) }
                                td.number {
                                    @if let Some(rtt) = test.rtt_us { (format!("{:.1} ms", rtt / 1e3)) }
                                    @else { "–" }
                                }
                                td { (test.why) @for fault in &test.faults { br; span.soft { (fault) } } }
                            } @else {
                                td.number { "–" }
                                td.number { "–" }
                                td {}
                            }
                            td { (show::time(link.since, context.now)) }
                        }
                    }
                }
            }
        }
        p.soft { code { "longhaul site commission " (site.name) } " tests them again." }
    }
}

fn agents(context: Context<'_>, list: &[AgentView]) -> Markup {
    html! {
        @if list.is_empty() {
            p.empty {
                "None has joined. " code { "longhaul site add NAME" } " prints a token with which one can."
            }
        }
        @for agent in list {
            div.card {
                dl.facts {
                    dt { "host" }
                    dd { (agent.host) " " (agents_in_short(context, std::slice::from_ref(agent))) }
                    dt { "version" } dd { (agent.version) }
                    dt { "incarnation" }
                    dd { (agent.incarnation) " " span.soft { "(starts on its state directory)" } }
                    dt { "last contact" }
                    dd {
                        @if let Some(at) = agent.last_contact {
                            (show::time(at, context.now)) " (" (show::ago(at, context.now)) ")"
                        } @else {
                            "never"
                        }
                    }
                    dt { "data port" } dd { (agent.data_addresses.join(", ")) }
                    dt { "clock" }
                    dd {
                        (agent.clock_offset_ms.unsigned_abs()) " ms "
                        @if agent.clock_offset_ms < 0 { "behind" } @else { "ahead of" }
                        " the service"
                    }
                    @if let Some(at) = agent.certificate_expires {
                        dt { "certificate" } dd { "until " (show::time(at, context.now)) }
                    }
                    dt { "id" } dd { code { (agent.id) } }
                }
            }
        }
    }
}
