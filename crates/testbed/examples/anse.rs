//! `cargo xtask testbed anse`: runs the experiment, prints its figures, draws its plot.

// A command's output is its purpose here.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use longhaul_testbed::anse::{Experiment, Figures, Outcome};
use serde_json::json;

const USAGE: &str = "usage: cargo xtask testbed anse [--json] [--half SECONDS] [--svg FILE]";
const PLOT: &str = "target/anse.svg";

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
            "--half" => experiment.half_s = value()?.parse().map_err(|_| USAGE)?,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if !(10.0..=3600.0).contains(&experiment.half_s) {
        return Err("--half is 10 to 3600 seconds".to_owned());
    }
    let outcome = experiment.run()?;
    std::fs::write(&plot, outcome.svg()).map_err(|error| format!("{plot}: {error}"))?;
    let figures = outcome.figures();
    if as_json {
        let shown = json!({ "figures": figures, "bars": figures.bars(), "story": outcome.story,
            "samples": outcome.record.samples });
        println!("{shown:#}");
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
