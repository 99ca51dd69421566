//! `longhaul link`.

use clap::{Args, Subcommand};
use longhaul_api::routes;
use longhaul_api::steering::{AllowedLink, LinksChange, LinksSet, LinksView};
use longhaul_model::StorageName;

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left};
use crate::terminal::Style;

#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// List the allowed links, and which storages are relays
    List,
    /// Allow only these links, replacing the present ones
    Only(LinksArgs),
    /// Allow more links
    Add(LinksArgs),
    /// Disallow links
    Remove(LinksArgs),
    /// Allow links between all storages (the initial state)
    OpenAll,
    /// Allow all transfers on links again (the initial state)
    Commission(LinksArgs),
    /// Allow only test transfers on links until they are commissioned; takes effect at once
    Decommission(LinksArgs),
}

#[derive(Debug, Args)]
pub struct LinksArgs {
    /// Links from one storage to another, such as alpha:beta
    #[arg(value_name = "SOURCE:TARGET", required = true)]
    links: Vec<LinkSpec>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec(AllowedLink);

impl std::str::FromStr for LinkSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (source, target) = text.split_once(':').ok_or("a link is SOURCE:TARGET, such as alpha:beta")?;
        let name = |text: &str| StorageName::parse(text).map_err(|error| error.to_string());
        Ok(LinkSpec(AllowedLink { source: name(source)?, target: name(target)? }))
    }
}

impl LinksArgs {
    fn links(self) -> Vec<AllowedLink> {
        self.links.into_iter().map(|LinkSpec(link)| link).collect()
    }
}

pub async fn run(context: &Context, remote: &Remote, command: LinkCommand) -> Result<Exit, Failure> {
    let set = |links| LinksSet { links };
    let view: LinksView = match command {
        LinkCommand::List => remote.get(&routes::LINK_LIST, &[], &[]).await?,
        LinkCommand::Only(args) => remote.post(&routes::LINK_SET, &[], &set(Some(args.links()))).await?,
        LinkCommand::OpenAll => remote.post(&routes::LINK_SET, &[], &set(None)).await?,
        LinkCommand::Add(args) => {
            let change = LinksChange { add: args.links(), ..LinksChange::default() };
            remote.patch(&routes::LINK_CHANGE, &[], &change).await?
        }
        LinkCommand::Remove(args) => {
            let change = LinksChange { remove: args.links(), ..LinksChange::default() };
            remote.patch(&routes::LINK_CHANGE, &[], &change).await?
        }
        LinkCommand::Commission(args) => {
            let change = LinksChange { commission: args.links(), ..LinksChange::default() };
            remote.patch(&routes::LINK_CHANGE, &[], &change).await?
        }
        LinkCommand::Decommission(args) => {
            let change = LinksChange { decommission: args.links(), ..LinksChange::default() };
            remote.patch(&routes::LINK_CHANGE, &[], &change).await?
        }
    };
    context.output.view(&view, human, table)?;
    Ok(Exit::Ok)
}

fn human(view: &LinksView, style: Style, width: Option<usize>) -> String {
    let relays: Vec<String> = view.relays.iter().map(ToString::to_string).collect();
    let relays = match relays.is_empty() {
        true => "no storage is a relay; to make one: longhaul storage set NAME --relay yes\n".to_owned(),
        false => format!("relays: {}\n", relays.join(", ")),
    };
    let tests: Vec<String> =
        view.uncommissioned.iter().map(|link| format!("{}:{}", link.source, link.target)).collect();
    let relays = match tests.is_empty() {
        true => relays,
        false => format!("{relays}not commissioned, test transfers only: {}\n", tests.join(", ")),
    };
    match view.open {
        true => format!("all links between storages are allowed\n{relays}"),
        false => format!("only these links are allowed\n{}{relays}", table(view).human(style, width)),
    }
}

fn table(view: &LinksView) -> Table {
    let mut table = Table::new([left("from"), left("to")]);
    for link in &view.links {
        table.row([Cell::text(link.source.as_str()), Cell::text(link.target.as_str())]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_two_ends() {
        let pair: LinkSpec = "alpha:beta".parse().unwrap();
        assert_eq!((pair.0.source.as_str(), pair.0.target.as_str()), ("alpha", "beta"));
        for wrong in ["alpha", "alpha:", ":beta", "a b:c"] {
            assert!(wrong.parse::<LinkSpec>().is_err(), "{wrong}");
        }
    }
}
