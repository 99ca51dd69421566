//! `longhaul site`.

use clap::{Args, Subcommand};
use longhaul_api::native::{
    Page, SiteAdd, SiteAdded, SiteChange, SiteLimits, SiteRemoval, SiteRemoved, SiteState, SiteView,
};
use longhaul_api::routes;
use longhaul_model::units::{self, bytes, parse_bytes, printable};
use longhaul_model::{RegionName, SiteName, StorageKind, StorageName, Timestamp};

use super::{Context, commission, storage, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::terminal::{Style, Tone};
use crate::time_format;

#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// Create a site and print the token with which its agent joins
    Add(AddArgs),
    /// List sites
    List,
    /// Show a site: storages, agents and limits
    Show {
        /// Name of the site
        site: SiteName,
    },
    /// Pause a site: start nothing and withdraw what is waiting; running transfers finish
    Pause(ReasonArgs),
    /// Resume a paused or draining site
    Resume {
        /// Name of the site
        site: SiteName,
    },
    /// Drain a site: finish what it has and start nothing new
    Drain(ReasonArgs),
    /// Limit traffic into and out of a site
    Limit(LimitArgs),
    /// Set a site's region: links between two regions are assumed to be alike
    Set(SetArgs),
    /// Show what removing a site would mean; remove it with its agents and storages with --yes
    Remove(RemoveArgs),
    /// Test a site's links with other sites and grade them
    Commission(commission::CommissionArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the site
    site: SiteName,
    /// Hours until the token expires [default: 24]
    #[arg(long)]
    hours: Option<u64>,
    /// Only create a token for another agent of an existing site
    #[arg(long)]
    another_agent: bool,
    /// Allow the site a storage of this name, which does not begin with the site's; may be repeated
    #[arg(long = "storage", value_name = "NAME", conflicts_with = "another_agent")]
    storages: Vec<StorageName>,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name of the site
    site: SiteName,
    /// Really remove it; without it nothing is changed. Files stay on its disks, but the service forgets them
    #[arg(long, short)]
    yes: bool,
    /// Remove it even if it has files of which no other site has a good copy
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub struct ReasonArgs {
    /// Name of the site
    site: SiteName,
    /// Reason, shown to everyone who waits
    #[arg(long, short)]
    reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the site
    site: SiteName,
    /// Region of the site, such as europe, or none
    #[arg(long, value_name = "NAME")]
    region: RegionName,
}

/// Limits to change: what is not given stays, `none` removes a limit.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SiteBounds {
    /// Bytes per second into the site, such as 250MB, or none
    #[arg(long = "in", value_name = "RATE", value_parser = parse_rate_limit)]
    inbound: Option<LimitValue>,
    /// Bytes per second out of the site, or none
    #[arg(long = "out", value_name = "RATE", value_parser = parse_rate_limit)]
    outbound: Option<LimitValue>,
    /// Parallel files into the site, or none
    #[arg(long, value_name = "FILES", value_parser = parse_file_limit)]
    active_in: Option<LimitValue>,
    /// Parallel files out of the site, or none
    #[arg(long, value_name = "FILES", value_parser = parse_file_limit)]
    active_out: Option<LimitValue>,
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Name of the site
    site: SiteName,
    #[command(flatten)]
    bounds: SiteBounds,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitValue(Option<u64>);

fn parse_rate_limit(text: &str) -> Result<LimitValue, String> {
    let text = text.trim_end_matches("/s");
    if text == "none" { Ok(LimitValue(None)) } else { parse_bytes(text).map(|value| LimitValue(Some(value))) }
}

fn parse_file_limit(text: &str) -> Result<LimitValue, String> {
    match text {
        "none" => Ok(LimitValue(None)),
        _ => text
            .parse::<u32>()
            .map(|value| LimitValue(Some(value.into())))
            .map_err(|_| format!("{text:?} is neither a number nor none")),
    }
}

pub async fn run(context: &Context, remote: &Remote, command: SiteCommand) -> Result<Exit, Failure> {
    match command {
        SiteCommand::Commission(args) => return commission::run(context, remote, &args).await,
        SiteCommand::Add(args) => add(context, remote, args).await?,
        SiteCommand::List => {
            let items: Vec<SiteView> = remote.list_all(&routes::SITE_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items, clock::now()))?;
        }
        SiteCommand::Show { site } => {
            let view: SiteView = remote.get(&routes::SITE_SHOW, &[site.as_str()], &[]).await?;
            context.output.view(&view, human, |view| agents_table(view, clock::now()))?;
        }
        SiteCommand::Pause(args) => {
            change_state(context, remote, &args.site, SiteState::Paused, args.reason).await?
        }
        SiteCommand::Drain(args) => {
            change_state(context, remote, &args.site, SiteState::Draining, args.reason).await?
        }
        SiteCommand::Resume { site } => change_state(context, remote, &site, SiteState::Open, None).await?,
        SiteCommand::Remove(args) => {
            let request = SiteRemoval { dry_run: !args.yes, force: args.force };
            let reply: SiteRemoved =
                remote.post(&routes::SITE_REMOVE, &[args.site.as_str()], &request).await?;
            context.output.sentence(&reply, removal)?;
        }
        SiteCommand::Set(args) => {
            let region = Some(args.region.as_str()).filter(|&name| name != "none").unwrap_or_default();
            let change = SiteChange { region: Some(region.to_owned()), ..SiteChange::default() };
            let view: SiteView = remote.patch(&routes::SITE_CHANGE, &[args.site.as_str()], &change).await?;
            context.output.sentence(&view, |view| match &view.region {
                Some(region) => format!("{} is in {region}", view.name),
                None => format!("{} has no region", view.name),
            })?;
        }
        SiteCommand::Limit(args) => {
            let old: SiteView = remote.get(&routes::SITE_SHOW, &[args.site.as_str()], &[]).await?;
            let limits = Some(args.bounds.merge_into(old.limits).into());
            let change = SiteChange { limits, ..SiteChange::default() };
            let view: SiteView = remote.patch(&routes::SITE_CHANGE, &[args.site.as_str()], &change).await?;
            context.output.sentence(&view, |view| format!("{}: {}", view.name, limits_text(&view.limits)))?;
        }
    }
    Ok(Exit::Ok)
}

impl SiteBounds {
    fn merge_into(&self, old: SiteLimits) -> SiteLimits {
        let count = |bound: Option<LimitValue>, old: Option<u32>| {
            bound.map_or(old, |LimitValue(value)| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX)))
        };
        SiteLimits {
            active_in: count(self.active_in, old.active_in),
            active_out: count(self.active_out, old.active_out),
            in_bytes_per_s: self.inbound.map_or(old.in_bytes_per_s, |LimitValue(value)| value),
            out_bytes_per_s: self.outbound.map_or(old.out_bytes_per_s, |LimitValue(value)| value),
        }
    }
}

async fn add(context: &Context, remote: &Remote, args: AddArgs) -> Result<(), Failure> {
    let token_seconds = args.hours.map(|hours| hours.saturating_mul(3_600));
    let added: SiteAdded = if args.another_agent {
        let request = longhaul_api::native::JoinTokenCreate { token_seconds };
        remote.post(&routes::SITE_JOIN_TOKEN, &[args.site.as_str()], &request).await?
    } else {
        let request = SiteAdd { name: args.site, token_seconds, storages: args.storages };
        remote.post(&routes::SITE_ADD, &[], &request).await?
    };
    let human = |added: &SiteAdded, _: Style, _: Option<usize>| format!("{}\n", added.join_token);
    context.output.view(&added, human, |added| {
        let mut table = Table::new([left("site"), left("join token"), left("expires")]);
        table.row([
            Cell::text(added.name.as_str()),
            Cell::text(&added.join_token),
            Cell::text(added.expires.to_string()),
        ]);
        table
    })?;
    let until = time_format::local(added.expires, clock::now());
    context.output.print_message(&format!(
        "One agent of {name} can join with this token until {until}. On its host:\n  \
         longhaul agent join --token TOKEN\n  longhaul agent run --storage {name}=/path/of/its/storage",
        name = added.name
    ));
    Ok(())
}

async fn change_state(
    context: &Context,
    remote: &Remote,
    site: &SiteName,
    state: SiteState,
    reason: Option<String>,
) -> Result<(), Failure> {
    let change = SiteChange { state: Some(state), reason, ..SiteChange::default() };
    let view: SiteView = remote.patch(&routes::SITE_CHANGE, &[site.as_str()], &change).await?;
    context.output.sentence(&view, |view| {
        let reason = view.reason.as_ref().map(|why| format!(": \"{}\"", printable(why))).unwrap_or_default();
        format!("{} is {}{reason}", view.name, state_word(view.state))
    })
}

fn state_word(state: SiteState) -> &'static str {
    match state {
        SiteState::Open => "open",
        SiteState::Draining => "draining",
        SiteState::Paused => "paused",
    }
}

fn table(sites: &[SiteView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("site"),
        left("state"),
        left("agents"),
        right("rate in"),
        right("rate out"),
        right("active"),
        right("queue"),
        right("free"),
        prose("problem").plain_title("trouble"),
    ]);
    for site in sites {
        let connected = site.agents.iter().filter(|agent| agent.connected).count();
        // The space of virtual storages does not count: it holds nobody's data.
        let real = site.storages.iter().filter(|storage| storage.kind != StorageKind::Virtual);
        let free: u64 = real.map(|storage| storage.free_bytes).sum();
        table.row([
            Cell::text(site.name.as_str()),
            Cell::text(state_word(site.state)).toned_if(site.state != SiteState::Open, Tone::Warn),
            Cell::both(agents_text(connected, site.agents.len()), connected.to_string())
                .toned_if(connected < site.agents.len(), Tone::Warn),
            Cell::rate(site.rate_in),
            Cell::rate(site.rate_out),
            Cell::both(
                format!("{} in, {} out", site.active_in, site.active_out),
                (site.active_in + site.active_out).to_string(),
            ),
            Cell::bytes(site.queued_bytes),
            Cell::bytes(free),
            Cell::text(trouble_text(site, now)),
        ]);
    }
    table
}

fn agents_text(connected: usize, all: usize) -> String {
    match all {
        0 => "none yet".to_owned(),
        _ if connected == all => format!("{all} connected"),
        _ => format!("{connected} of {all} connected"),
    }
}

fn trouble_text(site: &SiteView, now: Timestamp) -> String {
    let mut parts: Vec<String> =
        site.reason.iter().filter(|_| site.state != SiteState::Open).cloned().collect();
    for storage in &site.storages {
        parts.extend(storage.trouble.as_ref().map(|fault| format!("{}: {fault}", storage.name)));
    }
    for agent in site.agents.iter().filter(|agent| !agent.connected && agent.refused_since.is_none()) {
        let since = agent
            .last_contact
            .map_or("never connected".to_owned(), |at| format!("last seen {}", time_format::ago(at, now)));
        parts.push(format!("agent on {}: {since}", agent.host));
    }
    parts.join("; ")
}

/// What the removal of a site means, or what it has done.
fn removal(reply: &SiteRemoved) -> String {
    let site = &reply.site;
    let mut text = match reply.removed {
        true => format!("{site} is removed; another site may take its name"),
        false => format!("would remove {site}"),
    };
    for agent in &reply.agents {
        text.push_str(&format!("\n  agent {agent}: its certificates are refused from then on"));
    }
    for storage in &reply.storages {
        let stored = format!("{} ({})", words::files(storage.files), bytes(storage.bytes));
        text.push_str(&format!("\n  storage {} with {stored}", storage.storage));
        let mut concerns = String::new();
        storage::push_concerns(&mut concerns, storage);
        text.push_str(&concerns.replace('\n', "\n  "));
    }
    if reply.removed {
        return text;
    }
    for agent in &reply.connected {
        text.push_str(&format!(
            "\n  agent {agent} is connected: stop it on its host, or: longhaul agent refuse {agent} --yes"
        ));
    }
    text.push_str("\nnothing was changed");
    if reply.connected.is_empty() && reply.storages.iter().all(|storage| storage.subscriptions.is_empty()) {
        let is_last = reply.storages.iter().any(|storage| storage.last_replicas > 0);
        let force = if is_last { " --force" } else { "" };
        text.push_str(&format!("; to remove it: longhaul site remove {site} --yes{force}"));
    }
    text
}

fn human(site: &SiteView, style: Style, width: Option<usize>) -> String {
    let now = clock::now();
    let reason = site.reason.as_ref().map(|why| format!(": \"{}\"", printable(why))).unwrap_or_default();
    let mut text = facts(
        style,
        width,
        &[
            ("site", site.name.to_string()),
            ("state", format!("{}{reason}", state_word(site.state))),
            ("limits", limits_text(&site.limits)),
            ("region", site.region.as_ref().map_or("unknown".to_owned(), ToString::to_string)),
            (
                "now",
                format!(
                    "{} in ({}), {} out ({}), {} waiting ({})",
                    words::rate(site.rate_in),
                    words::files(site.active_in),
                    words::rate(site.rate_out),
                    words::files(site.active_out),
                    words::files(site.queued_files),
                    bytes(site.queued_bytes)
                ),
            ),
        ],
    );
    if !site.storage_names.is_empty() {
        let names: Vec<&str> = site.storage_names.iter().map(StorageName::as_str).collect();
        text.push_str(&format!("allowed storage names: {}\n", names.join(", ")));
    }
    text.push('\n');
    if !site.storages.is_empty() {
        text.push_str(&storages_table(site).human(style, width));
        text.push('\n');
    }
    for storage in site.storages.iter().filter(|storage| !storage.pools.is_empty()) {
        text.push_str(&format!(
            "pools of {}\n{}\n",
            storage.name,
            storage::pools_table(storage).human(style, width)
        ));
    }
    if site.agents.is_empty() {
        text.push_str(&format!(
            "no agent has joined yet; get a token: longhaul site add {} --another-agent\n",
            site.name
        ));
    } else {
        text.push_str(&agents_table(site, now).human(style, width));
    }
    if !site.links.is_empty() {
        text.push('\n');
        text.push_str(&commission::links_table(&site.links).human(style, width));
    }
    text
}

fn limits_text(limits: &SiteLimits) -> String {
    let mut parts = Vec::new();
    let mut say = |value: Option<String>| parts.extend(value);
    say(limits.in_bytes_per_s.map(|rate| format!("{} in", units::rate(rate as f64))));
    say(limits.out_bytes_per_s.map(|rate| format!("{} out", units::rate(rate as f64))));
    say(limits.active_in.map(|files| format!("{} in at a time", words::files(files.into()))));
    say(limits.active_out.map(|files| format!("{} out at a time", words::files(files.into()))));
    if parts.is_empty() { "no limits".to_owned() } else { parts.join(", ") }
}

fn storages_table(site: &SiteView) -> Table {
    let mut table = Table::new([
        left("storage"),
        left("writable"),
        right("free"),
        right("total").plain_title("of"),
        right("files"),
        right("bytes"),
        prose("notes").plain_title("trouble"),
    ]);
    for storage in &site.storages {
        let kind = match storage.kind {
            StorageKind::Posix => String::new(),
            kind => format!(" ({kind})"),
        };
        let shared = storage.agents.as_ref().map_or(String::new(), |agents| {
            format!(" (shared by {})", units::plural(agents.len() as u64, "agent", "agents"))
        });
        let own = [
            Cell::both(format!("{}{kind}{shared}", storage.name), storage.name.as_str()),
            Cell::text(if storage.writable { "yes" } else { "no" }),
        ];
        table.row(own.into_iter().chain(super::storage::space_cells(storage)));
    }
    table
}

fn agents_table(site: &SiteView, now: Timestamp) -> Table {
    let mut table = Table::new([
        left("agent"),
        left("host"),
        left("version"),
        right("incarnation"),
        left("last contact"),
        right("clock"),
        left("certificate until"),
        prose("data ports"),
    ]);
    for agent in &site.agents {
        let contact = match agent.last_contact {
            Some(at) if agent.refused_since.is_some() => Cell::both("refused", at.to_string()),
            Some(at) if agent.connected => Cell::both("connected", at.to_string()).toned(Tone::Good),
            Some(at) => Cell::both(time_format::ago(at, now), at.to_string()).toned(Tone::Warn),
            None => Cell::both("never", ""),
        };
        let skewed = agent.clock_offset_ms.abs() > 1_000;
        table.row([
            Cell::text(agent.id.to_string()),
            Cell::text(&agent.host),
            Cell::text(&agent.version),
            Cell::count(agent.incarnation),
            contact,
            Cell::both(format!("{:+} ms", agent.clock_offset_ms), agent.clock_offset_ms.to_string())
                .toned_if(skewed, Tone::Warn),
            Cell::maybe(agent.certificate_expires, |at| Cell::time(at, now)),
            Cell::text(agent.data_addresses.join(", ")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dry_run_of_a_removal_names_the_command_that_can_be_given_next() {
        let agent = longhaul_model::AgentId(7);
        let mut reply = SiteRemoved {
            site: "site2".parse().unwrap(),
            removed: false,
            agents: vec![agent],
            connected: vec![agent],
            storages: Vec::new(),
        };
        let text = removal(&reply);
        assert!(text.contains(&format!("longhaul agent refuse {agent} --yes")), "{text}");
        assert!(text.ends_with("\nnothing was changed"), "{text}");
        reply.connected.clear();
        assert!(removal(&reply).ends_with("; to remove it: longhaul site remove site2 --yes"));
        reply.removed = true;
        assert!(removal(&reply).starts_with("site2 is removed; another site may take its name\n  agent"));
    }

    #[test]
    fn limits_stay_unless_given() {
        let old = SiteLimits { active_in: Some(3), in_bytes_per_s: Some(5), ..SiteLimits::default() };
        let bounds = SiteBounds {
            inbound: Some(parse_rate_limit("none").unwrap()),
            outbound: Some(parse_rate_limit("250MB/s").unwrap()),
            active_in: None,
            active_out: Some(parse_file_limit("8").unwrap()),
        };
        let new = bounds.merge_into(old);
        assert_eq!(
            new,
            SiteLimits {
                active_in: Some(3),
                active_out: Some(8),
                in_bytes_per_s: None,
                out_bytes_per_s: Some(250_000_000)
            }
        );
        assert_eq!(limits_text(&new), "250 MB/s out, 3 files in at a time, 8 files out at a time");
        assert!(parse_file_limit("many").is_err());
    }
}
