//! `cargo xtask testbed pools`: files brought to eight disks, one of them four times slower; then the same
//! while one is drained.

// A command's output is its purpose here.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use longhaul_testbed::disk_pools::{Experiment, Outcome};
use longhaul_testbed::experiment_command::{exit_code, number, print_bars, read_options};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed pools [--json] [--files N] [--svg FILE]";
const PLOT: &str = "target/pools.svg";
/// Files of the pool that is drained: more than leave it meanwhile.
const DRAINED_FILES: usize = 200;

fn main() -> ExitCode {
    exit_code(run())
}

/// Whether every bar was reached.
fn run() -> Result<bool, String> {
    let mut experiment = Experiment::default();
    let shown = read_options(USAGE, PLOT, |option, value| {
        match option {
            "--files" => experiment.files = number(value, USAGE)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !(1..=10_000).contains(&experiment.files) {
        return Err("--files is 1 to 10000".to_owned());
    }
    let filled = experiment.run()?;
    let drained = Experiment { drained_files: DRAINED_FILES, ..experiment }.run()?;
    let plot = shown.plot;
    std::fs::write(&plot, filled.svg()).map_err(|error| format!("{plot}: {error}"))?;
    let bars = [filled.bars(), drained.bars()].concat();
    let seconds = |outcome: &Outcome| outcome.seconds;
    if shown.as_json {
        let times = [seconds(&filled), seconds(&drained)];
        println!("{:#}", json!({ "bars": bars, "seconds": times, "drained_files": drained.drained_files }));
    } else {
        let (files, first, second) = (filled.experiment.files, seconds(&filled), seconds(&drained));
        println!("{files} files in {first:.1} s; in {second:.1} s while one pool is drained");
        println!("{} files left the pool meanwhile", drained.drained_files);
        print_bars(&bars);
        println!("plot: {plot}");
    }
    Ok(bars.iter().all(|bar| bar.reached))
}
