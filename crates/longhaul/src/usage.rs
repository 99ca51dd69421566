//! Usage errors, in the four parts of every error.

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::cli::Cli;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output};

/// Prints help and version as requested; anything else as an error.
pub fn explain(error: &clap::Error, json: bool) -> Exit {
    let format = if json { Format::Json } else { Format::Human };
    let output = Output::new(format, false, false);
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            let text =
                if output.out.style.is_coloured() { text.ansi().to_string() } else { text.to_string() };
            output.write(&text).map_or(Exit::Other, |()| Exit::Ok)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = output.error.write(&error.render().to_string());
            Exit::Usage
        }
        _ => {
            let command =
                named_command(std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()));
            output.fail(&failure(&error.render().to_string(), &command).with_id(clock::new_incident_id));
            Exit::Usage
        }
    }
}

/// The command that the words of a command line name, whatever else they are.
fn named_command(words: impl IntoIterator<Item = String>) -> String {
    let mut command = Cli::command();
    let mut name = String::from("longhaul");
    for word in words {
        let Some(named) = command.find_subcommand(&word).cloned() else { continue };
        name = format!("{name} {}", named.get_name());
        command = named;
    }
    name
}

/// Parses clap's text: `error: WHAT[: WHY]`, then perhaps `tip: NEXT`, then `Usage: …`. Without the latter,
/// `named` is the command.
fn failure(text: &str, named: &str) -> Failure {
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    });
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let (title, reason) = match what.split_once("': ") {
        Some((title, reason)) => (format!("{title}'"), reason.to_owned()),
        None => (what.to_owned(), String::new()),
    };
    let (mut tip, mut usage) = (String::new(), String::new());
    for paragraph in paragraphs {
        if let Some(text) = paragraph.strip_prefix("tip: ") {
            tip = text.to_owned();
        } else if let Some(text) = paragraph.strip_prefix("Usage: ") {
            usage = text.to_owned();
        }
    }
    let command: Vec<&str> =
        usage.split(' ').take_while(|word| word.starts_with(char::is_alphabetic)).collect();
    let command = if command.is_empty() { named.to_owned() } else { command.join(" ") };
    let help = format!("{command} --help");
    let next = if tip.is_empty() { help } else { format!("{tip}; see {help}") };
    let why = match (reason.is_empty(), usage.is_empty()) {
        (false, _) => reason,
        (true, false) => format!("usage: {usage}"),
        (true, true) => String::new(),
    };
    Failure::usage(title, why, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn explained(arguments: &[&str]) -> Failure {
        let all = std::iter::once("longhaul").chain(arguments.iter().copied());
        let named = named_command(arguments.iter().map(|word| (*word).to_owned()));
        failure(&Cli::try_parse_from(all).unwrap_err().render().to_string(), &named)
    }

    #[test]
    fn wrong_use_has_what_why_and_next() {
        let problem = explained(&["site", "show"]).problem;
        assert!(problem.title.contains("<SITE>"), "{problem:?}");
        assert!(problem.detail.contains("longhaul site show"), "{problem:?}");
        assert_eq!(problem.remedy, "longhaul site show --help");

        let problem = explained(&["datset", "list"]).problem;
        assert!(problem.title.contains("datset") && problem.remedy.contains("dataset"), "{problem:?}");

        let problem = explained(&["site", "show", "a b"]).problem;
        assert!(problem.title.contains("invalid value 'a b'"), "{problem:?}");
        assert!(problem.detail.contains("characters other than"), "{problem:?}");
        assert_eq!(problem.remedy, "longhaul site show --help");

        let failure = explained(&["dataset", "register", "a/b"]);
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.problem.title.contains("--scan"), "{failure:?}");
    }
}
