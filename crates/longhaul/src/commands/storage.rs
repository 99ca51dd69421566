//! `longhaul storage`.

pub mod rules;

use clap::{Args, Subcommand};
use longhaul_api::native::{Page, StorageAllow, StorageAllowed, StorageRemoval, StorageRemoved, StorageView};
use longhaul_api::routes;
use longhaul_api::steering::StorageChange;
use longhaul_model::units::{self, bytes};
use longhaul_model::{SiteName, StorageName};
use longhaul_scheduler::Strategy;

use super::{Context, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::terminal::{Style, Tone};

#[derive(Debug, Subcommand)]
pub enum StorageCommand {
    /// List storages with their space and settings
    List,
    /// Show a storage: space, contents, pools, what is wanted from its tape
    Show {
        /// Name of the storage
        storage: StorageName,
    },
    /// Change a storage's settings; takes effect at once
    Set(SetArgs),
    /// Allow a site to have a storage of this name, which does not begin with the site's
    Allow(AllowArgs),
    /// Take an allowed name back, as long as there is no storage of that name
    Disallow {
        /// Name that was allowed
        storage: StorageName,
    },
    /// Show what removing a storage would mean; remove it for good with --yes
    Remove(RemoveArgs),
    /// Name rules of this host's storages: check, import
    #[command(subcommand)]
    Rules(rules::RulesCommand),
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name of the storage
    storage: StorageName,
    #[command(flatten)]
    settings: StorageSettings,
}

#[derive(Debug, Args)]
pub struct AllowArgs {
    /// Name to allow; no other site may have it then
    storage: StorageName,
    /// The site
    #[arg(long)]
    site: SiteName,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name of the storage
    storage: StorageName,
    /// Really remove it; without it nothing is changed. Files stay on its disks, but the service forgets them
    #[arg(long, short)]
    yes: bool,
    /// Remove it even if it has files of which no other storage has a good copy
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct StorageSettings {
    /// Whether files may be relayed through it: yes or no
    #[arg(long, value_name = "YES|NO", value_parser = parse_yes_no)]
    relay: Option<bool>,
    /// How sources are chosen for transfers to it, unless a subscription says: best, one of FTS3's nine, or
    /// none (the service's default)
    #[arg(long, value_parser = parse_strategy)]
    strategy: Option<String>,
    /// What to do with a subscription for which there is no space, with all that is promised before: warn
    /// (accept it with a warning) or refuse
    #[arg(long, value_name = "POLICY", value_parser = ["warn", "refuse"])]
    space_policy: Option<String>,
}

fn parse_yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("write yes or no".to_owned()),
    }
}

/// Parses a strategy by name, or `none`.
pub fn parse_strategy(text: &str) -> Result<String, String> {
    match text {
        "none" => Ok(text.to_owned()),
        _ => text.parse::<Strategy>().map(|strategy| strategy.to_string()).map_err(|error| error.to_string()),
    }
}

pub async fn run(context: &Context, remote: &Remote, command: StorageCommand) -> Result<Exit, Failure> {
    match command {
        StorageCommand::List => {
            let items: Vec<StorageView> = remote.list_all(&routes::STORAGE_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
        }
        StorageCommand::Show { storage } => {
            let view: StorageView = remote.get(&routes::STORAGE_SHOW, &[storage.as_str()], &[]).await?;
            context.output.view(&view, human, |view| table(std::slice::from_ref(view)))?;
        }
        StorageCommand::Set(args) => {
            let StorageSettings { relay, strategy, space_policy } = args.settings;
            let change = StorageChange { relay, strategy, space_policy };
            let view: StorageView =
                remote.patch(&routes::STORAGE_CHANGE, &[args.storage.as_str()], &change).await?;
            context.output.sentence(&view, |view| {
                let relay = if view.relay { "a relay" } else { "not a relay" };
                let strategy = view.strategy.as_deref().unwrap_or("the service's strategy");
                let mut text =
                    format!("{} is {relay}; sources for transfers to it are chosen by {strategy}", view.name);
                if let Some(policy) = &view.space_policy {
                    let policy = if policy == "refuse" { "refused" } else { "accepted with a warning" };
                    text.push_str(&format!("; subscriptions beyond its free space are {policy}"));
                }
                text
            })?;
        }
        StorageCommand::Allow(args) => {
            let request = StorageAllow { site: args.site };
            let allowed: StorageAllowed =
                remote.post(&routes::STORAGE_ALLOW, &[args.storage.as_str()], &request).await?;
            context.output.sentence(&allowed, |allowed| {
                let StorageAllowed { storage, site } = allowed;
                format!(
                    "{site} may have a storage {storage}: an agent of {site} that offers it serves it soon"
                )
            })?;
        }
        StorageCommand::Disallow { storage } => {
            remote.delete(&routes::STORAGE_DISALLOW, &[storage.as_str()]).await?;
            context.output.print_message(&format!("{storage} is allowed to no site any more"));
        }
        StorageCommand::Remove(args) => {
            let request = StorageRemoval { dry_run: !args.yes, force: args.force };
            let reply: StorageRemoved =
                remote.post(&routes::STORAGE_REMOVE, &[args.storage.as_str()], &request).await?;
            context.output.sentence(&reply, removal)?;
        }
        StorageCommand::Rules(_) => unreachable!("run() took it"),
    }
    Ok(Exit::Ok)
}

/// What becomes of what a storage has; and, before its removal, what keeps it.
pub(super) fn push_concerns(text: &mut String, reply: &StorageRemoved) {
    for held in &reply.datasets {
        let count = words::files(held.files);
        text.push_str(&format!("\n  {count} of {} ({}): forgotten", held.dataset, bytes(held.bytes)));
        match held.last_replicas {
            0 => {}
            1 => text.push_str("; 1 of them has no other good copy"),
            last => text.push_str(&format!("; {last} of them have no other good copy")),
        }
    }
    let becomes = [
        (reply.leases_in, "transfer to it", "transfers to it", "ended"),
        (reply.leases_out, "transfer from it", "transfers from it", "given another source, or to wait"),
        (reply.tasks, "task", "tasks", "ended"),
    ];
    words::push_counts(text, &becomes);
    if reply.removed {
        return;
    }
    for subscription in &reply.subscriptions {
        text.push_str(&format!(
            "\n  subscription {subscription} wants data there: longhaul subscription cancel {subscription}"
        ));
    }
}

/// What the removal of a storage means, or what it has done.
fn removal(reply: &StorageRemoved) -> String {
    let StorageRemoved { storage, site, last_replicas, .. } = reply;
    let mut text = match reply.removed {
        true => format!("{storage} of {site} is removed; another storage may take its name"),
        false => format!("would remove {storage} of {site}"),
    };
    push_concerns(&mut text, reply);
    if reply.removed {
        return text;
    }
    if let Some(agent) = reply.served_by {
        text.push_str(&format!(
            "\n  agent {agent} serves it and is connected: stop it, or take the storage out of its \
                configuration and restart it"
        ));
    }
    text.push_str("\nnothing was changed");
    if reply.subscriptions.is_empty() && reply.served_by.is_none() {
        let force = if *last_replicas > 0 { " --force" } else { "" };
        text.push_str(&format!("; to remove it: longhaul storage remove {storage} --yes{force}"));
    }
    text
}

fn table(storages: &[StorageView]) -> Table {
    let mut table = Table::new([
        left("storage"),
        left("writable"),
        left("relay"),
        left("strategy").plain_title("sources by"),
        right("free"),
        right("total").plain_title("of"),
        right("files"),
        right("bytes"),
        prose("notes").plain_title("trouble"),
        right("promised"),
        left("space policy"),
    ]);
    let yes = |value: bool| Cell::text(if value { "yes" } else { "no" });
    for storage in storages {
        let own = [
            Cell::text(storage.name.as_str()),
            yes(storage.writable),
            yes(storage.relay),
            Cell::maybe(storage.strategy.as_ref(), Cell::text),
        ];
        let promised = [
            Cell::maybe(storage.promised_bytes, Cell::bytes).toned_if(is_short(storage), Tone::Warn),
            Cell::maybe(storage.space_policy.as_ref(), Cell::text),
        ];
        table.row(own.into_iter().chain(space_cells(storage)).chain(promised));
    }
    table
}

fn human(storage: &StorageView, style: Style, width: Option<usize>) -> String {
    let mut lines = vec![
        ("storage", storage.name.to_string()),
        ("site", storage.site.as_ref().map_or_else(String::new, ToString::to_string)),
        ("made of", made_of(storage)),
        ("space", space_text(storage)),
        ("managed", format!("{}, {}", words::files(storage.files), bytes(storage.bytes))),
        ("sources by", storage.strategy.clone().unwrap_or_else(|| "the service's strategy".to_owned())),
    ];
    if storage.relay {
        lines.push(("relay", "files may pass through it on their way to other storages".to_owned()));
    }
    if let Some(queue) = &storage.tape_queue {
        lines.push(("from tape", queue.words(clock::now())));
    }
    lines.push(("state", storage.trouble.as_ref().map_or("healthy".to_owned(), ToString::to_string)));
    let mut text = facts(style, width, &lines);
    if !storage.pools.is_empty() {
        text.push('\n');
        text.push_str(&pools_table(storage).human(style, width));
    }
    text
}

/// What holds the files, and who serves it.
fn made_of(storage: &StorageView) -> String {
    let mut text = storage.kind.word().to_owned();
    if !storage.pools.is_empty() {
        text.push_str(&format!(", {}", units::plural(storage.pools.len() as u64, "pool", "pools")));
    }
    if let Some(agents) = &storage.agents {
        text.push_str(&format!(", shared by {}", units::plural(agents.len() as u64, "agent", "agents")));
    }
    if !storage.writable {
        text.push_str(", read only");
    }
    text
}

fn space_text(storage: &StorageView) -> String {
    if storage.total_bytes == 0 {
        return "not told".to_owned();
    }
    let free = format!("{} free of {}", bytes(storage.free_bytes), bytes(storage.total_bytes));
    match storage.promised_bytes {
        Some(promised) if promised > 0 => format!("{free}, {} of it promised", bytes(promised)),
        _ => free,
    }
}

/// The pools of a storage.
pub(super) fn pools_table(storage: &StorageView) -> Table {
    let mut table = Table::new([
        left("pool"),
        left("state"),
        right("free"),
        right("total").plain_title("of"),
        right("writes"),
        prose("notes").plain_title("trouble"),
    ]);
    for pool in &storage.pools {
        table.row([
            Cell::text(pool.name.as_str()),
            Cell::both(pool.words(), pool.state.word()),
            Cell::bytes(pool.free_bytes),
            Cell::bytes(pool.total_bytes),
            Cell::maybe(pool.write_bytes_per_s, |rate| Cell::rate(rate as f64)),
            Cell::maybe(pool.trouble.as_ref(), |fault| Cell::text(fault.to_string()).toned(Tone::Warn)),
        ]);
    }
    table
}

/// Whether more is promised than is free.
fn is_short(storage: &StorageView) -> bool {
    storage.promised_bytes.is_some_and(|promised| promised > storage.free_bytes)
}

/// Cells for space and contents: free, total, files, bytes, problem.
pub(super) fn space_cells(storage: &StorageView) -> [Cell; 5] {
    let notes = match (&storage.trouble, &storage.tape_queue) {
        (Some(fault), _) => Cell::text(fault.to_string()).toned(Tone::Warn),
        (None, Some(queue)) => Cell::text(format!("from tape: {}", queue.words(clock::now()))),
        (None, None) => Cell::text(""),
    };
    // Nobody tells it: neither the server nor a report.
    let space = |bytes| match storage.total_bytes {
        0 => Cell::both("–", "0"),
        _ => Cell::bytes(bytes),
    };
    [
        space(storage.free_bytes),
        space(storage.total_bytes),
        Cell::count(storage.files),
        Cell::bytes(storage.bytes),
        notes,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(change: impl FnOnce(&mut StorageRemoved)) -> String {
        let mut reply = StorageRemoved {
            storage: "beta".parse().unwrap(),
            site: "site2".parse().unwrap(),
            removed: false,
            served_by: None,
            datasets: Vec::new(),
            files: 0,
            bytes: 0,
            last_replicas: 0,
            leases_in: 0,
            leases_out: 0,
            tasks: 0,
            subscriptions: Vec::new(),
        };
        change(&mut reply);
        removal(&reply)
    }

    #[test]
    fn a_dry_run_names_the_command_that_can_be_given_next() {
        let text = removed(|_| {});
        assert!(text.ends_with("nothing was changed; to remove it: longhaul storage remove beta --yes"));
        let text = removed(|reply| reply.last_replicas = 2);
        assert!(text.ends_with("longhaul storage remove beta --yes --force"), "{text}");
        let text = removed(|reply| reply.subscriptions = vec![longhaul_model::SubscriptionId(5)]);
        let id = longhaul_model::SubscriptionId(5);
        assert!(text.contains(&format!("longhaul subscription cancel {id}")), "{text}");
        assert!(text.ends_with("\nnothing was changed"), "{text}");
        let text = removed(|reply| reply.served_by = Some(longhaul_model::AgentId(7)));
        assert!(text.contains("stop it") && text.ends_with("\nnothing was changed"), "{text}");
        let text = removed(|reply| reply.removed = true);
        assert_eq!(text, "beta of site2 is removed; another storage may take its name");
    }

    #[test]
    fn strategies_are_those_that_are_known() {
        assert_eq!(parse_strategy("auto").unwrap(), "queue");
        assert_eq!(parse_strategy("none").unwrap(), "none");
        assert!(parse_strategy("fastest").unwrap_err().contains("known are best"));
        assert!(parse_yes_no("maybe").is_err());
    }
}
