//! The site pages: is a site healthy, and does anyone have to act?

use longhaul_api::commissioning::CommissionState;
use longhaul_api::native::{AgentView, SiteState, SiteView, StorageView};
use longhaul_model::{StorageKind, Timestamp, units};
use longhaul_security::ResourceScope;
use maud::{Markup, html};

use super::{Context, storages};
use crate::layout::{Frame, Section, action, page};
use crate::show;

pub fn sites(context: Context<'_>, list: &[SiteView]) -> Markup {
    let frame = Frame::live(context, "Sites", Section::Sites, "/api/v1/sites", "longhaul site list");
    page(
        &frame,
        html! {
            h1 { "Sites: which are connected, and are they healthy?" }
            @if list.is_empty() {
                p.empty {
                    "No sites yet. " code { "longhaul site add NAME" }
                    " creates one and a token for its agent."
                }
            } @else {
                div.scroll {
                    table.stack {
                        thead {
                            tr {
                                th scope="col" { "Site" }
                                th scope="col" { "State" }
                                th scope="col" { "Agent" }
                                th.number scope="col" { "In" }
                                th.number scope="col" { "Out" }
                                th.number.wide scope="col" { "Queued" }
                                th.number.wide scope="col" { "Free" }
                            }
                        }
                        tbody {
                            @for site in list {
                                tr {
                                    td { a href={ "/ui/sites/" (site.name) } { (site.name) } }
                                    td data-label="State" { (site_state(site)) }
                                    td data-label="Agent" { (agents_in_short(context, &site.agents)) }
                                    td.number data-label="In" { (show::rate(site.rate_in)) }
                                    td.number data-label="Out" { (show::rate(site.rate_out)) }
                                    td.number.wide {
                                        (show::files(site.queued_files)) br;
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

fn site_state(site: &SiteView) -> Markup {
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
        @if agents.is_empty() { span.soft { "no agent has joined" } }
        @for agent in agents {
            @if let Some(since) = agent.refused_since {
                (show::state("idle", &format!("refused since {}", show::ago(since, context.now))))
            } @else if agent.connected {
                (show::state("good", "connected"))
            } @else if let Some(at) = agent.last_contact {
                (show::state("bad", &format!("silent, last contact {}", show::ago(at, context.now))))
            } @else {
                (show::state("idle", "never connected"))
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
        Section::Sites,
        format!("/api/v1/sites/{}", site.name),
        format!("longhaul site show {}", site.name),
    );
    page(
        &frame,
        html! {
            h1 { (site.name) " " small { "is it healthy, and does anyone have to act?" } }
            dl.facts {
                dt { "State" } dd { (site_state(site)) }
                dt { "Rate now" }
                dd {
                    (show::rate(site.rate_in)) " in (" (show::files(site.active_in)) "), "
                    (show::rate(site.rate_out)) " out (" (show::files(site.active_out)) ")"
                }
                dt { "Queued inbound" }
                dd { (show::files(site.queued_files)) ", " (show::size(site.queued_bytes)) }
                dt { "Inbound limits" }
                dd { (limit(site.limits.active_in)) ", " (rate_limit(site.limits.in_bytes_per_s)) }
                dt { "Outbound limits" }
                dd { (limit(site.limits.active_out)) ", " (rate_limit(site.limits.out_bytes_per_s)) }
                @if !site.storage_names.is_empty() {
                    dt { "Allowed storage names" }
                    dd { @for name in &site.storage_names { (name) " " } }
                }
            }
            (changes(context, site))
            h2 { "Storages" }
            (storage_table(&site.storages, context.now))
            @for storage in site.storages.iter().filter(|storage| !storage.pools.is_empty()) {
                h3 { "Pools of " (storage.name) }
                (storages::pools(&storage.pools))
            }
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
    value.map_or_else(|| "no limit on parallel files".into(), |n| format!("{n} parallel files"))
}

fn rate_limit(value: Option<u64>) -> String {
    value.map_or_else(|| "no rate limit".into(), |n| units::rate(n as f64))
}

fn changes(context: Context<'_>, site: &SiteView) -> Markup {
    let address = format!("/ui/sites/{}", site.name);
    let viewer = context.viewer_for(ResourceScope::Site(&site.name));
    html! {
        div.actions {
            @if site.state == SiteState::Open {
                (action(viewer, &address, &[("state", "draining")], "Drain (finish running transfers)"))
                (action(viewer, &address, &[("state", "paused")], "Pause"))
            } @else {
                (action(viewer, &address, &[("state", "open")], "Resume"))
            }
        }
    }
}

fn storage_table(list: &[StorageView], now: Timestamp) -> Markup {
    html! {
        @if list.is_empty() {
            p.empty { "None: no agent has offered one yet." }
        } @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Storage" }
                            th scope="col" { "Used" }
                            th.number scope="col" { "Free" }
                            th.number scope="col" { "Managed files" }
                            th.number scope="col" { "Managed bytes" }
                            th scope="col" { "State" }
                        }
                    }
                    tbody {
                        @for storage in list {
                            tr {
                                td {
                                    a href={ "/ui/storages/" (storage.name) } { (storage.name) }
                                    @if storage.kind != StorageKind::Posix {
                                        " " span.soft { (storage.kind.word()) }
                                    }
                                    @if !storage.writable { " " span.soft { "read only" } }
                                    @if storage.relay { " " span.soft { "relay" } }
                                    @if let Some(agents) = &storage.agents {
                                        " " span.soft { (shared_by(agents.len())) }
                                    }
                                    @if let Some(strategy) = &storage.strategy {
                                        " " span.soft { "strategy " (strategy) }
                                    }
                                }
                                td { (storages::used(storage.total_bytes, storage.free_bytes)) }
                                td.number { (storages::free(storage.total_bytes, storage.free_bytes)) }
                                td.number { (units::count(storage.files)) }
                                td.number { (show::size(storage.bytes)) }
                                td {
                                    @if let Some(fault) = &storage.trouble { (show::fault(fault)) }
                                    @else { (show::state("good", "healthy")) }
                                    @if let Some(queue) = &storage.tape_queue {
                                        div.soft { "From tape: " (queue.words(now)) }
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

fn shared_by(agents: usize) -> String {
    format!("shared by {}", units::plural(agents as u64, "agent", "agents"))
}

/// Results of the test transfers on the links; untested links are not listed.
fn commissioned(context: Context<'_>, site: &SiteView) -> Markup {
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th scope="col" { "Link" }
                        th scope="col" { "State" }
                        th.number scope="col" { "Best rate" }
                        th.number scope="col" { "Round trip" }
                        th scope="col" { "Reason" }
                        th scope="col" { "Since" }
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
                "No agent has joined. " code { "longhaul site add NAME" }
                " prints a token that lets one join."
            }
        }
        @for agent in list {
            div.card {
                dl.facts {
                    dt { "Host" }
                    dd { (agent.host) " " (agents_in_short(context, std::slice::from_ref(agent))) }
                    dt { "Version" } dd { (agent.version) }
                    dt { "Incarnation" }
                    dd { (agent.incarnation) " " span.soft { "(starts with this state directory)" } }
                    dt { "Last contact" }
                    dd {
                        @if let Some(at) = agent.last_contact {
                            (show::time(at, context.now)) " (" (show::ago(at, context.now)) ")"
                        } @else {
                            "never"
                        }
                    }
                    dt { "Data addresses" } dd { (agent.data_addresses.join(", ")) }
                    dt { "Clock" }
                    dd {
                        (agent.clock_offset_ms.unsigned_abs()) " ms "
                        @if agent.clock_offset_ms < 0 { "behind" } @else { "ahead of" }
                        " the service"
                    }
                    @if let Some(at) = agent.certificate_expires {
                        dt { "Certificate" } dd { "valid until " (show::time(at, context.now)) }
                    }
                    dt { "ID" } dd { code { (agent.id) } }
                }
            }
        }
    }
}
