//! `longhaul network`: what is known about the network, and its sources.

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
    /// Map measurement hosts, foreign endpoints and networks to sites
    #[command(subcommand)]
    Map(map::MapCommand),
    /// List measured hosts without a site, or with an inferred one
    Unmapped,
    /// Measurement archives: list, check
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
