//! `cargo xtask testbed agents`: one storage served by four agents over four emulated links.

// A command's output is its purpose here.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use longhaul_testbed::transfer_nodes::{Experiment, Outcome};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed agents [--json] [--link MBIT] [--kill SECONDS] [--svg FILE]";
const PLOT: &str = "target/agents.svg";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every bar was reached.
fn run(words: &[String]) -> Result<bool, String> {
    let (mut experiment, mut as_json, mut plot) = (Experiment::default(), false, PLOT.to_owned());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(USAGE);
        match word.as_str() {
            "--json" => as_json = true,
            "--svg" => plot.clone_from(value()?),
            "--link" => experiment.link_mbit = value()?.parse().map_err(|_| USAGE)?,
            "--kill" => experiment.kill_s = value()?.parse().map_err(|_| USAGE)?,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if !(0.0..=3600.0).contains(&experiment.kill_s) {
        return Err("--kill is 0 to 3600 seconds".to_owned());
    }
    if !(1.0..=10_000.0).contains(&experiment.link_mbit) {
        return Err("--link is 1 to 10000 Mbit/s".to_owned());
    }
    let outcome = experiment.run()?;
    std::fs::write(&plot, outcome.svg()).map_err(|error| format!("{plot}: {error}"))?;
    if as_json {
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
    for bar in outcome.bars() {
        let reached = if bar.reached { "reached" } else { "MISSED" };
        println!("{:<42} {:>8.2}  {:<6} {reached}", bar.figure, bar.measured, bar.wanted);
    }
}
