//! `longhaul storage`.

pub mod rules;

use clap::{Args, Subcommand};
use longhaul_api::native::{Page, StorageView};
use longhaul_api::routes;
use longhaul_api::steering::StorageChange;
use longhaul_model::StorageName;
use longhaul_scheduler::Strategy;

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::Tone;

#[derive(Debug, Subcommand)]
pub enum StorageCommand {
    /// List storages with their space and settings
    List,
    /// Change a storage's settings; takes effect at once
    Set(SetArgs),
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
        StorageCommand::Rules(_) => unreachable!("run() took it"),
    }
    Ok(Exit::Ok)
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
        prose("problem").plain_title("trouble"),
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

/// Whether more is promised than is free.
fn is_short(storage: &StorageView) -> bool {
    storage.promised_bytes.is_some_and(|promised| promised > storage.free_bytes)
}

/// Cells for space and contents: free, total, files, bytes, problem.
pub(super) fn space_cells(storage: &StorageView) -> [Cell; 5] {
    let trouble = storage.trouble.as_ref().map(|fault| fault.to_string()).unwrap_or_default();
    [
        Cell::bytes(storage.free_bytes),
        Cell::bytes(storage.total_bytes),
        Cell::count(storage.files),
        Cell::bytes(storage.bytes),
        Cell::text(trouble).toned(Tone::Warn),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_those_that_are_known() {
        assert_eq!(parse_strategy("auto").unwrap(), "queue");
        assert_eq!(parse_strategy("none").unwrap(), "none");
        assert!(parse_strategy("fastest").unwrap_err().contains("known are best"));
        assert!(parse_yes_no("maybe").is_err());
    }
}
