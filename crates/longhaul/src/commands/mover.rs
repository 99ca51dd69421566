//! `longhaul mover`.

use clap::{Args, Subcommand};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::{MoverGrantChange, MoverGrantView};
use longhaul_model::{CommunityName, SiteName};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};

#[derive(Debug, Subcommand)]
pub enum MoverCommand {
    /// List the sites whose agents stream copies between foreign storages, and for which communities
    List,
    /// Allow the agents of a site to stream for a community: they get the credentials of its jobs' copies
    Allow(GrantArgs),
    /// Allow it no longer; copies under way go on
    Refuse(GrantArgs),
}

#[derive(Debug, Args)]
pub struct GrantArgs {
    /// Site of the agents
    site: SiteName,
    /// Community whose jobs they may stream; * for all
    #[arg(value_parser = parse_community)]
    community: String,
}

const ALL_COMMUNITIES: &str = "*";

fn parse_community(text: &str) -> Result<String, String> {
    match text {
        ALL_COMMUNITIES => Ok(text.to_owned()),
        name => CommunityName::parse(name).map(|name| name.to_string()).map_err(|error| error.to_string()),
    }
}

pub async fn run(context: &Context, remote: &Remote, command: MoverCommand) -> Result<Exit, Failure> {
    let page = match command {
        MoverCommand::List => {
            Page { items: remote.list_all(&routes::MOVER_LIST, &[], &[]).await?, next: None }
        }
        MoverCommand::Allow(args) => set(remote, args, true).await?,
        MoverCommand::Refuse(args) => set(remote, args, false).await?,
    };
    context.output.table(&page, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

async fn set(remote: &Remote, args: GrantArgs, allowed: bool) -> Result<Page<MoverGrantView>, Failure> {
    let change = MoverGrantChange { site: args.site, community: args.community, allowed };
    remote.post(&routes::MOVER_SET, &[], &change).await
}

fn table(movers: &[MoverGrantView]) -> Table {
    let mut table = Table::new([left("site"), prose("streams for"), right("files at once")]);
    for mover in movers {
        let communities = match mover.communities.as_slice() {
            [] => "nobody".to_owned(),
            names => names.join(", "),
        };
        table.row([mover.site.to_string(), communities, mover.files.to_string()].map(Cell::text));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_community_is_a_name_or_all() {
        assert_eq!(parse_community("atlas").unwrap(), "atlas");
        assert_eq!(parse_community("*").unwrap(), "*");
        assert!(parse_community("two words").is_err());
    }
}
