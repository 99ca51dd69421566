//! `longhaul man`: manual pages, one per command, from the same definitions as the help.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use super::Context;
use crate::cli::Cli;
use crate::failure::{Exit, Failure};

/// Manual section of user commands.
const SECTION: &str = "1";

#[derive(Debug, Args)]
#[command(after_help = "For all users: longhaul man /usr/local/share/man/man1; then: man longhaul-copy")]
pub struct ManArgs {
    /// Directory for the pages; created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn run(context: &Context, args: ManArgs) -> Result<Exit, Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).map_err(|error| Failure::file("making", directory, &error))?;
    let mut command = Cli::command();
    command.build();
    let pages = write_pages(&command, "longhaul", directory)?;
    context.output.print_message(&format!("{pages} pages"));
    Ok(Exit::Ok)
}

/// Writes the pages of a command and its subcommands; returns how many.
fn write_pages(command: &clap::Command, name: &str, directory: &Path) -> Result<usize, Failure> {
    let path = directory.join(format!("{name}.{SECTION}"));
    let shown = command.clone().disable_help_subcommand(true);
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(shown).section(SECTION).manual("Longhaul").render(&mut page);
    written
        .and_then(|()| std::fs::write(&path, page))
        .map_err(|error| Failure::file("writing", &path, &error))?;
    let mut pages = 1;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        pages += write_pages(sub, &format!("{name}-{}", sub.get_name()), directory)?;
    }
    Ok(pages)
}
