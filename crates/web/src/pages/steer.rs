//! The Steer page: who gets how much, what limits it, and which links may files use?

use longhaul_api::limits::{LimitKind, LimitView};
use longhaul_api::native::StorageView;
use longhaul_api::steering::{AllowedLink, AuditEntry, DecisionEntry, LinksView, ShareView};
use longhaul_model::{StorageKind, units};
use longhaul_security::{Principal, ResourceScope, Role};
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, Viewer, action, page};
use crate::show;

/// The name that stands for all communities, or activities, without a share of their own.
const CATCH_ALL: &str = "*";

/// Everything that the page shows.
pub struct SteerView {
    pub shares: Vec<ShareView>,
    pub limits: Vec<LimitView>,
    pub links: LinksView,
    pub storages: Vec<StorageView>,
    pub strategies: Vec<&'static str>,
    pub audit: Vec<AuditEntry>,
    /// Recent refusals, for those who may see them.
    pub refused: Option<Vec<DecisionEntry>>,
}

pub fn steer(context: Context<'_>, view: &SteerView) -> Markup {
    let frame = Frame::live(context, "Steer", Section::Steer, "/api/v1/shares", "longhaul share list");
    page(
        &frame,
        html! {
            h1 { "Steer: who gets how much, what limits it, and which links may files use?" }
            p.soft { "Changes take effect at once and survive a restart. Running transfers continue." }
            h2 { "Shares" }
            (shares(context, &view.shares))
            h2 { "Limits" }
            (limits(context, &view.limits, &view.storages))
            h2 { "Links" }
            (links(context, &view.links, &view.storages))
            h2 { "Storages" }
            (storages(context, view))
            h2 { "Recent changes" }
            (audit(context, &view.audit))
            @if let Some(list) = &view.refused {
                h2 { "Recent refusals" }
                (refused(context, list))
            }
        },
    )
}

/// A form with several fields. Empty without a viewer who may use it.
fn form(viewer: Option<Viewer<'_>>, address: &str, class: &str, fields: Markup, label: &str) -> Markup {
    html! {
        @if let Some(Viewer { form_token, .. }) = viewer {
            form class=(class) method="post" action=(address) {
                input type="hidden" name="form_token" value=(form_token);
                (fields)
                button type="submit" { (label) }
            }
        }
    }
}

/// Whether the viewer may change anything on this page.
fn may_change_anything(context: Context<'_>) -> bool {
    context.viewer.is_some_and(|viewer| matches!(viewer.principal.role, Role::Manager | Role::Admin))
}

/// The viewer, if they are an administrator or manage anything of the kind that `managed` names.
fn viewer_for_any<'a>(
    context: Context<'a>,
    managed: impl FnOnce(&'a Principal) -> Option<ResourceScope<'a>>,
) -> Option<Viewer<'a>> {
    let scope = context.viewer.and_then(|viewer| managed(viewer.principal));
    context.viewer_for(scope.unwrap_or(ResourceScope::Deployment))
}

fn any_site(principal: &Principal) -> Option<ResourceScope<'_>> {
    principal.manages.sites.first().map(ResourceScope::Site)
}

/// The viewer, if they may change all of these storages.
fn viewer_for_storages<'a>(
    context: Context<'a>,
    storages: &[StorageView],
    names: impl IntoIterator<Item: AsRef<str>>,
) -> Option<Viewer<'a>> {
    let site = |name: &str| {
        let found = storages.iter().find(|storage| storage.name.as_str() == name);
        found.and_then(|storage| storage.site.as_ref())
    };
    let mut scopes = names
        .into_iter()
        .map(|name| site(name.as_ref()).map_or(ResourceScope::Deployment, ResourceScope::Site));
    context.viewer.filter(|viewer| scopes.all(|scope| viewer.may_change(scope)))
}

// ---- shares ----------------------------------------------------------------------------------------------

fn shares(context: Context<'_>, list: &[ShareView]) -> Markup {
    let viewer = viewer_for_any(context, |principal| {
        principal.manages.community.as_ref().map(ResourceScope::Community)
    });
    let fields = html! {
        label { "Community" input name="community" required placeholder="atlas" size="12"; }
        label { "Activity (optional)" input name="activity" placeholder="production" size="14"; }
        label { "Weight" (weight(1.0)) }
    };
    html! {
        p.soft {
            "How the bytes that arrive at a storage are divided among those who want data there: weights 3 "
            "and 1 "
            "mean three bytes to one."
        }
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Community" }
                        th scope="col" { "Activity" }
                        th scope="col" { "Share under load" }
                        th.number scope="col" { "Weight" }
                        @if may_change_anything(context) { th scope="col" { "Change" } }
                    }
                }
                tbody { @for share in list { (share_row(context, share)) } }
            }
        }
        (form(viewer, "/ui/steer/share", "filter", fields, "Set share"))
    }
}

fn share_row(context: Context<'_>, share: &ShareView) -> Markup {
    let (community, activity) = (share.community.as_str(), share.activity.as_deref());
    // The catch-all cannot be removed.
    let is_permanent = community == CATCH_ALL || activity == Some(CATCH_ALL);
    let key = [("community", community), ("activity", activity.unwrap_or_default())];
    let unset = [key[0], key[1], ("weight", "")];
    let viewer = match activity {
        None => context.viewer_for(ResourceScope::Deployment),
        Some(_) => context.viewer_for_community(community),
    };
    let fields = html! {
        @for (name, value) in key { input type="hidden" name=(name) value=(value); }
        (weight(share.weight)) " "
    };
    html! {
        tr {
            td data-label="Community" {
                @if activity.is_some() { span.soft { (display_name(community)) } }
                @else { (display_name(community)) }
            }
            td data-label="Activity" {
                @match activity { None => span.soft { "all" }, Some(activity) => (display_name(activity)) }
            }
            td data-label="Share" { (show::bar((share.part * 1e6) as u64, 1_000_000)) }
            td.number data-label="Weight" { (share.weight) }
            @if may_change_anything(context) {
                td data-label="Change" {
                    (form(viewer, "/ui/steer/share", "inline", fields, "Set"))
                    @if !is_permanent {
                        (action(viewer, "/ui/steer/share", &unset, "Remove"))
                    }
                }
            }
        }
    }
}

fn display_name(name: &str) -> &str {
    if name == CATCH_ALL { "all others" } else { name }
}

fn weight(value: f64) -> Markup {
    html! {
        input type="number" name="weight" value=(value) min="0" max="1000000" step="any" required
            aria-label="weight";
    }
}

// ---- limits ----------------------------------------------------------------------------------------------

const LIMIT_KINDS: [(LimitKind, &str, &str); 4] = [
    (LimitKind::Link, "link", "link"),
    (LimitKind::Into, "into", "into storage"),
    (LimitKind::Out, "out", "out of storage"),
    (LimitKind::Community, "community", "community"),
];

fn limits(context: Context<'_>, list: &[LimitView], storages: &[StorageView]) -> Markup {
    let fields = html! {
        label {
            "Applies to"
            select name="of" { @for (_, word, text) in LIMIT_KINDS { option value=(word) { (text) } } }
        }
        label { "Name" input name="name" required placeholder="alpha:beta" size="16"; }
        (bounds(None, None))
    };
    html! {
        p.soft {
            "In addition to the limits of " a href="/ui/sites" { "sites" } "; the tightest limit applies."
        }
        @if list.is_empty() {
            p.empty { "No limit is set." }
        } @else {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "Applies to" }
                            th.number scope="col" { "Parallel files" }
                            th.number scope="col" { "Rate" }
                            @if may_change_anything(context) { th scope="col" { "Change" } }
                        }
                    }
                    tbody { @for limit in list { (limit_row(context, limit, storages)) } }
                }
            }
        }
        (form(viewer_for_any(context, any_site), "/ui/steer/limit", "filter", fields, "Set limit"))
    }
}

fn limit_row(context: Context<'_>, limit: &LimitView, storages: &[StorageView]) -> Markup {
    let (word, text) =
        LIMIT_KINDS.iter().find(|kind| kind.0 == limit.of).map_or(("", ""), |kind| (kind.1, kind.2));
    let of = [("of", word), ("name", limit.name.as_str())];
    let unset = [of[0], of[1], ("active", ""), ("rate", "")];
    let viewer = match limit.of {
        LimitKind::Community => context.viewer_for(ResourceScope::Deployment),
        LimitKind::Link | LimitKind::Into | LimitKind::Out => {
            viewer_for_storages(context, storages, limit.name.split(':'))
        }
    };
    let fields = html! {
        @for (name, value) in of { input type="hidden" name=(name) value=(value); }
        (bounds(limit.active, limit.bytes_per_s)) " "
    };
    html! {
        tr {
            td { (text) " " (limit.name) }
            td.number data-label="Parallel files" {
                @match limit.active { Some(active) => (units::count(active.into())), None => "no limit" }
            }
            td.number data-label="Rate" {
                @match limit.bytes_per_s { Some(rate) => (show::rate(rate as f64)), None => "no limit" }
            }
            @if may_change_anything(context) {
                td data-label="Change" {
                    (form(viewer, "/ui/steer/limit", "inline", fields, "Set"))
                    (action(viewer, "/ui/steer/limit", &unset, "Remove"))
                }
            }
        }
    }
}

fn bounds(active: Option<u32>, bytes_per_s: Option<u64>) -> Markup {
    // Exact: a rounded rate would change the limit when another field is set.
    let rate = bytes_per_s.map(|rate| match rate {
        rate if rate % 1_000_000 == 0 => format!("{}MB/s", rate / 1_000_000),
        rate => format!("{rate}B/s"),
    });
    html! {
        label {
            "Parallel files "
            input type="number" name="active" value=[active] min="0" max=(u32::MAX) placeholder="any";
        }
        " "
        label { "Rate " input name="rate" value=[rate] placeholder="any, or 250MB/s" size="14"; }
    }
}

// ---- links and storages ----------------------------------------------------------------------------------

fn links(context: Context<'_>, view: &LinksView, storages: &[StorageView]) -> Markup {
    let viewer = context.viewer_for(ResourceScope::Deployment);
    let act = |link: &AllowedLink, act: &str, label: &str| {
        let (source, target) = (link.source.to_string(), link.target.to_string());
        action(viewer, "/ui/steer/link", &[("act", act), ("source", &source), ("target", &target)], label)
    };
    let fields = html! {
        label { "From" (storage_select("source", storages)) }
        label { "To" (storage_select("target", storages)) }
        label { "Change" select name="act" {
            // The choice that touches no other link comes first.
            @if !view.open { option value="add" { "allow this link too" } }
            option value="decommission" { "allow test transfers only" }
            @if view.open { option value="only" { "allow only this link, and those added later" } }
        } }
    };
    html! {
        @if view.open {
            p { "Files may move from any storage to any other." }
        } @else {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Allowed links" }
                            @if may_change_anything(context) { th scope="col" { "Change" } }
                        }
                    }
                    tbody {
                        @for link in &view.links {
                            tr {
                                td { (link.source) " → " (link.target) }
                                @if may_change_anything(context) { td { (act(link, "remove", "Remove")) } }
                            }
                        }
                    }
                }
            }
            (action(viewer, "/ui/steer/link", &[("act", "open-all")], "Allow all"))
        }
        @if !view.uncommissioned.is_empty() {
            div.scroll {
                table {
                    thead {
                        tr {
                            th scope="col" { "Test transfers only" }
                            @if may_change_anything(context) { th scope="col" { "Change" } }
                        }
                    }
                    tbody {
                        @for link in &view.uncommissioned {
                            tr {
                                td { (show::state("warn", "")) (link.source) " → " (link.target) }
                                @if may_change_anything(context) {
                                    td { (act(link, "commission", "Allow all transfers")) }
                                }
                            }
                        }
                    }
                }
            }
        }
        (form(viewer, "/ui/steer/link", "filter", fields, "Change link"))
    }
}

fn storage_select(name: &str, storages: &[StorageView]) -> Markup {
    let real = storages.iter().filter(|storage| storage.kind != StorageKind::Virtual);
    html! {
        select name=(name) { @for storage in real { option value=(storage.name) { (storage.name) } } }
    }
}

fn storages(context: Context<'_>, view: &SteerView) -> Markup {
    html! {
        p.soft {
            "How sources are chosen for data that goes there, unless a subscription says otherwise; and "
            "whether "
            "files may pass through it on their way to others."
        }
        @if view.storages.is_empty() {
            p.empty { "No agent has offered one yet." }
        } @else {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "Storage" }
                            th scope="col" { "Strategy" }
                            th scope="col" { "Relay" }
                            @if may_change_anything(context) { th scope="col" { "Change" } }
                        }
                    }
                    tbody {
                        @for storage in &view.storages { (storage_row(context, storage, &view.strategies)) }
                    }
                }
            }
        }
    }
}

fn storage_row(context: Context<'_>, storage: &StorageView, strategies: &[&str]) -> Markup {
    let given = storage.strategy.as_deref();
    let viewer = viewer_for_storages(context, std::slice::from_ref(storage), [storage.name.as_str()]);
    let fields = html! {
        input type="hidden" name="storage" value=(storage.name);
        label {
            "Strategy "
            select name="strategy" {
                option value="none" selected[given.is_none()] { "service default" }
                @for strategy in strategies {
                    option value=(strategy) selected[given == Some(strategy)] { (strategy) }
                }
            }
        }
        " "
        label {
            "Relay "
            select name="relay" {
                option value="false" selected[!storage.relay] { "no" }
                option value="true" selected[storage.relay] { "yes" }
            }
        }
        " "
    };
    html! {
        tr {
            td { (storage.name) @if !storage.writable { " " span.soft { "read only" } } }
            td data-label="Strategy" {
                @match given { Some(strategy) => (strategy), None => span.soft { "service default" } }
            }
            td data-label="Relay" { @if storage.relay { "yes" } @else { "no" } }
            @if may_change_anything(context) {
                td data-label="Change" { (form(viewer, "/ui/steer/storage", "inline", fields, "Set")) }
            }
        }
    }
}

fn audit(context: Context<'_>, list: &[AuditEntry]) -> Markup {
    html! {
        @if list.is_empty() { p.empty { "No changes yet." } }
        @else {
            div.scroll { table.stack {
                thead { tr { th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "What" } } }
                tbody { @for entry in list { tr {
                    td.tight { (show::time(entry.at, context.now)) }
                    td data-label="Who" { (entry.who) }
                    td data-label="What" { (entry.what) }
                } } }
            } }
        }
        p.soft { "Older entries: " code { "longhaul audit" } }
    }
}

fn refused(context: Context<'_>, list: &[DecisionEntry]) -> Markup {
    html! {
        @if list.is_empty() {
            p.empty { "No refusals." }
        } @else {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "When" }
                            th scope="col" { "Who" }
                            th scope="col" { "What" }
                            th scope="col" { "Reason" }
                        }
                    }
                    tbody {
                        @for entry in list {
                            tr {
                                td.tight { (show::time(entry.at, context.now)) }
                                td data-label="Who" {
                                    (entry.who) br;
                                    span.soft { (entry.credential) " from " (entry.origin) }
                                }
                                td data-label="What" {
                                    (entry.operation) " " code { (entry.object) }
                                    @if let (Some(site), Some(storage)) = (&entry.site, &entry.storage) {
                                        span.soft { " at " (site) ", " (storage) }
                                    }
                                    @if entry.times > 1 { span.soft { ", " (entry.times) " times" } }
                                }
                                td data-label="Reason" { (entry.why) }
                            }
                        }
                    }
                }
            }
        }
        p.soft { "More, and what was allowed: " code { "longhaul audit --of decisions" } }
    }
}

/// One of everything. Text from outside is hostile.
#[cfg(test)]
pub(super) fn sample(storage: StorageView) -> SteerView {
    let link = || AllowedLink { source: "alpha".parse().unwrap(), target: "beta".parse().unwrap() };
    let share = |community: &str, activity: Option<&str>| ShareView {
        community: community.into(),
        activity: activity.map(Into::into),
        weight: 3.0,
        part: 0.75,
    };
    SteerView {
        shares: vec![share("atlas", None), share("atlas", Some("<u>production")), share(CATCH_ALL, None)],
        limits: vec![LimitView {
            of: LimitKind::Into,
            name: "<s>beta".into(),
            active: Some(20),
            bytes_per_s: Some(250_000_000),
        }],
        links: LinksView {
            open: false,
            links: vec![link()],
            relays: Vec::new(),
            uncommissioned: vec![link()],
        },
        storages: vec![storage],
        strategies: vec!["best", "queue"],
        audit: vec![AuditEntry {
            id: 1,
            at: longhaul_model::Timestamp::from_seconds(1_763_717_400),
            who: "<u>root".into(),
            what: "share of atlas: 3 <s>".into(),
        }],
        refused: Some(vec![DecisionEntry {
            id: 1,
            allowed: false,
            since: longhaul_model::Timestamp::from_seconds(1_763_717_400),
            at: longhaul_model::Timestamp::from_seconds(1_763_717_400),
            times: 3,
            who: "<u>mallory".into(),
            credential: "API token".into(),
            origin: "192.0.2.7".into(),
            operation: "job_cancel".into(),
            object: "/api/v1/jobs/<s>".into(),
            why: "not <b>theirs".into(),
            site: Some("gamma".parse().unwrap()),
            storage: Some("disk".parse().unwrap()),
        }]),
    }
}
