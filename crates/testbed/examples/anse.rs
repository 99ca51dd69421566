//! `cargo xtask testbed anse`: runs the experiment, prints its figures, draws its plot.

// A command's output is its purpose here.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use longhaul_testbed::anse::{Experiment, Figures, Outcome};
use longhaul_testbed::experiment_command::{exit_code, number, read_options};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed anse [--json] [--half SECONDS] [--svg FILE]";
const PLOT: &str = "target/anse.svg";

fn main() -> ExitCode {
    exit_code(run())
}

/// Whether every bar was reached.
fn run() -> Result<bool, String> {
    let mut experiment = Experiment::default();
    let shown = read_options(USAGE, PLOT, |option, value| {
        match option {
            "--half" => experiment.half_s = number(value, USAGE)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !(10.0..=3600.0).contains(&experiment.half_s) {
        return Err("--half is 10 to 3600 seconds".to_owned());
    }
    let outcome = experiment.run()?;
    let plot = shown.plot;
    std::fs::write(&plot, outcome.svg()).map_err(|error| format!("{plot}: {error}"))?;
    let figures = outcome.figures();
    if shown.as_json {
        let document = json!({ "figures": figures, "bars": figures.bars(), "story": outcome.story,
            "samples": outcome.record.samples });
        println!("{document:#}");
    } else {
        show(&outcome, &figures);
        println!("plot: {plot}");
    }
    Ok(figures.bars().iter().all(|bar| bar.reached))
}

fn show(outcome: &Outcome, figures: &Figures) {
    println!("{:<26} {:>10}  {:<8} {:<8} paper", "", "measured", "wanted", "");
    for bar in figures.bars() {
        let reached = if bar.reached { "reached" } else { "MISSED" };
        println!(
            "{:<26} {:>10.3}  {:<8} {:<8} {}",
            bar.figure,
            bar.measured,
            bar.wanted,
            reached,
            bar.paper.unwrap_or("–")
        );
    }
    let others = [
        ("shared_mbit", figures.shared_mbit),
        ("background_mbit", figures.background_mbit),
        ("dedicated_mbit", figures.dedicated_mbit),
        ("dedicated_over_shared", figures.dedicated_over_shared),
        ("decision_s", figures.decision_s),
        ("payload_share", figures.payload_share),
        ("surplus_mb", figures.surplus_mb),
        ("resent_mb_max", figures.resent_mb_max),
    ];
    others.iter().for_each(|(name, value)| println!("{name:<26} {value:>10.3}"));
    outcome.story.iter().for_each(|line| println!("  {line}"));
}
