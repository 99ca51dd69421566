//! `longhaul network`: what is known of the network, and where it comes from.

pub mod archive;
mod explain;
pub mod links;
pub mod map;
mod probes;
pub mod unmapped;

use clap::Subcommand;

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;

#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    #[command(flatten)]
    Links(links::LinksCommand),
    /// Which site measurement hosts, foreign end points and networks belong to
    #[command(subcommand)]
    Map(map::MapCommand),
    /// Hosts that were measured and have no site, or only an inferred one
    Unmapped,
    /// Archives of measurements: list those that are read, check one
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
}

pub async fn run(context: &Context, remote: &Remote, command: NetworkCommand) -> Result<Exit, Failure> {
    match command {
        NetworkCommand::Links(command) => links::run(context, remote, command).await,
        NetworkCommand::Map(command) => map::run(context, remote, command).await,
        NetworkCommand::Unmapped => unmapped::run(context, remote).await,
        NetworkCommand::Archive(archive::ArchiveCommand::List) => archive::list(context, remote).await,
        NetworkCommand::Archive(archive::ArchiveCommand::Check(args)) => archive::check(context, args).await,
    }
}
