//! `longhaul completion`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Context;
use crate::cli::Cli;
use crate::failure::{Exit, Failure};

#[derive(Debug, Args)]
#[command(
    after_help = "For bash: longhaul completion bash > ~/.local/share/bash-completion/completions/longhaul"
)]
pub struct CompletionArgs {
    /// Shell to print completions for
    shell: Shell,
}

pub fn run(context: &Context, args: CompletionArgs) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "longhaul", &mut text);
    context.output.write(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Ok)
}
