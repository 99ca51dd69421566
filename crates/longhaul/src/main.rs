//! The `longhaul` program: command line, configuration, wiring, and the demo. All work is done by the other
//! crates; here is what a person types, sees and configures.
//!
//! Not here: decisions about data (`scheduler`), its bytes (`engine`), web pages (`web`). Start with [`cli`],
//! which lists the commands; each is in `commands` under its noun; `demo` runs a whole deployment on one
//! machine with these commands and the public API.

mod cli;
mod clock;
mod commands;
mod config;
mod demo;
mod failure;
mod hardening;
mod logging;
mod output;
mod password_input;
mod progress;
mod remote;
mod signals;
mod table;
mod terminal;
mod time_format;
mod usage;

use std::process::ExitCode;

use clap::Parser;

use cli::Cli;
use failure::Exit;
use output::{Format, Output};

fn main() -> ExitCode {
    let sealed = hardening::harden_process();
    let exit = match Cli::try_parse() {
        Ok(cli) => run(cli, sealed),
        Err(error) => usage::explain(&error, std::env::args_os().any(|argument| argument == "--json")),
    };
    ExitCode::from(exit as u8)
}

fn run(cli: Cli, sealed: std::io::Result<()>) -> Exit {
    if cli.global.exit_with_parent {
        signals::exit_with_parent();
    }
    let format = match (cli.global.json, cli.global.plain) {
        (true, _) => Format::Json,
        (_, true) => Format::Plain,
        _ => Format::Human,
    };
    let output = Output::new(format, cli.global.no_color, cli.global.quiet);
    if let Err(error) = sealed {
        output.print_message(&format!(
            "warning: other processes of this user can read this process's memory, since the kernel refused \
                to protect it: {error}"
        ));
    }
    commands::run(cli, output).unwrap_or_else(|failure| {
        let failure = failure.with_id(clock::new_incident_id);
        let problem = &failure.problem;
        if let Some(id) = problem.instance {
            tracing::error!(
                %id,
                code = %problem.code,
                title = problem.title,
                detail = problem.detail_chain().to_string(),
                "command failed"
            );
        }
        output.fail(&failure);
        failure.exit
    })
}
