//! `longhaul man`: manual pages, one for each command, from the same definition as the flags.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use super::Context;
use crate::cli::Cli;
use crate::failure::{Exit, Failure};

/// Of commands for users.
const SECTION: &str = "1";

#[derive(Debug, Args)]
#[command(after_help = "For everybody: longhaul man /usr/local/share/man/man1; then: man longhaul-copy")]
pub struct ManArgs {
    /// Where the pages go; made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn run(context: &Context, args: ManArgs) -> Result<Exit, Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).map_err(|error| Failure::file("making", directory, &error))?;
    let mut command = Cli::command();
    command.build();
    let pages = write_pages(&command, "longhaul", directory)?;
    context.output.say(&format!("{pages} pages"));
    Ok(Exit::Ok)
}

/// The page of a command and those of the commands in it; how many.
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
