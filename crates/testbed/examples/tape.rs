//! `cargo xtask testbed tape`: ten thousand files of twenty cartridges, wanted at once.

// A command's output is its purpose here.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use longhaul_testbed::experiment_command::{exit_code, number, print_bars, read_options};
use longhaul_testbed::tape_recall::{Experiment, Outcome};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed tape [--json] [--files N] [--without-places] [--svg FILE]";
const PLOT: &str = "target/tape.svg";

fn main() -> ExitCode {
    exit_code(run())
}

/// Whether every bar was reached.
fn run() -> Result<bool, String> {
    let mut experiment = Experiment::default();
    let shown = read_options(USAGE, PLOT, |option, value| {
        match option {
            "--without-places" => experiment.tells_places = false,
            "--files" => experiment.files = number(value, USAGE)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !(1..=100_000).contains(&experiment.files) {
        return Err("--files is 1 to 100000".to_owned());
    }
    let outcome = experiment.run()?;
    let plot = shown.plot;
    std::fs::write(&plot, outcome.svg()).map_err(|error| format!("{plot}: {error}"))?;
    let (bars, Outcome { seconds, mounts, .. }) = (outcome.bars(), outcome);
    if shown.as_json {
        println!("{:#}", json!({ "bars": bars, "seconds": seconds, "mounts": mounts }));
    } else {
        println!("{} files in {seconds:.1} s, {mounts} mounts", experiment.files);
        print_bars(&bars);
        println!("plot: {plot}");
    }
    Ok(bars.iter().all(|bar| bar.reached))
}
