//! `cargo xtask testbed agents`: one storage served by four agents over four emulated links.

// A command's output is its purpose here.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use longhaul_testbed::experiment_command::{exit_code, number, print_bars, read_options};
use longhaul_testbed::transfer_nodes::{Experiment, Outcome};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed agents [--json] [--link MBIT] [--kill SECONDS] [--svg FILE]";
const PLOT: &str = "target/agents.svg";

fn main() -> ExitCode {
    exit_code(run())
}

/// Whether every bar was reached.
fn run() -> Result<bool, String> {
    let mut experiment = Experiment::default();
    let shown = read_options(USAGE, PLOT, |option, value| {
        match option {
            "--link" => experiment.link_mbit = number(value, USAGE)?,
            "--kill" => experiment.kill_s = number(value, USAGE)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !(0.0..=3600.0).contains(&experiment.kill_s) {
        return Err("--kill is 0 to 3600 seconds".to_owned());
    }
    if !(1.0..=10_000.0).contains(&experiment.link_mbit) {
        return Err("--link is 1 to 10000 Mbit/s".to_owned());
    }
    let outcome = experiment.run()?;
    let plot = shown.plot;
    std::fs::write(&plot, outcome.svg()).map_err(|error| format!("{plot}: {error}"))?;
    if shown.as_json {
        let Outcome { one, all, killed, .. } = &outcome;
        println!("{:#}", json!({ "bars": outcome.bars(), "one": one, "all": all, "killed": killed }));
    } else {
        show(&outcome);
        println!("plot: {plot}");
    }
    Ok(outcome.bars().iter().all(|bar| bar.reached))
}

fn show(outcome: &Outcome) {
    let phases = [("one node", Some(&outcome.one)), ("four nodes", Some(&outcome.all))];
    for (name, phase) in phases.into_iter().chain([("with kills", outcome.killed.as_ref())]) {
        if let Some(phase) = phase {
            println!(
                "{name:<12} {:>6} files in {:>6.1} s: {:>6.1} MB/s, processors {:>3.0} % busy, {} kills",
                phase.files,
                phase.seconds,
                phase.mb_per_s(),
                phase.busy * 100.0,
                phase.kills
            );
        }
    }
    print_bars(&outcome.bars());
}
